"""Kept tips: the last hash of each complete run, stored beside the runs to detect truncated or rewritten files.

A kept tip is a small JSON file, ``heads/<the trace's name without .jsonl>``: ``{"run_id", "count", "head",
"kept_at"}``. Anybody who can write to the directory can change it; use a seal, or a tip hash kept elsewhere (``verify
--head``), against that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from .. import _reality
from .._lazy import NamedTuple
from .._reality import open_file, system
from .durable import facts_in, replacing

if TYPE_CHECKING:
    from .reader import Trace, Verdict

__all__ = [
    "KeptTip",
    "check_kept",
    "check_tip_hash",
    "read_tip",
    "write_tip",
]

_MAX_SIZE: Final = 64 << 10
_SHAPE: Final = {"run_id": str, "count": int, "head": str, "kept_at": int}

#: Names the file of the private key with which runs are sealed when they end.
SEAL_KEY_VARIABLE: Final = "TRACEKIT_SEAL_KEY_FILE"


def seal_of(trace: str) -> str:
    """Return the path of the seals of the trace at this path, existing or not."""
    return f"{trace.removesuffix('.jsonl')}.seal"


class KeptTip(NamedTuple):
    """A kept tip: the number of entries, the hash of the last one, and when it was stored (ns since the epoch)."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    head: str
    kept_at: int


def write_tip(path: str, count: int, head: str, *, sync: bool = True) -> None:
    """Store a tip at ``path``: 0600, renamed into place, on the device on return if ``sync``."""
    facts: dict[str, Any] = {
        "run_id": os.path.basename(path),
        "count": count,
        "head": head,
        "kept_at": _reality.time_ns(),
    }
    with replacing(path, sync=sync) as fd:
        data = orjson.dumps(facts) + b"\n"
        while data:  # a full disk may accept only part of it
            data = data[system.write(fd, data) :]


def read_tip(path: str) -> KeptTip | None:
    """Return the tip stored at ``path``, or ``None``. Raises ``ValueError`` if the file is something else."""
    try:
        with open_file(path, "rb") as file:
            facts = facts_in(file.read(_MAX_SIZE), _SHAPE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a kept tip of this version of tracekit: {error}") from None
    if facts["run_id"] != os.path.basename(path):
        raise ValueError(f"{path} is the kept tip of another run, {facts['run_id']}")
    return KeptTip(facts["count"], facts["head"], facts["kept_at"])


def check_tip_hash(verdict: Verdict, expected: str) -> Verdict:
    """Return the verdict, given the last entry's expected hash ``expected`` (64 hex digits, kept by the user)."""
    if verdict.state == "broken" or verdict.head == expected.strip().lower():
        return verdict
    problem = f"the tip hash is {verdict.head}, expected was {expected}: entries were cut off, added or rewritten"
    return verdict._replace(state="broken", problem=problem, line=verdict.count or None)


def check_kept(trace: Trace, verdict: Verdict, path: str) -> Verdict:
    """Return the verdict, given the tip stored at ``path``. A run that was resumed later may be longer, but not
    different."""
    try:
        kept = read_tip(path)
    except ValueError as error:
        if verdict.state == "broken":
            return verdict._replace(lost_tail=False)
        unsure = f"whether its end was cut off or rewritten can't be known: {error}"
        return verdict._replace(state="broken", problem=unsure, unread=path)
    if verdict.state == "broken":
        # A complete run was entirely on the device, so a power loss can't explain the damage.
        return verdict._replace(lost_tail=verdict.lost_tail and (kept is None or kept.count <= verdict.count))
    problem = None if kept is None else _differs(trace, verdict, kept)
    if kept is None or problem is None:
        return verdict
    return verdict._replace(
        state="broken", problem=problem, line=min(kept.count, verdict.count) or None, lost_tail=False
    )


def _differs(trace: Trace, verdict: Verdict, kept: KeptTip) -> str | None:
    if verdict.count < kept.count:
        return f"the run ended with {kept.count} entries; there are {verdict.count}: its last lines were cut off"
    if trace.hash_of(kept.count) != kept.head:
        return f"the run ended with another tip hash at entry {kept.count}: it was rewritten"
    return None
