"""Replays in which some steps go live."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
import requests
from click.testing import CliRunner

import tracekit
from tests.support.stub_provider import StubProvider, stub_provider
from tracekit import decision, policy_check, record, replay, traced_tool
from tracekit.cli import main
from tracekit.errors import InexactReplayError
from tracekit.integration import Store, Trace

live: list[str] = []


@traced_tool(side_effect="read_only")
def search(query: str) -> float:
    live.append("search")
    return random.random()


@traced_tool(side_effect="read_only")
def read(name: str) -> str:
    live.append("read")
    return f"{name} {search(name)}"


@traced_tool(side_effect="irreversible")
def charge(cents: int) -> int:
    live.append("charge")
    return cents


def program() -> list[object]:
    return [search("a"), charge(1), read("b"), random.random()]


@pytest.fixture(autouse=True)
def nothing_live() -> None:
    live.clear()


def test_what_it_writes_says_what_it_is() -> None:
    """The new run is shown, reported and audited as a replay of the other one: an effect in it was answered, not
    executed."""
    with record("shop") as run:
        program()
    with replay(run.id, live={"tool:search"}) as session:
        program()
    assert live.count("charge") == 1
    assert session.new_run_id is not None
    for command in ("show", "audit", "report"):
        done = CliRunner().invoke(main, [command, session.new_run_id, *(["-o", "-"] if command == "report" else [])])
        assert f"replay of {run.id}, live: tool:search" in " ".join(done.stdout.split()), (command, done.output)


def test_a_call_that_does_not_fit_raises_one_error() -> None:
    """A call with an argument that the tool does not have raises Python's own error, with no other behind it."""
    with record("shop"), pytest.raises(TypeError) as found:
        charge(euros=1)  # type: ignore[call-arg]
    assert found.value.__context__ is None


def test_only_what_was_named_goes_live() -> None:
    """``live={"tool:search"}`` calls that tool for real and answers everything else from the file."""
    with record() as run:
        first = program()
    live.clear()
    with replay(run, live={"tool:search"}) as session:
        second = program()
    assert live == ["search"]
    assert second[0] != first[0]
    assert second[1:] == first[1:]
    assert [difference["name"] for difference in session.report.differences] == ["search"]


def test_a_new_run_is_written_that_names_its_origin() -> None:
    """The partial replay is a run of its own: it names the one it comes from, verifies, and replays exactly."""
    with record() as run:
        program()
    with replay(run, live={"tool:search"}) as session:
        second = program()
    new = session.new_run_id
    assert new is not None
    assert new != run.id
    store = Store()
    assert store.verify(new).state == "complete"
    with Trace(store.find(new)) as trace:
        assert trace.entry(1)["meta"]["origin"]["run_id"] == run.id
        assert trace.entry(1)["cause"] == [{"run_id": run.id, "seq": 1}]
    live.clear()
    with replay(new) as again:
        assert program() == second
    assert live == []
    assert again.report.exact


def test_the_irreversible_never_goes_live() -> None:
    """Whole kinds may be named; a tool declared irreversible is answered from the file all the same."""
    with record() as run:
        program()
    live.clear()
    with replay(run, live={"tool"}):
        program()
    assert "charge" not in live
    assert live == ["search", "read", "search"]


def test_the_guard_stands_outside_what_goes_live() -> None:
    """The body of a live step may reach the network; the program beside it may not."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    @traced_tool(side_effect="read_only")
    def ask() -> int:
        with socket.create_connection(("127.0.0.1", port)):
            return 1

    with server:
        with record() as run:
            ask()
        with replay(run, live={"tool"}):
            assert ask() == 1

        def beside() -> None:
            ask()
            socket.create_connection(("127.0.0.1", port))

        with pytest.raises(tracekit.LiveCallBlockedError), replay(run, live={"tool"}):
            beside()


def test_a_kind_that_is_none_is_refused() -> None:
    """``live`` takes kinds that can go live, and says which; so with what takes their place."""
    for wrong in ({"decision"}, {"tool": "another"}, {"llm": 5}, {"policy.check": "nothing"}, {"clock": "someday"}):
        with pytest.raises(ValueError, match="live"):
            replay("whatever", live=wrong)
    with record() as run:
        search("a")
    with pytest.raises(tracekit.RunStateError, match="nowhere:at_all"), replay(run, live={"breaker": "nowhere:at_all"}):
        pass


def test_threads_keep_their_lanes_in_the_new_run() -> None:
    """Steps of threads are in the new run under the same lanes."""

    def threads() -> list[float]:
        found: list[float] = []
        for name in ("x", "y"):
            thread = threading.Thread(target=lambda name=name: found.append(search(name)))
            thread.start()
            thread.join()
        return found

    with record() as run:
        threads()
    with replay(run, live={"tool"}) as session:
        second = threads()
    assert session.new_run_id is not None
    with replay(session.new_run_id):
        assert threads() == second


# -- another way -------------------------------------------------------------------------------------------------------


@traced_tool(side_effect="read_only")
def model(question: str) -> str:
    return said


@traced_tool(side_effect="read_only")
async def model_async(question: str) -> str:
    await asyncio.sleep(0)
    return said


@traced_tool(side_effect="read_only")
async def look_async(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


said = "one"


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the model say something else from now on."""
    return lambda: monkeypatch.setattr(f"{__name__}.said", "two")


def thinking() -> object:
    """The model decides the way: which tools are called, how often and with what, which blocks are entered, how many numbers are drawn."""
    first = model("which?")
    decision("way", input="which?", output=first)
    found: list[object] = [search("first")]
    if first == "two":
        found.append(charge(5))
        with tracekit.agent("other"):
            decision("more", input=1, output=2)
            found += [random.random(), random.random(), uuid.uuid4().hex, time.time() > 0]
    else:
        found += [read("b"), charge(5), random.random()]
    return [*found, search("last"), model("again?")]


def test_the_program_may_go_another_way(otherwise: Callable[[], None]) -> None:
    """Calls that are equal get what was recorded of them, wherever they stand; all else is new. The new run replays exactly."""
    with record() as run:
        run.set_result(first := thinking())
    otherwise()
    live.clear()
    with replay(run, live={"tool:model"}) as session:
        session.set_result(second := thinking())
    assert live == []
    assert (second[0], second[1], second[-2]) == (first[0], 5, first[-2])  # type: ignore[index]
    assert second[-1] == "two"  # type: ignore[index]
    counts = session.report.verdict.counts
    assert (session.report.verdict.answer, counts["left"], counts["live"]) == ("exact but for", 1, 2)
    assert {one.facts["name"] for one in session.report.verdict.of("not_made")} >= {"read", "way"}
    with replay(session.new_run_id) as again:  # type: ignore[arg-type]
        again.set_result(thinking())
    assert again.result == second
    assert again.report.exact


def test_a_call_that_is_not_in_the_recording_ends_it(otherwise: Callable[[], None]) -> None:
    """What nobody can answer is not executed and not made up: the replay fails, and says what differs from the call that it may be."""
    with record() as run:
        charge(len(model("how much?")))
        search("x")

    def again() -> None:
        model("how much?")
        search("x")
        charge(7)

    otherwise()
    live.clear()
    with pytest.raises(tracekit.TraceExhaustedError, match="not executed") as caught, replay(run, live={"tool:model"}):
        again()
    assert live == []
    assert caught.value.differences == [{"path": "input.cents", "recorded": 3, "actual": 7}]


def test_what_was_made_before_anything_was_live_is_compared(otherwise: Callable[[], None]) -> None:
    """Only what follows from something live may be another way: a difference before that is one of the code."""
    with record() as run:
        search("a")
        model("q")
    with pytest.raises(tracekit.DivergenceError), replay(run, live={"tool:model"}):
        search("b")


def test_another_way_of_tasks(otherwise: Callable[[], None]) -> None:
    """Tasks that wait for recorded outcomes when another one goes another way get them, and time goes on."""

    async def program() -> object:
        async def beside() -> list[int]:
            return [await look_async(number) for number in range(3)]

        other = asyncio.create_task(beside())
        if await model_async("which?") == "two":
            async with asyncio.timeout(60):
                await asyncio.sleep(0.001)
            return await look_async(9), await other
        return await other, await look_async(8), await look_async(9)

    with record() as run:
        asyncio.run(program())
    otherwise()
    with replay(run, live={"tool:model_async"}) as session:
        assert asyncio.run(program()) == (9, [0, 1, 2])
    assert session.report.verdict.counts["left"] == 1


# -- another model -----------------------------------------------------------------------------------------------------


def asked(url: str, kind: str) -> object:
    body = {"model": "tiny-1", "messages": [{"role": "user", "content": "naïve?"}]}
    if kind == "httpx":
        with httpx.Client() as client:
            return client.post(url, json=body).json()["model"]
    if kind == "httpx, async":

        async def ask() -> object:
            async with httpx.AsyncClient() as client:
                return (await client.post(url, json=body)).json()["model"]

        return asyncio.run(ask())
    if kind == "aiohttp":

        async def fetch() -> object:
            async with aiohttp.ClientSession() as client, client.post(url, json=body) as answer:
                return (await answer.json())["model"]

        return asyncio.run(fetch())
    if kind == "requests":
        return requests.post(url, json=body).json()["model"]
    headers = {"content-type": "application/json"}
    if kind == "signed":
        headers["x-amz-date"] = "20310131T000000Z"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["model"]


@traced_tool(side_effect="read_only")
def asking(url: str, kind: str) -> object:
    return asked(url, kind)


@pytest.fixture
def instrumented() -> Iterator[None]:
    tracekit.instrument()
    yield
    tracekit.uninstrument()


@pytest.mark.usefixtures("instrumented")
def test_another_model_is_asked() -> None:
    """The request that goes out names the other model, inside a live tool as beside it; one that can't be made to is not made."""
    with stub_provider() as provider:
        provider.says = lambda body: "yes"
        url = f"{provider.url}/v1/chat/completions"
        for kind in ("httpx", "httpx, async", "urllib", "requests", "aiohttp"):

            def program(kind: str = kind) -> list[object]:
                return [asked(url, kind), asking(url, kind)]

            with record() as run:
                assert program() == ["tiny-1-0613"] * 2
            provider.seen.clear()
            with replay(run, live={"llm:tiny-1": "big-2", "tool": None}, guard="context") as session:
                assert program() == ["big-2-0613"] * 2
            assert [json.loads(one["body"])["model"] for one in provider.seen] == ["big-2"] * 2
            with Trace(Store().find(session.new_run_id)) as trace:  # type: ignore[arg-type]
                made = [entry["name"] for entry in trace.entries() if entry["type"] == "llm.request"]
                assert made == ["big-2", "big-2"]
                assert trace.entry(1)["meta"]["instead"] == {"llm:tiny-1": "big-2"}


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize(
    ("path", "kind", "why"),
    [
        ("/openai/deployments/ours/chat/completions", "httpx", "its URL names the model"),
        ("/openai/deployments/ours/chat/completions", "aiohttp", "its URL names the model"),
        ("/router/tiny-1/v1/chat/completions", "requests", "its URL names the model"),
        ("/v1/chat/completions", "signed", "is signed"),
    ],
)
def test_a_model_that_another_part_of_the_request_names_is_not_exchanged(path: str, kind: str, why: str) -> None:
    """Where the body is not all that says which model is asked, or what is in it, the call is not made, and the reason is given."""
    with stub_provider() as provider:
        with record() as run:
            asked(provider.url + path, kind)
        provider.seen.clear()
        with (
            pytest.raises(tracekit.LiveCallBlockedError, match=why),
            replay(run, live={"llm": "big-2"}, guard="context"),
        ):
            asked(provider.url + path, kind)
        assert provider.seen == []


# -- decided anew, at another hour -------------------------------------------------------------------------------------


def paying() -> list[object]:
    answer = policy_check("limits", input={"action": "charge", "payload": {"cents": 5}}, output={"decision": "allow"})
    return [charge(5)] if answer["decision"] == "allow" else [search("why")]


def test_a_policy_is_decided_anew() -> None:
    """A function decides in the place of the program's policy: what flips is listed, and what then happens is seen; nothing is live."""
    asked: list[tuple[object, ...]] = []

    def deny(*given: object) -> dict[str, str]:
        asked.append(given)
        return {"decision": "deny"}

    with record() as run:
        search("why")
        assert paying() == [5]
    live.clear()
    with replay(run, live={"policy.check": deny}) as session:
        search("why")
        assert len(paying()) == 1
    assert live == []
    assert asked == [("policy.check", "limits", {"action": "charge", "payload": {"cents": 5}}, {"decision": "allow"})]
    assert [one["differences"] for one in session.report.differences] == [
        [{"path": "decision", "recorded": "allow", "actual": "deny"}]
    ]
    assert [one.facts["name"] for one in session.report.verdict.of("not_made")] == ["charge"]
    with replay(run, live={"policy.check"}) as same:
        search("why")
        paying()
    assert same.report.verdict.line == "exact but for 1 step that went live"


def hours() -> tuple[object, ...]:
    now = datetime.now()
    local = time.localtime()
    day = date.today()
    return now, datetime.now(UTC), day, time.time(), time.time_ns(), time.ctime(), local.tm_yday, time.monotonic()


def test_the_clock_shows_another_hour() -> None:
    """Every clock that says which hour it is is shifted alike; what measures how long something takes is not."""
    with record() as run:
        now, utc, _, seconds, ns, text, yday, steady = hours()
    with replay(run, live={"clock": timedelta(days=1)}) as session:
        later = hours()
    shift = timedelta(days=1)
    assert (later[1], later[3], later[4]) == (utc + shift, seconds + 86400, ns + 86400 * 10**9)  # type: ignore[operator]
    assert later[0] == datetime.fromtimestamp(now.timestamp() + 86400)  # type: ignore[attr-defined]
    assert later[2] == (later[0].date())  # type: ignore[attr-defined]
    assert (later[5] != text, later[6] != yday, later[7]) == (True, True, steady)
    assert session.report.verdict.line == "exact but for 1 clock that showed another hour"
    with replay(run, live={"clock": "2031-01-31"}):
        then = hours()
    assert (then[2], then[0].time().replace(microsecond=0)) == (date(2031, 1, 31), now.time().replace(microsecond=0))  # type: ignore[attr-defined]
    with replay(run, live={"clock"}):
        assert hours()[3] >= seconds  # type: ignore[operator]


def test_what_the_hour_leads_to() -> None:
    """A program that does something else on the 31st does it: recorded calls answer, and what is not recorded ends it."""

    def program() -> str:
        return read("special") if date.today().day == 31 else str(search("usual"))

    with record() as run:
        search("special"), read("special")
        program()

    def again() -> str:
        search("special"), read("special")
        return program()

    with replay(run, live={"clock": "2031-01-31"}) as session:
        assert again().startswith("special ")
    assert session.report.verdict.counts["left"] == 1


planned = 2


@traced_tool(side_effect="read_only")
def plan() -> int:
    return planned


def in_a_pool(at_most: int) -> str:
    with ThreadPoolExecutor(4) as pool:
        read("first")
        list(pool.map(charge, range(plan())[:at_most]))
    return read("last")


def test_fewer_calls_in_threads_follow_from_a_live_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the live answer asks for fewer calls than the recorded one, the calls in threads that are made don't wait
    for the others, and their other order is a consequence, not a failure."""
    with record() as run:
        in_a_pool(2)
    monkeypatch.setitem(globals(), "planned", 1)
    with replay(run.id, live={"tool:plan"}) as session:
        in_a_pool(2)
    verdict = session.report.verdict
    assert verdict.answer == "exact but for"
    assert not session.report.reordered
    assert [one.code for one in verdict.allowed] == ["live", "live_differs", "left", "not_made"]


def test_another_order_after_the_same_live_answer_is_not_allowed() -> None:
    """A live step that gave the recorded result explains no other order."""
    with record() as run:
        in_a_pool(2)
    with pytest.raises(InexactReplayError) as caught, replay(run.id, live={"tool:plan"}) as session:
        in_a_pool(1)
    assert "reordered" in str(caught.value)
    assert session.report.reordered


@pytest.mark.usefixtures("instrumented")
def test_a_changed_prompt_is_answered_with_how_to_ask_the_model() -> None:
    """What is new in a request has no recorded answer: the message says how to get one, for model calls alone."""
    with stub_provider() as provider:
        provider.says = lambda body: "yes"
        url = f"{provider.url}/v1/chat/completions"
        with record() as run:
            asked(url, "httpx")
        with pytest.raises(tracekit.DivergenceError, match="--live llm"), replay(run):
            httpx.post(url, json={"model": "tiny-1", "messages": [{"role": "user", "content": "something else"}]})
        with record() as run:
            search("a")
        with pytest.raises(tracekit.DivergenceError) as caught, replay(run):
            search("b")
        assert "--live" not in str(caught.value)


@pytest.mark.usefixtures("instrumented")
def test_a_live_request_to_another_host_is_reported() -> None:
    """Where a request goes is decided by today's settings: the verdict names the host if it is not the recorded one."""
    with stub_provider() as then, stub_provider() as now:
        for provider in (then, now):
            provider.says = lambda body: "yes"

        def program(provider: StubProvider) -> str:
            return asked(f"{provider.url}/v1/chat/completions", "httpx")

        with record() as run:
            program(then)
        told = []
        for provider in (then, now):
            with replay(run, live={"llm"}, guard="context") as session:
                program(provider)
            told += [one.text for one in session.report.verdict.allowed if one.code == "live"]
        here, there = (urlsplit(provider.url).netloc for provider in (now, then))
        assert told == ["llm 'tiny-1' went live", f"llm 'tiny-1' went live at {here}, and at {there} in the recording"]
