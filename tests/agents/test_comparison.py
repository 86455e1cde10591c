"""Two recordings of one workflow are equal, whoever of equal workers did what, and whatever ids went through tools."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tracing import recorded, replayed
from tracekit import record, traced_tool
from tracekit.agents import (
    Message,
    agent,
    change_state,
    compare,
    events,
    inject,
    ordered,
    receive_task,
    respond,
    send_task,
)


@traced_tool(side_effect="read_only", name="post")
def post(headers: Any, body: Any) -> Any:
    return {"sent": headers, "body": body}


@traced_tool(side_effect="read_only", name="look")
def look(n: Any) -> Any:
    return n


def one_task(message: Message) -> Message:
    with agent("worker"):
        task = receive_task(message)
        look(task.payload)
        answer = respond(task, look(task.payload))
        change_state("busy", "idle")
        return answer


def pool_of_threads(turns: list[int]) -> list[Any]:
    """Worker ``turns[n]`` does task n: any distribution that a scheduler could have come to."""
    with agent("planner"):
        sent = [send_task("worker", n) for n in range(len(turns))]
    answers: list[Any] = [None] * len(sent)
    boxes: list[queue.Queue[int | None]] = [queue.Queue() for _ in range(3)]
    done: queue.Queue[int] = queue.Queue()

    def work(me: int) -> None:
        while (n := boxes[me].get()) is not None:
            answers[n] = one_task(sent[n])
            done.put(n)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    for n, me in enumerate(turns):
        boxes[me].put(n)
        done.get()
    for box in boxes:
        box.put(None)
    for thread in threads:
        thread.join()
    with agent("planner"):
        send_task("writer", "all", causes=answers)
    return [answer.payload for answer in answers]


def pool_of_tasks(turns: list[int]) -> list[Any]:
    async def main() -> list[Any]:
        with agent("planner"):
            sent = [send_task("worker", n) for n in range(len(turns))]
        answers: list[Any] = [None] * len(sent)
        boxes: list[asyncio.Queue[int | None]] = [asyncio.Queue() for _ in range(3)]

        async def work(me: int) -> None:
            while (n := await boxes[me].get()) is not None:
                answers[n] = one_task(sent[n])

        for n, me in enumerate(turns):
            boxes[me].put_nowait(n)
        for box in boxes:
            box.put_nowait(None)
        await asyncio.gather(*map(work, range(3)))
        with agent("planner"):
            send_task("writer", "all", causes=answers)
        return [answer.payload for answer in answers]

    return asyncio.run(main())


@pytest.mark.parametrize("pool", [pool_of_threads, pool_of_tasks])
def test_it_does_not_matter_which_worker_took_which_task(pool: Callable[[list[int]], list[Any]]) -> None:
    """Any distribution of tasks among equal workers is the same workflow; the events of a task still hang together."""
    first = recorded(lambda: pool([0, 1, 2, 0, 1]))[0]
    for turns in ([0, 0, 0, 0, 0], [2, 1, 2, 1, 0]):
        again = recorded(lambda turns=turns: pool(turns))[0]
        assert compare(events(first), events(again)) is None
        report, _ = replayed(again, lambda turns=turns: pool(turns))
        assert report.exact
    told = {one["event_id"]: one for one in events(first)}
    for one in told.values():
        if one["event_type"] == "task_received":
            (parent,) = one["parent_event_ids"]
            assert told[parent]["event_type"] == "task_sent"
        if one["event_type"] == "response_sent":
            assert [told[parent]["event_type"] for parent in one["parent_event_ids"]] == [
                "task_received",
                "tool_return",
            ]


def handing_over(form: Callable[[Message], Any], swapped: bool = False) -> None:
    with agent("planner"):
        one, other = send_task("a", "1"), send_task("a", "2")
        if swapped:
            one, other = other, one
        post(form(one), "x")
        post(form(other), "x")


@pytest.mark.parametrize(
    "form",
    [
        lambda message: message,
        lambda message: message.as_dict(),
        lambda message: inject({}, message),
        lambda message: inject({"baggage": "of=another"}, message)["baggage"],
        lambda message: ["see", message.event_id],
        lambda message: f"run {message.origin.run_id}, event {message.event_id}",
    ],
)
def test_messages_and_headers_may_go_through_tools(form: Callable[[Message], Any]) -> None:
    """Ids of runs and events in a payload are other ones in each recording, and no difference; which event is mentioned is one."""
    first, second, other = (events(recorded(lambda s=s: handing_over(form, s))[0]) for s in (False, False, True))
    assert compare(first, second) is None
    assert compare(first, other) is not None
    called = next(one for one in first if one["event_type"] == "tool_call")
    assert called["comparison_sha256"] != called["payload_sha256"]
    assert called["mentions"] == [first[0]["event_id"]]
    assert compare(ordered(first), list(reversed(second))) is None


def test_what_is_no_id_of_a_recording_is_compared() -> None:
    """An id of nobody's, and the short name of a run, are text like any other."""
    strange = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"]
    one, other = (events(recorded(lambda text=text: send_task("a", text))[0]) for text in strange)
    assert compare(one, other) is not None
    assert "mentions" not in one[0]
    elsewhere = [{"run_id": "r", "segment": None, "seq": n} for n in (1, 2)]
    one, other = (events(recorded(lambda text=text: send_task("a", text))[0]) for text in elsewhere)
    assert compare(one, other) is not None
    runs = []
    for name in ("ab", "cd"):
        with record(run_id=name) as run:
            send_task("x", name)
        runs.append(events(run))
    assert compare(*runs) is not None


def test_a_run_may_have_another_name() -> None:
    """Where nobody says who acts, the run's name stands for that, and another name is no difference; a named agent is."""
    told = []
    for name, who in (("monday", None), ("tuesday", None), ("tuesday", "me"), ("tuesday", "you")):
        with record(name, agent=who) as run:
            look(1)
            send_task("x")
            with agent("planner"):
                look(2)
        told.append(events(run))
    assert compare(told[0], told[1]) is None
    assert [one["agent_id"] for one in told[0]] == ["monday"] * 3 + ["planner"] * 2
    assert ["agent_is_run" in one for one in told[0]] == [True] * 3 + [False] * 2
    assert compare(told[1], told[2]) is not None
    assert compare(told[2], told[3]) is not None
    assert compare([*told[0], *told[2]], [*told[1], *told[2]]) is None
