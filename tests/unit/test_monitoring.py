"""Health and metrics of a store: what an operator is told, by an ASGI application or in a registry of one's own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import posix
import random
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.applications import Starlette
from starlette.routing import Mount

import tracekit
from tests.support import plain_writer
from tests.support.cut import cut, lines
from tests.support.stub_provider import stub_provider
from tests.support.tracing import entries, of_type
from tracekit import RunStateError, record, recovery, traced_tool
from tracekit.errors import StepTimeoutError
from tracekit.monitoring import RunCollector, asgi_app, check_health

STATES = {"running", "complete", "failed", "aborted", "died", "broken", "unreadable"}


class Metrics:
    """The metrics of a store, as Prometheus reads them."""

    def __init__(self, store: Path) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(RunCollector(store))

    def scrape(self) -> dict[tuple[str, ...], float]:
        """Each sample by its name and the values of its labels, in the order of their names."""
        return samples(generate_latest(self.registry).decode())

    def runs(self) -> dict[str, int]:
        return {key[1]: int(value) for key, value in self.scrape().items() if key[0] == "tracekit_runs" and value}


def samples(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in parse(text):
        for sample in family.samples:
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return found


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order


@traced_tool(side_effect="irreversible")
def pay(order: str) -> str:
    if order == "bad":
        raise ConnectionResetError("the answer was lost")
    return order


def paid(store: Path, order: str = "o-1") -> Any:
    with record("shop", store=store) as run:
        look(order)
        pay(order)
    return run


@pytest.fixture
def put(tmp_path: Path) -> Iterator[Callable[[str, list[dict[str, Any]]], None]]:
    """Writes a trace that somebody made up, chained as it must be; what is no trace of tracekit's own does not stay."""
    runs = tmp_path / "runs"
    runs.mkdir()

    def write(run_id: str, made_up: list[dict[str, Any]]) -> None:
        (runs / f"{run_id}.jsonl").write_bytes(b"".join(plain_writer.lines(made_up, run_id=run_id)))

    yield write
    shutil.rmtree(runs)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_runs_are_counted_by_their_state(tmp_path: Path) -> None:
    """A run goes on, has ended in one of three ways, or has died; each is counted as what it is, and all states are always there."""
    metrics = Metrics(tmp_path)
    assert metrics.runs() == {}
    assert {key[1] for key in metrics.scrape() if key[0] == "tracekit_runs"} == STATES
    with record("one", store=tmp_path):
        look("a")
        assert metrics.runs() == {"running": 1}
        assert metrics.scrape()["tracekit_running_oldest_seconds",] > 0
    with pytest.raises(ValueError, match="no"), record("two", store=tmp_path):
        raise ValueError("no")
    with record("three", store=tmp_path) as run:
        run.abort("changed our mind")
    paid(tmp_path)
    assert metrics.runs() == {"complete": 2, "failed": 1, "aborted": 1}
    cut(run, 1, tmp_path / "other")
    assert Metrics(tmp_path / "other").runs() == {"died": 1}
    assert metrics.scrape()["tracekit_run_duration_seconds_count", "complete"] == 2
    assert metrics.scrape()["tracekit_running_oldest_seconds",] == 0


def test_buckets_are_cumulative(tmp_path: Path) -> None:
    """Prometheus' own parser reads text and OpenMetrics; each bucket counts what lies below it, the last one everything."""
    for _ in range(3):
        paid(tmp_path)
    metrics = Metrics(tmp_path)
    found = metrics.scrape()
    buckets = {
        float(key[2]): value
        for key, value in found.items()
        if key[:2] == ("tracekit_step_duration_seconds_bucket", "tool")
    }
    counts = [buckets[bound] for bound in sorted(buckets)]
    assert counts == sorted(counts)
    assert counts[-1] == found["tracekit_step_duration_seconds_count", "tool"] == 6
    assert found["tracekit_steps_total", "tool", "ok"] == 6
    assert found["tracekit_step_duration_seconds_sum", "tool"] > 0


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut_off(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _renamed(path: Path) -> None:
    path.rename(path.with_name("another.jsonl"))


def _newer(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'{"v":1,', b'{"v":2,', 1))


@pytest.mark.parametrize(
    ("damage", "state"), [(_flip, "broken"), (_cut_off, "broken"), (_renamed, "broken"), (_newer, "unreadable")]
)
def test_a_damaged_run_is_counted_as_such(tmp_path: Path, damage: Any, state: str) -> None:
    """A flipped bit, lines cut off a finished run, another name, a newer format: counted, and the other runs' figures are there."""
    paid(tmp_path)
    run = paid(tmp_path)
    metrics = Metrics(tmp_path)
    assert metrics.runs() == {"complete": 2}
    damage(Path(run.path))
    assert metrics.runs() == {"complete": 1, state: 1}
    assert Metrics(tmp_path).runs() == {"complete": 1, state: 1}


def test_no_line_that_verifies_breaks_a_scrape(tmp_path: Path, put: Any) -> None:
    """Entries of a trace that somebody made up, chained as they must be, with every key of a type that it never has."""
    rng = random.Random(11)
    values: list[Any] = [
        None,
        0,
        -1,
        "x",
        [],
        {},
        [1],
        {"usage": 3},
        {"info": []},
        {"error": {"type": 1}},
        2**70,
        "\u2028",
    ]
    kinds = ["llm.request", "llm.response", "llm.chunk", "tool.call", "tool.error", "boundary", "lane", "run.failed"]
    kinds += [
        "http.response",
        "contract.violated",
        "final.response",
        "decision",
        "blob",
        "run.started",
        "recovery.settled",
    ]
    paid(tmp_path)
    for number in range(60):
        made_up = []
        for seq in range(1, 12):
            keys = [key for key in ("name", "input", "output", "error", "meta", "agent_id") if rng.random() < 0.6]
            step = {"step": rng.randrange(1, seq)} if seq > 1 else {}
            made_up.append(plain_writer.entry(rng.choice(kinds), **step, **{key: rng.choice(values) for key in keys}))
        put(f"made-up-{number}", made_up)
    found = Metrics(tmp_path).runs()
    assert sum(found.values()) == 61
    assert found["complete"] == 1


def test_a_directory_that_cannot_be_listed_keeps_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is away for a moment does not have every run counted again when it is back."""
    paid(tmp_path)
    metrics = Metrics(tmp_path)
    before = metrics.scrape()
    list_directory = os.scandir

    def refused(path: Any = ".") -> Any:
        if os.fspath(path) == str(tmp_path / "runs"):
            raise PermissionError(13, "Permission denied")
        return list_directory(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        patched.setattr(posix, "scandir", refused)
        away = metrics.scrape()
    assert (before["tracekit_store_readable",], away["tracekit_store_readable",]) == (1, 0)
    (tmp_path / "runs").rename(tmp_path / "moved")
    gone = metrics.scrape()
    assert gone["tracekit_store_readable",] == 0
    (tmp_path / "moved").rename(tmp_path / "runs")
    again = metrics.scrape()
    for found in (away, gone, again):
        assert {key: found[key] for key in before if key[0].endswith(("_total", "_count", "_runs"))} == {
            key: value for key, value in before.items() if key[0].endswith(("_total", "_count", "_runs"))
        }


# -- incrementally -----------------------------------------------------------------------------------------------------


def test_what_was_read_once_is_not_read_again(tmp_path: Path) -> None:
    """A run that has ended is read once; of one that goes on, what was added."""
    finished = paid(tmp_path)
    metrics = Metrics(tmp_path)

    def read() -> float:
        return metrics.scrape()["tracekit_read_bytes_total",]

    whole = Path(finished.path).stat().st_size
    assert read() == whole
    assert read() == whole
    with record("live", store=tmp_path) as run:
        for _ in range(5):
            look("a")
            assert read() == whole + Path(run.path).stat().st_size
    assert read() == read() == whole + Path(run.path).stat().st_size


def test_one_by_one_or_at_once_makes_no_difference(tmp_path: Path) -> None:
    """Figures that were put together while a run was written, half a line at a time, are those of whoever reads it whole."""
    with record("shop", store=tmp_path / "from") as run:
        look("a")
        with pytest.raises(ConnectionResetError):
            pay("bad")
        pay("good")
    store = tmp_path / "to"
    (store / "runs").mkdir(parents=True)
    slowly = Metrics(store)
    with open(store / "runs" / Path(run.path).name, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as who writes a run does
        for line in lines(run):
            file.write(line[: len(line) // 2])
            assert slowly.runs() == {"running": 1}
            file.write(line[len(line) // 2 :])
    changing = ("tracekit_store_free_bytes", "tracekit_in_doubt_oldest_seconds")

    def steady(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
        return {key: value for key, value in found.items() if key[0] not in changing}

    assert steady(slowly.scrape()) == steady(Metrics(store).scrape())
    assert slowly.runs() == {"complete": 1}


def test_who_dies_and_goes_on_is_counted_once(tmp_path: Path) -> None:
    """A run is dead once nobody holds its file, though nothing of that has changed; what it adds later is added, nothing twice."""
    whole = paid(tmp_path / "from")
    path = Path(cut(whole, 4, tmp_path / "to"))
    metrics = Metrics(tmp_path / "to")
    with open(path, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert metrics.runs() == {"running": 1}
        steps = metrics.scrape()["tracekit_steps_total", "tool", "ok"]
    assert metrics.runs() == {"died": 1}
    assert metrics.scrape()["tracekit_failures_total", "agent_crashed"] == 1
    with open(path, "ab", buffering=0) as file:
        file.write(b"".join(lines(whole)[4:]))
    assert metrics.runs() == {"complete": 1}
    found = metrics.scrape()
    assert found["tracekit_steps_total", "tool", "ok"] == steps + 1 == 2
    assert found["tracekit_failures_total", "agent_crashed"] == 1


def test_counters_never_go_down(tmp_path: Path) -> None:
    """What was counted stays counted when old runs are removed; a fall would be taken for a restart."""
    runs = [paid(tmp_path) for _ in range(3)]
    metrics = Metrics(tmp_path)
    before = metrics.scrape()
    for run in runs:
        Path(run.path).unlink()
    after = metrics.scrape()
    assert after["tracekit_runs", "complete"] == 0
    assert after["tracekit_steps_total", "tool", "ok"] == before["tracekit_steps_total", "tool", "ok"] == 6
    assert after["tracekit_run_duration_seconds_count", "complete"] == 3
    paid(tmp_path)
    assert metrics.scrape()["tracekit_steps_total", "tool", "ok"] == 8


def test_several_scrapes_at_once(tmp_path: Path) -> None:
    """Scrapes in several threads, while a run goes on, count nothing twice."""
    metrics = Metrics(tmp_path)
    with record("live", store=tmp_path):
        for _ in range(20):
            look("a")
            threads = [threading.Thread(target=metrics.scrape) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert metrics.scrape()["tracekit_steps_total", "tool", "ok"] == 20


# -- what is in them ---------------------------------------------------------------------------------------------------


@pytest.fixture
def provider() -> Iterator[str]:
    tracekit.instrument()
    try:
        with stub_provider() as found:
            yield found.url
    finally:
        tracekit.uninstrument()


def test_tokens_cost_and_failures(tmp_path: Path, provider: str) -> None:
    """Each model call's tokens and price, and each failure by its type, as `tracekit failures` lists them."""
    client = openai.OpenAI(base_url=f"{provider}/v1", api_key="k", max_retries=0)
    metrics = Metrics(tmp_path)
    with record("chat", store=tmp_path) as run:
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}])
        with pytest.raises(ConnectionResetError):
            pay("bad")
    (answer,) = of_type(run, "llm.response")
    usage = answer["meta"]["usage"]
    found = metrics.scrape()
    assert found["tracekit_tokens_total", "gpt-4o-mini", "input"] == usage["input_tokens"]
    assert found["tracekit_tokens_total", "gpt-4o-mini", "output"] == usage["output_tokens"]
    assert found["tracekit_model_calls_total", "gpt-4o-mini", "known"] == 1
    assert found["tracekit_cost_usd_total", "gpt-4o-mini"] > 0
    types = [one.failure.type.value for one in tracekit.recorded_failures(store=tmp_path)]
    counted = {key[1]: value for key, value in found.items() if key[0] == "tracekit_failures_total" and value}
    assert counted == {kind: types.count(kind) for kind in types}
    assert types


def test_a_trace_cannot_make_labels_without_end(tmp_path: Path, put: Any) -> None:
    """A trace may name any model: a hundred are told apart, the rest is one; the text stays one that Prometheus reads."""
    made_up = []
    for number in range(500):
        made_up.append(plain_writer.entry("llm.request", name="m", meta={"model": f'm"{number}\n{"x" * 300}'}))
        usage = {"usage": {"input_tokens": 1}}
        made_up.append(plain_writer.entry("llm.response", step=len(made_up), meta=usage))
    put("models", made_up)
    found = {key[1]: value for key, value in Metrics(tmp_path).scrape().items() if key[0] == "tracekit_tokens_total"}
    assert len(found) == 101
    assert found["other"] == 400
    assert max(map(len, found)) <= 100


@traced_tool(side_effect="irreversible", timeout_ms=20, exactly_once=True, idempotency_key="order")
async def transfer(order: str) -> None:
    await asyncio.Event().wait()


def test_what_is_in_doubt_is_what_recovery_says(tmp_path: Path) -> None:
    """In a run that goes on, in one that has ended, in one that died; no more once a person has settled it."""
    metrics = Metrics(tmp_path)

    def figures() -> tuple[float, float, float]:
        found = metrics.scrape()
        age = found["tracekit_in_doubt_oldest_seconds",]
        listed = recovery.in_doubt(tmp_path)
        assert found["tracekit_in_doubt_steps", "true"] == len(listed.in_doubt)
        assert found["tracekit_running_effects",] == len(listed.running)
        assert (age > 0) == bool(listed.in_doubt)
        if listed.in_doubt:
            assert abs(age - max(one.age.total_seconds() for one in listed.in_doubt)) < 5
        return found["tracekit_in_doubt_steps", "true"], found["tracekit_running_effects",], age

    begun, go = threading.Event(), threading.Event()

    @traced_tool(side_effect="irreversible")
    def book() -> None:
        begun.set()
        assert go.wait(60)

    paid(tmp_path)
    assert figures()[:2] == (0, 0)
    with record("shop", store=tmp_path) as run:
        booking = threading.Thread(target=book)
        booking.start()
        assert begun.wait(60)
        assert figures()[:2] == (0, 1)
        go.set()
        booking.join()
        with pytest.raises(StepTimeoutError):
            asyncio.run(transfer("o-17"))
        assert figures()[:2] == (1, 0)
    assert figures()[:2] == (1, 0)
    (one,) = recovery.in_doubt(tmp_path).in_doubt
    recovery.settle(run.id, one.step, output=None, reason="asked the bank", store=tmp_path)
    assert figures()[:2] == (0, 0)
    (call,) = [entry for entry in of_type(run, "tool.call") if entry["name"].endswith("book")]
    died = tmp_path / "died"
    cut(run, call["seq"], died)
    assert Metrics(died).scrape()["tracekit_in_doubt_steps", "true"] == 1 == len(recovery.in_doubt(died).in_doubt)
    recovery.settle(run.id, call["seq"], output=None, reason="asked the bank", store=died)
    found = Metrics(died).scrape()  # how long the person took is not how long the step took
    assert (
        found["tracekit_steps_total", "tool", "ok"],
        found.get(("tracekit_step_duration_seconds_count", "tool"), 0),
    ) == (1, 0)


def test_every_metric_is_documented(tmp_path: Path) -> None:
    """The table of the reference has each metric with its kind and labels, and no other."""
    paid(tmp_path)
    page = (Path(__file__).parents[2] / "docs/reference/monitoring.md").read_text("utf-8")
    listed = {}
    for names, kind, labels in re.findall(r"^\| (`tracekit_.*?) \| (\w+) \| (.*?) \|", page, re.MULTILINE):
        for name in re.findall("`(.*?)`", names):
            listed[name] = kind, set(re.findall("`(.*?)`", labels))
    metrics = Metrics(tmp_path)
    families = {family.name: family for family in parse(generate_latest(metrics.registry).decode())}
    assert {name: kind for name, (kind, _) in listed.items()} == {name: one.type for name, one in families.items()}
    for name, family in families.items():
        assert {label for one in family.samples for label in one.labels} - {"le"} <= listed[name][1]


# -- health and the application ----------------------------------------------------------------------------------------


def get(app: Any, path: str, **options: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store") as client:
            return await client.request(options.pop("method", "GET"), path, **options)

    return asyncio.run(ask())


def test_a_healthy_store_answers_200_and_an_unhealthy_one_503(tmp_path: Path) -> None:
    """With each check, so that it is seen which one failed."""
    paid(tmp_path)
    found = get(asgi_app(tmp_path), "/health")
    assert found.status_code == 200
    assert found.json()["status"] == "healthy"
    assert {name: check["ok"] for name, check in found.json()["checks"].items()} == {
        "readable": True, "writable": True, "space": True,
    }  # fmt: skip
    found = get(asgi_app(tmp_path, min_free=2**62), "/health")
    assert (found.status_code, found.json()["status"]) == (503, "unhealthy")
    assert {name for name, check in found.json()["checks"].items() if not check["ok"]} == {"space"}
    assert "bytes are free" in found.json()["checks"]["space"]["detail"]
    assert os.listdir(tmp_path / "runs") == [Path(path).name for path in (tmp_path / "runs").glob("*.jsonl")]


@pytest.mark.parametrize("fails", ["scandir", "open"])
def test_a_store_that_cannot_be_read_or_written_is_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """As it is for a disk that only reads, or a directory of another user."""
    paid(tmp_path)
    before = getattr(os, fails)

    def refused(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(str(tmp_path)):
            raise OSError(30, "Read-only file system", str(path))
        return before(path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, fails, refused)
        patched.setattr(posix, fails, refused)
        health = check_health(tmp_path)
    failed = [check for check in health.checks if not check.ok]
    assert [check.name for check in failed] == ["readable" if fails == "scandir" else "writable"]
    assert failed[0].detail.endswith("Read-only file system")
    assert not health.ok


def test_a_store_that_is_not_there_yet_is_healthy_where_it_can_be_made(tmp_path: Path) -> None:
    """An agent that has recorded nothing yet is ready; nothing is made by asking."""
    assert check_health(tmp_path / "new" / "store").ok
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    assert not check_health(tmp_path / "file" / "store").ok


@pytest.mark.parametrize("left", [True, False])
def test_a_store_whose_runs_are_gone_is_unhealthy(tmp_path: Path, left: bool) -> None:
    """A volume that is no longer mounted, or a directory that somebody has removed: whether the store has lost only its
    runs, or is gone as a whole since the application was last asked. It is healthy again as soon as they are back."""
    store = tmp_path / "store"
    with record("paid", store=store):
        pass
    app = asgi_app(store)
    assert get(app, "/health").status_code == 200
    gone = store / "runs" if left else store
    gone.rename(tmp_path / "away")
    found = get(app, "/health")
    assert (found.status_code, found.json()["checks"]["readable"]["ok"]) == (503, False)
    assert found.json()["checks"]["readable"]["detail"].startswith("the runs are gone: there is no ")
    assert check_health(store).ok is not left  # of a store that is gone as a whole, nobody else knows
    (tmp_path / "away").rename(gone)
    assert get(app, "/health").status_code == 200


def test_it_is_mounted_in_an_application_of_ones_own(tmp_path: Path) -> None:
    """Below any path of a Starlette or FastAPI application; what is not there is 404, and nothing can be posted."""
    app = Starlette(routes=[Mount("/ops/tracekit", app=asgi_app(tmp_path))])
    paid(tmp_path)
    found = get(app, "/ops/tracekit/metrics")
    assert found.status_code == 200
    assert samples(found.text)["tracekit_runs", "complete"] == 1
    assert found.headers["content-type"].startswith("text/plain; version=")
    found = get(app, "/ops/tracekit/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert found.headers["content-type"].startswith("application/openmetrics-text")
    assert "tracekit_runs" in {family.name for family in parse_openmetrics(found.text)}
    assert get(app, "/ops/tracekit/health").status_code == 200
    assert get(app, "/ops/tracekit/").status_code == 404
    assert get(app, "/ops/tracekit/metrics", method="POST").status_code == 405
    head = get(app, "/ops/tracekit/metrics", method="HEAD")
    assert (head.status_code, head.content) == (200, b"")


def test_a_request_for_metrics_is_no_part_of_a_run(tmp_path: Path) -> None:
    """An application that records each of its requests has nothing of the metrics in them."""
    app = asgi_app(tmp_path)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store") as client:
            with record("request", store=tmp_path) as run:
                assert (await client.get("/metrics")).status_code == 200
                assert (await client.get("/health")).status_code == 200
        found = [
            entry for entry in entries(run) if not str(entry.get("name")).endswith(":httpx")
        ]  # whether its cookies have expired, and how long the client waited
        assert [entry["type"] for entry in found] == ["run.started", "run.completed"]

    asyncio.run(ask())


def test_nothing_that_a_program_said_is_shown(tmp_path: Path, provider: str) -> None:
    """No prompt, answer, argument, result, error text, name of a run, or environment is in any answer."""
    secret = "canary-4711-text"
    client = openai.OpenAI(base_url=f"{provider}/v1", api_key="k", max_retries=0)

    def talk() -> None:
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": secret}])
        pay(secret)
        tracekit.decision(secret, input=secret, output=secret)
        raise ValueError(secret)

    run = record(f"run {secret}", store=tmp_path, input=secret, metadata={"a": secret})
    with pytest.raises(ValueError, match="canary"):
        run(talk)()
    (path,) = (tmp_path / "runs").iterdir()
    assert secret in path.read_text()
    app = asgi_app(tmp_path)
    for path in ("/metrics", "/health", "/", f"/{secret}x"):
        assert secret not in get(app, path).text


def test_without_its_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prometheus-client` is an extra: who has not got it is told its name, and health works without."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(RunStateError, match=r"pip install prometheus-client"):
        asgi_app(tmp_path)
    assert check_health(tmp_path).ok
