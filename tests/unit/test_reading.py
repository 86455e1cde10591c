"""The reading model of a run: each step once, with what it was given and what came of it, in whichever protocol a model was asked."""

from __future__ import annotations

import threading
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.cut import cut
from tests.support.tracing import of_type
from tracekit import decision, record, traced, traced_model, traced_tool
from tracekit.cli import main
from tracekit.errors import RunNotFoundError
from tracekit.integration import FileView, PromptMessage, ToolRequest, Trace, plain, prompt_of, read_run


@traced_tool(side_effect="irreversible", name="pay")
def pay(cents: int, to: Any = None) -> int:
    if cents < 0:
        raise ValueError("a negative amount")
    return cents


@traced_tool(side_effect="read_only")
def look_up(order: int) -> str:
    return str(order)


@traced_model(model="m")
def ask(messages: list[Any], temperature: float) -> str:
    return "fine"


def test_each_step_is_there_once_with_what_became_of_it(tmp_path: Path) -> None:
    """Arguments, outcome, class, error, lane and place; clock reads and other bookkeeping only when asked for."""
    with record("shop", store=tmp_path) as run:
        decision("route", input=1, output="express")
        traced(name="billing")(lambda: pay(5, to=Decimal("1.5")))()
        with pytest.raises(ValueError):
            pay(-1)
        thread = threading.Thread(target=pay, args=(7,), name="payer")
        thread.start()
        thread.join()
    with read_run(run.path) as found:
        assert (found.name, found.run_id, found.state, found.files[0].segment) == ("shop", run.id, "complete", None)
        steps = [*found.steps()]
        assert [(step.kind, step.name, step.state) for step in steps] == [
            ("decision", "route", "done"), ("span", "billing", "done"), ("tool", "pay", "done"), ("tool", "pay", "failed"),
            ("tool", "pay", "done"),
        ]  # fmt: skip
        route, span, paid, failed, beside = steps
        assert (route.input, route.output, route.calls) == (1, "express", False)
        assert (plain(paid.input), paid.output, paid.side_effect) == ({"cents": 5, "to": "1.5"}, 5, "irreversible")
        assert paid.parent == span.seq
        assert failed.error == "ValueError: a negative amount"
        assert beside.lane.path.endswith("#1")
        assert paid.lane.path == ""
        assert {step.seq for step in found.steps(all=True)} > {step.seq for step in steps}
        assert [step.name for step in found.steps(kinds=["decision", "error"])] == ["route", "pay"]
        assert found.step(paid.answer) == paid
        assert found.step(str(paid.place)) == paid
        for place in (10_000, "0123456789abcdef:2", "x"):
            with pytest.raises(RunNotFoundError, match="has no"):
                found.step(place)


def test_a_step_of_a_large_run_takes_little_memory(tmp_path: Path) -> None:
    """Where a run is read: what is asked of all steps stands in columns. Where it is compared: a hash of each step more."""
    count, runs = 3000, []  # enough, that the block that is read at once is little of it
    for name in ("one", "two"):
        with record("long", store=tmp_path, run_id=name) as run:
            for number in range(count):
                look_up(number)
        runs.append(run.path)
    with record("short", store=tmp_path) as run:
        look_up(0)
    CliRunner().invoke(main, ["diff", run.path, run.path])  # what a process does once is none of it
    tracemalloc.start()
    try:
        with read_run(runs[0]) as view:
            assert sum(step.kind == "tool" for step in view.steps()) == count
            held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        done = CliRunner().invoke(main, ["diff", *runs])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.stdout.endswith(f"{count} steps the same\n")
    assert held < count * 200
    assert most < 2 * count * 600


def test_steps_that_a_reader_has_done_with_are_dropped(tmp_path: Path) -> None:
    """Who reads along with a run of any length keeps what is open: the rest is found no more, and what stays is what it was."""
    with record("long", store=tmp_path) as run:
        thread = threading.Thread(target=look_up, args=(7,), name="payer")
        thread.start()
        thread.join()
        for number in range(4000):
            look_up(number)
    with Trace(run.path) as trace:
        file = FileView(trace, trace.status)
        kept = []
        for entry in trace.entries():
            step = file.feed(entry)
            if step is None or step.outcome is None:
                continue
            if step.input["order"] % 1000 == 7:
                kept.append((step, step.outcome, step.answer, step.took, step.output, step.lane.path))
            else:
                file.forget(step)
                assert file.step_at(step.seq) is None
        assert [step.input["order"] for step, *_ in kept] == [7, 7, 1007, 2007, 3007]
        assert [
            (file.steps[step.seq].outcome, step.answer, step.took, step.output, step.lane.path) for step, *_ in kept
        ] == [tuple(facts) for _, *facts in kept]
        assert [step for step in file.steps.values() if step.kind == "tool"] == [step for step, *_ in kept]
        assert [step.kind for step in file.steps.values()].count("lane") == 1


def test_a_step_that_was_cut_off_is_in_doubt_and_its_run_has_died(tmp_path: Path) -> None:
    """Nobody has the file open, and nothing says what became of the payment."""
    with record("shop", store=tmp_path / "whole") as run:
        pay(5)
    (call,) = of_type(run, "tool.call")
    path = cut(run, call["seq"], tmp_path / "cut")
    with read_run(str(path)) as found:
        assert found.state == "died"
        assert [step.state for step in found.steps()] == ["in doubt"]


OPENAI = {
    "model": "m", "temperature": 0.5, "tools": [{"type": "function", "function": {"name": "look"}}],
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "…"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ],
}  # fmt: skip
RESPONSES = {
    "model": "m", "temperature": 0.5, "instructions": "Be brief.", "tools": [{"type": "function", "name": "look"}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": "…"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
    ],
}  # fmt: skip
ANTHROPIC = {
    "model": "m", "temperature": 0.5, "system": [{"type": "text", "text": "Be brief."}], "tools": [{"name": "look", "input_schema": {}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image", "source": {"data": "…"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a cat"}]}]},
    ],
}  # fmt: skip
GEMINI = {
    "temperature": 0.5, "systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": [{"functionDeclarations": [{"name": "look"}]}],
    "contents": [
        {"role": "user", "parts": [{"text": "What is it?"}, {"inlineData": {"data": "…"}}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {"at": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "c1", "response": "a cat"}}]},
    ],
}  # fmt: skip
BEDROCK = {
    "temperature": 0.5, "system": [{"text": "Be brief."}], "toolConfig": {"tools": [{"toolSpec": {"name": "look"}}]},
    "messages": [
        {"role": "user", "content": [{"text": "What is it?"}, {"image": {"format": "png"}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"at": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "a cat"}]}}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "body", [OPENAI, RESPONSES, ANTHROPIC, GEMINI, BEDROCK], ids=["chat", "responses", "messages", "gemini", "converse"]
)
def test_a_prompt_is_read_alike_in_every_protocol(body: dict[str, Any]) -> None:
    """The system prompt first, texts, pictures, the tool that was requested and its result, the tools on offer, parameters."""
    prompt = prompt_of(body)
    assert prompt.messages == (
        PromptMessage("system", "Be brief."),
        PromptMessage("user", "What is it?", others=("image",)),
        PromptMessage("assistant", "", (ToolRequest("look", {"at": 1}, "c1"),)),
        PromptMessage("tool", "a cat", (), "c1"),
    )
    assert prompt.tools == ("look",)
    assert prompt.parameters == {"temperature": 0.5}


@pytest.mark.parametrize(
    "body", ["Hello", {"prompt": "Hello"}, {"messages": [{"role": "user", "content": "Hello"}]}, {"input": ["Hello"]}]
)
def test_a_prompt_of_one_text(body: Any) -> None:
    """A text alone is what the user said."""
    assert prompt_of(body).messages == (PromptMessage("user", "Hello"),)


@pytest.mark.parametrize(
    "body",
    [
        None,
        3,
        [],
        {},
        {"messages": 7},
        {"messages": [None, 3, {"role": 4}]},
        {"tools": {"a": [1]}},
        {"input": {"type": []}},
    ],
)
def test_what_no_server_understands_is_read_as_far_as_it_can_be(body: Any) -> None:
    """A trace may hold anything; nothing is raised for it."""
    assert all(not message.text for message in prompt_of(body).messages)


def test_what_changed_since_the_turn_before(tmp_path: Path) -> None:
    """The messages that are new, those that were changed, the parameters: of the conversation that it goes on, whatever lay between."""
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}]
    other = [{"role": "user", "content": "Something else."}]
    more = [{"role": "system", "content": "Be long."}, first[1], {"role": "assistant", "content": "1"}]
    with record("talk", store=tmp_path) as run:
        for messages, heat in ((first, 0.1), (other, 0.1), (more, 0.9)):
            ask(messages=messages, temperature=heat)
    with read_run(run.path) as found:
        calls = [step.call for step in found.steps(kinds=["llm"])]
        one, aside, last = (call for call in calls if call is not None)
        assert aside.changes.previous is None
        assert last.changes.previous is not None
        assert last.changes.previous.seq == one.step.seq
        assert [edit.op for edit in last.changes.messages] == ["changed", "same", "added"]
        assert last.changes.parameters == {"temperature": (0.1, 0.9)}
        assert last.answer.text == "fine"
