"""How a recorded run ended, and whether its replay ends in the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from .._canonical import exception_to_json
from .._engine.placeholders import alike
from .._engine.redaction import Redactor
from .._journal.reader import Trace
from ..errors import DivergenceError
from . import takeover
from .overspending import swallowed

__all__ = ["another_abort", "another_end", "failed", "hash_seed_hint", "last_entry", "same_error"]

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")


def last_entry(trace: Trace) -> dict[str, Any]:
    """The last entry of a run; it is an end unless the run is unsealed."""
    return trace.entry(len(trace))


def failed(trace: Trace) -> bool:
    """Whether the recorded run ended with an exception. A generator that held the block and was closed is none."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    return bool(last["error"]["type"] != "builtins:GeneratorExit")


def same_error(trace: Trace, redactor: Redactor, error: BaseException) -> bool:
    """Whether the recorded run failed with an exception of this type and text (addresses in it aside)."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    actual = redactor.redact(exception_to_json(error, []))[0]
    recorded = redactor.redact(last["error"])[0]
    return bool(recorded["type"] == actual["type"] and alike(_text(recorded), _text(actual)))


def _with_error(last: Mapping[str, Any]) -> bool:
    """Whether an exception left the block; one that the run had aborted ended with it all the same."""
    return last["type"] in ("run.failed", "run.aborted") and "error" in last and not swallowed(last)


def another_abort(trace: Trace, redactor: Redactor, reason: str | None) -> DivergenceError | None:
    """The program gave its run up now (``reason``) or then, and not both, or for another reason. ``None`` where it is the same.

    A run without an end, or whose end an operator wrote, says nothing of what its program would have done.
    """
    last = last_entry(trace)
    meta = last.get("meta") or {}
    own = last["type"] == "run.aborted" and bool(meta.get("by_program"))
    if not own and last["type"] not in ("run.completed", "run.failed"):
        return None
    recorded = meta.get("reason") if own else None
    actual = None if reason is None else redactor.redact_text(reason)[0]
    if recorded == actual or (recorded is not None and actual is not None and alike(recorded, actual)):
        return None
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {_abort_said(recorded)}\n  now       {_abort_said(actual)}",
        run_id=last["run_id"],
        step=last["seq"],
        recorded=recorded,
        actual=actual,
        differences=[{"path": "abort", "recorded": recorded, "actual": actual}],
        next_action="look at what decides whether the run is aborted; record again if the change is meant",
    )


def _abort_said(reason: str | None) -> str:
    return "not aborted" if reason is None else f"aborted: {reason}"


def another_end(trace: Trace, error: BaseException | None, ended_as: str | None) -> DivergenceError:
    """The recorded run failed, and the replay ended otherwise: with ``error``, or without one (``ended_as`` says how)."""
    last = last_entry(trace)
    recorded = _said(last["error"])
    actual = ended_as or "no exception" if error is None else _said(exception_to_json(error, []))
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {recorded}\n  now       {actual}",
        run_id=last["run_id"],
        step=last["seq"],
        recorded=recorded,
        actual=actual,
        differences=[{"path": "end", "recorded": recorded, "actual": actual}],
        next_action="every step until here matched: look at what changed after the last of them, or for what is not captured "
        "(docs/not-captured.md); record again if the change is meant",
    )


def hash_seed_hint(first: Mapping[str, Any], here: Any) -> str | None:
    """What to think of where the recording's hash seed is not ours: the order of sets; ``first`` is the run's first entry."""
    meta = first.get("meta") or {}
    seed = (meta.get("environment") or {}).get("hash_seed")
    if seed is None or meta.get("program") == takeover.program() or (seed == here and seed != "random"):
        return None
    return (
        f"the hash seed was {seed} in the recording and is {here} here, so that sets of strings come in another order: "
        "if one reaches this step, sort it, or record with PYTHONHASHSEED set (`tracekit run` sets it)"
    )


def _text(error: Mapping[str, Any]) -> Any:
    text = error.get("text")
    return _ADDRESS.sub("0x", text) if isinstance(text, str) else text


def _said(error: Mapping[str, Any]) -> str:
    name = str(error.get("type")).removeprefix("builtins:").replace(":", ".")
    text = error.get("text")
    return f"{name}: {text}" if text else name
