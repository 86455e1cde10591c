"""``tracekit executions``: the same commands under another name, and how two runs differ."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tracekit import decision, record, traced_tool
from tracekit.cli import main


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order.upper()


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> int:
    if cents < 0:
        raise ValueError(f"{cents} is negative")
    return cents


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def run(run_id: str, *steps: Any) -> str:
    with record("shop", run_id=run_id):
        for step in steps:
            step()
    return run_id


def test_list_and_show_are_what_they_are() -> None:
    """The aliases print what the commands print, as text or JSON."""
    run("one", lambda: look("a"))
    for name in ("list", "show"):
        arguments = ["one", "--json"] if name == "show" else ["--json"]
        assert call("executions", name, *arguments).stdout == call(name, *arguments).stdout != ""


def test_trace_prints_the_entries() -> None:
    """One JSON line an entry, references expanded where asked for."""
    run("one", lambda: look("a" * 5000))
    plain = [json.loads(line) for line in call("executions", "trace", "one").stdout.splitlines()]
    whole = [json.loads(line) for line in call("executions", "trace", "one", "--expand").stdout.splitlines()]
    assert [entry["seq"] for entry in plain] == [*range(1, len(plain) + 1)]
    found = next(entry for entry in whole if entry["type"] == "tool.call")
    assert found["input"] == {"order": "a" * 5000}
    assert call("executions", "trace", "nobody").exit_code == 2


def test_two_runs_of_one_program_have_no_difference() -> None:
    """Times, ids and places in the file are no part of a step."""
    for name in ("one", "two"):
        run(name, lambda: look("a" * 2000), lambda: decision("d", input=1, output=2), lambda: pay(3))
    done = call("executions", "diff", "one", "two")
    assert (done.exit_code, done.stdout) == (0, "")


def test_what_differs_is_named_by_step_and_field() -> None:
    """A changed input or output, a step more and a step less: each once, with its place in both runs; exit code 1."""
    run("one", lambda: look("a"), lambda: pay(3), lambda: decision("d", input=1, output=2))
    run("two", lambda: look("b"), lambda: pay(3), lambda: look("c"))
    done = call("executions", "diff", "one", "two", "--json")
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


def test_errors_are_compared_by_what_they_say() -> None:
    """The same exception from another line is the same; another text is not."""
    for name, cents in (("one", -1), ("two", -1), ("three", -2)):
        with pytest.raises(ValueError, match="negative"):
            run(name, lambda cents=cents: pay(cents))
    assert call("executions", "diff", "one", "two").exit_code == 0
    (change,) = [json.loads(line) for line in call("executions", "diff", "one", "three", "--json").stdout.splitlines()]
    assert "error.text" in [one["path"] for one in change["differences"]]
