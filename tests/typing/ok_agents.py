"""Programs with agents that must check."""

from __future__ import annotations

from typing import assert_type

from tracekit.agents import Message, agent, extract, inject, on_task, receive_task, replay_tasks, respond, send_task
from tracekit.agents.experimental import InterAgentEvent


@agent("planner")
def plan(city: str) -> Message:
    return send_task("worker", {"city": city}, task="search")


@agent("worker")
async def work(message: Message) -> Message:
    return respond(receive_task(message), [1])


@on_task("clerk")
def clerk(task: Message) -> int:
    return len(task.payload)


assert_type(plan("Rome"), Message)
headers: dict[str, str] = {}
inject(headers, plan("Oslo"))
assert_type(extract(headers, "body"), Message)
assert_type(replay_tasks(clerk), list[Message | Exception])


async def main() -> None:
    assert_type(await work(plan("Rome")), Message)


def told(event: InterAgentEvent) -> str | None:
    if event["event_type"] == "task_sent":
        return event["recipient_agent_id"]
    if event["event_type"] == "tool_return":
        return event["outcome"]
    return event["parent_event_id"]
