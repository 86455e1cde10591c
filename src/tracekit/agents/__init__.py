"""Agents that work together: messages with their causes, the graph of what caused what, and views of both.

::

    from tracekit.agents import agent, receive_task, respond, send_task

    with agent("planner"):
        message = send_task("worker", {"find": "a flat"})
    with agent("worker"):
        task = receive_task(message)
        answer = respond(task, find(task.payload))

All of it stands on steps of the trace; nothing below this package knows of it. ``tracekit.agents.agentloom`` reads and writes recordings
of agentloom, ``tracekit.agents.experimental`` has the events as types.
"""

from __future__ import annotations

from .._capture.notes import agent
from .envelope import IntentContext, IntentEnvelope, IntentMetadata, IntentRef, RoutingOptions
from .executors import Executor, LLMExecutor, ToolExecutor
from .graph import Difference, compare, ordered, serialize
from .hashing import identity_hash, stable_hash
from .headers import extract, inject
from .intentions import Event as IntentionEvent
from .intentions import Intention, Ref, ask, call, create, patch
from .loop import Loop, Outcome
from .messages import Message, receive_task, respond, send_task, state_transition
from .projection import pending_requests
from .record import ExecutionEvent, ExecutionHeader, ExecutionRecord
from .recorded_form import recorded_form
from .registry import AgentRegistry, BaseAgent
from .responders import Responder, responder
from .result import AgentResult, IntentResponse, ReplayResult
from .retrieval import replay_execution
from .router import IntentRouter
from .runs import events
from .schema import SCHEMA_URI
from .tasks import Handler, drive, drive_async, on_task
from .view import Event, parse
from .world import World, merge_patch

__all__ = [
    "SCHEMA_URI",
    "AgentRegistry",
    "AgentResult",
    "BaseAgent",
    "Difference",
    "Event",
    "ExecutionEvent",
    "ExecutionHeader",
    "ExecutionRecord",
    "Executor",
    "Handler",
    "IntentContext",
    "IntentEnvelope",
    "IntentMetadata",
    "IntentRef",
    "IntentResponse",
    "IntentRouter",
    "Intention",
    "IntentionEvent",
    "LLMExecutor",
    "Loop",
    "Message",
    "Outcome",
    "Ref",
    "ReplayResult",
    "Responder",
    "RoutingOptions",
    "ToolExecutor",
    "World",
    "agent",
    "ask",
    "call",
    "compare",
    "create",
    "drive",
    "drive_async",
    "events",
    "extract",
    "identity_hash",
    "inject",
    "merge_patch",
    "on_task",
    "ordered",
    "parse",
    "patch",
    "pending_requests",
    "receive_task",
    "recorded_form",
    "replay_execution",
    "respond",
    "responder",
    "send_task",
    "serialize",
    "stable_hash",
    "state_transition",
]
