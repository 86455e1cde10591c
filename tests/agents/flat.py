"""A workflow of three agents, in one process: a planner, two workers at once, a writer. Used by the tests of this directory."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from typing import Any

from tracekit import traced_tool
from tracekit.agents import Message, agent, change_state, receive_task, respond, send_task

#: What the tools did for real.
DONE: list[str] = []


@traced_tool(side_effect="irreversible")
def book(flat: str) -> dict[str, Any]:
    """A real effect, with chance in it."""
    DONE.append(flat)
    return {"flat": flat, "code": random.randrange(10**9)}


@agent("worker")
def work(message: Message, out: queue.Queue[Message]) -> None:
    task = receive_task(message)
    out.put(respond(task, book(task.payload["flat"])))


@agent("worker")
async def work_async(message: Message) -> Message:
    task = receive_task(message)
    await asyncio.sleep(0)
    return respond(task, book(task.payload["flat"]))


def _plan() -> list[Message]:
    return [send_task("worker", {"flat": name}, task="book") for name in ("north", "south")]


@agent("planner")
def _join(answers: list[Message]) -> Message:
    done = change_state("waiting", "done", causes=answers)
    return send_task("writer", [answer.payload for answer in answers], causes=[*answers, done])


@agent("writer")
def _write(message: Message) -> list[Any]:
    task = receive_task(message)
    final = respond(task, f"{len(task.payload)} flats")
    return [message.event_id, task.event_id, final.event_id, task.payload]


def by_threads() -> list[Any]:
    """The workers are threads, and answer through queues."""
    with agent("planner"):
        sent = _plan()
    queues: list[queue.Queue[Message]] = [queue.Queue() for _ in sent]
    threads = [threading.Thread(target=work, args=pair) for pair in zip(sent, queues, strict=True)]
    for thread in threads:
        thread.start()
    answers = [box.get() for box in queues]
    for thread in threads:
        thread.join()
    return [*(answer.event_id for answer in answers), *_write(_join(answers))]


def by_tasks() -> list[Any]:
    """The workers are tasks of one loop."""

    async def main() -> list[Any]:
        with agent("planner"):
            sent = _plan()
        answers = await asyncio.gather(*map(work_async, sent))
        return [*(answer.event_id for answer in answers), *_write(_join(list(answers)))]

    return asyncio.run(main())


def in_one_line() -> list[Any]:
    """Everything one after the other."""
    with agent("planner"):
        sent = _plan()
    box: queue.Queue[Message] = queue.Queue()
    for message in sent:
        work(message, box)
    answers = [box.get(), box.get()]
    return [*(answer.event_id for answer in answers), *_write(_join(answers))]


PROGRAMS = [by_threads, by_tasks, in_one_line]
