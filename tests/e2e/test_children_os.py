"""Processes started by the functions of ``os`` and by uvloop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.family import Family
from tests.support.processes import python


@pytest.fixture
def family(tmp_path: Path) -> Family:
    found = Family(tmp_path)
    found.child("\nimport sys\npay(sys.argv[1])\nsys.exit(len(sys.argv[1]))\n")
    return found


def test_os_system_and_spawn(family: Family) -> None:
    """A process started by ``os.system`` or ``os.spawn*`` joins; a replay starts it again, and returns the recorded
    status."""
    family.exact(
        """
def main():
    found = [os.system(f"{sys.executable} child.py a") >> 8]
    command = [sys.executable, "child.py", "bb"]
    found.append(os.spawnv(os.P_WAIT, sys.executable, command))
    found.append(os.spawnle(os.P_WAIT, sys.executable, *command[:2], "ccc", dict(os.environ)))
    for start in (os.posix_spawn, os.posix_spawnp):
        pid = start(sys.executable, [*command[:2], "dddd"], os.environ)
        found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [*command[:2], "eeeee"])
    return [*found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
""",
        ["a", "bb", "ccc", "dddd", "dddd", "eeeee"],
    )
    assert family.result == [1, 2, 3, 4, 4, 5]
    assert family.warnings == []
    assert {one["state"] for one in family.store.verify(family.run_id).segments} == {"complete"}


STARTS = {"a fork that was imported": "forked()", "uvloop": "uvloop.run(shell())"}


@pytest.mark.parametrize("start", STARTS)
def test_what_does_not_join_is_told_and_never_started_in_a_replay(family: Family, start: str) -> None:
    """However a process is started, if it does not join, the run says at its end that a replay will refuse it, and the
    replay does."""
    family.program(f"""
from os import fork

def forked():
    pid = fork()
    if not pid:
        open("effects", "a").write("x")
        os._exit(0)
    return os.waitpid(pid, 0)[1]

async def shell():
    return await (await asyncio.create_subprocess_shell("echo x >> effects")).wait()

def main():
    if {start!r} == "uvloop":
        global uvloop
        import uvloop
    return {STARTS[start]}
""")
    family.record()
    assert family.effects == ["x"]
    told, *held = family.warnings
    assert "a replay will refuse it" in told
    assert ["__main__ has os.fork under names of its own" in one for one in held] == [True]
    for _ in range(2):
        done = family.replay()
        assert done.returncode == 1
        assert "live-call-blocked" in done.stderr
        assert ("from os import fork" in done.stderr) == (start == "a fork that was imported")
        assert family.effects == ["x"]


FORKS = """
import concurrent.futures, threading

def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def fork(child, then):
    pid = os.fork()
    if not pid:
        child()
        os._exit(then)
    return status(pid)

def nested(n):
    fork(lambda: pay(f"{n}-below"), 0)
    pay(n)

def worker(queue, n):
    queue.put((pay(n), time.time()))
    sys.exit(n)

def call(n):
    return pay(n), time.time()

def main():
    found = [fork(lambda: pay("fork"), 3), fork(lambda: None, 4), fork(lambda: nested("nested"), 5)]
    found.append(fork(lambda: (pay("killed"), os.kill(os.getpid(), signal.SIGKILL)), 0))
    thread = threading.Thread(target=lambda: found.append(fork(lambda: pay("thread"), 6)))
    thread.start()
    thread.join()
    pid, terminal = os.forkpty()
    if not pid:
        os.write(1, str(pay("pty")).encode())
        os._exit(7)
    found += [os.read(terminal, 3).decode(), status(pid)]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=worker, args=(queue, 8))
    process.start()
    found.append(queue.get())
    process.join()
    found.append(process.exitcode)
    with context.Pool(2) as pool:
        found += pool.map(call, (10, 11, 12)), pool.apply(call, (13,))
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found.append(list(pool.map(call, (20, 21, 22))))
    return found
"""
PAID = ["fork", "nested", "nested-below", "killed", "thread", "pty", "8"]


def test_forks(family: Family) -> None:
    """A forked child is part of the run and of its replay, whether by ``os.fork``, ``os.forkpty`` or processes and
    pools of ``multiprocessing`` and ``concurrent.futures``; so is a child's child, one forked in a thread, one that
    does nothing, and one that is killed."""
    family.exact(FORKS, [*PAID, *map(str, (10, 11, 12, 13, 20, 21, 22))])
    assert family.result[:4] == [3, 4, 5, -9]
    assert family.warnings == []
    assert sorted(lane for lane in family.segments() if lane.startswith("/fork")) == [
        "/fork#1", "/fork#2", "/fork#3", "/fork#3/fork#1", "/fork#4", "/fork#5",
    ]  # fmt: skip


def test_a_process_that_has_not_noticed_the_end_of_its_child_goes_on(family: Family) -> None:
    """However long it takes a busy machine to wake it: only a process whose child still runs waits for it."""
    family.exact(
        """
def slow(n):
    from tests.support.processes import look_rarely
    look_rarely(1.0)  # its parent looks as often as ever
    pid = os.fork()
    if not pid:
        sum(range(10_000_000))  # it is still running when it is looked at first
        os._exit(0)
    os.waitpid(pid, 0)
    pay(n)

def main():
    pid = os.fork()
    if not pid:
        slow("after")
        os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
""",
        ["after"],
    )
    assert family.result == 5


QUEUES = """
import multiprocessing, multiprocessing.connection

def take(queue, done):
    pay(str(queue.get()))
    done.put(1)

def main():
    context = multiprocessing.get_context("fork")
    shared, own, done, alone = context.Queue(), context.SimpleQueue(), context.Queue(), context.SimpleQueue()
    processes = [
        context.Process(target=take, args=queues) for queues in ((shared, done), (shared, done), (own, alone))
    ]
    for process in processes:
        process.start()
    for queue in (shared, shared, own):
        queue.put(1)
    for queue in (done, done, alone):
        queue.get()
    multiprocessing.connection.wait([process.sentinel for process in processes])
    for process in processes:
        process.join()
"""


def test_processes_that_share_a_queue(family: Family) -> None:
    """Which of them got which item, in which order those of several came, and which process ended first, is a matter of
    chance that no trace has: the recording says so, and so do the verdict and ``tracekit doctor``. A queue that one process
    alone reads, and one alone fills, is not mentioned."""
    family.program(QUEUES)
    told = family.record().stderr
    assert told.count("taking items from the queue with pipe ") == 2, told
    assert ", which several processes share" in told
    assert told.count("a replay may differ: waiting for the first of several connections") == 1, told
    assert "Give each process a queue of its own" in told
    assert "@traced_tool" not in told
    why = json.loads(family.python("-m", "tracekit", "show", family.run_id, "--why", "--json").stdout)[
        "can_be_replayed"
    ]
    assert (why["answer"], [one["code"] for one in why["reasons"]]) == (None, ["uncaptured"] * 3)
    (waits,) = [one["text"] for one in why["reasons"] if one["kind"] == "wait"]
    assert waits.endswith(": which came first was not captured"), waits
    found = json.loads(family.python("-m", "tracekit", "doctor", "--run", family.run_id, "--json").stdout)["findings"]
    queues = [one for one in found if one["code"] == "queue"]
    assert all("a queue of its own" in queue["mend"] for queue in queues)
    shown = [one for one in found if one["code"] in ("queue", "wait")]
    assert {f"{one['file']}:{one['line']}" for one in shown} == {one["where"] for one in why["reasons"]}


KILLED_EARLY = """
import multiprocessing

def stand(who, how, ready):
    if how == "waits":
        ready.wait()
    elif how == "ends itself":
        os.kill(os.getpid(), signal.SIGKILL)
    pay(who)

def start(who, how, ready):
    if METHOD == "os.fork":
        pid = os.fork()
        if not pid:
            stand(who, how, ready)
            os._exit(0)
        if how == "waits":
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    child = context.Process(target=stand, args=(who, how, ready))
    child.start()
    if how == "waits":
        child.kill()
    child.join()
    return child.exitcode

def main():
    global context
    context = multiprocessing.get_context(None if METHOD == "os.fork" else METHOD)
    ready = context.Event()
    return [start("a", "waits", ready), start("b", "", ready), start("c", "ends itself", ready), start("d", "", ready)]
"""


@pytest.mark.parametrize("method", ["os.fork", "fork", "spawn"])
def test_a_child_that_is_killed_before_its_first_step_is_not_taken_for_the_next_one(
    family: Family, method: str
) -> None:
    """A child that is killed before its first step leaves no file; a replay starts and kills it, too, and does not take
    the next child for it."""
    family.exact(KILLED_EARLY.replace("METHOD", repr(method)), ["b", "d"])
    assert family.result == [-9, 0, -9, 0]
    assert family.warnings == []


def test_a_pool_of_another_kind_is_told(family: Family) -> None:
    """For a pool of an unknown kind nobody can tell which process makes a call, and the run says so."""
    family.program("""
import multiprocessing.pool

class OfAPackage(multiprocessing.pool.Pool):
    pass

def main():
    with OfAPackage(1, context=multiprocessing.get_context("fork")) as pool:
        return pool.map(pay, (1, 2))
""")
    family.record()
    assert family.effects == ["1", "2"]
    (told,) = family.warnings
    assert "pay was handed to a pool of processes of another kind (OfAPackage)" in told


FORKED = """
import socket

def main():
    pid = os.fork()
    if not pid:
        if os.environ.get("CHANGED"):
            {changed}
        os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ('pay("x")', "trace-exhausted"),
        ('socket.create_connection(("127.0.0.1", 9))', "live-call-blocked"),
        ('subprocess.run(["sh", "-c", "echo x >> effects"])', "live-call-blocked"),
        ('os.fork() or open("effects", "a").write("x")', "live-call-blocked"),
    ],
)
def test_a_forked_child_of_a_replay_reaches_nothing_live(family: Family, changed: str, told: str) -> None:
    """A forked child of a replay is refused what the recorded child did not do, and the replay fails."""
    family.program(FORKED.format(changed=changed))
    family.record()
    done = family.python("parent.py", family.run_id, "CHANGED", CHANGED="1")
    assert (done.returncode, told in done.stderr, family.effects) == (1, True, []), done.stderr


def test_uvloop(family: Family) -> None:
    """A process started by uvloop joins the run, and its replay."""
    family.exact(
        """
import uvloop

async def both():
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "child.py", "a"),
        await asyncio.create_subprocess_shell(f"exec {sys.executable} child.py bb"),
    ]
    return [await process.wait() for process in started]

def main():
    return uvloop.run(both())
""",
        ["a", "bb"],
    )
    assert family.result == [1, 2]


def test_calls_by_keyword(family: Family) -> None:
    """The functions of ``os`` that name their arguments take them by name in a run, too."""
    family.child(
        """
import os, sys
pay("before")
os.execve(path=sys.executable, argv=[sys.executable, "child.py", "after"], env=dict(os.environ))
""",
        "becomes.py",
    )
    family.program(
        """
def main():
    return [run("becomes.py").returncode, os.getpgid(pid=os.getpid()) == os.getpgrp(), os.system(command="true")]
"""
    )
    family.record()
    assert family.result == [5, True, 0]
    assert family.effects == ["after", "before"]


def test_a_process_that_becomes_another_program(family: Family) -> None:
    """A child that calls ``os.exec*`` ends its segment in order, and the new program joins; a replay refuses the call,
    and says so."""
    family.child(
        '\nimport os, sys\npay("before")\nos.execvp(sys.executable, [sys.executable, "child.py", "after"])\n',
        "becomes.py",
    )
    family.program('def main():\n    return run("becomes.py").returncode\n')
    family.record()
    assert family.result == 5
    assert sorted(family.segments()) == ["/process:becomes.py#1", "/process:becomes.py#1/process:child.py#1"]
    assert family.store.verify(family.run_id).state == "complete"
    assert {one["state"] for one in family.store.verify(family.run_id).segments} == {"complete"}
    done = family.replay()
    assert done.returncode == 1
    assert "live-call-blocked" in done.stderr
    assert family.effects == ["after", "before"]


def test_a_child_that_closes_everything_and_becomes_another_program(tmp_path: Path) -> None:
    """A replay also names and refuses ``os.exec*`` in a child that has closed all its files, as terminals do, and can't
    read its recording any more."""
    (tmp_path / "program.py").write_text(
        """
import os

pid = os.fork()
if not pid:
    os.closerange(3, 256)
    os.execv("/bin/true", ["true"])
os.waitpid(pid, 0)
"""
    )
    done = python("-m", "tracekit", "run", "program.py", cwd=tmp_path)
    assert "the process true" in done.stderr
    done = python("-m", "tracekit", "replay", "last", cwd=tmp_path)
    assert done.returncode == 1
    assert "[live-call-blocked] in the process /fork#1: " in done.stderr
    assert "/bin/true (os.exec)" in done.stderr


def test_a_run_whose_program_becomes_another(family: Family) -> None:
    """A run whose program becomes another one can't have an end: stderr says so before it happens, and the new program
    joins the run."""
    family.program("""
def main():
    os.execv(sys.executable, [sys.executable, "child.py", "after"])
""")
    done = family.python("parent.py", "record")
    assert done.returncode == 5
    assert "its trace has no end, and a replay stops there" in done.stderr
    (run,) = family.store.list()
    assert (run.end, len(family.store.segments(run.run_id))) == (None, 1)


IN_A_CHILD = """
import os
from tracekit import record, recorded_failures, traced_tool

@traced_tool(side_effect="irreversible")
def pay():
    pass

@traced_tool(side_effect="read_only")
def look():
    pass

@traced_tool(side_effect="reversible")
def order(what):
    pid = os.fork()
    if not pid:
        what()
        os._exit(0)
    os.waitpid(pid, 0)
    raise ConnectionError("lost afterwards")

for what in (pay, look):
    try:
        with record("shop") as run:
            order(what)
    except ConnectionError:
        print([one.failure.recoverable for one in recorded_failures(run.id)])
"""


def test_a_step_whose_process_did_something_irreversible_is_not_to_be_repeated(tmp_path: Path) -> None:
    """A tool that fails after a process that it started has done something irreversible is not called recoverable by a
    retry, which would start the process again."""
    done = python("-c", IN_A_CHILD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[False, False]", "[True, True]"]
