"""Resuming programs whose threads hand things to one another: who took what is as the log has it, then the run goes on."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.processes import python
from tests.support.tracing import entries
from tracekit import record, recovery, replay, resume, traced_tool
from tracekit.agents import Message, agent, receive_task, respond, send_task
from tracekit.integration import Trace

#: What really happened, by tool and argument.
done: Counter[str] = Counter()
ITEMS = 3


@traced_tool(side_effect="read_only")
def look(n: Any) -> str:
    done[f"look {n}"] += 1
    return f"seen {n}"


@traced_tool(side_effect="irreversible")
def pay(n: Any) -> str:
    done[f"pay {n}"] += 1
    return f"paid {n}"


def started(*targets: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


# -- programs --------------------------------------------------------------------------------------------------------------


def two_workers() -> Any:
    """Two threads take from one queue, and answer into another."""
    inbox: Any = queue.Queue()
    out: Any = queue.Queue()

    def work() -> None:
        while (n := inbox.get()) is not None:
            out.put((n, look(n)))

    threads = started(work, work)
    found = []
    for n in range(ITEMS):
        inbox.put(n)
        if n % 2:
            found += [out.get(), out.get()]
    found += [out.get() for _ in range(ITEMS - len(found))]
    for _ in threads:
        inbox.put(None)
    ended(threads)
    return [pay(n) for n, _ in sorted(found)]


def full_queue() -> Any:
    """Those who put wait for room, those who take in order of weight."""
    inbox: Any = queue.PriorityQueue(maxsize=1)

    def fill(first: int) -> None:
        for n in range(first, first + 2):
            inbox.put(n)

    found: list[Any] = []

    def take() -> None:
        for _ in range(2):
            found.append(pay(look(inbox.get())))

    ended(started(lambda: fill(0), lambda: fill(2), take, take))
    return sorted(found)


def until_empty() -> Any:
    """Threads that take without waiting, until there is nothing."""
    inbox: Any = queue.Queue()
    found: list[Any] = []
    for n in range(ITEMS):
        inbox.put(n)

    def work() -> None:
        while True:
            try:
                n = inbox.get_nowait()
            except queue.Empty:
                return
            found.append(pay(n))

    ended(started(work, work))
    return sorted(found)


def in_time() -> Any:
    """Somebody looks whether something has come, and looks again."""
    inbox: Any = queue.Queue()
    go = threading.Event()

    def feed() -> None:
        for n in range(ITEMS):
            look(n)
            go.wait(60)
            inbox.put(n)

    threads = started(feed)
    found: list[Any] = []
    while len(found) < ITEMS:
        try:
            found.append(pay(inbox.get(timeout=0.01)))
        except queue.Empty:
            go.set()
    ended(threads)
    return found


def by_completion() -> Any:
    """A pool, its answers taken as they come."""
    with ThreadPoolExecutor(2) as pool:
        calls = {pool.submit(look, n): n for n in range(ITEMS)}
        found = [calls[call] for call in as_completed(calls)]
    return [pay(n) for n in sorted(found)]


def first_of_many() -> Any:
    """A pool, and whoever is first is dealt with first."""
    found: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        calls = {pool.submit(look, n): n for n in range(ITEMS)}
        left: Any = set(calls)
        while left:
            come, left = wait(left, return_when=FIRST_COMPLETED)
            found += [calls[call] for call in come]
    return [pay(n) for n in sorted(found)]


def bare_hands() -> Any:
    """No queue: a list, and a condition that tells of it."""
    tasks: deque[int] = deque()
    told = threading.Condition()
    over = False
    found: list[Any] = []

    def work() -> None:
        while True:
            with told:
                while not tasks and not over:
                    told.wait()
                if not tasks:
                    return
                n = tasks.popleft()
            found.append(look(n))

    threads = started(work)
    for n in range(ITEMS):
        pay(n)
        with told:
            tasks.append(n)
            told.notify()
    with told:
        over = True
        told.notify_all()
    ended(threads)
    return found


def from_a_loop() -> Any:
    """Tasks of a loop put into a queue that a thread takes from, and have another thread wait for its answer."""
    inbox: Any = queue.Queue()
    answers: Any = [queue.Queue() for _ in range(ITEMS)]

    def work() -> None:
        for _ in range(ITEMS):
            n = inbox.get()
            answers[n].put(look(n))

    async def ask(n: int) -> Any:
        inbox.put(n)
        await asyncio.to_thread(answers[n].get)
        return n

    async def main() -> Any:
        threads = started(work)
        found = await asyncio.gather(*(ask(n) for n in range(ITEMS)))
        ended(threads)
        return [pay(n) for n in found]

    return asyncio.run(main())


def agents() -> Any:
    """A planner and two workers who share an inbox."""
    inbox: Any = queue.Queue()
    out: Any = queue.Queue()

    @agent("worker")
    def work() -> None:
        while (message := inbox.get()) is not None:
            task = receive_task(message)
            out.put(respond(task, look(task.payload)))

    threads = started(work, work)
    with agent("planner"):
        for n in range(ITEMS):
            inbox.put(send_task("worker", n))
        answers: list[Message] = sorted((receive_task(out.get()) for _ in range(ITEMS)), key=lambda one: one.payload)
        found = [pay(one.payload) for one in answers]
    for _ in threads:
        inbox.put(None)
    ended(threads)
    return found


PROGRAMS = {
    one.__name__: one
    for one in (
        two_workers, full_queue, until_empty, in_time, by_completion, first_of_many, bare_hands, from_a_loop, agents
    )
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_cut_off_anywhere(program: Callable[[], Any], tmp_path: Path) -> None:
    """Cut off after any of its entries, a run goes on to the same end wherever it may: nothing that was finished is made again,
    everything else once; and what comes of it replays exactly."""
    done.clear()
    with record("handed over") as run:
        result = program()
    whole = entries(run)
    every = dict(done)
    resumed = 0
    for count in range(1, len(whole)):
        store = tmp_path / str(count)
        path = cut(run, count, store)
        [decision] = recovery.scan(store)
        finished = {e["step"] for e in whole[:count] if e["type"] == "tool.return"}
        payments = [e["seq"] for e in whole[:count] if e["type"] == "tool.call" and e["name"].endswith("pay")]
        assert decision.in_doubt == tuple(seq for seq in payments if seq not in finished)
        assert (decision.decision == "abort") == bool(decision.in_doubt)
        if decision.in_doubt:
            continue
        before = Counter(_effect(e) for e in whole[:count] if e["seq"] in finished)
        done.clear()
        with resume(path, store=store):
            assert program() == result
        assert done + before == every, (count, whole[count - 1])
        made = dict(done)
        with replay(path, store=store) as session:
            assert program() == result
        # What a thread does for a loop comes to it a moment sooner or later; if so, that is told.
        assert session.report.exact or program is from_a_loop, f"{count} {session.report.as_dict()}"
        assert done == made
        resumed += 1
    assert resumed  # how often, the order of the threads decides: with two payments under way all the time, seldom


def _effect(entry: dict[str, Any]) -> str:
    return f"{entry['name'].rpartition('.')[2]} {entry['input']['n']}"


# -- a process that is killed ----------------------------------------------------------------------------------------------


def _live(mode: str, program: str, store: str, effects: str, deadly: str) -> None:
    """One life of a process: it dies in the tool call ``deadly``, if that is named."""

    def noted(name: str) -> Callable[[Any], str]:
        def tool(n: Any) -> str:
            with open(effects, "a") as file:
                file.write(f"{name} {n}\n")
            if f"{name} {n}" == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return f"{name} {n}"

        return tool

    global look, pay
    look = traced_tool(side_effect="read_only", name="look")(noted("look"))
    pay = traced_tool(side_effect="irreversible", name="pay")(noted("pay"))
    if mode == "record":
        with record("killed", store=store):
            PROGRAMS[program]()
    else:
        [path] = Path(store, "runs").glob("*.jsonl")
        with (resume if mode == "resume" else replay)(str(path), store=store):
            PROGRAMS[program]()


@pytest.mark.parametrize(
    "program", [name for name in PROGRAMS if name not in ("full_queue", "until_empty", "bare_hands")]
)
def test_killed_in_a_call(program: str, tmp_path: Path) -> None:
    """A process is killed in a tool that may be made again: another one goes on, makes that call again and nothing else twice,
    and the whole replays."""
    effects = tmp_path / "effects"

    def life(mode: str, deadly: str = "") -> int:
        given = (mode, program, store, str(effects), deadly)
        return python("-c", f"from {__name__} import _live; _live{given}").returncode

    for n in range(50):
        store = str(tmp_path / f"store{n}")
        effects.write_text("")
        assert life("record", "look 1") == -signal.SIGKILL
        [decision] = recovery.scan(store)
        if decision.decision == "resume":
            break  # else another thread was in the middle of a payment just then
    else:
        raise AssertionError(decision)
    assert life("resume") == 0
    made = Counter(effects.read_text().splitlines())
    assert made.pop("look 1") == 2
    # What other threads had begun just then, and the log had no outcome of, may be made again as well; a payment never.
    again = {what: count for what, count in made.items() if count != 1}
    assert all(count == 2 and what.startswith("look") for what, count in again.items()), again
    assert len(made) == 2 * ITEMS - 1
    [path] = Path(store, "runs").glob("*.jsonl")
    assert Trace(path).status.end == "run.completed"
    assert life("replay") == 0
    assert len(effects.read_text().splitlines()) == 2 * ITEMS + 1 + len(again)
