"""The composition root: runs that are recorded, replayed, and resumed."""

from __future__ import annotations

from .recorded import Record, record
from .replayed import Replaying, replay
from .resumed import Resuming, resume
from .runs import Run, current_run

__all__ = ["Record", "Replaying", "Resuming", "Run", "current_run", "record", "replay", "resume"]
