"""The public test kit, tested by using it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python
from tracekit import record, traced_tool
from tracekit.errors import DivergenceError, RunNotFoundError, UnconsumedStepsError
from tracekit.harness import TracedLLMClient, TraceWriter, load_trace
from tracekit.integration import Trace
from tracekit.testing import (
    CRASH_POINTS,
    Failure,
    ScriptedModel,
    ToolUse,
    assert_replays,
    crash_at,
    temporary_store,
    ticking_clock,
)


@traced_tool(side_effect="irreversible")
def send(what: str) -> int:
    return len(what)


@traced_tool(side_effect="read_only")
def count(upto: int) -> Any:
    yield from range(upto)


def program(what: str = "letter") -> int:
    return send(what) + sum(count(3))


@pytest.mark.parametrize("memory", [True, False])
def test_a_temporary_store_takes_runs_and_leaves_nothing(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """record and replay use it without being told; afterwards its directory is gone and the environment as it was."""
    monkeypatch.setenv("TRACEKIT_DIR", "/as/it/was")
    with temporary_store(memory=memory) as store:
        with record("here") as run:
            program()
        assert [summary.run_id for summary in store.list()] == [run.id]
        assert run.path.startswith(store.root)
    assert os.environ["TRACEKIT_DIR"] == "/as/it/was"
    assert not os.path.exists(os.path.dirname(store.root))


def test_a_temporary_store_restores_an_unset_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TRACEKIT_DIR was not set, it is not set afterwards."""
    monkeypatch.delenv("TRACEKIT_DIR")
    with pytest.raises(KeyError), temporary_store():
        raise KeyError
    assert "TRACEKIT_DIR" not in os.environ


def test_assert_replays_returns_the_report_of_an_exact_replay() -> None:
    """A run that replays passes, with its result compared; a coroutine function is awaited."""
    with record("plain") as run:
        run.set_result(program())
    assert assert_replays(run, program).consumed == 2

    async def coroutine() -> int:
        return program()

    async def recorded() -> str:
        async with record("async") as run:
            run.set_result(await coroutine())
        return str(run.id)

    assert assert_replays(asyncio.run(recorded()), coroutine).exact


def test_assert_replays_hands_on_the_recorded_input() -> None:
    """Without arguments the function gets what the run was given; a function without parameters gets nothing."""
    seen: list[Any] = []

    @record("decorated", run_id="first")
    def agent(letter: str, *, times: int = 1) -> int:
        seen.append((letter, times))
        return sum(send(letter) for _ in range(times))

    @record("later", run_id="second")
    async def later(letter: str) -> int:
        seen.append(letter)
        return send(letter)

    agent("a", times=2)
    assert assert_replays("first", agent).exact
    asyncio.run(later("b"))
    assert assert_replays("second", later).exact
    with record("block", input={"letter": "c", "copies": [1]}) as run:
        send("c")
    assert assert_replays(run, lambda request: seen.append(request) or send(request["letter"])).exact
    assert assert_replays(run, lambda: send("c")).exact
    assert seen == [("a", 2), ("a", 2), "b", "b", {"letter": "c", "copies": [1]}]
    with pytest.raises(TypeError):
        assert_replays(run, lambda letter, other: None)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (lambda: program("other"), DivergenceError),
        (lambda: send("letter"), UnconsumedStepsError),
        (lambda: program() + 1, DivergenceError),
        (lambda: None, UnconsumedStepsError),
    ],
)
def test_assert_replays_fails_where_the_program_differs(changed: Callable[[], Any], error: type[BaseException]) -> None:
    """Another input, a step left out and another result each fail."""
    with record("plain") as run:
        run.set_result(program())
    with pytest.raises(error):
        assert_replays(run.id, changed)


def test_assert_replays_wants_the_run_to_be_there() -> None:
    """A run that does not exist is an error, never a passing test."""
    with pytest.raises(RunNotFoundError):
        assert_replays("nosuchrun", program)


def test_a_ticking_clock_dates_the_entries() -> None:
    """Entries are dated step by step from the start; two recordings of one program carry the same instants."""
    stamps = []
    for _ in range(2):
        with ticking_clock(1000.0, 0.5) as clock, TraceWriter(run_id=f"tick-{len(stamps)}") as writer:
            writer.record("decision", 1, 2)
            clock.advance(60)
            writer.record("decision", 3, 4)
        with Trace(writer.path) as trace:
            stamps.append([entry["ts_ns"] for entry in trace.entries()])
    assert stamps[0] == stamps[1]
    gaps = [later - earlier for earlier, later in zip(stamps[0], stamps[0][1:], strict=False)]
    assert gaps == [500_000_000, 60_500_000_000, 500_000_000]
    assert all(stamp >= 1_000_000_000_000 for stamp in stamps[0])


def test_the_real_clock_is_back_after_a_ticking_one() -> None:
    """Outside the block entries are dated by the real clock again."""
    with pytest.raises(KeyError), ticking_clock(1000.0):
        raise KeyError
    with TraceWriter() as writer:
        writer.record("decision", 1, 2)
    assert load_trace(writer.run_id)[0].timestamp > 1_700_000_000


def test_a_scripted_model_answers_in_order_and_not_once_more() -> None:
    """Replies come as written; one request too many fails; what was asked is kept."""
    model = ScriptedModel("one two", ToolUse("search", {"q": "x"}), Failure(503, "busy"))
    llm = TracedLLMClient(model, model_id="scripted")
    assert list(llm.stream("a")) == ["one ", "two"]
    assert llm.generate("b", temperature=0) == ToolUse("search", {"q": "x"})
    with pytest.raises(RuntimeError, match="503: busy"):
        llm.generate("c")
    with pytest.raises(AssertionError, match="request 4"):
        llm.generate("d")
    assert model.requests == ["a", {"prompt": "b", "temperature": 0}, "c", "d"]


def test_the_openai_sdk_understands_a_served_model() -> None:
    """Texts, tool calls, streams and errors over HTTP parse as the real service's do."""
    import openai

    model = ScriptedModel("hello there", ToolUse("search", {"q": "x"}), "one two", Failure(400, "no"))
    with model.served() as url, openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert client.chat.completions.create(**ask).choices[0].message.content == "hello there"
        [call] = client.chat.completions.create(**ask).choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("search", '{"q": "x"}')  # type: ignore[union-attr]
        pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)]
        assert "".join(pieces) == "one two"
        with pytest.raises(openai.BadRequestError, match="no"):
            client.chat.completions.create(**ask)
        with pytest.raises(openai.BadRequestError, match="script has 4 replies"):
            client.chat.completions.create(**ask)
    assert len(model.requests) == 5


def test_the_anthropic_sdk_understands_a_served_model() -> None:
    """Texts, tool use, streams and errors over HTTP parse as the real service's do."""
    import anthropic

    model = ScriptedModel("hello there", ToolUse("search", {"q": "x"}, "let me see"), "one two", Failure(529, "busy"))
    with model.served(pace=0.001) as url, anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        assert client.messages.create(**ask).content[0].text == "hello there"  # type: ignore[union-attr]
        text, use = client.messages.create(**ask).content
        assert (text.text, use.name, use.input) == ("let me see", "search", {"q": "x"})  # type: ignore[union-attr]
        with client.messages.stream(**ask) as stream:
            assert "".join(stream.text_stream) == "one two"
        with pytest.raises(anthropic.InternalServerError, match="busy"):
            client.messages.create(**ask)


CHILD = """
import sys
from tracekit import record
from tracekit.testing import crash_at
sys.path.insert(0, sys.argv[3])
from kit_program import program
with crash_at(sys.argv[1], nth=int(sys.argv[2])), record("crash"):
    program()
print("survived")
"""


@pytest.fixture
def crashing(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the program in a child that is to die at a point."""
    (tmp_path / "kit_program.py").write_text(
        "from tracekit import traced_tool\n"
        "@traced_tool(side_effect='irreversible')\ndef send(what): return len(what)\n"
        "@traced_tool(side_effect='read_only')\ndef count(upto): yield from range(upto)\n"
        "def program(): return send('letter') + sum(count(3))\n"
    )

    def run(point: str, nth: int = 1) -> subprocess.CompletedProcess[str]:
        return python("-c", CHILD, point, str(nth), str(tmp_path))

    return run


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_point_kills_the_process(point: str, crashing: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """At every named point the process dies at once, by SIGKILL."""
    done = crashing(point)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr


def test_the_nth_passing_is_meant(crashing: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """nth counts; a point that is never reached so often kills nobody."""
    assert crashing("mid-chunk", 3).returncode == -signal.SIGKILL
    done = crashing("mid-chunk", 4)
    assert done.stdout == "survived\n", done.stderr


def test_a_crash_block_leaves_no_trace_of_itself() -> None:
    """After the block the methods are the ones that were there; an unknown point is refused."""
    from tracekit._journal.writer import Journal
    from tracekit._runtime.recorder import RecordedStep, Recording
    from tracekit.integration import Store

    before = [dict(vars(owner)) for owner in (Journal, Recording, RecordedStep, Store)]
    passed: list[int] = []
    with crash_at("after-effect", nth=2, act=lambda: passed.append(1)), record("counted"):
        program()
    assert passed == [1]
    assert [dict(vars(owner)) for owner in (Journal, Recording, RecordedStep, Store)] == before
    with pytest.raises(ValueError, match="after-effect"), crash_at("somewhere"):
        pass
