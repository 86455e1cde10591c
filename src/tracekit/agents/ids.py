"""Ids of events: in the form of a random UUID, computed from the event's place in its trace.

An event *is* an entry of a trace, and its id the SHA-256 of run id, segment and ``seq`` with the version and variant bits of a
UUID v4. So it takes no room in the trace, any reader can compute it, and a replay, which follows the recorded entries, has the
ids of the recording in every task, thread and process, without random numbers.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, NamedTuple

__all__ = ["Origin", "event_id", "trace_id"]

#: The digit of the variant, by what the hash had in its place.
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


class Origin(NamedTuple):
    """The place of an event: the run, the segment (``None`` for the run's own file), the entry."""

    run_id: str
    segment: str | None
    seq: int

    @property
    def event_id(self) -> str:
        """The id of the event."""
        return event_id(self.run_id, self.segment, self.seq)

    def as_dict(self) -> dict[str, Any]:
        """As a ``cause`` of the trace format."""
        return {"run_id": self.run_id, "segment": self.segment, "seq": self.seq}


def event_id(run_id: str, segment: str | None, seq: int) -> str:
    """The id of the event that entry ``seq`` of a run (or of a segment of one) is."""
    text = sha256(f"tracekit event\n{run_id}\n{segment or ''}\n{seq}".encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def trace_id(run_id: str) -> str:
    """The W3C trace id that stands for a run: 32 hex digits, never all zeros."""
    return sha256(b"tracekit run\n" + run_id.encode()).hexdigest()[:31] + "1"
