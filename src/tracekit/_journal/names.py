"""What runs are called: ids that sort by time, and that can be file names."""

from __future__ import annotations

import os
import re
import threading
from hashlib import sha256
from typing import Final

from .. import _reality

__all__ = ["SEGMENT", "SUFFIX", "holds_its_run", "new_run_id", "segment_of", "valid_run_id"]

#: How the name of a trace file ends, and the name of a segment's, without that, in two parts.
SUFFIX: Final = ".jsonl"
SEGMENT: Final = re.compile(r"(?P<run>.+)\.(?P<segment>[0-9a-f]{16})", re.ASCII)

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)

_ids = threading.Lock()
_last_tick = 0


def new_run_id() -> str:
    """A new run id: a version 7 UUID, later ones of a process greater than earlier ones."""
    global _last_tick
    with _ids:
        # 48 bits of milliseconds and 12 of their fraction (RFC 9562, method 3), counted on where the clock stands still.
        ns = _reality.time_ns()
        tick = _last_tick = max((ns // 1_000_000 << 12) | (ns % 1_000_000 * 4096 // 1_000_000), _last_tick + 1)
    dice = int.from_bytes(_reality.urandom(8), "big") & ((1 << 62) - 1)
    text = f"{(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | dice:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def valid_run_id(run_id: str) -> bool:
    """Whether a run id can be a file name that stays in its directory and is no segment's."""
    return (
        bool(_ID.fullmatch(run_id))
        and ".." not in run_id
        and not run_id.endswith(SUFFIX)
        and not SEGMENT.fullmatch(run_id)
    )


def holds_its_run(path: str, run_id: object) -> bool:
    """Whether a trace file that says it is of ``run_id`` has the name for that. A file outside every store may have any."""
    directory, name = os.path.split(os.path.abspath(path))
    stem = name.removesuffix(SUFFIX)
    segment = SEGMENT.fullmatch(stem)
    return os.path.basename(directory) != "runs" or run_id in (None, segment["run"] if segment else stem)


def segment_of(lane_path: str) -> str:
    """The name of the segment of a child process whose lane has this path: 16 hex digits."""
    return sha256(lane_path.encode("utf-8", "surrogatepass")).hexdigest()[:16]
