"""Messages between agents: recorded with their causes, the same in every replay, compared, and free outside a run."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import queue
import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest

from tests.agents.flat import DONE, PROGRAMS
from tests.support.tracing import entries, of_type, recorded, replayed
from tracekit import DivergenceError, TraceExhaustedError, record, replay, state_transition, traced_tool
from tracekit.agents import (
    Message,
    agent,
    change_state,
    events,
    extract,
    inject,
    on_task,
    ordered,
    receive_task,
    replay_tasks,
    replay_tasks_async,
    respond,
    send_task,
    serialize,
)
from tracekit.agents.ids import Origin, event_id
from tracekit.errors import InvalidMessageError, RunStateError

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_workflow_of_three_agents_replays_exactly_twice(program: Callable[[], Any]) -> None:
    """By threads, by tasks, in one line: the same values, the same event ids, no effect again, and the same bytes of events."""
    DONE.clear()
    run, first = recorded(program)
    assert sorted(DONE) == ["north", "south"]
    before = serialize(events(run.path))
    for _ in range(2):
        report, again = replayed(run, program)
        assert report.exact, report.as_dict()
        assert again == first
    assert len(DONE) == 2
    assert serialize(events(run.path)) == before


def test_ids_have_the_form_of_random_ones_and_are_all_different() -> None:
    """Each event of a run has an id of its own, in the form of a UUID v4, that any reader can work out."""
    run, told = recorded(PROGRAMS[0])
    found = events(run.path)
    ids = [event["event_id"] for event in found]
    assert len(set(ids)) == len(ids) == 14
    assert all(UUID4.fullmatch(one) for one in ids)
    assert {one for one in told if isinstance(one, str)} <= set(ids)
    by_place = {event_id(run.id, None, entry["seq"]) for entry in entries(run)}
    assert set(ids) <= by_place
    assert event_id("r", None, 1) != event_id("r", "0" * 16, 1) != event_id("r", None, 11)


def test_an_entry_names_every_cause() -> None:
    """A join carries all the answers that it waited for, as entries of the trace; a receipt its message, a response its receipt."""
    run, _ = recorded(PROGRAMS[0])
    joined = of_type(run, "task_sent")[-1]
    answers, moved = of_type(run, "response_sent")[:2], of_type(run, "state_transition")[0]
    assert {cause["seq"] for cause in joined["cause"]} == {*(one["seq"] for one in answers), moved["seq"]}
    assert all(cause == {"run_id": run.id, "segment": None, "seq": cause["seq"]} for cause in joined["cause"])
    assert joined["meta"]["causes"] == [Origin(**cause).event_id for cause in joined["cause"]]
    for answer in answers:
        (received,) = (entry for entry in entries(run) if entry["seq"] == answer["cause"][0]["seq"])
        assert (received["type"], received["agent_id"]) == ("task_received", "worker")


def test_another_message_in_a_replay_is_a_divergence() -> None:
    """Recipient, payload, task and what caused a message are compared; so is who acts."""

    def program(recipient: str = "b", payload: int = 1, task: str = "t", cause: int = 0, who: str = "a") -> None:
        with agent(who):
            sent = [send_task("x", "same"), send_task("x", "same")]
            send_task(recipient, payload, task=task, causes=[sent[cause]])

    run, _ = recorded(program)
    for change in ({"recipient": "c"}, {"payload": 2}, {"task": "u"}, {"cause": 1}, {"who": "z"}):
        with pytest.raises((DivergenceError, TraceExhaustedError)), replay(run):
            program(**change)  # type: ignore[arg-type]
    replayed(run, program)


def test_outside_a_run_messages_go_through_and_are_on_no_log() -> None:
    """The same code works without a run; what was sent there has no id and causes nothing."""
    sent = send_task("b", {"x": 1}, task="t")
    task = receive_task(sent)
    answer = respond(task, 2)
    assert (sent.event_id, task.event_id, answer.event_id) == (None, None, None)
    assert (task.payload, answer.recipient, answer.task) == ({"x": 1}, None, "t")
    run, _ = recorded(lambda: receive_task(sent))
    (entry,) = of_type(run, "task_received")
    assert "cause" not in entry
    assert entry["name"] == "(outside)"


def test_a_message_travels_by_pickle_and_as_a_dictionary() -> None:
    """It comes out as it went in; a dictionary that is no message is refused with what is wrong."""
    message = Message("task_sent", "a", "b", {"x": [1]}, "t", Origin("run-1", "0123456789abcdef", 7))
    assert pickle.loads(pickle.dumps(message)) == message
    assert Message.from_dict(message.as_dict()) == message
    told = message.as_dict()
    wrong: list[Any] = [
        {},
        [],
        {**told, "type": "tool_call"},
        {**told, "sender": 1},
        {**told, "origin": 3},
        *({**told, "origin": {**told["origin"], key: value}} for key, value in _WRONG_ORIGINS),
    ]
    for bad in wrong:
        with pytest.raises(InvalidMessageError):
            Message.from_dict(bad)
    with pytest.raises(AttributeError):
        message.payload = 2  # type: ignore[misc]


_WRONG_ORIGINS: list[tuple[str, Any]] = [
    ("run_id", "../up"), ("run_id", 1), ("segment", "x"), ("segment", "0123456789ABCDEF"), ("seq", 0), ("seq", True), ("seq", "1"),
]  # fmt: skip


def test_states_and_their_causes() -> None:
    """Both spellings write the same kind of entry; either may name messages as causes, and be a cause in its turn."""

    def program() -> None:
        with agent("a"):
            sent = send_task("b", 1)
            state_transition("order", from_="new", to="open", causes=[sent])
            moved = change_state("idle", "busy", causes=[sent], why="work")
            change_state("busy", "idle", name="machine", causes=[moved])

    run, _ = recorded(program)
    first, second, third = of_type(run, "state_transition")
    assert [one["name"] for one in (first, second, third)] == ["order", "a", "machine"]
    assert first["cause"] == second["cause"] == [{"run_id": run.id, "segment": None, "seq": first["seq"] - 1}]
    assert third["cause"][0]["seq"] == second["seq"]
    assert second["meta"]["why"] == "work"
    assert replayed(run, program)[0].exact


def test_an_agent_is_a_block_and_a_decorator() -> None:
    """Sync and async functions act as the agent in each call, at once and nested."""

    @agent("outer")
    async def outer() -> list[str]:
        await asyncio.sleep(0)
        send_task("x", "outer")
        inner()
        send_task("x", "outer again")
        return ["done"]

    @agent("inner", identity={"spiffe_id": "spiffe://x/inner"})
    def inner() -> None:
        send_task("x", "inner")

    async def program() -> Any:
        return await asyncio.gather(outer(), outer())

    run, value = recorded(lambda: asyncio.run(program()))
    assert value == [["done"], ["done"]]
    sent = of_type(run, "task_sent")
    assert len({one["lane"] for one in sent}) == 2
    for lane in {one["lane"] for one in sent}:
        acted = [(one["agent_id"], one["output"]) for one in sent if one["lane"] == lane]
        assert acted == [("outer", "outer"), ("inner", "inner"), ("outer", "outer again")]
    assert {one["name"]: one["input"] for one in of_type(run, "identity")}["inner"] == {"spiffe_id": "spiffe://x/inner"}
    assert replayed(run, lambda: asyncio.run(program()))[0].exact


# -- work from outside ---------------------------------------------------------------------------------------------------

HANDLED: list[int] = []


@traced_tool(side_effect="irreversible")
def pay(amount: int) -> int:
    HANDLED.append(amount)
    return amount * 2


@on_task("cashier")
def cashier(task: Message) -> int:
    if task.payload == 3:
        raise ValueError("no")
    return pay(task.payload)


@on_task("clerk")
async def clerk(task: Message) -> int:
    await asyncio.sleep(0)
    return pay(task.payload)


def serve() -> None:
    """A server of threads, as it were."""

    def request(amount: int) -> None:
        try:
            cashier(Message("task_sent", "shop", "cashier", amount, "pay"))
        except ValueError:
            pass

    threads = [threading.Thread(target=request, args=(amount,)) for amount in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def serve_async() -> None:
    await asyncio.gather(*(clerk(Message("task_sent", "shop", "clerk", amount)) for amount in range(4)))


def test_a_replay_drives_tasks_from_outside_into_their_handler_without_a_server() -> None:
    """Each recorded task is given to the handler again, in a lane of its own: the same answers, and no effect."""
    HANDLED.clear()
    run, _ = recorded(serve)
    assert sorted(HANDLED) == [0, 1, 2, 4]
    answers: list[list[Any]] = []
    for _ in range(2):
        report, found = replayed(run, lambda: replay_tasks(cashier))
        assert report.exact
        answers.append([one.payload if isinstance(one, Message) else str(one) for one in found])
    assert answers[0] == answers[1]
    assert sorted(map(str, answers[0])) == ["0", "2", "4", "8", "no"]
    assert len(HANDLED) == 4


@traced_tool(side_effect="read_only")
def measure(n: int) -> int:
    return n * n


@on_task("measurer")
def measurer(task: Message) -> int:
    return measure(task.payload) + measure(task.payload + 1)


def test_one_cause_and_dictionaries_will_do() -> None:
    """What travelled as a dictionary is received as such, a single cause needs no list, and a replay is the same."""

    def program() -> list[str | None]:
        sent = send_task("a", 1)
        task = receive_task(sent.as_dict())
        answer = respond(task.as_dict(), 2, causes=sent)
        last = [send_task("b", causes=answer), change_state(1, 2, causes=answer)]
        state_transition("order", from_=1, to=2, causes=answer)
        return [one.event_id for one in (sent, task, answer, *last)]

    run, ids = recorded(program)
    told = {one["event_id"]: one for one in events(run)}
    assert [told[one]["parent_event_ids"][:1] for one in ids] == [[], ids[:1], [ids[1]], [ids[2]], [ids[2]]]
    assert told[ids[2]]["parent_event_ids"] == [ids[1], ids[0]]
    report, again = replayed(run, program)
    assert report.exact
    assert again == ids


@pytest.mark.parametrize(
    "slip",
    [
        lambda: receive_task({"type": "task_sent"}),
        lambda: receive_task("text"),
        lambda: respond(None, 1),
        lambda: send_task("a", 1, causes=[None]),
        lambda: send_task("a", 1, causes=5),
        lambda: change_state(1, 2, causes="text"),
        lambda: extract(None),
        lambda: extract(["name"]),
        lambda: inject({}, None),
    ],
)
def test_slips_are_told_with_what_to_do(slip: Callable[[], Any]) -> None:
    """What is no message, and no headers, is an InvalidMessageError that says what would be, inside a run and outside."""
    with pytest.raises(InvalidMessageError) as failure:
        slip()
    assert failure.value.next_action
    with record("slips"), pytest.raises(InvalidMessageError):
        slip()


def by_submitting(workers: int, tasks: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(measurer, Message("task_sent", "me", None, n)) for n in range(tasks)]:
            future.result()


def by_as_completed(workers: int, tasks: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        wait([pool.submit(measurer, Message("task_sent", "me", None, n)) for n in range(tasks)])
        for future in as_completed([pool.submit(measurer, Message("task_sent", "me", None, n)) for n in range(tasks)]):
            future.result()


def by_queue(workers: int, tasks: int) -> None:
    box: queue.Queue[int | None] = queue.Queue()

    def serve() -> None:
        while (n := box.get()) is not None:
            measurer(Message("task_sent", "me", None, n))

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for n in [*range(tasks), *[None] * workers]:
        box.put(n)
    for thread in threads:
        thread.join()


def by_loop(workers: int, tasks: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(workers) as pool:
            calls = [loop.run_in_executor(pool, measurer, Message("task_sent", "me", None, n)) for n in range(tasks)]
            await asyncio.sleep(0)
            await asyncio.gather(*calls)

    asyncio.run(main())


@pytest.mark.parametrize("serving", [by_submitting, by_as_completed, by_queue, by_loop])
@pytest.mark.parametrize(("workers", "tasks"), [(1, 2), (1, 6), (2, 4), (3, 5), (6, 6)])
def test_how_tasks_were_handed_to_workers_is_passed_over(
    serving: Callable[[int, int], None], workers: int, tasks: int
) -> None:
    """A pool, a queue of threads or a loop that dispatched is not there in the replay, and its turns are not waited for."""
    run, _ = recorded(lambda: serving(workers, tasks))
    for _ in range(2):
        report, found = replayed(run, lambda: replay_tasks(measurer))
        assert report.exact, report.as_dict()
        expected = tasks * (2 if serving is by_as_completed else 1)
        assert len(found) == expected
        assert {one.payload for one in found} == {n * n + (n + 1) ** 2 for n in range(tasks)}


def test_async_handlers_are_driven_in_a_loop_or_without_one() -> None:
    """replay_tasks_async in the running loop, replay_tasks from plain code: both replay what a loop recorded."""
    run, _ = recorded(lambda: asyncio.run(serve_async()))
    for again in (lambda: asyncio.run(replay_tasks_async(clerk)), lambda: replay_tasks(clerk)):
        HANDLED.clear()
        report, found = replayed(run, again)
        assert report.exact
        assert [one.payload for one in found] == [0, 2, 4, 6]
        assert HANDLED == []


def test_a_handler_that_does_something_else_fails_the_drive() -> None:
    """A divergence inside a handler is the replay's failure, not an answer."""

    @on_task("cashier")
    def changed(task: Message) -> int:
        return pay(task.payload + 1)

    run, _ = recorded(serve)
    with pytest.raises(DivergenceError), replay(run):
        replay_tasks(changed)


def test_drive_says_what_it_needs() -> None:
    """Outside a replay, or without the handler of a recorded task, it refuses."""
    with pytest.raises(RunStateError, match="inside a replay"):
        replay_tasks(cashier)
    run, _ = recorded(serve)
    with pytest.raises(RunStateError, match="cashier"), replay(run):
        replay_tasks(clerk)


def test_a_handler_inside_a_tool_belongs_to_the_tool() -> None:
    """A tool's own messages are skipped with the tool in a replay."""

    @traced_tool(side_effect="read_only")
    def through() -> int:
        cashier(Message("task_sent", None, "cashier", 1))
        return 1

    run, _ = recorded(through)
    assert replayed(run, through)[0].exact


# -- a forked child ------------------------------------------------------------------------------------------------------


def test_a_forked_child_writes_its_own_file_and_its_events_join_the_graph() -> None:
    """A message goes down a pipe to a forked child and its answer comes back: both files make one graph, nothing missing."""
    with record("parent", agent="planner") as run:
        message = send_task("child", {"n": 2})
        reader, writer = os.pipe()
        with warnings.catch_warnings():  # Python 3.12 and later warn of threads that the child does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            code = 1
            try:
                with agent("child"):
                    answer = respond(receive_task(message), message.payload["n"] * 2)
                os.write(writer, json.dumps(answer.as_dict()).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = Message.from_dict(json.loads(pipe.read()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        send_task("archive", answer.payload, causes=[answer])
    assert answer.payload == 4
    assert answer.origin is not None
    assert answer.origin.segment is not None
    assert answer.origin.run_id == run.id
    found = ordered(events(run))
    told = [(one["event_type"], one["agent_id"]) for one in found]
    assert told == [
        ("task_sent", "planner"), ("task_received", "child"), ("response_sent", "child"), ("task_sent", "planner"),
    ]  # fmt: skip
    assert found[2]["event_id"] == answer.event_id
    assert answer.event_id in found[3]["parent_event_ids"]
