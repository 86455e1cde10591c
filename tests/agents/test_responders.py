"""Responders decide and do nothing: what they return is data, and what they try is refused before it happens."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.tracing import both, of_type, recorded, replayed
from tracekit import ContractViolationError, DivergenceError, record, traced, traced_model, traced_tool
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
)  # fmt: skip
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
        with pytest.raises(ContractViolationError, match=r"meddle.*by itself") as caught:
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


def _thread(port: int) -> None:
    caught: list[Exception] = []

    def reach() -> None:
        try:
            _connect(port)
        except ContractViolationError as error:
            caught.append(error)

    thread = threading.Thread(target=reach)
    thread.start()
    thread.join()
    raise caught[0]


@pytest.mark.parametrize("reach", [_connect, _post, _child, _shell, _thread])
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
            with pytest.raises(ContractViolationError, match=r"meddle.*by itself"):
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

    with record(), pytest.raises(IntentionError, match="changed the world by itself"):
        run_once(meddle, world=world)
    with record(), pytest.raises(IntentionError, match="ran a loop by itself"):
        run_once(nest)
    assert world["page"] == {"n": 0}


@pytest.mark.parametrize("said", ["text", 7, {"a": 1}, [patch("page", {}), "text"]])
def test_what_is_no_intention_is_refused(said: Any) -> None:
    """The error names the responder and shows what it returned."""
    with pytest.raises(IntentionError, match=r"strange.*no intention"):
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
        (lambda: responder("llm.answer")(lambda event: None), "no kind of event"),
        (lambda: responder("llm.request")(lambda event: None), "no kind of event"),
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
        with pytest.raises(IntentionError, match="no data"):
            attempt()
    for attempt in (lambda: ask([]), lambda: call(""), lambda: create("", {}), lambda: Loop().run("text")):  # type: ignore[arg-type]
        with pytest.raises(IntentionError):
            attempt()
