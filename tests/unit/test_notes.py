"""Steps of one entry: recorded with what they say, handed back to the program, and compared whole in a replay."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.tracing import entries, of_type, recorded, replayed
from tracekit import (
    ContractViolationError,
    DivergenceError,
    TraceExhaustedError,
    UnconsumedStepsError,
    breaker,
    data,
    decision,
    detection,
    policy_check,
    replay,
    state_transition,
)


class Plan(BaseModel):
    tool: str
    cents: int


SCHEMA = {"type": "object", "properties": {"tool": {"type": "string"}}, "required": ["tool"]}

#: Every kind: its entry type, a call with a value, what it returns, and the recorded input and output for value 1.
KINDS: list[tuple[str, Callable[[Any], Any], Any, Any, Any]] = [
    ("decision", lambda v: decision("plan", input={"q": 0}, output={"a": v}, why="x"), {"a": 1}, {"q": 0}, {"a": 1}),
    ("state_transition", lambda v: state_transition("order", from_="new", to=v), None, "new", 1),
    ("policy.check", lambda v: policy_check("spend", input={"action": "pay"}, output=v), 1, {"action": "pay"}, 1),
    ("breaker", lambda v: breaker("kill", output=v), 1, None, 1),
    ("detection", lambda v: detection("injection", input="text", output=v), 1, "text", 1),
]


@pytest.mark.parametrize(
    ("kind", "call", "returns", "input", "output"), KINDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_note_is_one_entry_and_gives_its_output_back(
    kind: str, call: Callable[[Any], Any], returns: Any, input: Any, output: Any
) -> None:
    """The entry holds name, input, output and metadata; the program gets the output, recording or replaying or neither."""
    assert call(1) == returns
    run, value = recorded(lambda: call(1))
    (entry,) = of_type(run, kind)
    assert (value, entry["input"], entry["output"]) == (returns, input, output)
    assert entry["meta"] == {"why": "x"} if kind == "decision" else "meta" not in entry
    report, again = replayed(run, lambda: call(1))
    assert (again, report.exact, report.consumed) == (returns, True, 1)


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, call, *_ in KINDS], ids=[kind for kind, *_ in KINDS])
def test_another_value_in_a_replay_is_a_divergence(kind: str, call: Callable[[Any], Any]) -> None:
    """What the program decides, checks or finds must be what it was; the difference is told by field."""
    run, _ = recorded(lambda: call(1))
    with pytest.raises(DivergenceError) as failure, replay(run):
        call(2)
    assert failure.value.step == of_type(run, kind)[0]["seq"]
    assert failure.value.differences[0]["path"].startswith("output")
    assert (failure.value.differences[0]["recorded"], failure.value.differences[0]["actual"]) == (1, 2)
    with pytest.raises(TraceExhaustedError), replay(run):
        assert [call(1), call(1)]
    with pytest.raises(UnconsumedStepsError), replay(run):
        pass


def test_name_and_metadata_are_compared_too() -> None:
    """Another name, or other metadata, is a divergence as well."""
    run, _ = recorded(lambda: decision("plan", input=1, output=2, model="a"))
    for other in (
        lambda: decision("plot", input=1, output=2, model="a"),
        lambda: decision("plan", input=1, output=2, model="b"),
    ):
        with pytest.raises(DivergenceError), replay(run):
            other()


def test_notes_are_compared_after_redaction() -> None:
    """A secret in a note is stored nowhere and matches all the same."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2

    def program() -> Any:
        return decision("key", input=secret, output=[secret], note=secret)

    run, value = recorded(program)
    assert value == [secret]
    assert secret not in Path(run.path).read_text("utf-8")
    assert replayed(run, program)[0].exact


def test_large_notes_match() -> None:
    """Values that are interned in the file are compared as they were."""
    text = "word " * 2000
    run, _ = recorded(lambda: [decision("d", input=[text], output={"t": text}) for _ in range(2)])
    assert of_type(run, "blob")
    assert replayed(run, lambda: [decision("d", input=[text], output={"t": text}) for _ in range(2)])[0].exact
    with pytest.raises(DivergenceError, match="changed"), replay(run):
        decision("d", input=[text + "changed"], output={"t": text})


@pytest.mark.parametrize(
    "schema", [Plan, {**SCHEMA, "properties": {"tool": {"type": "string"}, "cents": {"type": "integer"}}}]
)
def test_an_output_that_breaks_its_schema_is_refused_and_recorded(schema: Any) -> None:
    """A pydantic model or a JSON Schema: a right output passes; a wrong one is ``contract.violated``, the error, and no decision."""

    def program(cents: Any) -> Any:
        return decision("plan", input="goal", output={"tool": "pay", "cents": cents}, schema=schema)

    run, value = recorded(lambda: program(3))
    assert value == {"tool": "pay", "cents": 3}
    with pytest.raises(ContractViolationError, match="cents"):
        program("many")

    def refused() -> str:
        with pytest.raises(ContractViolationError, match="cents") as failure:
            program("many")
        return str(failure.value.what)

    run, first = recorded(refused)
    assert [entry["type"] for entry in entries(run)][1:-1] == ["contract.violated"]
    report, second = replayed(run, refused)
    assert (report.exact, second) == (True, first)


def test_a_model_instance_satisfies_its_schema() -> None:
    """The output may be an instance of the model; it is recorded as one and the program keeps its own object."""
    plan = Plan(tool="pay", cents=1)
    run, value = recorded(lambda: decision("plan", input=None, output=plan, schema=Plan))
    assert value is plan
    assert replayed(run, lambda: decision("plan", input=None, output=Plan(tool="pay", cents=1), schema=Plan))[0].exact


def test_a_schema_must_be_one() -> None:
    """What is neither a model nor a JSON Schema is a ``TypeError``."""
    with pytest.raises(TypeError, match="schema"):
        decision("plan", input=1, output=2, schema=3)


def test_data_is_recorded_by_its_hash(tmp_path: Path) -> None:
    """A data set is its SHA-256 and size, from a path or bytes; other data in a replay is a divergence that names the set."""
    path = tmp_path / "prices.csv"
    path.write_bytes(b"a,b\n1,2\n")
    run, version = recorded(lambda: data("prices", path, rows=1))
    assert version == "sha256:" + hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    (entry,) = of_type(run, "data")
    assert (entry["name"], entry["input"], entry["output"], entry["meta"]) == (
        "prices",
        {"size": 8},
        version,
        {"rows": 1},
    )
    assert replayed(run, lambda: data("prices", b"a,b\n1,2\n", rows=1))[0].exact
    path.write_bytes(b"a,b\n1,3\n")
    with pytest.raises(DivergenceError, match="prices"), replay(run):
        data("prices", path, rows=1)
