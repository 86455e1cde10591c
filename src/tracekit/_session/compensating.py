"""Undoing what a run has done, on abort: compensations in reverse order, each a recorded step, each run once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from .._canonical import from_json
from .._capture.wrapper import captured_of
from .._engine.doubt import Doubt, Steps
from .._engine.gate import owner
from .._engine.lanes import Lane
from .._engine.recording import ROOT, Recording
from .._engine.scope import Scope, current, enter
from .._engine.step import Spec
from .._journal.reader import Trace
from ..errors import LogWriteError, RunStateError

__all__ = ["compensate", "compensations_of", "uncompensated"]


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


def compensate(session: Recording, trace: Trace, log: Steps, specs: Mapping[str, Spec]) -> None:
    """Run the compensations of what is to be undone, the last step's first. One that raises is on the log; the others go on.

    What was done inside a step that is undone as a whole is undone with it. A compensation that can't be taken back itself, and
    was begun before, is not run again.
    """
    begun = {step.undoes for step in log.steps.values() if step.undoes and step.effect}
    left = uncompensated(log)
    whole = {step.seq for step in left if _compensation(specs, step) is not None}
    scope = Scope(session, Lane("", 1, None, id=0, owner=owner()), ROOT)
    for step in left:
        inside = any(outer.seq in whole or outer.seq in begun for outer in log.enclosing(step))
        if step.seq in whole and step.seq not in begun and not inside:
            _undo(scope, trace, step, specs[str(step.name)])


def _compensation(specs: Mapping[str, Spec], step: Doubt) -> Any:
    """How to undo a step; ``None`` where nobody says, or where the object is gone whose method it is."""
    spec = specs.get(str(step.name))
    compensation = None if spec is None else spec.compensation
    return None if compensation is None or compensation._needs_object else compensation


def _undo(scope: Scope, trace: Trace, step: Doubt, spec: Spec) -> None:
    given = from_json(trace.expand(trace.entry(step.seq).get("input"), before=step.seq))
    came = None
    if step.state == "done":
        came = from_json(trace.expand(trace.entry(step.outcome).get("output"), before=step.outcome), spec.hint())
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


def compensations_of(modules: Iterable[str]) -> dict[str, Spec]:
    """The traced tools with a compensation, by name, of modules that the *operator* names; they are imported."""
    found: dict[str, Spec] = {}
    for name in modules:
        try:
            module = import_module(name)
        except ImportError as error:
            raise RunStateError(
                f"the module {name} can't be imported: {error}",
                next_action="name it as Python imports it, from the directory that it lies in",
            ) from error
        for spec in _specs(module):
            if found.setdefault(spec.name, spec) is not spec:
                raise RunStateError(
                    f"two tools that can be undone are called {spec.name!r}: which one the run called can't be told",
                    next_action="name the module of the right one only, or give the tools names of their own",
                )
    return found


def _specs(module: ModuleType) -> Iterator[Spec]:
    for value in [*vars(module).values()]:
        members = [*vars(value).values()] if isinstance(value, type) else ()
        for one in (value, *members):
            captured = captured_of(one)
            if captured is not None and captured.spec.compensation is not None:
                yield captured.spec
