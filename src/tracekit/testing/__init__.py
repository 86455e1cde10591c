"""Helpers for testing agents and integrations; tracekit's own tests use them too.

- ``temporary_store()``: a store for the block, in memory where possible, removed at its end
- ``assert_replays(run, function)``: assert that a recorded run replays exactly
- ``ScriptedModel(…)``: a model that gives the answers you write, as an object or behind the OpenAI and Anthropic wire
  protocols
- ``ticking_clock()``: date entries by a deterministic clock, so that traces are the same each time
- ``no_network()``: forbid network access inside the block; ``nothing_live()`` also forbids tool and model calls outside
  a run
- ``crash_at("after-effect")``: kill the process at a named point; ``CRASH_POINTS`` lists the names

Nothing here imports an SDK or pytest.
"""

from __future__ import annotations

from .blocks import TickingClock, no_network, nothing_live, temporary_store, ticking_clock
from .crash import CRASH_POINTS, RECOVERY_POINTS, crash_at
from .model import Failure, ScriptedModel, ToolUse
from .replays import assert_replays

__all__ = [
    "CRASH_POINTS",
    "RECOVERY_POINTS",
    "Failure",
    "ScriptedModel",
    "TickingClock",
    "ToolUse",
    "assert_replays",
    "crash_at",
    "no_network",
    "nothing_live",
    "temporary_store",
    "ticking_clock",
]
