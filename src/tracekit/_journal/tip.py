"""Tip hashes: what a complete run ended with, kept beside the runs, so that a cut or rewritten file is detected.

A kept tip is one small JSON file, ``heads/<the trace's name without .jsonl>``: ``{"run_id", "count", "head", "sealed_at", "mac"}``.
``mac`` is there where a key is set: the HMAC-SHA-256 of ``tracekit-seal-v1``, name, count, head and time, one a line. Whoever can
write the directory can change a tip that has none; the key, or a tip hash kept in another place (``verify --head``), is for that.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import orjson

from .. import _reality
from ..errors import TraceError
from .durable import replacing
from .reader import Trace, Verdict

__all__ = [
    "KeptTip",
    "check_kept",
    "check_tip_hash",
    "key_from",
    "read_tip",
    "seal_key",
    "write_tip",
]

KEY_VARIABLE: Final = "TRACEKIT_SEAL_KEY_FILE"
_MOST: Final = 64 << 10


class KeptTip(NamedTuple):
    """A kept tip: the number of entries, the hash of the last one, when (ns since the epoch), and its seal, if it has one."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    head: str
    sealed_at: int
    mac: str | None = None


def seal_key(path: str | os.PathLike[str] | None = None) -> bytes | None:
    """The key from the file at ``path``, or at ``TRACEKIT_SEAL_KEY_FILE``; ``None`` where neither is given.

    A key file that can't be read, or holds less than 16 bytes, is an error: a seal must not be left out unnoticed.
    """
    return key_from(path, KEY_VARIABLE, "the seal's")


def key_from(path: str | os.PathLike[str] | None, variable: str, whose: str) -> bytes | None:
    """The key from the file at ``path``, or at the environment variable; ``None`` where neither is given."""
    where = path or os.environ.get(variable)
    if not where:
        return None
    next_action = f"make one with `head -c 32 /dev/urandom > FILE`, or unset {variable}"
    try:
        with open(where, "rb") as file:
            key = file.read(_MOST)
    except OSError as error:
        raise TraceError(f"{whose} key file {where} can't be read: {error}", next_action=next_action) from error
    if len(key) < 16:
        raise TraceError(f"{whose} key file {where} holds less than 16 bytes", next_action=next_action)
    return key


def write_tip(path: str, count: int, head: str, *, key: bytes | None = None, sync: bool = True) -> None:
    """Keep a tip at ``path``: 0600, renamed into place, on the device when this returns if ``sync``."""
    name, sealed_at = os.path.basename(path), _reality.time_ns()
    facts: dict[str, Any] = {"run_id": name, "count": count, "head": head, "sealed_at": sealed_at}
    if key is not None:
        facts["mac"] = _mac(key, name, count, head, sealed_at)
    with replacing(path, sync=sync) as fd:
        data = orjson.dumps(facts) + b"\n"
        while data:  # a full disk may take a part
            data = data[os.write(fd, data) :]


def read_tip(path: str) -> KeptTip | None:
    """The tip kept at ``path``; ``None`` if there is none. ``ValueError`` for a file that is none."""
    try:
        with open(path, "rb") as file:
            facts = orjson.loads(file.read(_MOST))
    except FileNotFoundError:
        return None
    try:
        kept = KeptTip(facts["count"], facts["head"], facts["sealed_at"], facts.get("mac"))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no kept tip: {error!r}") from None
    if facts.get("run_id") != os.path.basename(path) or [type(part) for part in kept[:3]] != [int, str, int]:
        raise ValueError(f"{path} is no kept tip of this run")
    return kept


def check_tip_hash(verdict: Verdict, expected: str) -> Verdict:
    """The verdict, given that the last entry's hash should be ``expected`` (64 hex digits, kept by the user)."""
    if verdict.state == "broken" or verdict.head == expected.strip().lower():
        return verdict
    problem = f"the tip hash is {verdict.head}, expected was {expected}: entries were cut off, added or rewritten"
    return verdict._replace(state="broken", problem=problem, line=verdict.count or None)


def check_kept(trace: Trace, verdict: Verdict, path: str, key: bytes | None) -> Verdict:
    """The verdict, given the tip kept at ``path``. A run that was resumed after it may be longer, not different."""
    try:
        kept = read_tip(path)
    except ValueError as error:
        return verdict._replace(state="broken", problem=verdict.problem or str(error), lost_tail=False)
    if verdict.state == "broken":
        # A complete run was on the device as a whole: a power loss is no excuse.
        return verdict._replace(lost_tail=verdict.lost_tail and (kept is None or kept.count <= verdict.count))
    if kept is None:
        if key is not None and verdict.state == "complete":
            return verdict._replace(state="incomplete", problem="there is no seal made with this key", end=None)
        return verdict
    problem = _differs(trace, verdict, kept) or (
        _unsigned(kept, os.path.basename(path), key) if key is not None else None
    )
    if problem is None:
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


def _unsigned(kept: KeptTip, name: str, key: bytes) -> str | None:
    import hmac

    if kept.mac is None:
        return "its kept tip is not signed with this key"
    right = hmac.compare_digest(str(kept.mac).encode(), _mac(key, name, kept.count, kept.head, kept.sealed_at).encode())
    return None if right else "the seal of its kept tip is wrong: the tip was changed, or this is another key"


def _mac(key: bytes, *facts: object) -> str:
    import hmac

    return hmac.digest(key, "\n".join(map(str, ("tracekit-seal-v1", *facts))).encode(), "sha256").hex()
