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

__all__ = ["another_end", "failed", "hash_seed_hint", "last_entry", "same_error"]

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")


def last_entry(trace: Trace) -> dict[str, Any]:
    """The last entry of a run; it is an end unless the run is unsealed."""
    return trace.entry(len(trace))


def failed(trace: Trace) -> bool:
    """Whether the recorded run ended with an exception. A generator that held the block and was closed is none."""
    last = last_entry(trace)
    if last["type"] != "run.failed" or swallowed(last):
        return False
    return bool(last["error"]["type"] != "builtins:GeneratorExit")


def same_error(trace: Trace, redactor: Redactor, error: BaseException) -> bool:
    """Whether the recorded run failed with an exception of this type and text (addresses in it aside)."""
    last = last_entry(trace)
    if last["type"] != "run.failed" or swallowed(last):
        return False
    actual = redactor.redact(exception_to_json(error, []))[0]
    recorded = redactor.redact(last["error"])[0]
    return bool(recorded["type"] == actual["type"] and alike(_text(recorded), _text(actual)))


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
