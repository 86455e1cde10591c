"""What an extension is built with: calls as steps, lines of execution, work from outside, runs without patches, all by public names."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tracekit import (
    ContractViolationError,
    DivergenceError,
    UnconsumedStepsError,
    decision,
    record,
    replay,
    traced_tool,
)
from tracekit.integration import (
    Attempt,
    Follower,
    OpenReplay,
    OpenRun,
    ReplaceableCall,
    Request,
    Scope,
    Session,
    Spec,
    Store,
    Trace,
    capture,
    captured_of,
    check_transition,
    entered,
    forbidding,
    from_json,
    here,
    not_serialisable,
    perform,
    perform_async,
    to_json,
)


def entries(path: str) -> list[dict[str, Any]]:
    with Trace(path) as trace:
        return list(trace.entries())


def asked(words: Any, side_effect: str = "read_only") -> Request:
    return Request.of("tool", "library.search", {"words": words}, side_effect=side_effect)


# -- calls as steps ------------------------------------------------------------------------------------------------------


def test_a_call_is_made_once_and_answered_from_then_on() -> None:
    """What it returned and what it raised comes back in the replay, other arguments are a divergence, and outside a run it is just made."""
    made = []

    def search(words: str) -> list[str]:
        def call() -> list[str]:
            made.append(words)
            if words == "nothing":
                raise LookupError(words)
            return [words, words]

        return perform(asked(words), call, lambda found: {"usage": {"hits": len(found)}})

    def program() -> list[str]:
        with pytest.raises(LookupError):
            search("nothing")
        return search("rivers")

    with record() as run:
        assert program() == ["rivers", "rivers"]
    with replay(run) as session:
        assert program() == ["rivers", "rivers"]
    assert session.report.exact
    assert made == ["nothing", "rivers"]
    (outcome,) = [entry for entry in entries(run.path) if entry["type"] == "tool.return"]
    assert outcome["meta"]["usage"] == {"hits": 2}
    with pytest.raises(DivergenceError), replay(run):
        search("hills")
    assert search("seas") == ["seas", "seas"]


def test_a_call_that_is_awaited() -> None:
    """``perform_async()`` records a coroutine as one step and replays its answer, while other tasks of the event loop run as before."""
    made = []

    async def search(words: str) -> str:
        async def call() -> str:
            await asyncio.sleep(0)
            made.append(words)
            return words.upper()

        return await perform_async(asked(words), call)

    async def program() -> list[str]:
        return await asyncio.gather(search("a"), search("b"))

    with record() as run:
        assert asyncio.run(program()) == ["A", "B"]
    with replay(run) as session:
        assert asyncio.run(program()) == ["A", "B"]
    assert session.report.exact
    assert made == ["a", "b"]
    assert asyncio.run(program()) == ["A", "B"]


def test_a_call_that_fails_before_it_is_awaited() -> None:
    """``perform_async()`` records the failure of a function that raises before it returns anything, or returns nothing that can be
    awaited."""

    def refused() -> Any:
        raise ConnectionError("refused")

    async def program(call: Callable[[], Any]) -> str:
        try:
            await perform_async(asked("a"), call)
        except (ConnectionError, AttributeError, TypeError) as error:
            return type(error).__name__
        return "nothing"

    async def both() -> list[str]:
        return [await program(refused), await program(lambda: 1)]

    with record() as run:
        seen = asyncio.run(both())
    assert seen[0] == "ConnectionError"
    assert "nothing" not in seen
    with replay(run) as session:
        assert asyncio.run(both()) == seen
    assert session.report.exact


def test_functions_of_every_shape_are_captured() -> None:
    """Functions, coroutines, generators and async generators; what is captured already can be asked for its spec."""
    made = []

    def function(n: int) -> int:
        made.append(n)
        return n

    async def coroutine(n: int) -> int:
        return function(n)

    def generator(n: int) -> Iterator[int]:
        yield function(n)
        yield function(n + 1)

    async def async_generator(n: int) -> AsyncIterator[int]:
        yield function(n)

    one, two, three, four = (
        capture(each, Spec("tool", each.__name__, side_effect="read_only"))
        for each in (function, coroutine, generator, async_generator)
    )

    async def program() -> list[Any]:
        return [one(1), await two(2), list(three(3)), [item async for item in four(5)]]

    with record() as run:
        first = asyncio.run(program())
    assert made == [1, 2, 3, 4, 5]
    with replay(run):
        assert asyncio.run(program()) == first == [1, 2, [3, 4], [5]]
    assert made == [1, 2, 3, 4, 5]
    known = [captured_of(each) for each in (one, two, three, four, function)]
    assert [each and (each.spec.name, each.shape) for each in known] == [
        ("function", "function"),
        ("coroutine", "coroutine"),
        ("generator", "generator"),
        ("async_generator", "async generator"),
        None,
    ]


# -- calls that are refused or replaced ----------------------------------------------------------------------------------


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> int:
    return cents


@traced_tool(side_effect="read_only")
def look(cents: int) -> int:
    return cents


def test_calls_that_a_rule_forbids_are_refused_and_recorded() -> None:
    """Before they happen; the refusal is in the replay, too. With ``reach`` nothing outside the process is reached either."""

    def rule(spec: Spec) -> ContractViolationError | None:
        return ContractViolationError(f"{spec.name} is not for now") if spec.side_effect == "irreversible" else None

    def reached(attempt: Attempt, location: str | None) -> ContractViolationError:
        return ContractViolationError(f"{attempt.operation} is not for now", location=location)

    def program() -> int:
        with forbidding(rule, reach=reached):
            with pytest.raises(ContractViolationError, match="pay is not for now"):
                pay(5)
            with pytest.raises(ContractViolationError, match=r"socket\.\w+ is not for now"):
                socket.create_connection(("127.0.0.1", 9))
            found = look(3)
        return found + pay(4)

    with record() as run:
        assert program() == 7
    refused = [entry for entry in entries(run.path) if entry["type"] == "contract.violated"]
    assert [entry["name"].partition(".")[0] for entry in refused] == ["pay", "socket"]
    with replay(run) as session:
        assert program() == 7
    assert session.report.exact


@pytest.mark.parametrize("recorded", [True, False], ids=["in a run", "outside"])
def test_whether_another_call_may_take_the_place_of_one_that_failed(recorded: bool, tmp_path: Path) -> None:
    """What can't be undone speaks against it, whoever made it below the call; what is only read does not."""

    def program() -> list[str | None]:
        found = []
        for tool in (look, pay):
            call = ReplaceableCall()
            with call.entered():
                worker = threading.Thread(target=call.call, args=(tool, 7))
                worker.start()
                worker.join()
            below = call.end(failed=True)
            assert below.in_doubt is None
            found.append(below.irreversible)
        return found

    if not recorded:
        assert program() == [None, "pay"]
        return
    with record(store=tmp_path):
        assert program() == [None, "pay"]


def test_which_class_may_stand_in_for_which() -> None:
    """As fallbacks of a tool: what is reversible may lead to what is not, which is an escalation; never the other way round."""
    assert check_transition("look", "read_only", "search", "read_only") is False
    assert check_transition("hold", "reversible", "pay", "irreversible") is True
    with pytest.raises(ContractViolationError, match="can't replace"):
        check_transition("pay", "irreversible", "look", "read_only")


# -- lines of execution, work from outside -------------------------------------------------------------------------------


def test_lines_of_an_extensions_own() -> None:
    """Work in lines of their own replays in whatever order it is handed out; inside one line the order counts."""

    def job(scope: Scope, words: str) -> None:
        with entered(scope, ends=True):
            decision("job", input=words, output=here() is not None and words.upper())

    def program(order: list[str]) -> None:
        scope = here()
        assert scope is not None
        lines = {words: scope.own_lane("jobs") for words in ("a", "b", "c")}
        for words in order:
            job(lines[words], words)

    def in_the_first_line(words: str) -> None:
        scope = here()
        assert scope is not None
        job(scope.own_lane("jobs"), words)

    with record() as run:
        program(["a", "b", "c"])
    with replay(run) as session:
        program(["c", "a", "b"])
    assert session.report.exact
    with pytest.raises(DivergenceError), replay(run):
        in_the_first_line("b")


def test_the_nth_task_of_a_run_is_the_nth_of_its_replay() -> None:
    """Whoever brings it, and in whatever order: a task inside a step of the program has a line of its own all the same."""

    def handle(words: str, n: int | None = None) -> None:
        scope = here()
        assert scope is not None
        with entered(scope.task("jobs", n), ends=True):
            decision("job", input=words, output=words.upper())

    with record() as run:
        handle("wash")
        handle("dry")
    with replay(run) as session:
        handle("dry", 2)
        handle("wash", 1)
    assert session.report.exact
    with pytest.raises(DivergenceError), replay(run):
        handle("dry", 1)


_QUEUE = '''
import os, queue, socket, sys, threading
from tracekit import record, traced_tool
from tracekit.integration import entered, from_json, here, register_tasks

@traced_tool(side_effect="irreversible")
def book(city):
    with open("effects", "a") as file:
        file.write("x")
    return "booked " + city

def handle(job, n=None):
    with entered(here().task("jobs", n), ends=True):
        print(book(job), flush=True)

class Jobs:
    """Of a queue that tracekit knows nothing about."""

    def _jobs(self, trace):
        lanes = {}
        for entry in trace.entries():
            if entry["type"] == "lane":
                lanes[entry["input"]["id"]] = entry["input"]
            elif entry["type"] == "tool.call" and lanes.get(entry["lane"], {}).get("name") == "jobs":
                yield lanes[entry["lane"]]["n"], from_json(trace.expand(entry["input"]))["city"]

    def has_tasks(self, trace):
        return any(True for _ in self._jobs(trace))

    def replay_tasks(self):
        for n, city in self._jobs(here().session.log.trace):
            handle(city, n)

register_tasks(Jobs())

with record("worker"):
    server = socket.create_server(("127.0.0.1", 0))
    for city in sys.argv[1:]:
        handle(city)
print("after")
'''


def test_a_source_of_tasks_that_tracekit_knows_nothing_about(place: Place) -> None:
    """Its recorded work is given to the program where it would listen, and the program ends as if its server had been stopped."""
    program = place.program(_QUEUE)
    done = place.python(program, "Rome", "Oslo")
    assert done.stdout == "booked Rome\nbooked Oslo\nafter\n", done.stderr
    again = place.cli("replay", place.run)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("booked Rome\nbooked Oslo\n")
    assert place.effects() == 2


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- runs without patches ------------------------------------------------------------------------------------------------


def search(words: str) -> str:
    return perform(asked(words), words.upper)


def test_a_run_that_is_opened_by_hand(tmp_path: Path) -> None:
    """Recorded into a store or a file, it is a run like any other; replayed, its calls are answered and the rest is missed."""
    run = OpenRun(tmp_path / "store", run_id="by-hand", name="rows", input={"rows": 2}, about={"made": "here"})
    with entered(run.scope):
        assert [search("a"), search("b")] == ["A", "B"]
    run.close(result="both")
    run.close()
    assert Store(tmp_path / "store").verify("by-hand").state == "complete"
    first, *_, last = entries(run.path)
    assert (first["name"], first["input"], first["meta"]["made"]) == ("rows", {"rows": 2}, "here")
    assert (last["type"], last["output"]) == ("run.completed", "both")
    with Trace(run.path) as trace:
        again = OpenReplay(trace)
        with entered(again.scope):
            assert [search("a"), search("b")] == ["A", "B"]
        assert again.finish().exact
    with Trace(run.path) as trace:
        fewer = OpenReplay(trace)
        with entered(fewer.scope):
            search("a")
        with pytest.raises(UnconsumedStepsError):
            fewer.finish()
    with Trace(run.path) as trace:
        other = OpenReplay(trace)
        with entered(other.scope), pytest.raises(DivergenceError) as raised:
            search("c")
        assert other.failure is raised.value
        other.close()


def test_the_first_entry_of_a_run_that_is_opened_by_hand_has_no_secret(tmp_path: Path) -> None:
    """Neither in the run's name nor in its input; the entry says where the placeholders are."""
    secret = "sk-" + "proj-" + "A1b2C3d4" * 6
    run = OpenRun(tmp_path / "store", name=f"with {secret}", input={"key": secret})
    run.close()
    assert secret not in Path(run.path).read_text()
    first = entries(run.path)[0]
    assert [mark[0] for mark in first["meta"]["info"]["redacted"]] == ["/name", "/input/key"]


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    """Its last entry has the error that it was closed with."""
    run = OpenRun(tmp_path / "rows.jsonl")
    run.close(ValueError("no rows"))
    last = entries(run.path)[-1]
    assert (last["type"], last["error"]["text"]) == ("run.failed", "no rows")


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Each entry comes once, in order, when it is in the file, with references that can be put back; also what the reader adds itself."""
    run = OpenRun(tmp_path / "rows.jsonl")
    seen: list[Any] = []
    long = ["x" * 2000, "y" * 2000]

    def read(entry: dict[str, Any]) -> None:
        value = follower.expand(entry.get("output"), entry["seq"])
        seen.append((entry["seq"], entry["type"], value if entry["type"] == "decision" else None))

    follower = Follower(run.path, read)
    run.observe(follower.poll)
    with entered(run.scope):
        decision("one", input=1, output=long)
        decision("two", input=2, output=long)
        assert [value for _, kind, value in seen if kind == "decision"] == [long, long]
    run.close()
    follower.close()
    written = entries(run.path)
    assert [(seq, kind) for seq, kind, _ in seen] == [(entry["seq"], entry["type"]) for entry in written]


# -- values --------------------------------------------------------------------------------------------------------------


def test_values_as_the_log_has_them() -> None:
    """A value goes into a tree of JSON and comes out again; what has no form as data is named."""
    value = {"when": {1, 2}, "raw": b"\0", "error": KeyError("x")}
    tree = json.loads(json.dumps(to_json(value)))
    again = from_json(tree)
    assert (again["when"], again["raw"], type(again["error"])) == ({1, 2}, b"\0", KeyError)
    assert not_serialisable(tree) is None
    assert "lock" in str(not_serialisable(to_json([threading.Lock()])))


def test_secrets_are_taken_out_as_the_log_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value without any is that very value; of another there is a copy with placeholders, which can be told."""
    monkeypatch.setenv("ACME_PASSWORD", "correct-horse-battery")
    with record():
        scope = here()
        assert scope is not None
        session: Session = scope.session
        harmless = {"city": "Rome"}
        assert session.redactor.without_secrets(harmless) is harmless
        assert not session.redactor.redacted(harmless)
        kept = session.redactor.without_secrets({"said": "it is correct-horse-battery"})
    assert "battery" not in str(kept)
    assert session.redactor.redacted(kept)
