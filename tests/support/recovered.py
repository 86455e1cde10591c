"""What recovery decides on a run whose process has been killed."""

from __future__ import annotations

import time
from pathlib import Path

from tracekit import recovery

__all__ = ["free_decision"]


def free_decision(store: Path) -> recovery.Decision:
    """The decision on the only run of a store once nobody holds its log: what the killed process had just forked, to start another
    program in, outlives it by a moment."""
    until = time.monotonic() + 60
    while True:
        [decision] = recovery.scan(store, all=True)
        if time.monotonic() > until or "held" not in {reason["code"] for reason in decision.reasons}:
            return decision
        time.sleep(0.01)
