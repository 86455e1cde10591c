"""Responders decide and do nothing: what they return is data, and what they try is refused before it happens."""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import Context
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import both, of_type, recorded, replayed
from tracekit import ContractViolationError, DivergenceError, record, traced, traced_model, traced_tool
from tracekit._capture import guard
from tracekit.agents import (
    Intention,
    IntentionEvent,
    LLMExecutor,
    Loop,
    Responder,
    ToolExecutor,
    World,
    ask,
    call,
    create,
    patch,
    responder,
)
from tracekit.errors import DanglingCauseError, IntentionError, UnknownObjectError

made: list[str] = []


@traced_tool(side_effect="irreversible", name="mail")
def mail(to: str) -> str:
    made.append(to)
    return "sent"


@traced_model(model="local")
def local(prompt: str) -> str:
    made.append(prompt)
    return "said"


@pytest.fixture(autouse=True)
def _nothing_made() -> Iterator[None]:
    made.clear()
    return


def run_once(*responders: Responder[Any], world: World | None = None, executors: Any = ()) -> Any:
    """The loop on one new object."""
    return Loop(responders, executors, world=world).run(create("page", {"n": 0}))


@pytest.mark.parametrize("effect", [lambda: mail("a"), lambda: local("a")], ids=["tool", "model"])
def test_a_captured_call_in_a_responder_is_refused_before_it_happens(effect: Any) -> None:
    """It is on the log as a violated contract in the place of the call, never made, and a replay comes to the same."""

    @responder("object.created")
    def meddle(event: IntentionEvent) -> None:
        effect()

    def program() -> Any:
        with pytest.raises(ContractViolationError, match=r"meddle.*directly") as caught:
            run_once(meddle)
        return str(caught.value)

    run, first, second = both(program)
    assert first == second
    assert made == []
    assert len(of_type(run, "contract.violated")) == 1
    assert not of_type(run, "tool.call", "llm.request")


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def _post(port: int) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b"x", timeout=5).close()


def _child(port: int) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}))"], check=True
    )


def _shell(port: int) -> None:
    os.system(f"{sys.executable} -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\"")


def _in_thread(port: int) -> None:
    threading.Thread(target=_connect, args=(port,)).start()


@pytest.mark.parametrize("reach", [_connect, _post, _child, _shell, _in_thread])
def test_a_responder_that_reaches_out_by_other_ways_is_refused(reach: Callable[[int], None]) -> None:
    """Sockets, plain HTTP, processes, nothing of it instrumented: refused before it happens, on the log, the same in a replay.
    A connection that was open before is of no use to it either; outside of the responder everything goes on as before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        port = server.getsockname()[1]
        open_before = socket.create_connection(("127.0.0.1", port))
        other_end, _ = server.accept()

        @responder("object.created")
        def meddle(event: IntentionEvent) -> None:
            with pytest.raises(ContractViolationError, match=r"meddle.*directly"):
                open_before.sendall(b"x")
            reach(port)

        def program() -> Any:
            with pytest.raises(ContractViolationError, match=r"meddle.*reached out.*was not done") as caught:
                run_once(meddle)
            return str(caught.value)

        with open_before, other_end:
            run, first, second = both(program)
            assert first == second
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
            open_before.sendall(b"after")
            assert other_end.recv(10) == b"after"
    refused = of_type(run, "contract.violated")
    assert refused[0]["name"] == "socket.sendall"
    assert len(refused) == 2


def _raw_thread(place: Path) -> None:
    _thread.start_new_thread((place / "new").touch, ())


def _own_context(place: Path) -> None:
    Context().run((place / "new").touch)


def _own_run(place: Path) -> None:
    with record(nested="link"):
        mail("a")


def _os_open(place: Path) -> None:
    os.close(os.open(place / "new", os.O_CREAT | os.O_WRONLY))


def _kill(place: Path) -> None:
    os.kill(int((place / "pid").read_text()), signal.SIGKILL)


ACTS: dict[str, Callable[[Path], Any]] = {
    "open": lambda place: open(place / "new", "w"),
    "append": lambda place: open(place / "kept", "a"),
    "os.open": _os_open,
    "mkdir": lambda place: (place / "new").mkdir(),
    "remove": lambda place: (place / "kept").unlink(),
    "rename": lambda place: (place / "kept").rename(place / "new"),
    "chmod": lambda place: (place / "kept").chmod(0),
    "copy": lambda place: shutil.copy(place / "kept", place / "new"),
    "sqlite": lambda place: sqlite3.connect(place / "new"),
    "timer": lambda place: threading.Timer(0, (place / "new").touch).start(),
    "thread": _raw_thread,
    "pool": lambda place: ThreadPoolExecutor(1).submit((place / "new").touch),
    "context": _own_context,
    "run": _own_run,
    "kill": _kill,
}


@pytest.mark.parametrize("act", ACTS)
def test_a_responder_that_acts_in_the_process_is_refused(act: str, tmp_path: Path) -> None:
    """Files, databases, threads, signals, a run or a context of its own: refused before it happens, on the log, the same in a replay."""
    place = tmp_path / "place"
    place.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (place / "kept").write_text("kept")
        (place / "pid").write_text(str(child.pid))

        def state() -> Any:
            return {path.name: (path.stat().st_mtime_ns, path.stat().st_mode) for path in place.iterdir()}

        before = state()

        @responder("object.created")
        def meddle(event: IntentionEvent) -> None:
            ACTS[act](place)

        def program() -> Any:
            with pytest.raises(ContractViolationError, match=r"meddle.*directly.*was not done") as caught:
                run_once(meddle)
            return str(caught.value)

        run, first, second = both(program)
        assert first == second
        assert len(of_type(run, "contract.violated")) == 1
        child.communicate(b"\n")
        assert child.returncode == 0
    assert state() == before
    assert made == []


def test_what_was_open_before_is_not_written_to_by_number(tmp_path: Path) -> None:
    """os.write and its like, to a file and to a socket; nothing arrives. Standard output is for everybody."""
    ours, theirs = socket.socketpair()
    with open(tmp_path / "open", "wb", buffering=0) as file, ours, theirs:
        ways: list[Callable[[], Any]] = [
            lambda: os.write(file.fileno(), b"x"),
            lambda: os.writev(file.fileno(), [b"x"]),
            lambda: os.pwrite(file.fileno(), b"x", 0),
            lambda: os.write(ours.fileno(), b"x"),
        ]

        @responder("object.created")
        def meddle(event: IntentionEvent) -> None:
            print("thinking")
            for way in ways:
                with pytest.raises(ContractViolationError, match="directly"):
                    way()

        run, _, _ = both(lambda: run_once(meddle) and None)
        assert len(of_type(run, "contract.violated")) == len(ways)
        assert os.write(ours.fileno(), b"after") == 5
        assert theirs.recv(10) == b"after"
    assert (tmp_path / "open").read_bytes() == b""


def test_what_a_responder_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read, import, keep a log (whose file is opened late, and changed in between), and use what is in memory only."""
    (tmp_path / "rules.txt").write_text("be brief")
    (tmp_path / "late_rules.py").write_text("RULE = 'be kind'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    log = logging.getLogger("tests.deciding")
    log.propagate = False
    handler = RotatingFileHandler(tmp_path / "log", maxBytes=40, backupCount=2, delay=True)
    log.addHandler(handler)

    @responder("object.created")
    def decide(event: IntentionEvent) -> Intention:
        for number in range(5):
            log.warning("considering rule number %d", number)
        import late_rules  # type: ignore[import-not-found]

        with closing(sqlite3.connect(":memory:")) as database:
            counted = database.execute("select 7").fetchone()[0]
        with open(os.devnull, "w") as nowhere:
            nowhere.write("x")
        os.kill(os.getpid(), 0)
        return patch("page", {"rules": [(tmp_path / "rules.txt").read_text(), late_rules.RULE], "counted": counted})

    try:
        run, first, second = both(lambda: run_once(decide).world["page"])
    finally:
        log.removeHandler(handler)
        handler.close()
        sys.modules.pop("late_rules", None)
    assert first == second == {"n": 0, "rules": ["be brief", "be kind"], "counted": 7}
    assert not of_type(run, "contract.violated")
    assert (tmp_path / "log.1").exists()


def test_what_a_responder_puts_off_is_held_back_while_the_loop_runs(tmp_path: Path) -> None:
    """A task, a callback, a call in a pool that was there before: what they try is refused, though the responder has long returned."""
    refused: list[str] = []

    def later() -> None:
        with pytest.raises(ContractViolationError, match=r"put_off.*directly"):
            (tmp_path / "new").touch()
        refused.append("directly")

    async def task() -> None:
        later()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        waiting: list[Any] = []

        @responder("object.created")
        def put_off(event: IntentionEvent) -> Intention:
            loop = asyncio.get_running_loop()
            waiting[:] = [loop.create_task(task()), pool.submit(later)]
            loop.call_soon(later)
            return ask("a")

        @responder("llm.response")
        def read(event: IntentionEvent) -> None: ...

        async def answer(messages: Any, **rest: Any) -> str:
            await waiting[0]
            await asyncio.wrap_future(waiting[1])
            (tmp_path / "by the executor").touch()
            return "said"

        async def main() -> None:
            await Loop([put_off, read], [LLMExecutor(answer)]).run_async(create("page", {}))

        with record() as run:
            asyncio.run(main())
    assert len(refused) == 3
    assert len(of_type(run, "contract.violated")) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name in ("new", "by the executor")] == ["by the executor"]


def test_the_process_is_as_it_was_after_a_loop() -> None:
    """Nothing stays exchanged, and no event is looked at."""
    before = {name: getattr(os, name) for name in ("write", "writev", "sendfile")}
    threads, send = threading.Thread.start, socket.socket.send
    run_once(responder("object.created")(lambda event: None))
    with record():
        run_once(responder("object.created")(lambda event: None))
    assert {name: getattr(os, name) for name in before} == before
    assert (threading.Thread.start, socket.socket.send) == (threads, send)
    assert (guard._engaged.guards, guard._engaged.events) == ((), {})


def test_executors_reach_out_while_no_responder_decides() -> None:
    """What a responder may not, an executor may, in the same loop."""

    def look(path: str) -> str:
        return subprocess.run([sys.executable, "-c", "print('seen')"], capture_output=True, text=True).stdout.strip()

    @responder("object.created")
    def want(event: IntentionEvent) -> Intention:
        return call("look", {"path": "a"}, object=event.object)

    @responder("tool.return")
    def keep(event: IntentionEvent) -> Intention:
        return patch("page", {"seen": event.output})

    tools = ToolExecutor(_named(look, "look"), side_effect="read_only")
    _, first, second = both(lambda: run_once(want, keep, executors=[tools]).world["page"])
    assert first == second == {"n": 0, "seen": "seen"}


def test_a_refusal_that_a_responder_swallows_is_on_the_log() -> None:
    """Catching the error hides nothing: the call was not made, and the log says that it was tried."""

    @responder("object.created")
    def meddle(event: IntentionEvent) -> Intention:
        try:
            mail("a")
        except Exception:
            return patch("page", {"n": 1})
        return patch("page", {"n": 2})

    run, first, _ = both(lambda: run_once(meddle).world["page"])
    assert first == {"n": 1}
    assert made == []
    assert of_type(run, "contract.violated")


def test_a_call_inside_a_span_of_a_responder_is_refused_too() -> None:
    """A span is no way around; by itself it is allowed."""

    @traced("think")
    def think(effect: bool) -> int:
        return len(mail("a")) if effect else 7

    @responder("object.created")
    def fair(event: IntentionEvent) -> Intention:
        return patch("page", {"n": think(False)})

    @responder("object.patched")
    def unfair(event: IntentionEvent) -> None:
        think(True)

    def program() -> Any:
        world = World()
        with pytest.raises(ContractViolationError):
            run_once(fair, unfair, world=world)
        return world["page"]

    _, first, _ = both(program)
    assert first == {"n": 7}
    assert made == []


def test_a_responder_changes_no_world_and_runs_no_loop() -> None:
    """It returns what is to change."""
    world = World()

    @responder("object.created")
    def meddle(event: IntentionEvent, world: World) -> None:
        world.patch("page", {"n": 1})

    @responder("object.created")
    def nest(event: IntentionEvent) -> None:
        Loop().run(create("other", {}))

    with record(), pytest.raises(IntentionError, match="changed the world directly"):
        run_once(meddle, world=world)
    with record(), pytest.raises(IntentionError, match="ran a loop directly"):
        run_once(nest)
    assert world["page"] == {"n": 0}


def test_a_responder_has_nobody_else_change_the_world() -> None:
    """A thread of a pool that was there before does not do it either; nothing is written, in a replay neither."""

    def program() -> Any:
        world = World()

        @responder("object.created")
        def meddle(event: IntentionEvent, world: World) -> None:
            for attempt in (lambda: world.patch("page", {"n": 1}), world.end, lambda: Loop().run(create("other", {}))):
                with pytest.raises(IntentionError, match="changed the world directly"):
                    pool.submit(attempt).result()

        run_once(meddle, world=world)
        return world.as_dict()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        run, first, second = both(program)
    assert first == second == {"page": {"n": 0}}
    assert len(of_type(run, "object.patched", "data")) == 2


@pytest.mark.parametrize("said", ["text", 7, {"a": 1}, [patch("page", {}), "text"]])
def test_what_is_no_intention_is_refused(said: Any) -> None:
    """The error names the responder and shows what it returned."""
    with pytest.raises(IntentionError, match=r"strange.*not an intention"):
        run_once(responder("object.created", name="strange")(lambda event: said))


def test_what_a_responder_may_return() -> None:
    """Nothing, one, a list, a tuple, a generator: in order."""
    answers: list[Any] = [None, patch("page", {"a": 1}), [patch("page", {"b": 1})], (), iter([patch("page", {"c": 1})])]
    responders = [
        responder("object.created", name=f"r{i}")(lambda event, said=said: said) for i, said in enumerate(answers)
    ]

    @responder("object.created")
    def generate(event: IntentionEvent) -> Iterator[Intention]:
        yield patch("page", {"d": 1})
        yield patch("page", {"d": None, "e": 1})

    outcome = run_once(*responders, generate)
    assert outcome.world["page"] == {"n": 0, "a": 1, "b": 1, "c": 1, "e": 1}
    assert [event.kind for event in outcome.events] == ["object.created"] + ["object.patched"] * 5


def test_the_events_that_a_responder_gets() -> None:
    """By kind, and by what they are about, in the order of the responders."""
    seen: list[tuple[str, str]] = []

    def seeing(name: str) -> Any:
        return lambda event: seen.append((name, event.object or event.request.name))

    @responder("object.created")
    def ask_both(event: IntentionEvent) -> list[Intention]:
        return [ask("a", model="one", object="page"), call("size", {"text": "abc"})]

    def size(text: str) -> int:
        return len(text)

    tools = ToolExecutor(_named(size, "size"), side_effect="read_only")
    Loop(
        [
            ask_both,
            responder("llm.response", of="one")(seeing("of one")),
            responder("llm.response", of="two")(seeing("of two")),
            responder("tool.return", of="size")(seeing("of size")),
            responder("llm.response", "tool.return")(seeing("both")),
        ],
        [LLMExecutor(lambda messages, **rest: "said"), tools],
    ).run(create("page", {}))
    assert seen == [("of one", "page"), ("both", "page"), ("of size", "size"), ("both", "size")]


def _named(function: Any, name: str) -> Any:
    function.__qualname__ = name
    return function


def test_a_responder_that_can_not_be() -> None:
    """No such kind of event, none at all, a coroutine function, other arguments: told where it is made."""

    async def wait(event: IntentionEvent) -> None: ...

    for attempt, said in [
        (lambda: responder("llm.answer")(lambda event: None), "not a kind of event"),
        (lambda: responder("llm.request")(lambda event: None), "not a kind of event"),
        (lambda: responder()(lambda event: None), "responds to nothing"),
        (lambda: responder("llm.response")(wait), "coroutine function"),
        (lambda: responder("llm.response")(lambda: None), "is called with the event"),
        (lambda: responder("llm.response")(lambda a, b, c: None), "is called with the event"),
        (lambda: Loop([lambda event: None]), "is no responder"),  # type: ignore[list-item]
        (lambda: Loop([], [lambda request: None]), "is no executor"),  # type: ignore[list-item]
    ]:
        with pytest.raises(IntentionError, match=said):
            attempt()


def test_a_responder_is_the_plain_function_for_whoever_calls_it() -> None:
    """So a test of it needs no loop: it does nothing."""

    @responder("llm.response")
    def note(event: IntentionEvent) -> Intention:
        """What it is for."""
        return patch("page", {"text": event.text})

    event = IntentionEvent("llm.response", create_ref(), None, {"text": "said"}, "page")
    assert note(event).data == {"text": "said"}
    assert note.__doc__ == "What it is for."
    assert note.name == "note"


def create_ref() -> Any:
    return World().create("page", {}).ref


def test_clock_and_dice_in_a_responder_are_captured() -> None:
    """They are the same in a replay, and so is what it intends."""

    @responder("object.created")
    def draw(event: IntentionEvent) -> Intention:
        return patch("page", {"at": time.time(), "drawn": random.random()})

    _, first, second = both(lambda: run_once(draw).world["page"])
    assert first == second


def test_another_intention_in_a_replay_is_a_divergence() -> None:
    """A responder that depends on what is not captured is found at its intention, which names it."""
    models = iter(["one", "two"])

    @responder("object.created")
    def fickle(event: IntentionEvent) -> Intention:
        return ask("a", model=next(models))

    @responder("llm.response")
    def read(event: IntentionEvent) -> None: ...

    def program() -> None:
        run_once(fickle, read, executors=[LLMExecutor(lambda messages, **rest: "said")])

    run, _ = recorded(program)
    with pytest.raises(DivergenceError, match="fickle"):
        replayed(run, program)


def test_an_intention_names_its_cause_and_its_object_or_is_refused() -> None:
    """A dangling cause, a request as a cause, an object that is not there: an error at once; the request is not on the log."""
    world = World()

    @responder("object.created")
    def about_nothing(event: IntentionEvent) -> Intention:
        return ask("a", object="pgae")

    @responder("object.created")
    def made_up(event: IntentionEvent) -> Intention:
        ref = event.ref
        return ask("a", cause=type(ref)("llm.response", ref.seq, ref.run_id, ref.segment))

    @responder("llm.response")
    def of_the_request(event: IntentionEvent) -> Intention:
        assert event.cause is not None
        assert event.cause.type == "llm.request"
        return patch("page", {}, cause=event.cause)

    executors = [LLMExecutor(lambda messages, **rest: "said")]
    with record() as run:
        with pytest.raises(UnknownObjectError):
            run_once(about_nothing, world=world, executors=executors)
        with pytest.raises(DanglingCauseError, match=r"of another kind: object\.created"):
            run_once(made_up, world=World("second"), executors=executors)
        assert of_type(run.path, "decision") == []
        with pytest.raises(DanglingCauseError, match="a request causes its answer"):
            Loop([of_the_request], executors, world=World("third")).run(create("page", {}), ask("a"))


def test_an_earlier_event_may_be_the_cause() -> None:
    """The responder says which; otherwise it is the event that it was given."""
    events: list[IntentionEvent] = []

    @responder("object.created", "object.patched")
    def note(event: IntentionEvent) -> Intention | None:
        events.append(event)
        if event.object == "b":
            return patch("a", {"n": 1}, cause=events[0])
        return patch("a", {"n": 2}) if event.cause is events[0].ref else None

    outcome = Loop([note]).run(create("a", {}), create("b", {}))
    a, b, one = outcome.events[:3]
    assert one.cause == a.ref
    assert b.cause is None


def test_intentions_are_data() -> None:
    """What the caller changes afterwards changes nothing; what is no data is refused where the intention is made."""
    messages = [{"role": "user", "content": "a"}]
    asked = ask(messages, model="m", max_tokens=5, temperature=0.5)
    messages[0]["content"] = "b"
    assert asked.data == {
        "messages": [{"role": "user", "content": "a"}],
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.5,
    }
    for attempt in (lambda: ask("a", client=object()), lambda: call("mail", {"to": object()})):
        with pytest.raises(IntentionError, match="not data"):
            attempt()
    for attempt in (lambda: ask([]), lambda: call(""), lambda: create("", {}), lambda: Loop().run("text")):  # type: ignore[arg-type]
        with pytest.raises(IntentionError):
            attempt()
