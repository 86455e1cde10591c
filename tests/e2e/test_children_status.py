"""A replay returns what a program was told about how long its processes took and how they ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.family import Family

#: A tool that waits until another process has had an effect.
UNTIL = """
@traced_tool(side_effect="read_only")
def until(word):
    while not os.path.exists("effects") or word not in open("effects").read().split():
        time.sleep(0.002)

"""


@pytest.fixture
def family(tmp_path: Path) -> Family:
    found = Family(tmp_path)
    found.child("""
import sys, time
for n in range(3):
    print(pay(n), flush=True)
    time.sleep(0.02)
sys.exit(3)
""")
    found.child(
        """
import signal
print("said", flush=True)
pay("ready")
signal.pause()
""",
        "waiting.py",
    )
    return found


def test_a_polling_loop(family: Family) -> None:
    """In a replay ``poll`` returns ``None`` as often as it did, however fast the process is now, and then the recorded
    status."""
    family.exact(
        """
def main():
    process = subprocess.Popen([sys.executable, "child.py"])
    rounds = 0
    while process.poll() is None:
        rounds += 1
        time.sleep(0.003)
    return rounds > 0, rounds, process.returncode, process.poll(), process.wait()
""",
        ["0", "1", "2"],
    )
    assert family.result["v"][0] is True
    assert family.result["v"][2:] == [3, 3, 3]


def test_a_loop_of_waits_with_a_limit(family: Family) -> None:
    """In a replay ``wait(timeout=…)`` times out exactly where it did, and without waiting; in a thread as well."""
    family.exact(
        """
import threading

def rounds_until(process, found):
    while True:
        try:
            found.append(process.wait(timeout=0.01))
            return
        except subprocess.TimeoutExpired as error:
            found.append(str(error.timeout))

def main():
    process = subprocess.Popen([sys.executable, "child.py"])
    here, there = [], []
    other = threading.Thread(target=rounds_until, args=(process, there))
    other.start()
    rounds_until(process, here)
    other.join()
    return here, there
""",
        ["0", "1", "2"],
    )
    for found in family.result["v"]:
        assert found[-1] == 3
        assert set(found[:-1]) == {"0.01"}


def test_a_process_that_takes_too_long_and_is_terminated(family: Family) -> None:
    """If a process takes too long and is ended, the same happens in the replay, with the recorded exit status."""
    family.exact(
        UNTIL
        + """
def main():
    process = subprocess.Popen([sys.executable, "waiting.py"])
    until("ready")
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        process.terminate()
    return process.wait(), process.poll()
""",
        ["ready"],
    )
    assert family.result["v"] == [-15, -15]


def test_communicate_with_a_limit(family: Family) -> None:
    """A replay returns what the process had written when its time ran out, and gives it its input, too."""
    family.child(
        """
import signal, sys
print(pay(sys.stdin.read()), flush=True)
pay("ready")
signal.pause()
""",
        "reading.py",
    )
    family.exact(
        UNTIL
        + """
def limited(process, *given):
    try:
        process.communicate(*given, timeout=0.1)
    except subprocess.TimeoutExpired as error:
        return error.output, error.stderr, error.timeout

def main():
    process = subprocess.Popen([sys.executable, "reading.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    limited(process, "given")
    until("ready")
    found = [*limited(process)]
    process.kill()
    return [*found, process.communicate()[0], process.returncode]
""",
        ["ready", "given"],
    )
    assert family.result == [{"$t": "bytes", "v": "Z2l2ZW4K"}, None, 0.1, "given\n", -9]


def test_run_with_a_limit(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """``subprocess.run(timeout=…)`` ends the process and raises the recorded exception."""
    body = """
def main():
    try:
        run("waiting.py", timeout=float(os.environ["LIMIT"]))
    except subprocess.TimeoutExpired as error:
        return error.output, error.timeout
"""
    for limit in ("1", "8", "60"):  # long enough for the process to have begun
        monkeypatch.setenv("LIMIT", limit)
        family.program(body)
        family.record()
        if family.effects:
            break
    for _ in range(2):
        done = family.replay()
        assert (done.returncode, family.effects) == (0, ["ready"]), done.stderr
        assert "the replay is exact\n" in done.stdout
    family.program('REPLAYED = {"dry_run": True}' + body)
    assert "the replay is exact\n" in family.replay().stdout
    assert family.result == {"$t": "tuple", "v": [{"$t": "bytes", "v": "c2FpZAo="}, float(limit)]}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("waits", ["connection.recv()", "time.sleep(1000)", "threading.Event().wait(1000)"])
def test_a_multiprocessing_worker_that_is_terminated(family: Family, method: str, waits: str) -> None:
    """A terminated worker ends in a replay where its log ends, whatever it waits for there, and the program is told the
    same."""
    family.exact(
        UNTIL
        + f"""
import threading

def work(connection):
    pay(1)
    pay("last")
    {waits}

def main():
    context = multiprocessing.get_context("{method}")
    near, far = context.Pipe()
    process = context.Process(target=work, args=(far,))
    process.start()
    until("last")
    found = [process.is_alive(), process.exitcode]
    process.join(0.05)
    found.append(process.exitcode)
    process.terminate()
    process.join()
    found += [process.exitcode, process.is_alive()]
    process.close()
    return found
""",
        ["1", "last"],
    )
    assert family.result == [True, None, None, -15, False]
    (entries,) = family.segments().values()
    assert entries[-1]["type"] == "tool.return"


def test_a_worker_that_is_polled(family: Family) -> None:
    """A loop of ``is_alive`` and ``join`` with a limit gets the recorded answers."""
    family.exact(
        """
def work(n):
    for i in range(n):
        pay(i)
        time.sleep(0.01)

def main():
    process = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
    process.start()
    rounds = [0, 0]
    while process.is_alive() and rounds[0] < 3:
        rounds[0] += 1
        time.sleep(0.001)
    while process.exitcode is None:
        process.join(timeout=0.005)
        rounds[1] += 1
    return rounds, process.exitcode
""",
        ["0", "1", "2"],
    )


def test_processes_of_asyncio(family: Family) -> None:
    """With asyncio's processes a replay repeats whether the time runs out first, how many rounds a loop makes, and
    which process ends first."""
    family.exact(
        UNTIL
        + """
async def program():
    waiting = await asyncio.create_subprocess_exec(sys.executable, "waiting.py")
    until("ready")
    found = []
    try:
        await asyncio.wait_for(waiting.wait(), 0.05)
    except TimeoutError:
        found.append("too long")
    one, two = [await asyncio.create_subprocess_exec(sys.executable, "child.py", stdout=-1) for _ in range(2)]
    rounds = 0
    while one.returncode is None:
        rounds += 1
        await asyncio.sleep(0.003)
    found.append(rounds)
    waiting.terminate()
    for done in asyncio.as_completed([tell("waiting", waiting), tell("two", two)]):
        found.append(await done)
    return found

async def tell(name, process):
    status = await process.wait()
    return name, process.stdout and await process.stdout.read(), status

def main():
    return asyncio.run(program())
""",
        ["ready", *"012012"],
    )
    assert family.result[0] == "too long"


def test_a_task_that_polls_without_a_timer(family: Family) -> None:
    """A task that looks at ``returncode``, or for the end of the output, in each round of the loop looks as often as it
    did, and stays as far ahead of another such task."""
    family.exact(
        """
async def program():
    process = await asyncio.create_subprocess_exec(sys.executable, "child.py", stdout=-1)
    rounds = {"ended": 0, "said": 0}
    async def poll(what, over):
        while not over():
            rounds[what] += 1
            await asyncio.sleep(0)
        return dict(rounds)
    return await asyncio.gather(
        poll("ended", lambda: process.returncode is not None), poll("said", process.stdout.at_eof), process.stdout.read()
    )

def main():
    return asyncio.run(program())
""",
        ["0", "1", "2"],
    )
    assert family.result[0]["ended"] > 1


def test_ends_that_come_at_once(family: Family) -> None:
    """If the outputs of two processes end in one round of the loop, a task that polls them looks as often as it did."""
    family.child("print('said')", "speaks.py")
    family.exact(
        """
import select

async def program():
    start = lambda: asyncio.create_subprocess_exec(sys.executable, "speaks.py", stdout=-1)
    both = [await start(), await start()]
    reads = [asyncio.ensure_future(process.stdout.read()) for process in both]
    rounds = [0, 0]
    async def poll(n):
        while not both[n].stdout.at_eof():
            rounds[n] += 1
            await asyncio.sleep(0)
        return list(rounds)
    polls = [asyncio.ensure_future(poll(n)) for n in range(2)]
    await asyncio.sleep(0)
    for process in both:  # the loop stands still meanwhile
        ended = select.poll()
        ended.register(process._transport.get_pipe_transport(1).get_extra_info("pipe"), 0)
        ended.poll()
    return await asyncio.gather(*polls, *reads)

def main():
    return asyncio.run(program())
""",
        [],
    )


def test_ends_that_came_at_once_and_come_apart(family: Family) -> None:
    """If two processes ended in one round of the loop and now end apart, the tasks that follow still run side by side
    as recorded, each sees as much of the other, and whoever waits for both is woken as often, in the first of two loops
    as well."""
    family.child(
        """
import ctypes, os, sys
late = sys.argv[1] == "1" and os.path.exists("replayed")
while not os.path.exists("started"):
    ctypes.CDLL(None).usleep(1000)
if late:
    ctypes.CDLL(None).usleep(300_000)
os._exit(0)
""",
        "ends.py",
    )
    family.program("""
import threading

async def one(n, started, ended):
    process = await asyncio.create_subprocess_exec(sys.executable, "ends.py", str(n))
    started.append(process)
    await process.wait()
    ended.append(n)
    await asyncio.sleep(0)
    return list(ended)

async def program():
    both, ended = [], []
    waits = [asyncio.ensure_future(one(n, both, ended)) for n in range(2)]
    while len(both) < 2:
        await asyncio.sleep(0)
    os.makedirs("started", exist_ok=True)
    if not os.path.exists("replayed"):
        for process in both:  # the loop stands still meanwhile
            try:
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # a thread of asyncio's has noticed
                pass
        for thread in threading.enumerate():
            if "waitpid" in thread.name:
                thread.join()
    found = []
    for done in asyncio.as_completed(waits):
        found.append((await done, len(ended)))
    return found

async def afterwards():
    await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0.02))

def main():
    return [asyncio.run(program()), asyncio.run(afterwards())]
""")
    family.record()
    (family.root / "replayed").touch()
    done = family.replay()
    assert done.returncode == 0, done.stderr
    assert "the replay is exact\n" in done.stdout, done.stdout
    assert [(sorted(seen), count) for seen, count in (one["v"] for one in family.result[0])] == [([0, 1], 2)] * 2


_IN_PIECES = {
    "output": """
for piece in [b"re", b"ad\\n"] if slow else [b"read\\n"]:
    os.write(1, piece)
    while slow and waiting(1) and os.getppid() == parent:  # until the other side has it
        pass
""",
    "input": """
for n in range(4):
    if not slow:
        sys.stdin.buffer.read(61_440)
    elif n == 2:
        while waiting(0) < 65_536 and os.getppid() == parent:  # until the other side can't write any more
            pass
        sys.stdin.buffer.read(184_320)
    elif n == 3:
        sys.stdin.buffer.read(61_440)
    os.write(1, b"read\\n")
""",
}


@pytest.mark.parametrize("pipe", _IN_PIECES)
def test_pipes_in_other_pieces(family: Family, pipe: str) -> None:
    """Output that arrives in other pieces, or input that now has to wait, changes nothing in how far the reading task
    is when the process ends."""
    family.child(
        """
import fcntl, os, sys, termios
slow, parent = os.path.exists("slow"), os.getppid()

def waiting(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
"""
        + _IN_PIECES[pipe]
        + "sys.stdin.read()\n",
        "speaks.py",
    )
    family.program(
        f"""
async def start():
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "speaks.py", stdin=pipe, stdout=pipe)
    for n in range(4):
        if {pipe!r} == "input":
            child.stdin.write(bytes(61_440))
            await child.stdin.drain()
        if {pipe!r} == "input" or not n:
            await child.stdout.readline()
    child.stdin.close()
    return await child.wait()

def main():
    return asyncio.run(start())
"""
    )
    family.record()
    (family.root / "slow").touch()
    done = family.replay()
    assert done.returncode == 0, done.stderr
    assert "the replay is exact\n" in done.stdout, done.stdout


def test_the_ends_of_what_processes_write(family: Family) -> None:
    """Whose output ends first, and whose ``communicate`` returns first, is as in the recording, however fast each
    process is now."""
    family.child(
        """
import ctypes, os, sys
n, late = int(sys.argv[1]), os.path.exists("replayed")
print(pay(n), flush=True)
ctypes.CDLL(None).usleep(100_000 * (2 - n if late else n))
os.close(1)
os.close(2)
ctypes.CDLL(None).usleep(400_000)
os._exit(0)
""",
        "ends.py",
    )
    family.program("""
async def program(whole):
    seen = []
    async def one(n):
        process = await asyncio.create_subprocess_exec(sys.executable, "ends.py", str(n), stdout=-1, stderr=-1)
        out, said = await process.communicate() if whole else (await process.stdout.read(), None)
        seen.append(n)
        return n, out, said, await process.wait()
    started = [asyncio.ensure_future(one(n)) for n in range(3)]
    ended = [await done for done in asyncio.as_completed(started)]
    return seen, ended

def main():
    return [asyncio.run(program(whole)) for whole in (True, False)]
""")
    family.record()
    for order, ended in (found["v"] for found in family.result):
        assert sorted(order) == [0, 1, 2]
        assert {status for _, _, _, status in (one["v"] for one in ended)} == {0}
    (family.root / "replayed").touch()
    done = family.replay()
    assert done.returncode == 0, done.stderr
    assert "the replay is exact\n" in done.stdout, done.stdout
    assert family.effects == sorted("012012")


@pytest.mark.parametrize("busy", ["recorded", "replayed"])
def test_output_that_is_there_before_the_loop_looks(family: Family, busy: str) -> None:
    """A busy loop, in the recording or in the replay, finds the output of a process and its end already there, and the
    program gets all of it, at the same place."""
    family.child("\nimport os\nprint(pay('it'), flush=True)\nos._exit(0)\n", "short.py")
    family.program(f"""
import ctypes

def nap(left):  # native, so that nothing is recorded of it
    if left == 0 and os.path.exists("replayed") == ({busy!r} == "replayed"):
        ctypes.CDLL(None).usleep(150_000)
    if left > -4:
        asyncio.get_running_loop().call_soon(nap, left - 1)

async def one(after):
    asyncio.get_running_loop().call_soon(nap, after)
    process = await asyncio.create_subprocess_exec(sys.executable, "short.py", stdout=-1, stderr=-1)
    return [*await process.communicate(), await process.wait()]

def main():
    return [asyncio.run(one(after)) for after in range(8)]
""")
    family.record()
    assert len(family.effects) == len(family.result) == 8
    (family.root / "replayed").touch()
    done = family.replay()
    assert done.returncode == 0, done.stderr
    assert "the replay is exact\n" in done.stdout, done.stdout


def test_a_process_that_somebody_else_has_killed(family: Family) -> None:
    """A process that somebody else killed ends in a replay where its log ends, with the recorded status."""
    family.exact(
        UNTIL
        + """
processes = {}

@traced_tool(side_effect="irreversible")
def kill(name):
    with open("killed", "a") as file:
        file.write("k")
    os.kill(processes[name].pid, signal.SIGUSR1)

def main():
    processes["it"] = subprocess.Popen([sys.executable, "waiting.py"])
    until("ready")
    kill("it")
    return processes["it"].wait()
""",
        ["ready"],
    )
    assert family.result == -10
    assert (family.root / "killed").read_text() == "k"


def test_a_program_that_is_not_there(family: Family) -> None:
    """A replay does not try to start a process that could not be started; the program gets the same exception, without
    a remark."""
    family.exact(
        """
async def there():
    await asyncio.create_subprocess_exec("no-such-program", "-v")

def main():
    found = []
    for start in (lambda: subprocess.run(["no-such-program", "-v"]), lambda: asyncio.run(there())):
        try:
            start()
        except FileNotFoundError as error:
            found.append([error.errno, error.filename])
    return found, run("child.py").returncode
""",
        ["0", "1", "2"],
    )
    assert family.result == {"$t": "tuple", "v": [[[2, "no-such-program"], [2, "no-such-program"]], 3]}
    assert family.warnings == []


def test_a_fork_for_which_there_is_no_room(family: Family) -> None:
    """A replay does not fork where the system had refused to; the program gets the same exception, without a remark."""
    family.exact(
        """
import multiprocessing.popen_fork, resource

def refused(start):
    user, limit = os.getuid(), resource.getrlimit(resource.RLIMIT_NPROC)
    if not user:
        os.setresuid(65534, 65534, 0)  # the system does not limit root
    resource.setrlimit(resource.RLIMIT_NPROC, (0, limit[1]))
    try:
        start()
    except OSError as error:
        return repr(error)
    finally:
        if not user:
            os.setresuid(0, 0, 0)
        resource.setrlimit(resource.RLIMIT_NPROC, limit)

def main():
    process = multiprocessing.get_context("fork").Process(target=len, args=("",))
    return refused(os.fork), refused(process.start), run("child.py").returncode
""",
        ["0", "1", "2"],
    )
    error = "BlockingIOError(11, 'Resource temporarily unavailable')"
    assert family.result == {"$t": "tuple", "v": [error, error, 3]}
    assert family.warnings == []


CHANGED = (
    UNTIL
    + """
def main():
    process = subprocess.Popen([sys.executable, "waiting.py"])
    until("ready")
    found = [process.poll() for _ in range(int(os.environ["POLLS"]))]
    process.terminate()
    return found, process.wait()
"""
)


def test_a_question_too_many_is_a_divergence(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that asks once more than recorded before it learns of the end is told so, with its line."""
    monkeypatch.setenv("POLLS", "2")
    family.program(CHANGED)
    family.record()
    monkeypatch.setenv("POLLS", "3")
    done = family.replay("POLLS")
    assert done.returncode == 1
    assert "the program asks here for the state of the process /process:waiting.py#1," in done.stderr
    assert "parent.py:" in done.stderr


def test_another_exit_status_is_a_divergence(family: Family) -> None:
    """If a process ends with another status, the replay says which one and how, at the place where the program learns
    of it."""
    family.program('def main():\n    return run("child.py").returncode\n')
    family.record()
    child = family.root / "child.py"
    child.write_text(child.read_text().replace("sys.exit(3)", "sys.exit(4)"))
    done = family.replay()
    assert done.returncode == 1
    assert "process /process:child.py#1" in done.stderr
    assert family.effects == ["0", "1", "2"]


@pytest.mark.parametrize("ends", ["process.wait()", "0"])
def test_a_process_that_waits_for_what_does_not_come(
    family: Family, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a process waits for something that does not come, the replay says so and which step is missing, whether or not
    the program waits for the process."""
    family.child('\nimport sys\npay("one")\nprint(sys.stdin.readline())\npay("two")\n', "reading.py")
    family.program(f"""
def main():
    reads, writes = os.pipe()  # of its own: what a pipe of the process is given belongs to the run
    globals()["process"] = subprocess.Popen([sys.executable, "reading.py"], stdin=reads)
    if "SILENT" not in os.environ:
        os.write(writes, b"go\\n")
        process.wait()
    else:
        {ends}
""")
    family.record()
    assert family.effects == ["one", "two"]
    monkeypatch.setenv("SILENT", "1")
    done = family.replay("SILENT")
    assert done.returncode == 1
    assert "the process /process:reading.py#1 waits for something that does not come" in done.stderr
    assert "tool.call 'pay'" in done.stderr
    assert family.effects == ["one", "two"]


READINGS = {
    "communicate": "run('endless.py').stdout",
    "one-pipe": "subprocess.run([sys.executable, 'endless.py'], stdout=subprocess.PIPE).stdout",
    "lines": "[*subprocess.Popen([sys.executable, 'endless.py'], stdout=subprocess.PIPE).stdout]",
    "thread": "ThreadPoolExecutor().submit(run, 'endless.py').result().stdout",
    "written": "subprocess.run([sys.executable, 'endless.py'], input=b'x' * 1_000_000, stdout=subprocess.PIPE).stdout",
}


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_a_process_whose_output_is_read_waits_for_what_does_not_come(
    family: Family, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a program reads from or writes to a process and neither can go on, the replay fails and names both."""
    family.fresh = True  # else there is one more child, which might write for ever
    family.child(
        """
import os, sys, threading
print(pay("one"), flush=True)
if "ENDLESS" in os.environ:
    threading.Event().wait()
print(len(sys.stdin.read()) > 1000, pay("two"))
""",
        "endless.py",
    )
    family.exact(
        f"from concurrent.futures import ThreadPoolExecutor\ndef main():\n    return {reading}\n", ["one", "two"]
    )
    monkeypatch.setenv("ENDLESS", "1")
    done = family.replay("ENDLESS")
    assert done.returncode == 1
    assert "/process:endless.py#1 waits for something that does not come" in done.stderr
    assert "tool.call 'pay'" in done.stderr
    assert "while here waits thread" in done.stderr
    assert family.effects == ["one", "two"]


def test_a_task_that_is_held_goes_on_where_processes_wait_too(family: Family) -> None:
    """If a task is held back and would have to end a process that everybody waits for, it is let go on, so that the
    replay ends."""
    family.child("pay('a')\nprint('ready', flush=True)\ninput()\n", "waiting.py")
    body = """
import os

async def end(child):
    for _ in range(os.path.getsize("rounds")):
        await asyncio.sleep(0)
    child.kill()

async def start():
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "waiting.py", stdin=pipe, stdout=pipe)
    await child.stdout.readline()
    ending = asyncio.create_task(end(child))
    status = await child.wait()
    await ending
    return status

def main():
    return asyncio.run(start())
"""
    rounds = family.root / "rounds"
    rounds.write_text("x")
    family.program(body)
    family.record()
    rounds.write_text("x" * 300)
    done = family.replay()
    assert done.returncode == 0, done.stderr


def test_closing_a_process_that_runs(family: Family) -> None:
    """``close`` of a process of ``multiprocessing`` raises in a replay where it raised, however fast the process is now."""
    family.exact(
        """
import multiprocessing

def wait(until):
    until.wait()
    pay("done")

def main():
    context = multiprocessing.get_context("fork")
    until = context.Event()
    process = context.Process(target=wait, args=(until,))
    process.start()
    found = []
    try:
        process.close()
    except ValueError as error:
        found.append(str(error))
    until.set()
    process.join()
    found.append(process.exitcode)
    process.close()
    return found
""",
        ["done"],
    )
    assert family.result[0].startswith("Cannot close a process while it is still running")
    assert family.result[1] == 0
