"""The composition root: runs that are recorded, replayed, and resumed."""

from __future__ import annotations

from .recording import Record, record
from .replaying import Replaying, replay
from .resuming import Resuming, resume
from .run import Run, current_run

__all__ = ["Record", "Replaying", "Resuming", "Run", "current_run", "record", "replay", "resume"]
