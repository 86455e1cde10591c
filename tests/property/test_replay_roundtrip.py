"""Any program replays exactly; any change of it does not."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tracekit import ReplayError, decision, record, replay, traced, traced_tool

made: list[str] = []


@dataclass
class Step:
    """One thing that a program does."""

    kind: str
    value: Any = 0
    inner: list[Step] = field(default_factory=list)


@traced_tool(side_effect="read_only")
def tool(value: Any) -> Any:
    made.append("tool")
    return {"value": value, "draw": random.random()}


@traced_tool(side_effect="irreversible")
def effect(value: Any) -> Any:
    made.append("effect")
    return (value, time.time())


@traced_tool(side_effect="read_only")
async def later(value: Any) -> Any:
    made.append("later")
    await asyncio.sleep(0)
    return value


@traced_tool(side_effect="read_only")
def items(value: Any) -> Any:
    made.append("items")
    for i in range(3):
        yield i, value


@traced_tool(side_effect="read_only")
def broken(value: Any) -> None:
    made.append("broken")
    raise LookupError(value)


def perform(step: Step) -> Any:
    value = step.value
    if step.kind == "tool":
        return tool(value)
    if step.kind == "effect":
        return effect(value)
    if step.kind == "later":
        return asyncio.run(later(value))
    if step.kind == "items":
        return list(items(value))
    if step.kind == "left":
        generator = items(value)
        first = next(generator)
        generator.close()
        return first
    if step.kind == "broken":
        try:
            broken(value)
        except LookupError as error:
            return type(error).__name__, error.args
    if step.kind == "decision":
        return decision("d", input=value, output=value)
    if step.kind == "phase":
        return phase_of(step.inner)
    if step.kind == "draw":
        return random.random()
    if step.kind == "clock":
        return time.time()
    return [perform(one) for one in step.inner]


@traced("group")
def phase_of(steps: list[Step]) -> Any:
    return [perform(step) for step in steps]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False, places=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers(0, 50), max_size=4)
    ),
    max_leaves=6,
)
simple = st.builds(
    Step,
    st.sampled_from(["tool", "effect", "later", "items", "left", "broken", "decision", "draw", "clock"]),
    values,
)
steps = st.lists(
    st.recursive(
        simple, lambda inner: st.builds(Step, st.just("phase"), inner=st.lists(inner, max_size=3)), max_leaves=4
    ),
    min_size=1,
    max_size=6,
)
QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
COMPARED = {"tool", "effect", "later", "items", "left", "broken", "decision"}


class Place:
    """A store of its own for one example."""

    def __enter__(self) -> str:
        self.path = tempfile.mkdtemp()
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def program(plan: list[Step]) -> list[Any]:
    return [perform(step) for step in plan]


def recorded(plan: list[Step], store: str) -> tuple[str, list[Any]]:
    with record("program", store=store, durability="none") as run:
        result = program(plan)
    return run.path, result


@given(steps)
@QUICK
def test_any_program_replays_exactly_and_without_a_call(plan: list[Step]) -> None:
    """Whatever tools, effects, generators, errors, decisions, spans, draws and reads a program is made of: the same values."""
    with Place() as store:
        path, first = recorded(plan, store)
        made.clear()
        before = Path(path).read_bytes()
        with replay(path) as session:
            second = program(plan)
        assert second == first
        assert made == []
        assert session.report.exact, session.report.as_dict()
        assert Path(path).read_bytes() == before


@given(steps, st.data())
@QUICK
def test_any_change_of_a_program_fails_its_replay(plan: list[Step], data: st.DataObject) -> None:
    """Drop, double or change one captured step, wherever it is, and the replay fails with no tool run."""
    places = [i for i, step in enumerate(plan) if step.kind in COMPARED]
    assume(places)
    i = data.draw(st.sampled_from(places))
    how = data.draw(st.sampled_from(["drop", "double", "value", "kind"]))
    step = plan[i]
    if how == "drop":
        changed = [*plan[:i], *plan[i + 1 :]]
    elif how == "double":
        changed = [*plan[: i + 1], *plan[i:]]
    elif how == "value":
        changed = [*plan[:i], Step(step.kind, ["changed", step.value]), *plan[i + 1 :]]
    else:
        kind = data.draw(st.sampled_from(sorted(COMPARED - {step.kind, "left", "items"})))
        assume(not (step.kind in ("items", "left") and kind in ("items", "left")))
        changed = [*plan[:i], Step(kind, step.value), *plan[i + 1 :]]
    with Place() as store:
        path, _ = recorded(plan, store)
        made.clear()
        failure: BaseException | None = None
        try:
            with replay(path):
                try:
                    program(changed)
                except Exception:
                    pass
        except ReplayError as error:
            failure = error
        assert failure is not None, f"{how} of step {i} went unnoticed"
        assert made == []


@given(st.lists(values, min_size=1, max_size=4), st.decimals(allow_nan=False, allow_infinity=False))
@QUICK
def test_what_a_tool_returns_comes_back_equal_and_of_its_type(results: list[Any], amount: Decimal) -> None:
    """Values of every supported kind survive the file."""
    results = [*results, amount]
    pending = list(results)

    @traced_tool(side_effect="read_only", name="source")
    def source() -> Any:
        return pending.pop(0)

    with Place() as store:
        with record("values", store=store, durability="none") as run:
            for _ in results:
                source()
        with replay(run) as session:
            again = [source() for _ in results]
        assert again == results
        assert [type(one) for one in again] == [type(one) for one in results]
        assert session.report.exact
