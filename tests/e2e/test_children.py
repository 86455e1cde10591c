"""Processes that a recorded program starts are part of the run, and of its replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python
from tracekit.integration import Store

CHILD = """
import random, subprocess, sys, time
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n

what = sys.argv[1]
print(pay(what), time.time(), random.random())
if what == "grandparent":
    print(subprocess.run([sys.executable, "child.py", "grandchild"], capture_output=True, text=True, check=True).stdout)
if what == "failing":
    raise ValueError("so it is")
if what == "recording":
    with record("inner") as run:
        run.set_result(pay("inside"))
    print(run.id)
"""

HEAD = """
import asyncio, multiprocessing, os, random, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from tracekit import record, replay, traced_tool

def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n
"""

TAIL = """
if __name__ == "__main__":
    with record("parent") as opened:
        first = main()
        opened.set_result(first)
    print(opened.id)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        with replay(opened) as session:
            assert main() == first, "another result"
        assert session.report.exact
    print("exact")
"""


class Place:
    """A directory with a program and its store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "child.py").write_text(CHILD)

    def run(
        self, body: str, *arguments: str, fresh: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """``fresh``: the processes that it starts begin with nothing imported."""
        (self.root / "parent.py").write_text(HEAD + body)
        return self.python("parent.py", *arguments, fresh=fresh, **environment)

    def python(self, *arguments: str, fresh: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"TRACEKIT_DIR": str(self.root / "store"), "PYTHONHASHSEED": "0", **environment}
        seeds = () if fresh else ("0",)
        return python(*arguments, cwd=self.root, env={**os.environ, **variables}, seeds=seeds)

    @property
    def effects(self) -> list[str]:
        file = self.root / "effects"
        return sorted(file.read_text().split()) if file.exists() else []

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def run_id(self) -> str:
        (run,) = self.store.list()
        return run.run_id

    def segments(self) -> dict[str, list[dict[str, Any]]]:
        """The segments by the path of their lane."""
        found = {}
        for path in self.store.segments(self.run_id):
            entries = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
            found[entries[0]["meta"]["lane"]] = entries
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def exact(
    place: Place, body: str, effects: list[str], *, replays: int = 1, complete: bool = True, fresh: bool = False
) -> None:
    """Recorded once, and replayed so many times in the same process; each effect happened once; ``complete``: the segments have an end."""
    done = place.run(body + TAIL, str(replays), fresh=fresh)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("exact\n")
    assert place.effects == sorted(effects)
    verdict = place.store.verify(place.run_id)
    assert verdict.state == "complete", verdict.problem
    assert {segment["state"] for segment in verdict.segments} == {"complete" if complete else "incomplete"}


def test_a_child_joins_the_run_and_its_replay(place: Place) -> None:
    """A child process, and a child of that one, is a segment of the run; a replay starts them again, and no effect
    happens twice."""
    exact(
        place,
        """
def main():
    pay("parent")
    return [run("child.py", "first").stdout, run("child.py", "grandparent").stdout]
""",
        ["parent", "first", "grandparent", "grandchild"],
        replays=2,
        fresh=True,
    )
    segments = place.segments()
    assert sorted(segments) == [
        "/process:child.py#1",
        "/process:child.py#2",
        "/process:child.py#2/process:child.py#1",
    ]
    assert all(entries[-1]["type"] == "run.completed" for entries in segments.values())


def test_the_same_under_the_command_line(place: Place) -> None:
    """The same holds for ``tracekit run`` and ``tracekit replay``, which replays in a network of its own where the
    system allows it."""
    place.run('print(run("child.py", "grandparent", check=True).stdout)')
    (place.root / "effects").unlink()
    recorded = place.python("-m", "tracekit", "run", "parent.py")
    assert recorded.returncode == 0, recorded.stderr
    for _ in range(2):
        replayed = place.python("-m", "tracekit", "replay", place.run_id)
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert place.effects == ["grandchild", "grandparent"]


def test_the_command_says_what_did_not_join(place: Place) -> None:
    """``tracekit run`` says at recording time that a replay will refuse a process that did not join."""
    place.run("__import__('uvloop').run(asyncio.create_subprocess_exec(sys.executable, '-c', 'pass'))")
    recorded = place.python("-m", "tracekit", "run", "parent.py")
    assert recorded.returncode == 0
    assert "not captured, and a replay will refuse it: the process python (" in recorded.stderr
    assert ", which did not join the run" in recorded.stderr


def test_multiprocessing_and_asyncio(place: Place) -> None:
    """Processes of asyncio and of multiprocessing, spawned or by a fork server, join in the same way."""
    exact(
        place,
        """
def work(n, results):
    results.put((pay(n), time.time()))

async def both():
    started = [await asyncio.create_subprocess_exec(sys.executable, "child.py", name, stdout=-1) for name in ("x", "y")]
    return [(await process.communicate())[0].decode() for process in started]

def main():
    found = [asyncio.run(both())]
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        process = context.Process(target=work, args=(method, results))
        process.start()
        found.append(results.get())
        process.join()
        found.append(process.exitcode)
    return found
""",
        ["x", "y", "spawn", "forkserver"],
        replays=2,
    )


PLAIN = """
import multiprocessing, os, random, socket, sys

def work(results):
    results.put(random.random())

def connect():
    try:
        socket.create_connection(("127.0.0.1", 9), 1)
    except BaseException:
        pass

def main(method):
    if method == "other":
        multiprocessing.set_executable(os.path.abspath("other"))
    context = multiprocessing.get_context("spawn" if method == "other" else method)
    results = context.SimpleQueue()
    process = context.Process(target=work, args=(results,))
    process.start()
    found = results.get()
    process.join()
    return found

def pool(method):
    with multiprocessing.get_context(method).Pool(1, initializer=connect) as pool:
        return pool.map(abs, [-1])

if __name__ == "__main__":
    from tracekit import record, replay
    what, method = sys.argv[1:]
    os.symlink(sys.executable, "other")
    with record("plain") as run:
        first = globals()[what](method)
    print("recorded")
    with replay(run):
        assert globals()[what](method) == first, "it was not answered"
"""


@pytest.mark.parametrize(
    ("what", "method", "told"),
    [
        ("main", "spawn", ""),
        ("main", "forkserver", ""),
        ("main", "other", "[live-call-blocked] the replay was about to start a process: "),
        (
            "pool",
            "spawn",
            "[live-call-blocked] in the process /process:worker#1: the replay was about to connect to 127.0.0.1:9",
        ),
    ],
)
def test_a_process_of_multiprocessing_joins_whatever_it_imports(
    place: Place, what: str, method: str, told: str
) -> None:
    """A process that multiprocessing starts afresh joins although its program does not import tracekit, and the replay
    reports what a pool's worker was refused; a process of another interpreter is not started in a replay."""
    (place.root / "plain.py").write_text(PLAIN)
    done = place.python("plain.py", what, method, fresh=True)
    assert done.stdout == "recorded\n", done.stderr
    assert (done.returncode == 0) == (not told), done.stderr
    assert told in done.stderr


def test_each_call_of_a_process_pool_has_its_own_answer(place: Place) -> None:
    """Which worker takes a call of a process pool is chance; each call has a segment of its own, and gets the recorded
    answer in a replay."""
    exact(
        place,
        """
def work(n):
    time.sleep(random.random() / 50)
    return pay(n), random.random()

def add(a, b):
    return pay(a + b)

def main():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = [list(pool.map(work, range(6)))]
    with context.Pool(2) as pool:
        found += [pool.map(work, range(10, 16), 2), pool.starmap(add, [(20, 1), (20, 2)]), list(pool.imap(work, [30, 31]))]
        found.append(pool.apply(work, (40,)))
    return found
""",
        [*map(str, range(6)), *map(str, range(10, 16)), "21", "22", "30", "31", "40"],
        replays=2,
    )


def test_a_pool_that_was_made_in_an_earlier_run_belongs_to_that_one(place: Place) -> None:
    """What a pool from an earlier run does for a later one is not in the later trace, which says so, as for any pool
    older than the run."""
    done = place.run("""
import warnings

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with record("one"):
            pool.submit(pay, "first").result()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with record("two") as later:
                pool.submit(pay, "second").result()
    assert [one for one in later.warnings if "passed to a process pool" in one], later.warnings
""")
    assert done.returncode == 0, done.stderr
    assert place.effects == ["first", "second"]
    (later,) = (run for run in place.store.list() if run.name == "two")
    assert place.store.segments(later.run_id) == ()
    assert all(place.store.verify(run.run_id).state == "complete" for run in place.store.list())


def test_a_record_in_a_child_is_a_part_of_the_run(place: Place) -> None:
    """In a child that has joined, ``record()`` makes no run of its own: it is a span, and has the id of the run."""
    exact(place, 'def main():\n    return run("child.py", "recording").stdout', ["recording", "inside"])
    (entries,) = place.segments().values()
    assert [entry["name"] for entry in entries if entry["type"] == "span.start"] == ["inner"]
    assert entries[-1]["run_id"] == place.run_id


def test_a_child_that_fails(place: Place) -> None:
    """An exception that ends a child is the end of its segment, and ends the replayed child as well."""
    exact(place, 'def main():\n    return run("child.py", "failing").returncode', ["failing"])
    (entries,) = place.segments().values()
    assert (entries[-1]["type"], entries[-1]["error"]["text"]) == ("run.failed", "so it is")


def test_what_a_tool_starts_is_not_started_in_a_replay(place: Place) -> None:
    """A child started in a tool's body joins below that step; in a replay the tool is answered from the log, and no
    process is started."""
    exact(
        place,
        """
@traced_tool(side_effect="irreversible")
def outer():
    return run("child.py", "inner").stdout

def main():
    return outer()
""",
        ["inner"],
    )
    (lane,) = place.segments()
    assert lane == "/process:child.py#1@2"


KILLED = """
def main():
    process = subprocess.Popen([sys.executable, "-c", '''
import os, signal, sys
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\\\n")
    if n == "last":
        os.kill(os.getpid(), signal.SIGKILL)
    return n

print(pay("one"), flush=True)
pay("last")
'''], stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate()
    return said, process.returncode
"""


def test_a_child_that_is_killed(place: Place) -> None:
    """The segment of a killed child stays open, the run is judged by its own file, and the replayed child ends at the
    same place in the same way."""
    done = place.run(KILLED + TAIL)
    assert done.returncode == 0, done.stderr
    assert place.effects == ["last", "one"]
    verdict = place.store.verify(place.run_id)
    assert verdict.state == "complete"
    assert [(segment["state"], segment["open"]) for segment in verdict.segments] == [("incomplete", True)]
    replayed = place.python(
        "-c",
        f"from tracekit import replay; exec(open('parent.py').read().split('if __name__')[0])\n"
        f"with replay('{place.run_id}') as session: main()\nprint(session.report.warnings)",
    )
    assert "it was replayed up to its entry 6, where its log ends" in replayed.stdout


ENDED = """
import signal, sys, time
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for n in range(20):
    pay(n)
pay("last")
open("paid", "a").close()  # the outcome is in the log: the signal meets no step that has yet to end
signal.pause()
"""


def test_a_child_that_is_ended_by_its_parent_comes_so_far_first(place: Place) -> None:
    """However soon the parent of a replayed child sends a signal, the child gets it only where it waited in the
    recording."""
    (place.root / "ended.py").write_text(ENDED)
    exact(
        place,
        """
@traced_tool(side_effect="read_only")
def until_last():
    while not os.path.exists("paid"):
        time.sleep(0.01)

def main():
    process = subprocess.Popen([sys.executable, "ended.py"])
    until_last()
    process.terminate()
    return process.wait()
""",
        [*map(str, range(20)), "last"],
    )


#: Says that a payment was made once its outcome is in the log: a signal then meets no step that has yet to end.
PAID = """
import asyncio, os

def paid(word):
    pay(word)
    open(word, "a").close()
"""

HANDLING = {
    "a handler that goes on, then the signal's default action": """
def handle(number, frame):
    paid("handled")

signal.signal(signal.SIGUSR1, handle)
paid("ready")
while True:
    signal.pause()
""",
    "a handler that ends the process": """
def handle(number, frame):
    paid("handled")
    sys.exit(7)

signal.signal(signal.SIGUSR1, handle)
paid("ready")
signal.pause()
""",
    "a handler that puts the default action back and sends the signal again": """
def handle(number, frame):
    paid("handled")
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, handle)
paid("ready")
signal.pause()
""",
    "a handler of an event loop": """
async def work():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    paid("ready")
    await stop.wait()
    paid("handled")

asyncio.run(work())
""",
}


@pytest.mark.parametrize("name", HANDLING)
def test_a_signal_that_a_child_handles(place: Place, name: str) -> None:
    """A replayed child calls its signal handler where its log has the call and does not also get the signal; a signal
    that ends it is sent."""
    ends_itself = name in ("a handler that ends the process", "a handler of an event loop")
    (place.root / "ended.py").write_text(ENDED.partition("signal.signal")[0] + PAID + HANDLING[name])
    exact(
        place,
        """
@traced_tool(side_effect="read_only")
def until(word):
    while not os.path.exists(word):
        time.sleep(0.01)

def main():
    process = subprocess.Popen([sys.executable, "ended.py"])
    until("ready")
    process.send_signal(signal.SIGUSR1)
    until("handled")
"""
        + ("" if ends_itself else "    process.terminate()\n")
        + "    return process.wait()\n",
        ["handled", "ready"],
        complete=ends_itself,
    )


def test_a_forked_child_with_a_thousand_open_files(place: Place) -> None:
    """A forked child with a thousand open files still answers its parent's questions, so that a signal comes where it
    waits."""
    exact(
        place,
        """
import resource

@traced_tool(side_effect="read_only")
def until_paid():
    while not os.path.exists("paid"):
        time.sleep(0.01)

def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    pid = os.fork()
    if not pid:
        pay("in the child")
        open("paid", "a").close()  # not before the outcome is in the log
        signal.pause()
    until_paid()
    os.kill(pid, signal.SIGTERM)
    for file in files:
        os.close(file)
    return os.waitpid(pid, 0)[1]
""",
        ["in", "the", "child"],
        complete=False,
    )


def test_a_child_without_tracekit_is_answered(place: Place) -> None:
    """A child that does not use tracekit sees one more environment variable and has no segment; a replay does not start
    it, and returns what it wrote."""
    exact(
        place,
        """
def main():
    run("child.py", "joins", check=True)
    return run("-c", "import os; print(len(os.environ['TRACEKIT_JOIN']) > 10, file=open('effects', 'a')); print(os.getpid())").stdout
""",
        ["True", "joins"],
    )
    assert [*place.segments()] == ["/process:child.py#1"]


def test_a_stale_variable_is_told_once(place: Place) -> None:
    """If the run has ended, or its store is gone or somebody else's, the child runs unrecorded with one warning."""
    place.run("""
import subprocess, sys
keep = "import os; open('ticket', 'w').write(os.environ['TRACEKIT_JOIN'])"
with record("parent") as opened:
    subprocess.run([sys.executable, "-c", keep], check=True)
""")
    ticket = (place.root / "ticket").read_text()
    for told, why in (
        (ticket, "has ended"),
        (ticket.replace("/store", "/nowhere"), "is not in"),
        ("nonsense", "was not set by tracekit"),
        ("{}", "was not set by tracekit"),
        (json.dumps({"mode": "record"}), "can't join it"),
    ):
        done = place.python("child.py", "alone", TRACEKIT_JOIN=told)
        assert (done.returncode, done.stderr.count("RuntimeWarning")) == (0, 1), done.stderr
        assert why in done.stderr
    assert len(place.effects) == 5
    assert place.segments() == {}


def test_a_stale_replay_never_goes_live(place: Place) -> None:
    """A process that belongs to a replay that is over does nothing at all."""
    words = ("run_id", "trace", "lane", "pool", "program", "redact", "instrument", "options")
    told = json.dumps({"mode": "replay", "reports": str(place.root / "gone"), **dict.fromkeys(words, "/x#1")})
    done = place.python("child.py", "alone", TRACEKIT_JOIN=told)
    assert done.returncode == 1
    assert "belongs to a replay" in done.stderr
    assert place.effects == []


def test_a_variable_of_a_replay_without_its_words_is_told_clearly(place: Place) -> None:
    """An incomplete variable of a replay is refused with what it lacks and where it comes from, and nothing is done."""
    done = place.python("child.py", "alone", TRACEKIT_JOIN='{"mode": "replay"}')
    assert done.returncode == 1
    assert "TRACEKIT_JOIN is not tracekit's: it names a replay, and has no run_id, trace, lane" in done.stderr
    assert place.effects == []


CHANGED = """
import sys
def main():
    return run("child.py", sys.argv[1] if len(sys.argv) > 1 else "first").stdout
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("pay(what)", 'pay(what + "!")', "is not the recorded step"),
        ("print(pay(what), time.time(), random.random())", "pass", "never requested"),
        ('if what == "grandparent":', 'pay("extra")\nif what == "grandparent":', "the recording has no more"),
        ('if what == "grandparent":', 'subprocess.run(["true"])\nif what == "grandparent":', "start a process: true"),
    ],
)
def test_a_child_that_does_something_else_fails_the_replay(place: Place, before: str, after: str, told: str) -> None:
    """If a child does something else than recorded, the parent's replay fails with the child's error, whatever the
    parent makes of the exit code, and no effect happens."""
    body = 'def main():\n    return run("child.py", "first").returncode >= 0\n'
    done = place.run(body + "with record() as opened:\n    main()\n")
    assert done.returncode == 0, done.stderr
    assert before in CHILD
    (place.root / "child.py").write_text(CHILD.replace(before, after))
    replayed = place.run(body + f"with replay('{place.run_id}'):\n    main()\n")
    assert replayed.returncode == 1
    assert "in the process /process:child.py#1" in replayed.stderr
    assert told in replayed.stderr
    assert place.effects == ["first"]


def test_a_call_in_a_pool_that_does_something_else_fails_the_replay(place: Place) -> None:
    """If a call in a pool does something else than recorded, the pool goes on, and the replay fails at its end with
    what the worker met."""
    body = """
def work(n):
    return pay(n + EXTRA)

def main():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            return pool.map(work, [1, 2])
        except RuntimeError:
            return None

if __name__ == "__main__":
"""
    done = place.run("EXTRA = 0" + body + "    with record():\n        main()\n")
    assert done.returncode == 0, done.stderr
    replayed = place.run("EXTRA = 5" + body + f"    with replay('{place.run_id}'):\n        main()\n")
    assert replayed.returncode == 1
    assert "in the process /work#1" in replayed.stderr
    assert "is not the recorded step" in replayed.stderr
    assert place.effects == ["1", "2"]


def test_a_child_that_is_not_started_any_more(place: Place) -> None:
    """A replay that no longer starts a recorded process fails."""
    place.run('with record() as opened:\n    pay("p")\n    run("child.py", "first")\n')
    replayed = place.run(f"with replay('{place.run_id}'):\n    pay('p')\n")
    assert "had a process /process:child.py#1 of its own" in replayed.stderr
    assert replayed.returncode == 1


def test_the_environment_keeps_no_trace_of_it(place: Place) -> None:
    """The variable is gone once the child has joined, and no file of the run contains it or what an option hid."""
    (place.root / "looking.py").write_text("import os, tracekit; print('TRACEKIT_' + 'JOIN' in os.environ)")
    done = place.run("""
with record() as opened:
    print(run("looking.py", "--api-key", "sk-live-0123456789abcdef01234").stdout)
""")
    assert done.stdout.strip() == "False"
    assert len(place.segments()) == 1
    files = b"".join(path.read_bytes() for path in (place.root / "store" / "runs").iterdir())
    assert b"TRACEKIT_JOIN" not in files
    assert b"0123456789abcdef01234" not in files


def test_two_processes_of_one_shell(place: Place) -> None:
    """Two processes that a shell starts with the same command have two segments. A replay does not start the shell,
    since nothing answers what else it does, and returns its output; ``guard="off"`` lets it run, and answers what it
    starts."""
    done = place.run("""
def main():
    command = f"{sys.executable} child.py a; echo real >> effects; {sys.executable} child.py b"
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
with record("parent") as opened:
    first = main()
print(opened.warnings)
with replay(opened) as session:
    assert main() == first
assert session.report.exact
print(open("effects").read().split())
with replay(opened, guard="off"):
    assert main() == first
""")
    assert done.returncode == 0, done.stderr
    assert len(place.segments()) == 2
    assert done.stdout.splitlines() == ["[]", "['a', 'real', 'b']"]
    assert place.effects == ["a", "b", "real", "real"]


@pytest.mark.parametrize(
    "words",
    [
        "f'{sys.executable} child.py a', shell=True",
        "f'exec {sys.executable} child.py a', shell=True",
        "f'A=1 {sys.executable} \"child.py\" a', shell=True",
        "f'{sys.executable} child.py a \"c;d\" \\'$x & y\\'', shell=True",
        "['env', 'A=1', sys.executable, 'child.py', 'a']",
    ],
)
def test_a_shell_that_only_starts_the_program_is_no_shell(place: Place, words: str) -> None:
    """A shell command that only starts one program, without redirections, and ``env`` are recorded and replayed as that
    program."""
    exact(place, f"def main():\n    return subprocess.run({words}, capture_output=True).stdout", ["a"])


def test_a_script_that_becomes_the_program_is_not_that(place: Place) -> None:
    """A shell script that does something before it becomes a joining program is not started in a replay, where what it
    does would be real."""
    (place.root / "start.sh").write_text("#!/bin/sh\necho real >> effects\nexec $PYTHON child.py $1\n")
    (place.root / "start.sh").chmod(0o700)
    exact(
        place,
        """
os.environ["PYTHON"] = sys.executable
def main():
    return subprocess.run(["./start.sh", "a"], capture_output=True, text=True).stdout
""",
        ["a", "real"],
    )


def test_without_the_variable_nothing_is_imported() -> None:
    """Without the variable, ``import tracekit`` loads nothing that joins a run."""
    code = "import sys, tracekit; print([m for m in sys.modules if m.startswith('tracekit._runs')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


assert signal  # named in the programs above
