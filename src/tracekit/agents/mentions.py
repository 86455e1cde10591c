"""What a payload says of recorded events: messages and headers that were handed through a tool name runs and entries.

Those are other ones in each recording, so a comparison can't take the payload as it stands. :class:`Mentions` finds them in the canonical
payload and puts a placeholder for each in its place; which events they are is told beside it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

from .._journal.names import valid_run_id
from .ids import event_id, trace_id

__all__ = ["Mentions"]

_SEGMENT: Final = rb'(?:null|"([0-9a-f]{16})")'
#: Where a message stands: in its dictionary, as a value of its own, in baggage.
_ORIGIN: Final = re.compile(
    rb'"run_id":"([^"\\]+)","segment":' + _SEGMENT + rb',"seq":([1-9][0-9]{0,15})(?=[,}])'
    rb'|"tracekit\.agents\.ids:Origin","v":\["([^"\\]+)",' + _SEGMENT + rb",([1-9][0-9]{0,15})\]"
    rb'|tracekit\.run=([^,;"\\\s]+)(?:,tracekit\.segment=([0-9a-f]{16}))?,tracekit\.seq=([1-9][0-9]{0,15})(?![0-9])'
)
_ID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-")
#: No JSON has this byte, so nothing that a program says can look like a placeholder.
_HOLE: Final = b"\0%d\0"
_RUN: Final = b"\0run\0"
#: A text is taken for a run's id if it is at least so long: a run may be called "a".
_TELLING: Final = 16


class Mentions:
    """The runs and events of one file that its payloads may speak of, as far as it has been read."""

    def __init__(self) -> None:
        self._runs: Final[dict[bytes, bytes]] = {}
        #: Event ids, and what a ``traceparent`` has of each.
        self._ids: Final[set[str]] = set()
        self._spans: Final[dict[str, str]] = {}

    def run(self, run_id: str) -> None:
        """``run_id`` takes part."""
        self._runs.setdefault(run_id.encode(), trace_id(run_id).encode())

    def event(self, id: str) -> None:
        """An event with this id has happened."""
        self._ids.add(id)
        self._spans[id.replace("-", "")[:16]] = id

    def found(self, data: bytes) -> tuple[str, list[str]] | None:
        """The hash of a canonical payload without what it mentions, and the events that it mentions, each once, in order.

        ``None`` if it mentions nothing of a recording.
        """
        named: list[str] = []

        def hole(id: str) -> bytes:
            if id not in named:
                named.append(id)
            return _HOLE % named.index(id)

        def origin(match: re.Match[bytes]) -> bytes:
            run, segment, seq = next(match.groups()[at : at + 3] for at in (0, 3, 6) if match.group(at + 1))
            run_id = unquote(run.decode(), errors="replace") if match.group(7) else run.decode()
            if not valid_run_id(run_id):
                return match.group()
            self.run(run_id)
            id = event_id(run_id, None if segment is None else segment.decode(), int(seq))
            self.event(id)
            return hole(id)

        def parent(match: re.Match[bytes]) -> bytes:
            id = self._spans.get(match[2].decode())
            if match[1] not in self._runs.values():
                return match.group()
            return b"00-" + _RUN + b"-" + (match[2] if id is None else hole(id)) + b"-"

        def known(match: re.Match[bytes]) -> bytes:
            id = match.group().decode()
            return hole(id) if id in self._ids else match.group()

        rest = _ORIGIN.sub(origin, data)
        rest = _ID.sub(known, _PARENT.sub(parent, rest))
        for run in self._runs:
            if len(run) >= _TELLING and run in rest:
                rest = re.sub(rb"(?<![\w-])" + re.escape(run) + rb"(?![\w-])", _RUN, rest)
        return None if rest == data else (sha256(rest).hexdigest(), named)

    def causes(self, told: Any) -> list[str]:
        """The ids of the events that an entry names as its causes; their runs take part."""
        found = []
        for cause in told or ():
            self.run(cause["run_id"])
            found.append(event_id(cause["run_id"], cause.get("segment"), cause["seq"]))
            self.event(found[-1])
        return found
