"""Fields that are left out of the comparison of one kind of step (``replay(ignore=…)``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracekit import decision, record, replay, traced_tool
from tracekit.errors import DivergenceError


@traced_tool(side_effect="irreversible")
def search(query: str, about: dict[str, Any], key: str | None = None) -> str:
    return f"found {query}"


@traced_tool(side_effect="read_only")
def other(trace_id: str) -> str:
    return "other"


def program(n: int, query: str = "x", depth: int = 1) -> None:
    search(query, {"trace_id": f"id-{n}", "tags": [{"at": n, "kind": "a"}, {"at": n, "kind": "b"}], "depth": depth})
    decision("stop", input={"at": n, "why": query}, output=True)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    with record(path=tmp_path / "run.jsonl"):
        program(1)
    return tmp_path / "run.jsonl"


#: What differs between two calls of ``program`` with another number.
FIELDS = {"tool:search": ["input.about.trace_id", "input.about.tags[*].at"], "decision": ["input.at"]}


def test_a_field_that_is_left_out_may_differ(trace: Path) -> None:
    """The step is answered, and the verdict names what differed: exact but for it. Nothing is said where nothing differs."""
    with replay(trace, ignore=FIELDS) as session:
        program(2)
    verdict = session.report.verdict
    assert verdict.line == "exact but for 2 steps inside what is excluded from the comparison"
    first, second = verdict.of("ignored")
    assert first.text == (
        "tool 'search' differs in input.about.trace_id, input.about.tags[0].at, input.about.tags[1].at, which is left out"
    )
    assert second.facts["differences"] == [{"path": "input.at", "recorded": 1, "actual": 2}]
    with replay(trace, ignore=FIELDS) as session:
        program(1)
    assert session.report.verdict.line == "exact"


@pytest.mark.parametrize(
    "ignore",
    [
        {},
        {"tool:other": FIELDS["tool:search"], "decision": ["input.at"]},
        {"llm": FIELDS["tool:search"], "decision": ["input.at"]},
        {"tool": ["input.about.trace_id"], "decision": ["input.at"]},
        {"tool": ["input.about.trace", "input.about.tags[0].at"], "decision": ["input.at"]},
        {"tool": FIELDS["tool:search"]},
    ],
)
def test_whatever_else_differs_is_a_difference(trace: Path, ignore: dict[str, list[str]]) -> None:
    """Another kind, another name, another field, the beginning of a name: each leaves the comparison as it is."""
    with pytest.raises(DivergenceError), replay(trace, ignore=ignore):
        program(2)


def test_a_field_beside_one_that_is_left_out_is_compared(trace: Path) -> None:
    """The difference is shown with all fields, those that are left out as well."""
    with pytest.raises(DivergenceError) as found, replay(trace, ignore=FIELDS):
        program(2, depth=2)
    assert "input.about.depth" in str(found.value)


def test_what_is_below_a_field_goes_with_it(trace: Path) -> None:
    """A field that is absent on one side differs, too, and may."""
    with replay(trace, ignore={"tool": ["input.about"], "decision": ["input"]}) as session:
        search("x", {})
        decision("stop", input=None, output=True)
    assert session.report.verdict.answer == "exact but for"


def test_a_secret_beside_it_is_still_that_secret(tmp_path: Path) -> None:
    """A redacted value stands for one value, whatever is left out beside it."""
    keys = [f"sk-proj-{letter}B3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7bC9" for letter in "ab"]
    with record(path=tmp_path / "run.jsonl"):
        search("x", {"n": 1}, keys[0])
    with replay(tmp_path / "run.jsonl", ignore={"tool": ["input.about"]}) as session:
        search("x", {"n": 2}, keys[0])
    assert session.report.verdict.answer == "exact but for"
    with record(path=tmp_path / "two.jsonl"):
        search("x", {"n": 1}, keys[0])
        search("x", {"n": 1}, keys[0])
    with pytest.raises(DivergenceError), replay(tmp_path / "two.jsonl", ignore={"tool": ["input.about"]}):
        [search("x", {"n": 2}, key) for key in keys]


@pytest.mark.parametrize(
    ("ignore", "kind", "said"),
    [
        ({"tols": ["input"]}, ValueError, "ignore names kinds of steps"),
        ({"tool": ["trace_id"]}, ValueError, 'as a difference does, "input.trace_id"'),
        ({"tool": 3}, TypeError, "ignore must be a list of strings"),
        (["tool"], TypeError, "ignore is a dictionary"),
    ],
)
def test_what_can_not_be_left_out_is_refused(trace: Path, ignore: Any, kind: type[Exception], said: str) -> None:
    """A kind that there is not, a field that no difference names: an error at the call, not a comparison that leaves nothing out."""
    with pytest.raises(kind, match=said):
        replay(trace, ignore=ignore)
