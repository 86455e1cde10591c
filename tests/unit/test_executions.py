"""``tracekit executions``: the same commands under another name."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from tracekit import record, traced_tool
from tracekit.cli import main


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order.upper()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_list_and_show_are_what_they_are() -> None:
    """The aliases print what the commands print, as text or JSON."""
    with record("shop", run_id="one"):
        look("a")
    for name in ("list", "show"):
        arguments = ["one", "--json"] if name == "show" else ["--json"]
        assert call("executions", name, *arguments).stdout == call(name, *arguments).stdout != ""


def test_trace_prints_the_entries() -> None:
    """One JSON line an entry, references expanded where asked for."""
    with record("shop", run_id="one"):
        look("a" * 5000)
    plain = [json.loads(line) for line in call("executions", "trace", "one").stdout.splitlines()]
    whole = [json.loads(line) for line in call("executions", "trace", "one", "--expand").stdout.splitlines()]
    assert [entry["seq"] for entry in plain] == [*range(1, len(plain) + 1)]
    found = next(entry for entry in whole if entry["type"] == "tool.call")
    assert found["input"] == {"order": "a" * 5000}
    assert call("executions", "trace", "nobody").exit_code == 2
