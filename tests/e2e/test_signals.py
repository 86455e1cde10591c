"""Signals: each call of a program's handlers is an event of its run, and a replay makes it where it was."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.place import Place
from tests.support.processes import python

LIMIT = """
import signal, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(seconds):
    time.sleep(seconds)
    return "answer"

def late(number, frame):
    raise TimeoutError("too late")

signal.signal(signal.SIGALRM, late)
print(signal.getsignal(signal.SIGALRM) is late)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    ask(60)
except TimeoutError as error:
    print(error)
signal.alarm(1000)
print(ask(0), signal.alarm(0) > 900, signal.getitimer(signal.ITIMER_REAL))
"""

LEFT = """
import signal, time
print(time.time() > 0)
signal.setitimer(signal.ITIMER_REAL, 5, 5)
signal.setitimer(signal.ITIMER_VIRTUAL, {virtual})
for _ in range({more}):
    sum(range(1_000_000))
print("done")
"""

TOOLS = """
import os, random, signal, sys, threading, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(number, seconds=0.0):
    time.sleep(seconds)
    return random.random()

out = []
"""

#: Programs that are called by signals: what they print says when.
PROGRAMS = {
    "sent to itself": """
        signal.signal(signal.SIGUSR1, lambda number, frame: out.append(look("sig")))
        look(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        out.append("sent")
        signal.raise_signal(signal.SIGUSR1)
        print(look(2), out)
        """,
    "set before the run": """
        from tracekit import record
        signal.signal(signal.SIGUSR1, lambda number, frame: out.append("sig"))
        with record("late"):
            look(1)
            os.kill(os.getpid(), signal.SIGUSR1)
            look(2)
        print(out)
        """,
    "a thread's, for one that waits": """
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
        threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        turns = 0
        while not stop.wait(0.05):
            turns += 1
            look(turns)
        print("stopped after", turns)
        """,
    "one wait after another": """
        import ctypes
        class Stop(Exception):
            pass
        def stop(number, frame):
            raise Stop
        def send():
            ctypes.CDLL(None).usleep(50_000)
            os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, stop)
        for turn in range(3):
            thread = threading.Thread(target=send)
            try:
                thread.start()
                threading.Event().wait()
            except Stop:
                out.append(turn)
            thread.join()  # in a replay, the thread sleeps as long as ever
        print(look(1) < 2, out)
        """,
    "a flag in a call": """
        signal.signal(signal.SIGALRM, lambda number, frame: out.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        turns = 0
        while not out:
            turns += 1
            look(turns, 0.06)
        print("stopped after", turns)
        """,
    "a heartbeat beside a sleep": """
        signal.signal(signal.SIGALRM, lambda number, frame: out.append(look("beat")))
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        while len(out) < 5:
            time.sleep(0.05)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(out)
        """,
    "a heartbeat beside a wait with a limit": """
        signal.signal(signal.SIGALRM, lambda number, frame: out.append(look("beat")))
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
        while len(out) < 3:
            threading.Event().wait(0.4)
            look("waited")
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(out)
        """,
    "an end of a sleep": """
        def late(number, frame):
            raise TimeoutError("too late")
        signal.signal(signal.SIGALRM, late)
        look(1)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(3600)
        except TimeoutError as error:
            out.append(str(error))
        print(look(2), out)
        """,
    "a pause": """
        signal.signal(signal.SIGALRM, lambda number, frame: out.append(look("sig")))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        signal.pause()
        out.append("on")
        print(look(2), out)
        """,
    "a child's": """
        import subprocess
        signal.signal(signal.SIGUSR1, lambda number, frame: out.append("sig"))
        child = subprocess.Popen(["sh", "-c", "sleep 0.1; kill -USR1 $PPID"])
        while not out:
            time.sleep(0.02)
            look(len(out))
        print(child.wait(), out)
        """,
    "an end of the program": """
        def end(number, frame):
            look("state")
            print("saved")
            sys.exit(3)
        signal.signal(signal.SIGTERM, end)
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        turns = 0
        while True:
            turns += 1
            look(turns)
        """,
}

LOOPS = """
import asyncio, os, signal, sys, threading
from tracekit import record, traced_tool
LOOP = sys.argv[1]

@traced_tool(side_effect="read_only")
async def look(number):
    await asyncio.sleep(0.01)
    return number

async def main():
    out = []
    async with record("loop"):
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, out.append, "sig")
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        await look(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        out.append("sent")
        await asyncio.sleep(0.01)
        out.append("slept")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

        async def count():
            while not stop.is_set():
                out.append(await look(2))

        await asyncio.gather(count(), stop.wait())
        loop.remove_signal_handler(signal.SIGTERM)
    print(out)

if LOOP == "uvloop":
    import uvloop
    uvloop.install()
asyncio.run(main())
"""

BETWEEN = """
import random, signal
came = []
signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
print(random.random() < 2)
signal.setitimer(signal.ITIMER_REAL, 0.1)
while not came:
    pass
print(random.random() < 2, came)
"""


#: A signal may come while the program itself computes.
EXACT = r": exact(, \d+ handlers? called between two steps)? \("


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_limit_around_a_call_is_replayed(place: Place) -> None:
    """The call ends as it ended; a handler, and what is left of a timer, are the program's own to ask for; nothing is warned of."""
    place.program(LIMIT, "program.py")
    recorded = place.cli("run", "program.py")
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == "True\ntoo late\nanswer True (0.0, 0.0)\n"
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert "exact" in replayed.stderr


def test_a_timer_that_the_program_left_does_not_end_its_replay(place: Place) -> None:
    """It would come while the replay runs, which may take longer than the recording, and end it: nobody handles it."""
    place.program(LEFT.format(virtual=1000, more=0), "program.py")
    assert place.cli("run", "program.py").returncode == 0
    slower = LEFT.format(virtual=0.01, more=20)
    place.program(slower, "program.py")
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert "done" in replayed.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_handler_is_called_where_it_was(place: Place, name: str) -> None:
    """In the same order among what the program does: what is printed is the same, and the replay is exact."""
    place.program(TOOLS + textwrap.dedent(PROGRAMS[name]), "program.py")
    own = "record(" in PROGRAMS[name]
    recorded = place.python("program.py") if own else place.cli("run", "program.py")
    assert recorded.returncode == (3 if name == "an end of the program" else 0), recorded.stderr
    for _ in range(2):
        replayed = place.cli("replay", "last")
        assert replayed.returncode == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout
        assert re.search(EXACT, replayed.stderr), replayed.stderr


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_event_loop_is_called_where_it_was(place: Place, loop: str) -> None:
    """``loop.add_signal_handler``: for what the program sends itself, in the thread of the loop and in another one."""
    pytest.importorskip(loop)
    place.program(LOOPS, "program.py")
    recorded = place.python("program.py", loop)
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout.startswith("['sent', 'sig', 'slept'"), recorded.stdout
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert ": exact (" in replayed.stderr, replayed.stderr


def test_one_between_two_steps_is_counted(place: Place) -> None:
    """The handler is called at the line that it interrupted. How often the program had come there by then, no recording says."""
    place.program(BETWEEN, "program.py")
    recorded = place.cli("run", "program.py")
    assert recorded.returncode == 0, recorded.stderr
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert ": exact, 1 handler called between two steps (" in replayed.stderr, replayed.stderr


def test_a_call_that_a_replay_can_not_make_is_told(place: Place) -> None:
    """Where the program has no handler any more, the replay is not exact."""
    program = (
        TOOLS
        + """signal.signal(signal.SIGALRM, lambda number, frame: out.append(number))
look(1, 0.0)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.2)
print(look(2) < 2)
"""
    )
    place.program(program, "program.py")
    assert place.cli("run", "program.py").returncode == 0
    place.program(program.replace("lambda number, frame: out.append(number)", "signal.SIG_IGN"), "program.py")
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 1, replayed.stderr
    assert "SIGALRM was handled in the recording" in replayed.stderr


def test_one_from_outside_is_no_part_of_a_replay(place: Place) -> None:
    """Its handler is called, as whoever sends it means, and the replay is not exact."""
    program = (
        TOOLS
        + """signal.signal(signal.SIGUSR1, lambda number, frame: out.append(number))
signal.signal(signal.SIGUSR2, lambda number, frame: out.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
look(1)
OTHER
print(look(2) < 2)
"""
    )
    place.program(program.replace("OTHER", ""), "program.py")
    assert place.cli("run", "program.py").returncode == 0
    sender = "import ctypes; ctypes.CDLL(None)['raise'](int(signal.SIGUSR2))"
    place.program(program.replace("OTHER", sender), "program.py")
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 1, replayed.stderr
    assert "SIGUSR2 came from outside" in replayed.stderr


INTERRUPTED = """
import itertools, json, signal, sys
from _thread import interrupt_main
from contextlib import aclosing
from functools import partial
from tracekit import effect, record, traced_tool

class Stop(BaseException):
    pass

def stop(number, frame):
    raise Stop

class Signal:
    __neg__ = partial(interrupt_main, signal.SIGALRM)

def count(frame, event, arg):
    global left
    left -= 1
    if not left:
        sys.setprofile(None)
        -a_signal  # the handler is called when this function has returned

def tool(function, **contract):
    return traced_tool(name="pay", **{"side_effect": "irreversible", **contract})(function)

def pay(n):
    done.append(n)

async def pay_later(n):
    done.append(n)

def pay_in_pieces(n):
    done.append(n)
    yield n

async def pay_in_pieces_later(n):
    done.append(n)
    yield n

def block(n):
    with effect("pay", side_effect="irreversible", n=n) as e:
        e.perform(pay, n)

def driven(made):
    try:
        made.send(None)
    except StopIteration:
        pass

async def exhausted(items):
    async with aclosing(items):
        async for _ in items:
            pass

plain, coroutine = tool(pay), tool(pay_later)
pieces, pieces_later = tool(pay_in_pieces), tool(pay_in_pieces_later)
once, retried = tool(pay, exactly_once=True), tool(pay_later, side_effect="reversible", max_retries=1)
same = tool(pay, exactly_once=True, idempotency_key=lambda n: "the same")
undone = tool(pay, side_effect="reversible", max_retries=1, compensate=lambda n: None)
calls = {
    "plain": plain,
    "coroutine": lambda n: driven(coroutine(n)),
    "generator": lambda n: list(pieces(n)),
    "async generator": lambda n: driven(exhausted(pieces_later(n))),
    "exactly once": once,
    "a coroutine with retries": lambda n: driven(retried(n)),
    "a duplicate": same,
    "with retries and a compensation": undone,
    "a block": block,
}
a_signal, left = Signal(), 0
signal.signal(signal.SIGALRM, stop)
for kind, call in calls.items():
    done, stopped = [], 0
    with record("interrupted", durability="none") as run:
        call(-1)
        for n in itertools.count():
            left = n + 1
            try:
                try:
                    sys.setprofile(count)
                    call(n)
                finally:
                    sys.setprofile(None)
                [].append(None)
            except Stop:
                stopped += 1
            if left > 0:
                break
    entries = [json.loads(line) for line in open(run.path)]
    begun = {entry["seq"]: entry["input"]["n"] for entry in entries if entry["type"] == "tool.call" and entry["name"] == "pay"}
    ended = {entry["step"] for entry in entries if entry["type"] in ("tool.return", "tool.error", "tool.skipped")}
    assert begun.keys() <= ended, (kind, [begun[seq] for seq in begun.keys() - ended])
    assert {*done} <= {*begun.values()}, kind
    assert stopped == n > 50, (kind, stopped, n)
"""


def test_a_handler_that_raises_loses_no_outcome(place: Place) -> None:
    """A handler that raises an exception while tracekit works on a call is called once that is done, whatever the
    instant: every intent record has an outcome, and no exception is lost. Tried at each function that begins or ends
    during a call, with and without a contract."""
    done = place.python(place.program(INTERRUPTED))
    assert done.returncode == 0, done.stderr


KILLED = """
import os, signal
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    signal.raise_signal(signal.SIGUSR1)

signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(7))
pay(1)
"""


def test_a_handler_that_ends_the_process_inside_a_tool_leaves_its_step_in_doubt(place: Place) -> None:
    """As `os._exit` in the tool itself does: the run has no end, and its replay is not known to be right."""
    place.program(KILLED)
    assert place.cli("run", "agent.py").returncode == 7
    listed = place.cli("list", "--json")
    assert json.loads(listed.stdout)["state"] == "died", listed.stdout
    assert place.cli("replay", "last").returncode == 3


def test_ctrl_c_before_the_program_begins(place: Place) -> None:
    """While a replay is prepared it is said to be interrupted, without a traceback of tracekit; a shell's loop stops, too."""
    wait = "from tracekit.cli import launch\ndef replayed(*given): raise KeyboardInterrupt\nlaunch.replayed = replayed\nlaunch.main()\n"
    instructions = json.dumps({"mode": "replay", "entry": "shop:answer", "cwd": str(place.directory)})
    done = python("-c", wait, env={**os.environ, "TRACEKIT_LAUNCH": instructions})
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


CTRL_C = """
import asyncio, ctypes, os, signal, sys
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(number):
    return number

def work():
    print(ask(1))
    if HERE:
        ctypes.CDLL(None)["raise"](int(signal.SIGINT))  # as from outside: Python sees it arrive
        for _ in range(1000):
            pass
    print(ask(2))

async def later():
    work()
    await asyncio.sleep(0)

if HOW == "caught":
    try:
        work()
    except KeyboardInterrupt:
        sys.exit(0)
elif HOW == "task":
    asyncio.run(later())
else:
    work()
"""


@pytest.mark.parametrize("how", ["plain", "caught", "task"])
def test_ctrl_c_ends_a_replay_without_a_verdict(place: Place, how: str) -> None:
    """Whatever the program makes of it: the replay says that it was interrupted and how far it came, and nothing of
    steps or output that are missing; it ends by SIGINT, so that a shell's loop stops, too."""
    program = CTRL_C.replace("HOW", repr(how))
    place.program(program.replace("HERE", "False"))
    assert place.cli("run", "agent.py").returncode == 0
    place.program(program.replace("HERE", "True"))
    done = place.cli("replay", "last")
    assert done.returncode == -signal.SIGINT, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("tracekit:")]
    asked = 2 if how == "task" else 1  # its task is cancelled when it waits
    how_far = f"{asked} step{'s' * (asked > 1)} matched, {2 - asked} not requested"
    assert told[1:] == [f"tracekit: interrupted: {how_far}; whether the replay of last is exact is not known"]
    assert "unconsumed" not in done.stderr


IN_A_BLOCK = (
    CTRL_C.partition('if HOW == "caught"')[0]
    + """
from tracekit import record, replay

with record("work") as run:
    HERE = False
    work()
HERE = True
try:
    with replay(run) as session:
        work()
except KeyboardInterrupt as error:
    print(session.report.verdict.line, *getattr(error, "__notes__", ()))
"""
)


def test_ctrl_c_passes_through_a_replay_in_the_program(place: Place) -> None:
    """As it is: no other error in its place and no note on it; whether the replay is exact is not known."""
    done = place.python(place.program(IN_A_BLOCK))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "unknown: 1 interruption by Ctrl-C"
    assert done.stderr == ""


ENDS_ITSELF = """
import os, signal
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(number):
    return number

ask(1)
END
ask(2)
"""


@pytest.mark.parametrize(
    ("end", "name"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("signal.raise_signal(signal.SIGTERM)", "SIGTERM"),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_a_program_that_ends_itself_by_a_signal_has_a_verdict(place: Place, end: str, name: str) -> None:
    """Its recording has no end, so whether its replay is exact is not known; one that does so only now is not exact."""
    place.program(ENDS_ITSELF.replace("END", end))
    assert place.cli("run", "agent.py").returncode == -getattr(signal, name)
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 3, replayed.stderr
    assert "unknown: 1 recording without an end (1 step matched)" in replayed.stderr
    assert f"the program ended itself by {name}\n" in replayed.stderr
    if name == "SIGTERM":
        place.program(ENDS_ITSELF.replace("END", "pass"))
        assert place.cli("run", "agent.py").returncode == 0
        place.program(ENDS_ITSELF.replace("END\nask(2)", f"ask(2)\n{end}"))
        replayed = place.cli("replay", "last")
        assert replayed.returncode == 1, replayed.stderr
        assert "the program ended with another exit status" in replayed.stderr


def test_ctrl_c_in_a_command_ends_it_by_sigint() -> None:
    """A command without an answer says so in one line, and a shell's loop stops, too."""
    interrupted = "def interrupted(**given): raise KeyboardInterrupt\n"
    code = f"from tracekit.__main__ import main\nfrom tracekit.cli.runs import list_\n{interrupted}list_.callback = interrupted\nmain()"
    done = python("-c", code, "list")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


TAKEN = """
import os, signal, threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(number):
    return number

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for number in range(20):
    ask(number)
    worker = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
    worker.start()
    print(signal.sigwait([signal.SIGUSR1]).name, ask(number))
    worker.join()
"""


def test_a_signal_that_the_program_takes_by_sigwait_ends_nothing(place: Place) -> None:
    """A signal that is blocked in all threads of a program stays there until it is taken, while it is recorded and while it is replayed."""
    place.program(TAKEN)
    recorded = place.cli("run", "agent.py")
    assert (recorded.returncode, recorded.stdout.count("SIGUSR1")) == (0, 20), recorded.stderr
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
