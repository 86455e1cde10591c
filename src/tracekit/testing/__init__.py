"""Helpers for testing agents and integrations; tracekit's own tests use them too.

- ``temporary_store()``: runs go to a directory in memory (where there is one) that is gone afterwards
- ``assert_replays(run, function)``: the recorded run replays exactly
- ``ScriptedModel(…)``: a model that gives the answers you write, as an object or behind the OpenAI and Anthropic wire protocols
- ``ticking_clock()``: entries dated by a deterministic clock, for traces that are the same each time
- ``no_network()``: a block in which nothing goes over a network; in one of ``nothing_live()`` no tool is called outside a run, either
- ``crash_at("after-effect")``: the process dies at a named point; ``CRASH_POINTS`` lists them

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
