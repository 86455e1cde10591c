"""The six types of inter-agent events, as types for a type checker; they may still change.

Each is a ``TypedDict`` of one line of the inter-agent view; ``tracekit.agents.view`` and the JSON Schema define the
same at run time.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

__all__ = [
    "InterAgentEvent",
    "ResponseSent",
    "StateTransition",
    "TaskReceived",
    "TaskSent",
    "ToolCall",
    "ToolReturn",
]


class _Event(TypedDict):
    event_id: str
    agent_id: str
    timestamp_ns: int
    parent_event_id: str | None
    parent_event_ids: list[str]
    payload_hash: str
    payload_sha256: str
    payload_ref: str | None
    payload: NotRequired[Any]
    agent_is_run: NotRequired[Literal[True]]
    comparison_sha256: NotRequired[str]
    mentions: NotRequired[list[str]]


class TaskSent(_Event):
    """An agent sends a task to another one."""

    event_type: Literal["task_sent"]
    recipient_agent_id: str
    task: str | None


class TaskReceived(_Event):
    """An agent has received a task, or an answer."""

    event_type: Literal["task_received"]
    sender_agent_id: str | None
    task: str | None


class ResponseSent(_Event):
    """An agent answers a task."""

    event_type: Literal["response_sent"]
    recipient_agent_id: str | None
    task: str | None


class ToolCall(_Event):
    """An agent is about to call a tool."""

    event_type: Literal["tool_call"]
    tool: str
    side_effect: str | None


class ToolReturn(_Event):
    """A tool has returned."""

    event_type: Literal["tool_return"]
    tool: str
    call_event_id: str
    outcome: Literal["ok", "error", "skipped"]


class StateTransition(_Event):
    """An agent, a workflow or an object changed from one state to another."""

    event_type: Literal["state_transition"]
    name: str


#: Any line of the inter-agent view; ``event_type`` distinguishes them.
InterAgentEvent: TypeAlias = TaskSent | TaskReceived | ResponseSent | ToolCall | ToolReturn | StateTransition
