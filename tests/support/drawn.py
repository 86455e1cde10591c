"""Concurrent programs drawn by Hypothesis, made of real traced tools; recorded and replayed by the real sessions.

The statements are those of :mod:`tests.support.programs` and some that need a real run: clock reads, random draws, spans, events
and pools with time limits. Each tool call answers with a number that no other call ever gets.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from typing import Any

from hypothesis import strategies as st

from tests.support import programs
from tests.support.simulation import Shuffled
from tracekit import Report, _reality, record, replay, traced, traced_tool
from tracekit.errors import ReplayError

__all__ = ["Attentive", "Tools", "drawn_programs", "play", "recorded_and_replayed"]

#: How often a tool's own code ran.
executed = itertools.count(1)
last = 0


def _unique() -> int:
    global last
    last = next(executed)
    return last


@traced_tool(side_effect="read_only")
async def fetch(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return _unique()


@traced_tool(side_effect="reversible")
async def instant() -> int:
    return _unique()


@traced_tool(side_effect="read_only")
def compute(ms: int) -> int:
    if ms:
        time.sleep(ms / 1000)
    return _unique()


@traced_tool(side_effect="irreversible")
async def report(value: object) -> int:
    return _unique()


@traced_tool(side_effect="read_only")
async def failing(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    raise ValueError(_unique())


class Tools:
    """See ``programs.Tools``."""

    async def fetch(self, ms: int) -> object:
        return await fetch(ms)

    async def instant(self) -> object:
        return await instant()

    def compute(self, ms: int) -> object:
        return compute(ms)

    async def report(self, value: object) -> object:
        return [value, await report(value)]


# -- further statements --------------------------------------------------------------------------------------------------


async def _clock(world: Any, _: int) -> Any:
    return [time.time(), time.monotonic_ns()]


async def _dice(world: Any, _: int) -> Any:
    return [random.random(), random.randrange(1_000_000)]


async def _failing(world: Any, ms: int) -> Any:
    try:
        return await failing(ms)
    except ValueError as error:
        return [type(error).__name__, error.args]


async def _span(world: Any, block: Any) -> Any:
    @traced("phase")
    async def phase(statements: int) -> Any:
        return [time.time(), [await programs.STATEMENTS[kind](world, *rest) for kind, *rest in block], random.random()]

    return await phase(len(block))


async def _nested_gather(world: Any, count: int) -> Any:
    """Equal calls at once, which only their lanes tell apart."""
    return await asyncio.gather(*(world.tools.fetch(1) for _ in range(count)))


def _t_clock(world: Any, a: int, b: int) -> Any:
    # And a step: when a thread ends that takes none is not recorded, and a time limit might see it.
    return [time.perf_counter(), random.random(), world.tools.compute(0)]


class _Held:
    """An answer that comes only when the program has gone on without it."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    @traced_tool(side_effect="read_only")
    def answer(self) -> int:
        self.passed.wait(10)
        return _unique()


def _race(a: int, b: int) -> tuple[_Held, Callable[[], int], float]:
    """An answer, and how long it is waited for (s): either too short, for sure, or long enough.

    Who comes first is an event of the run; what a thread does after its answer, in the same microseconds, is none. And each
    ends with a step: two waits with none between them are told apart by their number alone, and one that has nothing to wait
    for does not count.
    """
    held = _Held()
    return (held, held.answer, 0.002) if a > 2 else (held, lambda: compute(0), 5.0 + b)


def _t_event(world: Any, a: int, b: int) -> Any:
    """An event with a time limit against an answer."""
    held, call, patience = _race(a, b)
    event, answers = threading.Event(), []

    def work() -> None:
        answers.append(call())
        event.set()

    thread = threading.Thread(target=work)
    thread.start()
    seen = event.wait(patience)
    held.passed.set()
    thread.join()
    return [seen, answers, compute(0)]


def _t_handover(world: Any, a: int, b: int) -> Any:
    """A queue with a time limit against an answer."""
    held, call, patience = _race(a, b)
    items: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=lambda: items.put(call()))
    thread.start()
    try:
        seen = items.get(timeout=patience)
    except queue.Empty:
        seen = "late"
    held.passed.set()
    thread.join()
    return [seen, compute(0)]


def _t_first(world: Any, a: int, b: int) -> Any:
    held = _Held()
    with ThreadPoolExecutor(2) as pool:
        calls = [lambda: compute(0), held.answer]
        futures = [pool.submit(call) for call in (calls if a > 2 else reversed(calls))]
        done, _ = wait(futures, return_when=FIRST_COMPLETED)
        first = [future in done for future in futures]
        held.passed.set()
    return [first, *(future.result() for future in futures)]


def _t_as_completed(world: Any, a: int, b: int) -> Any:
    with ThreadPoolExecutor(3) as pool:
        return sorted(
            future.result() for future in as_completed([pool.submit(world.tools.compute, ms) for ms in (b, a)])
        )


programs.STATEMENTS.update(clock=_clock, dice=_dice, failing=_failing, span=_span, equal=_nested_gather)
programs.IN_THREAD.update(
    t_clock=_t_clock, t_event=_t_event, t_handover=_t_handover, t_first=_t_first, t_as_completed=_t_as_completed
)

_ms = st.integers(1, 6)
_few = st.integers(1, 4)


def drawn_programs(*, threads: bool) -> st.SearchStrategy[list[Any]]:
    """Programs of one to four statements, nested three deep or so.

    With ``threads`` no time-out or cancellation of a task stands around a thread: when a thread ends is no event of the run.
    """
    limited = () if threads else ("timeout", "wait_for", "cancel")
    leaves = st.one_of(
        *(
            st.tuples(st.just(kind), _ms)
            for kind in ("fetch", "instant", "compute", "sleep", "clock", "dice", "failing")
        ),
        st.tuples(st.just("equal"), st.integers(2, 6)),
        st.tuples(st.just("queue"), st.lists(_ms, min_size=2, max_size=5)),
        st.tuples(st.just("event"), _few, _few),
    )
    if threads:
        kinds = sorted(programs.IN_THREAD)
        in_thread = st.lists(st.tuples(st.sampled_from(kinds), _few, _few), min_size=1, max_size=3)
        leaves = st.one_of(
            leaves,
            st.tuples(st.just("to_thread"), in_thread),
            *(st.tuples(st.just(kind), st.lists(in_thread, min_size=2, max_size=4)) for kind in ("pool", "threads")),
        )

    def nodes(statements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        block = st.lists(statements, min_size=1, max_size=3)
        blocks = st.lists(block, min_size=2, max_size=4)
        return st.one_of(
            *(st.tuples(st.just(kind), blocks) for kind in ("gather", "group", "first", "as_completed")),
            *(st.tuples(st.just(kind), _ms, block) for kind in limited),
            *(st.tuples(st.just(kind), block) for kind in ("lock", "semaphore", "span")),
        )

    return st.lists(st.recursive(leaves, nodes, max_leaves=10), min_size=1, max_size=4)


async def play(program: list[Any], *, strict: bool) -> list[Any]:
    """Run ``program`` with real tools; everything that it saw. A run with no step at all would be no replay of anything."""
    return [await instant(), *await programs.run(program, Tools(), strict=strict)]


class Attentive(Shuffled):
    """Goes on after handing a call to a pool when a worker has begun it, or all are busy.

    A call that is cancelled before its worker has woken up is a race of the machine's, and no trace tells of it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._calls: dict[Any, list[Any]] = {}

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        if executor is None:
            executor = self._default_executor = self._default_executor or ThreadPoolExecutor(8)  # type: ignore[has-type]
        call = executor.submit(func, *args)
        calls = self._calls.setdefault(executor, [])
        calls.append(call)
        pause = 0.0001
        while not (call.running() or call.done() or sum(c.running() for c in calls) >= executor._max_workers):
            _reality.sleep(pause)
            pause = min(2 * pause, 0.05)  # who looks all the time is never still, and a replay would wait for him
        return asyncio.wrap_future(call, loop=self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()  # a limit on a clock that jumps ahead is none


# -- twice ---------------------------------------------------------------------------------------------------------------

Loop = Callable[[], asyncio.AbstractEventLoop]


def run_on(loop: Loop, main: Callable[[], Awaitable[Any]]) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())  # type: ignore[arg-type]


def recorded_and_replayed(
    main: Callable[[], Awaitable[Any]], first: Loop, second: Loop, *, contended: bool = False
) -> tuple[Any, Report]:
    """What ``main`` saw on both loops, which is the same, and the report of its replay. Nothing ran in the replay.

    ``contended``: its threads wait for a lock of theirs. Who gets it next is not recorded, so that may forbid the recorded order.
    """
    with record("drawn", durability="none") as run:
        seen = run_on(first, main)
    ran = last
    try:
        with replay(run) as session:
            again = run_on(second, main)
    except ReplayError as failure:  # Hypothesis minimises an Exception only
        verdict = session.report.verdict
        if not contended or {reason.code for reason in verdict.reasons} != {"reordered"}:
            raise AssertionError(str(failure)) from failure
    assert last == ran, "a tool ran in the replay"
    assert again == seen
    assert not session.report.unconsumed
    assert not session.report.clock_drift
    return seen, session.report
