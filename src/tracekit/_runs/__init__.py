"""The composition root: runs that are recorded, replayed, and resumed."""

from __future__ import annotations

from .recording import RecordBlock, record
from .replaying import ReplayBlock, replay
from .resuming import ResumeBlock, resume
from .run import Run, current_run

__all__ = ["RecordBlock", "ReplayBlock", "ResumeBlock", "Run", "current_run", "record", "replay", "resume"]
