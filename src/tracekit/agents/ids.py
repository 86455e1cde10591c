"""The place of an agents' event in its trace, from which its id is derived.

An event *is* an entry of a trace, and its id the SHA-256 of run id, segment and ``seq`` with the version and variant
bits of a UUID v4. So it takes no space in the trace, any reader can compute it, and a replay, which follows the
recorded entries, has the recording's ids in every task, thread and process, without random numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..integration import event_id, span_id, trace_id

__all__ = ["Origin", "event_id", "span_id", "trace_id"]


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
        """Return the form of a ``cause`` in the trace format."""
        return {"run_id": self.run_id, "segment": self.segment, "seq": self.seq}
