"""Multi-agent programs: messages with their causes, the graph of what caused what, and views of both.

Example::

    from tracekit.agents import agent, receive_task, respond, send_task

    with agent("planner"):
        message = send_task("worker", {"find": "a flat"})
    with agent("worker"):
        task = receive_task(message)
        answer = respond(task, find(task.payload))

Everything is built on steps of the trace; no other package of tracekit depends on this one.
``tracekit.agents.agentloom`` reads and writes recordings of agentloom, ``tracekit.agents.experimental`` has the events
as types.
"""

from __future__ import annotations

from tracekit import agent

from .agentloom import events
from .envelope import (
    IntentContext,
    IntentEnvelope,
    IntentMetadata,
    IntentRef,
    RoutingOptions,
    identity_hash,
    recorded_form,
    stable_hash,
)
from .executors import Executor, LLMExecutor, ToolExecutor
from .graph import Difference, compare, ordered, serialize
from .intentions import Event as IntentionEvent
from .intentions import Intention, Ref, ask, call, create, patch
from .loop import Loop, LoopResult
from .messages import (
    Handler,
    Message,
    change_state,
    extract,
    inject,
    on_task,
    receive_task,
    replay_tasks,
    replay_tasks_async,
    respond,
    send_task,
)
from .record import ExecutionEvent, ExecutionHeader, ExecutionRecord, replay_execution
from .registry import AgentRegistry, BaseAgent
from .responders import Responder, responder
from .result import AgentResult, IntentResponse, ReplayResult
from .router import IntentRouter
from .view import EVENT_SCHEMA_URI, Event, parse
from .world import World, merge_patch, pending_requests

__all__ = [
    "EVENT_SCHEMA_URI",
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
    "LoopResult",
    "Message",
    "Ref",
    "ReplayResult",
    "Responder",
    "RoutingOptions",
    "ToolExecutor",
    "World",
    "agent",
    "ask",
    "call",
    "change_state",
    "compare",
    "create",
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
    "replay_tasks",
    "replay_tasks_async",
    "respond",
    "responder",
    "send_task",
    "serialize",
    "stable_hash",
]
