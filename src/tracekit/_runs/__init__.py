"""Runs as a whole: opened and ended (recorded, replayed, resumed), decided about after a crash, and read, compared and shown."""

from .._lazy import later

later(globals(), "partial", "replaying")
