"""Programs that each use one part of what Python and tracekit offer to an agent; ``test_sample_programs.py`` records and replays them.

Each function is a program: it takes nothing and returns what it saw. What a tool answers differs from call to call and from process
to process, so that a tool that runs again, or an answer that goes to another call, shows in what the program saw.

::

    python sample_programs.py record NAME…      each program in a run of its own, named as it is
    python sample_programs.py replay NAME…      each of them replayed

One JSON object a line is printed for each: its name, what it saw, what its tools did, and of a replay whether it was exact.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import datetime
import json
import os
import queue
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import tracekit
from tracekit import decision, effect, record, replay, traced, traced_tool

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}
#: What the tools of this process have really done.
DONE: list[str] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def on_both_loops(function: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """An asynchronous program, on asyncio's own loop and on uvloop's."""
    PROGRAMS[function.__name__] = lambda: asyncio.run(function())  # type: ignore[arg-type]

    def on_uvloop() -> Any:
        import uvloop

        return uvloop.run(function())  # type: ignore[arg-type]

    PROGRAMS[f"{function.__name__}_uvloop"] = on_uvloop
    return function


def fresh(what: object) -> str:
    """An answer that nobody gets twice."""
    DONE.append(str(what))
    return f"{what}:{secrets.token_hex(4)}"


@traced_tool(side_effect="read_only")
def look(what: object, ms: int = 0) -> str:
    time.sleep(ms / 1000)
    return fresh(what)


@traced_tool(side_effect="read_only")
async def fetch(what: object, ms: int = 0) -> str:
    await asyncio.sleep(ms / 1000)
    return fresh(what)


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> str:
    return fresh(cents)


@traced_tool(side_effect="irreversible", exactly_once=True)
def pay_once(cents: int) -> str:
    return fresh(cents)


# -- asyncio -----------------------------------------------------------------------------------------------------------


@on_both_loops
async def deadlines() -> Any:
    """Time limits that expired, and some that did not, one inside the other."""
    loop, seen = asyncio.get_running_loop(), []
    begun = loop.time()
    for limit, answer in ((0.01, 200), (30, 1)):
        try:
            async with asyncio.timeout(limit):
                seen.append(await fetch("timeout", answer))
        except TimeoutError:
            seen.append("timeout expired")
        try:
            seen.append(await asyncio.wait_for(fetch("wait_for", answer), limit))
        except TimeoutError:
            seen.append("wait_for expired")
        try:
            async with asyncio.timeout_at(begun + limit):
                seen.append(await fetch("timeout_at", answer))
        except TimeoutError:
            seen.append("timeout_at expired")
        task = asyncio.ensure_future(fetch("wait", answer))
        done, _ = await asyncio.wait([task], timeout=limit)
        seen.append(["wait", len(done)])
        task.cancel()
        await asyncio.wait([task])
    try:
        async with asyncio.timeout(30) as outer:
            outer.reschedule(begun)
            async with asyncio.timeout(20):
                await fetch("rescheduled", 500)
    except TimeoutError:
        seen.append(["rescheduled", outer.expired()])
    return seen


@on_both_loops
async def timers() -> Any:
    """Timers of the loop and sleeps, between answers: what fired before what."""
    loop, seen = asyncio.get_running_loop(), []
    loop.call_later(0.03, seen.append, "timer at 30")
    cancelled = loop.call_later(0.01, seen.append, "cancelled timer")
    loop.call_soon(seen.append, "soon")
    seen.append(await fetch("at once"))
    cancelled.cancel()

    async def nap(ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        seen.append(await fetch(f"after {ms}"))

    await asyncio.gather(nap(60), nap(15), nap(0))
    return [seen, cancelled.cancelled(), loop.time() > 0]


@on_both_loops
async def threads_of_the_loop() -> Any:
    """Calls in threads: ``to_thread``, the default pool and one of the program's own."""
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return await asyncio.gather(
            *(asyncio.to_thread(look, f"thread {n}", 30 - 10 * n) for n in range(3)),
            *(loop.run_in_executor(None, look, f"default {n}") for n in range(2)),
            *(loop.run_in_executor(pool, look, f"pool {n}", 5) for n in range(4)),
        )


@on_both_loops
async def queues() -> Any:
    """Producers and consumers over queues of each kind: who got what, in which order."""
    jobs: asyncio.Queue[Any] = asyncio.Queue(maxsize=2)
    ranked: asyncio.PriorityQueue[Any] = asyncio.PriorityQueue()
    seen: list[Any] = []

    async def produce(name: str) -> None:
        for n in range(3):
            await jobs.put(await fetch(f"{name}{n}", 3 if name == "a" else 7))

    async def consume(name: str) -> None:
        while True:
            job = await jobs.get()
            seen.append([name, job])
            await ranked.put((len(seen) % 3, len(seen), await fetch(["consumed", name], 4)))
            jobs.task_done()

    consumers = [asyncio.create_task(consume(name)) for name in "xy"]
    await asyncio.gather(produce("a"), produce("b"))
    await jobs.join()
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return [seen, [await ranked.get() for _ in seen], jobs.qsize()]


@on_both_loops
async def task_groups() -> Any:
    """A group whose tasks all end well, and one that fails: what was cancelled and what was raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(n, 10 * (3 - n)), name=f"task {n}") for n in range(3)]
    seen: list[Any] = [task.result() for task in tasks]

    async def patient(ms: int) -> None:
        try:
            await fetch("patient", ms)
        except asyncio.CancelledError:
            seen.append(await fetch("tidied up"))
            raise

    async def failing() -> None:
        seen.append(await fetch("before it fails", 10))
        raise ValueError(seen[-1])

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(patient(2000))
            group.create_task(failing())
            group.create_task(patient(2000))
    except* ValueError as errors:
        seen.append([str(error) for error in errors.exceptions])
    return seen


@on_both_loops
async def first_and_last() -> Any:
    """FIRST_COMPLETED, FIRST_EXCEPTION, ``as_completed``, ``shield`` and a cancelled ``gather``."""
    seen: list[Any] = []
    tasks = [asyncio.create_task(fetch(ms, ms)) for ms in (60, 20, 40)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    seen += [sorted(task.result() for task in done), len(pending)]
    seen += [await each for each in asyncio.as_completed(pending)]
    shielded = asyncio.ensure_future(fetch("shielded", 30))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(shielded), 0.005)
    seen.append(await shielded)
    both = asyncio.gather(fetch("never", 5000), fetch("never either", 5000))
    await asyncio.sleep(0.005)
    both.cancel()
    try:
        await both
    except asyncio.CancelledError:
        seen.append("cancelled")
    return seen


@on_both_loops
async def locks_and_events() -> Any:
    """Locks, semaphores, conditions, events and barriers of asyncio around calls."""
    lock, few, event = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    condition, barrier = asyncio.Condition(), asyncio.Barrier(3)
    seen: list[Any] = []

    async def work(n: int) -> None:
        async with few:
            seen.append(await fetch(["few", n], 12 - 3 * n))
        async with lock:
            seen.append(await fetch(["lock", n], 2))
        if await barrier.wait() == 0:
            event.set()
        await event.wait()
        async with condition:
            condition.notify()

    async def listen() -> None:
        async with condition:
            await condition.wait()
        seen.append(await fetch("notified"))

    listener = asyncio.create_task(listen())
    await asyncio.gather(*(work(n) for n in range(3)))
    await listener
    return seen


@on_both_loops
async def callbacks() -> Any:
    """Calls made in callbacks of futures and of the loop, and context variables that they see."""
    loop, seen = asyncio.get_running_loop(), []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("outer")
    ended = asyncio.Event()

    def when_done(task: asyncio.Task[Any]) -> None:
        seen.append([task.result(), look("in a callback"), variable.get()])
        loop.call_soon(lambda: (seen.append(look("soon")), ended.set()))

    task = asyncio.create_task(fetch("task", 5))
    task.add_done_callback(when_done)
    variable.set("changed")
    await ended.wait()
    return seen


@on_both_loops
async def async_generators() -> Any:
    """A stream of pieces read to its end, one left in the middle, and two read side by side."""
    seen: list[Any] = [[piece async for piece in pieces("whole", 3)]]
    left = pieces("left", 5)
    async for piece in left:
        seen.append(piece)
        break
    await left.aclose()

    async def reader(name: str, ms: int) -> None:
        async for piece in pieces(name, 3, ms):
            seen.append(piece)

    await asyncio.gather(reader("slow", 9), reader("fast", 4))
    return seen


@traced_tool(side_effect="read_only")
async def pieces(name: str, count: int, ms: int = 1) -> AsyncIterator[str]:
    for n in range(count):
        await asyncio.sleep(ms / 1000)
        yield fresh([name, n])


# -- threads -----------------------------------------------------------------------------------------------------------


@program
def threads() -> Any:
    """Threads that hand work on by locks, conditions, events, queues, semaphores and barriers."""
    jobs: queue.Queue[Any] = queue.Queue(maxsize=2)
    lock, ready, few, barrier = threading.RLock(), threading.Event(), threading.Semaphore(2), threading.Barrier(3)
    condition, seen = threading.Condition(), []

    def consume() -> None:
        while (job := jobs.get()) is not None:
            with lock, few:
                seen.append([job, look("consumed")])
            jobs.task_done()

    def meet(n: int) -> None:
        barrier.wait()
        with condition:
            condition.wait_for(ready.is_set)
        seen.append(look(["met", n]))

    consumer = threading.Thread(target=consume)
    consumer.start()
    for n in range(4):
        jobs.put(look(n, 5))
    jobs.put(None)
    consumer.join()
    crowd = [threading.Thread(target=meet, args=(n,)) for n in range(3)]
    for thread in crowd:
        thread.start()
    with condition:
        ready.set()
        condition.notify_all()
    for thread in crowd:
        thread.join()
    return [seen[:4], sorted(seen[4:]), jobs.empty()]


@program
def pools() -> Any:
    """Pools of threads: ``map``, results in the order of their end, the first one, and a limit that expired."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        seen: list[Any] = list(pool.map(look, range(5)))
        futures = [pool.submit(look, ms, ms) for ms in (90, 10, 50)]
        done, late = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)
        seen += [[future.result() for future in done], len(late)]
        seen += [future.result() for future in concurrent.futures.as_completed(late)]
        slow = pool.submit(look, "slow", 150)
        try:
            slow.result(timeout=0.01)
        except TimeoutError:
            seen.append("late")
        seen.append(slow.result())
    return seen


@program
def limits_of_threads() -> Any:
    """Waits with a time limit in threads, that expired and that did not."""
    event, items, seen = threading.Event(), queue.Queue[Any](), []
    lock = threading.Lock()
    seen.append([event.wait(0.01), lock.acquire(timeout=0.01), lock.acquire(timeout=0.01)])
    seen.append(look("between"))
    with contextlib.suppress(queue.Empty):
        items.get(timeout=0.01)
    timer = threading.Timer(0.02, lambda: items.put(look("timer")))
    timer.start()
    seen.append(items.get(timeout=30))
    threading.Thread(target=lambda: (look("sets it", 10), event.set())).start()
    seen.append(event.wait(30))
    timer.join()
    return seen


# -- values, clocks and kinds of steps ---------------------------------------------------------------------------------


@program
def clocks_and_random_numbers() -> Any:
    """The clock and random numbers, read between calls, in threads and in a seeded generator."""

    def reads() -> list[Any]:
        shuffled = list(range(8))
        random.shuffle(shuffled)
        return [
            time.time(), time.monotonic_ns(), str(datetime.datetime.now(datetime.UTC)), str(datetime.date.today()),
            random.random(), random.Random(5).random(), random.SystemRandom().random(), shuffled,
            str(uuid.uuid4()), str(uuid.uuid1()), os.urandom(4).hex(), secrets.token_hex(4),
        ]  # fmt: skip

    seen = [reads(), look("between"), reads()]
    thread = threading.Thread(target=lambda: seen.append([look("in a thread"), *reads()]))
    thread.start()
    thread.join()
    return [*seen, reads()]


@program
def generators() -> Any:
    """Generators as tools: read to the end, abandoned, sent a value, and one that raises."""
    seen: list[Any] = [list(speak("whole"))]
    talk = speak("sent")
    seen += [next(talk), talk.send("louder")]
    talk.close()
    try:
        seen += [next(interrupted := speak("thrown")), interrupted.throw(KeyError("stop"))]
    except KeyError as error:
        seen.append(str(error))
    return seen


@traced_tool(side_effect="read_only")
def speak(what: str) -> Iterator[str]:
    for n in range(3):
        heard = yield fresh([what, n])
        if heard:
            yield fresh(heard)


@program
def errors_and_retries() -> Any:
    """What tools raise comes back as it was, retried ones and those with a fallback as well."""
    seen: list[Any] = [flaky("retried"), broken("falls back")]
    try:
        broken_for_good("raised")
    except LookupError as error:
        seen += [repr(error), error.__notes__, error.code, repr(error.__cause__)]  # type: ignore[attr-defined]
    return seen


@traced_tool(side_effect="read_only", max_retries=2)
def flaky(what: str) -> str:
    if len([done for done in DONE if done == what]) < 2:
        fresh(what)
        raise ConnectionError("not yet")
    return fresh(what)


@traced_tool(side_effect="read_only", fallback=[look])
def broken(what: str) -> str:
    raise ConnectionError(what)


@traced_tool(side_effect="read_only")
def broken_for_good(what: str) -> str:
    error = LookupError(fresh(what))
    error.code = 17  # type: ignore[attr-defined]
    error.add_note("a note")
    raise error from ValueError("the cause")


@program
def blocks_and_spans() -> Any:
    """Effects as blocks, spans, decisions and what they contain."""
    seen: list[Any] = []

    @traced("phase")
    def phase() -> None:
        with effect("send", side_effect="irreversible", to="acme") as step:
            seen.append(step.perform(fresh, "sent"))
        decision("next", input={"sent": True}, output="go on")
        seen.append(look("in the phase"))

    phase()
    seen.append(tracekit.current_run() is not None)
    return seen


@program
def effects_exactly_once() -> Any:
    """An irreversible call that is made again with the same arguments happens once and gets the first answer."""
    return [pay_once(100), pay_once(100), pay_once(250), pay(100), pay(100)]


@program
def redacted_values() -> Any:
    """A secret that a tool returns can be handed to the next tool, in the replay as well; it shows in no trace."""
    session = sign_in("ann")
    return [spend(session["password"], session["note"]), session["note"], sorted(session)]


@traced_tool(side_effect="read_only")
def sign_in(user: str) -> dict[str, str]:
    return {"user": user, "password": "c0rrect-h0rse-battery", "note": fresh("signed in"), "key": PLANTED}


@traced_tool(side_effect="read_only")
def spend(password: str, note: str) -> str:
    return fresh(["spent", note])


#: Has the form of a key, and is none.
PLANTED = "sk-proj-" + "A1b2C3d4" * 6


@program
def child_processes() -> Any:
    """Children that join the run: run to their end, talked to over pipes, and started from tasks."""
    child = [sys.executable, __file__, "child"]
    ran = subprocess.run([*child, "run"], capture_output=True, text=True, check=False)
    piped = subprocess.Popen([*child, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer, _ = piped.communicate("piped\n")

    async def started() -> str:
        process = await asyncio.create_subprocess_exec(*child, "started", stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode()

    return [ran.returncode, ran.stdout, piped.returncode, answer, asyncio.run(started()), look("in the parent")]


def child(what: str) -> None:
    word = sys.stdin.readline().strip() if what == "-" else what
    print(word, pay(len(word)), random.random(), time.time())
    sys.exit(7)


@program
def model_stream() -> Any:
    """A chat read piece by piece and one read at once, over the SDK; the server is gone when it is replayed."""
    import openai

    tracekit.instrument("openai")
    client = openai.OpenAI(base_url=os.environ["MODEL_URL"], api_key=os.environ.get("OPENAI_API_KEY", "none"))
    question: list[Any] = [{"role": "user", "content": "What of October?"}]
    with client.chat.completions.create(model="m", messages=question, stream=True) as stream:
        streamed = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
    whole = client.chat.completions.create(model="m", messages=question)
    client.close()
    return [streamed, whole.choices[0].message.content, look("".join(piece or "" for piece in streamed))]


# -- the command line of this file -------------------------------------------------------------------------------------


def main(mode: str, *names: str) -> None:
    if mode == "child":
        return child(*names)
    for name in names:
        DONE.clear()
        if mode == "record":
            with record(name, run_id=name):
                seen = PROGRAMS[name]()
            exact = True
        else:
            with replay(name) as session:
                seen = PROGRAMS[name]()
            exact = session.report.exact
        print(json.dumps({"name": name, "seen": seen, "done": DONE, "exact": exact}), flush=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
