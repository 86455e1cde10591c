"""Recordings of agentloom: read, replayed, written.

One JSON object: ``_version`` (2; left out in version 1), the answers of a model by step id or by the hash of the request, each an
object or a list of turns, and since our writing ``_inter_agent_events``, the events of :mod:`tracekit.agents.view`. Readers of
agentloom leave out what begins with ``_``.

Other than agentloom's own, the replay here has no default answer: what the recording does not hold is an error. Each turn of a list answers
once; an object under a step id answers once; an object under a request's hash answers that very request as often as it is made.
"""

from __future__ import annotations

from .exporting import MARK, exported, origin
from .recording import EVENTS, Recording, load, loads, request_hash
from .replaying import Replay

__all__ = ["EVENTS", "MARK", "Recording", "Replay", "exported", "load", "loads", "origin", "request_hash"]
