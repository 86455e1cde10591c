"""Undoing what a run has done, on abort: compensations in reverse order, each a recorded step, each run once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import wrapt

from .._canonical import from_json
from .._engine.doubt import Doubt, Steps
from .._engine.gate import owner
from .._engine.lanes import Lane
from .._engine.recording import ROOT, Recording
from .._engine.scope import Scope, current, enter
from .._engine.step import Spec
from .._journal.reader import Trace
from ..errors import RunStateError

__all__ = ["compensate", "compensations_of", "to_undo"]


def to_undo(log: Steps) -> list[Doubt]:
    """The reversible steps that may have done something and were not undone, the last one first.

    A compensation must bear that nothing had happened, so failed and pending ones are among them.
    """
    undone = {step.undoes for step in log.steps.values() if step.undoes and step.state == "done"}
    return [
        step
        for step in reversed(log.steps.values())
        if step.side_effect == "reversible"
        and step.state != "given_up"
        and not (step.duplicate or step.undoes or step.seq in undone)
    ]


def compensate(session: Recording, trace: Trace, steps: Iterable[Doubt], specs: Mapping[str, Spec]) -> None:
    """Run the compensation of each of ``steps`` whose tool has one; an exception of one ends it there."""
    lane = Lane("", 1, None, id=0, owner=owner())
    scope = Scope(session, lane, ROOT)
    for step in steps:
        spec = specs.get(str(step.name))
        compensation: Any = getattr(spec, "compensation", None)
        if spec is None or compensation is None:
            continue
        intention = trace.entry(step.seq)
        given = from_json(trace.expand(intention.get("input"), before=step.seq))
        came = None
        if step.state == "done":
            outcome = trace.entry(step.outcome)
            came = from_json(trace.expand(outcome.get("output"), before=step.outcome), spec.hint())
        token = enter(scope)
        try:
            compensation.run(scope, step.seq, given, came)
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
        found.update((spec.name, spec) for spec in _specs(module))
    return found


def _specs(module: ModuleType) -> Iterator[Spec]:
    for value in [*vars(module).values()]:
        members = [*vars(value).values()] if isinstance(value, type) else ()
        for one in (value, *members):
            if isinstance(one, wrapt.FunctionWrapper):
                spec = getattr(one._self_wrapper, "spec", None)
                if isinstance(spec, Spec) and getattr(spec, "compensation", None) is not None:
                    yield spec
