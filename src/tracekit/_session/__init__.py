"""The composition root: runs that are recorded, and runs that are replayed."""

from __future__ import annotations

from .recorded import Record, record
from .replayed import Replaying, replay
from .runs import Run, current_run

__all__ = ["Record", "Replaying", "Run", "current_run", "record", "replay"]
