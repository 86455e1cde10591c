"""Undoing what a run has done, on abort: compensations in reverse order, each a recorded step, each run once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from .._canonical import from_json
from .._capture.wrapper import captured_of
from .._engine.doubt import Doubt, Steps
from .._engine.gate import owner
from .._engine.lanes import Lane
from .._engine.recording import ROOT, Recording
from .._engine.scope import Scope, current, enter
from .._engine.step import Spec
from .._journal.reader import Trace
from ..errors import LogWriteError, NotReplayableError, RunStateError
from .defining import definitions

__all__ = ["Tools", "compensate", "facts", "to_run", "tools_of", "uncompensated", "unknown"]


class Tools(NamedTuple):
    """What modules define: the tools with a compensation, by name, and the names of all their tools."""

    specs: Mapping[str, Spec]
    names: frozenset[str]


def uncompensated(log: Steps) -> list[Doubt]:
    """The reversible steps that may have done something and were not undone, the last one first.

    A compensation must bear that nothing had happened, so failed and pending ones are among them.
    """
    undone = {step.undoes for step in log.steps.values() if step.state == "done"}
    return [
        step
        for step in reversed(log.steps.values())
        if step.side_effect == "reversible"
        and step.state != "given_up"
        and not (step.duplicate or step.undoes or step.seq in undone)
        and not any(outer.seq in undone for outer in log.enclosing(step))
    ]


def to_run(log: Steps, specs: Mapping[str, Spec]) -> list[Doubt]:
    """The steps whose compensations are to be run, the last step first.

    What was done inside a step that is undone as a whole is undone with it. A compensation that can't be taken back itself, and
    was begun before, is not run again, unless a person said that it was not done.
    """
    begun = _begun(log)
    left = uncompensated(log)
    whole = {step.seq for step in left if _compensation(specs, step) is not None}
    return [
        step
        for step in left
        if step.seq in whole
        and step.seq not in begun
        and not any(outer.seq in whole or outer.seq in begun for outer in log.enclosing(step))
    ]


def unknown(log: Steps, tools: Tools) -> list[Doubt]:
    """The steps to be undone whose tools no module has, so that nothing says how, the last step first."""
    known = _begun(log) | {step.seq for step in uncompensated(log) if _compensation(tools.specs, step) is not None}
    return [
        step
        for step in uncompensated(log)
        if step.family == "tool"
        and step.name not in tools.names
        and step.seq not in known
        and not any(outer.seq in known for outer in log.enclosing(step))
    ]


def _begun(log: Steps) -> set[int]:
    return {step.undoes for step in log.steps.values() if step.undoes and step.effect and step.state != "given_up"}


def compensate(session: Recording, trace: Trace, steps: Iterable[Doubt], specs: Mapping[str, Spec]) -> None:
    """Run the compensations of these steps. One that raises is on the log; the others go on."""
    scope = Scope(session, Lane("", 1, None, id=0, owner=owner()), ROOT)
    for step in steps:
        _undo(scope, trace, step, specs[str(step.name)])


def _compensation(specs: Mapping[str, Spec], step: Doubt) -> Any:
    """How to undo a step; ``None`` where nobody says, or where the object is gone whose method it is."""
    spec = specs.get(str(step.name))
    compensation = None if spec is None else spec.compensation
    return None if compensation is None or compensation._needs_object else compensation


def facts(trace: Trace, step: Doubt, spec: Spec | None) -> tuple[Any, Any] | None:
    """What a step was given and what it gave; ``None`` where the log does not have all of that: it is not undone by placeholders."""
    entry = trace.entry(step.seq)
    if (step.hidden and step.state == "done") or "redacted" in ((entry.get("meta") or {}).get("info") or {}):
        return None
    try:
        given = from_json(trace.expand(entry.get("input"), before=step.seq))
        if step.state != "done":
            return given, None
        output = trace.expand(trace.entry(step.outcome).get("output"), before=step.outcome)
        return given, from_json(output, None if spec is None else spec.hint())
    except NotReplayableError:
        return None


def _undo(scope: Scope, trace: Trace, step: Doubt, spec: Spec) -> None:
    known = facts(trace, step, spec)
    if known is None:
        return  # it is among those that were not undone
    given, came = known
    compensation: Any = spec.compensation
    token = enter(scope)
    try:
        if compensation.asynchronous:
            asyncio.run(compensation.run_async(scope, step.seq, given, came))
        else:
            compensation.run(scope, step.seq, given, came)
    except LogWriteError:
        raise
    except Exception:
        pass  # it is on the log, and the step is among those that were not undone
    finally:
        current.reset(token)


def tools_of(modules: Iterable[str]) -> Tools:
    """The tools of modules that the *operator* names; these are imported, and may do nothing else than define."""
    found: dict[str, Spec] = {}
    names: set[str] = set()
    for name in modules:
        for spec in _specs(definitions(name)):
            names.add(spec.name)
            if spec.compensation is not None and found.setdefault(spec.name, spec) is not spec:
                raise RunStateError(
                    f"two tools that can be undone are called {spec.name!r}: which one the run called can't be told",
                    next_action="name the module of the right one only, or give the tools names of their own",
                )
    return Tools(found, frozenset(names))


def _specs(module: ModuleType) -> Iterator[Spec]:
    for value in [*vars(module).values()]:
        if not isinstance(value, type) and hasattr(type(value), "tracekit_specs"):  # agents, whose steps it knows
            yield from value.tracekit_specs()
        members = [*vars(value).values()] if isinstance(value, type) else ()
        for one in (value, *members):
            captured = captured_of(one)
            if captured is not None:
                yield captured.spec
