"""``tracekit diff``: what is different between two runs, step by step."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tracekit import current_run, decision, record, traced_model, traced_tool
from tracekit.cli import main
from tracekit.integration import attach


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order.upper()


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> int:
    if cents < 0:
        raise ValueError(f"{cents} is negative")
    return cents


@traced_tool(side_effect="read_only")
def look_length(text: str) -> int:
    return len(text)


@traced_model(model="m")
def ask(messages: list[Any], temperature: float = 0.0) -> str:
    return f"answer to {messages[-1]['content'].splitlines()[-1]}"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def run(run_id: str, *steps: Any) -> str:
    with record("shop", run_id=run_id):
        for step in steps:
            step()
    return run_id


def changes(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("diff", *arguments, "--json").stdout.splitlines()]


def test_two_runs_of_one_program_have_no_difference() -> None:
    """Times, ids and places in the file are no part of a step."""
    for name in ("one", "two"):
        run(name, lambda: look("a" * 2000), lambda: decision("d", input=1, output=2), lambda: pay(3))
    done = call("diff", "one", "two")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no difference: 3 steps the same")
    assert changes("one", "two") == []
    assert call("executions", "diff", "one", "two").stdout == done.stdout


def test_what_differs_is_named_by_step_and_field() -> None:
    """A changed input or output, a step more and a step less: each once, with its place in both runs; exit code 1."""
    run("one", lambda: look("a"), lambda: pay(3), lambda: decision("d", input=1, output=2))
    run("two", lambda: look("b"), lambda: pay(3), lambda: look("c"))
    done = call("diff", "one", "two", "--json")
    changes = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert [(change["change"], change["kind"], change["name"]) for change in changes] == [
        ("changed", "tool.call", "look"),
        ("removed", "decision", "d"),
        ("added", "tool.call", "look"),
    ]
    assert changes[0]["differences"] == [
        {"path": "input.order", "recorded": "a", "actual": "b"},
        {"path": "output", "recorded": "A", "actual": "B"},
    ]
    assert (changes[0]["step"], changes[1]["other_step"], changes[2]["step"]) == (2, None, None)


def test_long_values_are_shown_from_where_they_differ() -> None:
    """However long what is equal before it is."""
    run("one", lambda: look("a" * 500 + " first"))
    run("two", lambda: look("a" * 500 + " other"))
    said = call("diff", "one", "two").stdout
    assert re.search(r"input\.order: …a+ first → …a+ other", said)
    assert re.search(r"output: …A+ FIRST → …A+ OTHER", said)


def test_a_long_line_of_a_prompt_is_cut_to_what_differs() -> None:
    """A message of one long line is not printed whole, twice; ``--json`` has it whole."""
    before, after = " ".join(f"b{n}" for n in range(300)), " ".join(f"a{n}" for n in range(300))
    run("one", lambda: ask([{"role": "user", "content": f"{before}\n{before} first {after}"}]))
    run("two", lambda: ask([{"role": "user", "content": f"{before}\n{before} other one {after}"}]))
    said = call("diff", "one", "two").stdout.splitlines()
    assert re.search(r"^    -….{0,38} b299 first a0 .{0,38}…$", next(line for line in said if line.startswith("    -")))
    assert re.search(
        r"^    \+….{0,38} b299 other one a0 .{0,38}…$", next(line for line in said if line.startswith("    +"))
    )
    assert f"     {before[:150]}" in "\n".join(said)
    assert max(len(line) for line in said if line.startswith("    ")) < 400
    assert changes("one", "two")[0]["messages"][0]["actual"]["text"] == f"{before}\n{before} other one {after}"


def _conversation(ids: list[str], answered: list[str]) -> list[dict[str, Any]]:
    """A turn that asks for two orders, under these ids, and their results, each under the id that it answers."""
    asked = [
        {"id": id, "type": "function", "function": {"name": "look", "arguments": json.dumps({"order": order})}}
        for id, order in zip(ids, ("a", "b", "a"), strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(answered, "ABA", strict=True)]
    return [{"role": "user", "content": "where?"}, {"role": "assistant", "tool_calls": asked}, *results]


def test_the_ids_of_tool_calls_are_no_difference() -> None:
    """A provider makes new ones in each run. Which request a result answers is compared, by what was requested."""
    one, two = [f"call_{name}" for name in "xyz"], [f"toolu_{name}" for name in "uvw"]
    for name, ids in (("one", one), ("two", two)):
        run(name, lambda ids=ids: ask([*_conversation(ids, ids), {"role": "user", "content": "and?"}]))
    done = call("diff", "one", "two")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no difference: 1 step the same")
    assert call("diff", "one", "two", "--transport").exit_code == 1
    swapped = [two[1], two[0], two[2]]
    run("swapped", lambda: ask([*_conversation(two, swapped), {"role": "user", "content": "and?"}]))
    said = call("diff", "one", "swapped")
    assert said.exit_code == 1
    assert "tool  (result of look(order=b))" in said.stdout
    run("other", lambda: ask([*_conversation(two, [two[2], two[1], two[0]]), {"role": "user", "content": "and?"}]))
    assert call("diff", "one", "other").exit_code == 1  # two equal requests are two


def test_another_model_is_another_input_of_one_call() -> None:
    """So what comes after it is compared, too, though it was asked with what the other model said."""
    for name in ("big", "small"):

        @traced_model(model=name)
        def say(messages: list[Any], by: str = name) -> str:
            return f"{by} says so"

        with record("shop", run_id=name):
            pay(look_length(say([{"role": "user", "content": "how long?"}])))
    assert [(one["change"], one["kind"], one["differences"][0]["path"]) for one in changes("big", "small")] == [
        ("changed", "llm.request", "input.model"),
        ("changed", "tool.call", "input.text"),
        ("changed", "tool.call", "input.cents"),
    ]


def test_errors_are_compared_by_what_they_say() -> None:
    """The same exception from another line is the same; another text is not."""
    for name, cents in (("one", -1), ("two", -1), ("three", -2)):
        with pytest.raises(ValueError, match="negative"):
            run(name, lambda cents=cents: pay(cents))
    assert call("diff", "one", "two").exit_code == 0
    change, end = changes("one", "three")
    assert end["kind"] == "end"
    assert "error.text" in [one["path"] for one in change["differences"]]


def prompts(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": text}]


def test_prompts_are_compared_message_by_message() -> None:
    """A changed message as a unified diff, in text and as both sides in JSON; the others are not shown."""
    run("one", lambda: ask(prompts("Hello.\nWhat is it?")))
    run("two", lambda: ask(prompts("Hello.\nWhat was it?"), temperature=0.5))
    (change,) = changes("one", "two")
    (message,) = change["messages"]
    assert (message["change"], message["recorded"]["text"], message["actual"]["text"]) == (
        "changed", "Hello.\nWhat is it?", "Hello.\nWhat was it?",
    )  # fmt: skip
    assert "input.parameters.temperature" in [one["path"] for one in change["differences"]]
    text = call("diff", "one", "two").stdout
    assert "    -What is it?\n    +What was it?\n" in text
    assert "Be kind" not in text


def test_a_message_that_differs_is_shown_where_it_comes_first() -> None:
    """Not in every later prompt of the conversation; each of those names the step."""
    for name, said in (("one", "ten"), ("two", "eleven")):
        turns = [{"role": "user", "content": f"There are {said}."}, {"role": "assistant", "content": "And?"}]
        turns.append({"role": "user", "content": f"So {said} it is."})
        run(name, *[lambda upto=upto, turns=turns: ask(turns[:upto]) for upto in (1, 3)])  # type: ignore[misc]
    said = call("diff", "one", "two").stdout
    assert said.count("+There are eleven.") == 1
    assert said.count("+So eleven it is.") == 1
    assert "  1 message as in step 2" in said.splitlines()


def test_a_step_that_was_made_at_another_place_has_moved() -> None:
    """``tracekit diff`` reports a step that comes earlier or later in the other run as moved, not as one removed and one added."""
    run("one", lambda: look("a"), lambda: pay(1), lambda: pay(2))
    run("two", lambda: pay(1), lambda: pay(2), lambda: look("a"))
    assert [(one["change"], one["name"]) for one in changes("one", "two")] == [("moved", "look")]
    assert "1 moved; 2 steps the same" in call("diff", "one", "two").stdout


def test_threads_are_compared_each_with_its_own() -> None:
    """In which order they came is chance; what each did is not."""

    def threads(*names: str) -> None:
        for name in names:
            thread = threading.Thread(target=look, args=(name,), name=name)
            thread.start()
            thread.join()

    run("one", lambda: threads("ann", "bob"), lambda: time.time())
    run("two", lambda: threads("bob", "ann"))
    run("three", lambda: threads("ann", "bea"))
    found = changes("one", "two"), changes("one", "three")
    assert [one["change"] for one in found[1]] == ["changed"]
    assert {one["change"] for one in found[0]} <= {"changed"}


def test_the_end_of_a_run_is_compared() -> None:
    """Its result, and whether it failed."""
    run("one", lambda: current_run().set_result({"total": 1}))
    run("two", lambda: current_run().set_result({"total": 2}))
    (end,) = changes("one", "two")
    assert (end["kind"], end["differences"]) == ("end", [{"path": "output.total", "recorded": 1, "actual": 2}])
    assert "output.total: 1 → 2" in call("diff", "one", "two").stdout


def test_what_a_transport_says_is_left_out() -> None:
    """Dates, ids of requests and rate limits are other in every call; they are compared where that is asked for."""

    def get(number: int, body: str) -> None:
        headers = {
            "date": f"day {number}",
            "x-request-id": f"req_{number}",
            "x-ratelimit-remaining": str(number),
            "x-kind": "a",
        }
        transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, text=body))
        attach(client := httpx.Client(transport=transport))
        client.get("http://service.test/one")

    run("one", lambda: get(1, "a"))
    run("two", lambda: get(2, "a"))
    run("three", lambda: get(3, "b"))
    assert changes("one", "two") == []
    assert len(changes("one", "two", "--transport")[0]["differences"]) == 3
    (change,) = changes("one", "three")
    assert [one["path"] for one in change["differences"]] == ["output.body"]


def test_bad_runs_are_named() -> None:
    """One that is not there is a usage error; a damaged one is no run to compare."""
    run("one", lambda: look("a"))
    done = call("diff", "one", "nobody")
    assert (done.exit_code, "nobody" in done.stderr) == (2, True)
