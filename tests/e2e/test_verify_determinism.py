"""``tracekit verify-determinism``: what leaks into a program is found, what is captured is not cried about, by exit code and diff."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import PACKAGES, TOOL, WAITS_FOR_EVER, Place

START = (
    TOOL
    + """
import json, queue, threading, uuid
from tracekit import decision

@traced_tool(side_effect="read_only")
def ask(prompt):
    return [prompt, random.random()]
"""
)
#: The hash seeds of the replays, that of the recording among them.
SEEDS = ("0", "1", "2")
#: More than the verdict: what ran for real is counted, and nothing may.
IDENTICAL = {"identical": True, "incomplete": [], "difference": None}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def recorded(place: Place, body: str, *arguments: str, start: str = START, **variables: str) -> None:
    """``body`` after ``START``, recorded with ``tracekit run``."""
    script = place.program(start + textwrap.dedent(body))
    done = place.cli("run", script, *arguments, **variables)
    assert done.returncode == 0, done.stderr


def verified(
    place: Place, *arguments: str, fresh: bool = False, **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The verdict on the newest run. Nothing is done for real, and no run is written or changed by it. Unless ``fresh``, the processes of
    the replays are forks of interpreters with the same hash seeds."""
    effects, runs = place.effects(), {path: path.read_bytes() for path in place.runs}
    line = ("verify-determinism", "--json", *(arguments or ("last",)))
    done = place.cli(*line, seeds=() if fresh else SEEDS, **variables)
    assert place.effects() == effects
    assert {path: path.read_bytes() for path in place.runs} == runs
    return done, json.loads(done.stdout) if done.stdout else {}


def line_of(place: Place, text: str) -> str:
    """``file:line`` of the first line of the program that holds ``text``."""
    path = place.directory / "agent.py"
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return f"{path}:{number}"


def test_verify_cli_exits_zero_on_identical_runs(place: Place) -> None:
    """Tools, rng, clocks, ids, a sorted set, a decision, output and status: two replays in fresh processes, two hash seeds, one digest."""
    recorded(
        place,
        """
        receipt = charge(5)
        answer = ask(f"{receipt} {random.randint(1, 9)} {time.time()} {uuid.uuid4()}")
        ask(sorted({str(n) for n in range(50)}))
        decision("send", input=["yes", "no"], output="yes")
        print(receipt, answer, time.time())
        """,
    )
    done, told = verified(place, fresh=True)
    assert done.returncode == 0, done.stderr
    assert IDENTICAL.items() <= told.items()
    assert len({replay["sha256"] for replay in told["replays"]}) == 1
    seeds = [replay["hash_seed"] for replay in told["replays"]]
    assert len({*seeds, 0}) == 3, "neither that of the recording (0), nor one another's"
    assert {replay["steps"] for replay in told["replays"]} == {4}
    assert place.effects() == 1


#: Each process writes a character into a file that no scratch layer covers, and has it locked. A replay waits there for another one.
MEETS = """
import ctypes, fcntl
there = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR | os.O_APPEND)
fcntl.flock(there, fcntl.LOCK_SH)
os.write(there, b"x")
since = os.times().elapsed
while os.fstat(there).st_size == 2 and os.times().elapsed - since < 60:
    ctypes.CDLL(None).usleep(1000)
met = os.fstat(there).st_size != 2

def alone():
    try:
        fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
"""


@pytest.mark.usefixtures("layered", "cores")
def test_replays_are_made_side_by_side(place: Place, shared: str) -> None:
    """Each in a scratch layer of its own, over temporary files, too, so that neither sees what the other has written."""
    body = """
import tempfile
for name in ("notes.txt", os.path.join(tempfile.gettempdir(), os.path.basename(sys.argv[1]))):
    with open(name, "a") as file:
        file.write("one\\n")
    print(met, charge(1), open(name).read())
    os.remove(name)
"""
    recorded(place, MEETS + body, shared)
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert IDENTICAL.items() <= told.items()
    assert Path(shared).read_text() == "x" * 3
    assert not (place.directory / "notes.txt").exists()


@pytest.mark.usefixtures("layered", "cores")
def test_replays_that_are_in_each_others_way_are_made_one_after_the_other(place: Place, shared: str) -> None:
    """What two replays get of one another, at a lock or a port, is no divergence of the program."""
    recorded(place, MEETS + "ask(alone())", shared)
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert IDENTICAL.items() <= told.items()
    assert Path(shared).read_text() == "x" * 5


@pytest.fixture
def shared() -> Iterator[str]:
    """The name of a file that all processes of the machine share, whatever layers they have."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("this system has no shared memory by name")
    path = f"/dev/shm/tracekit-test-{uuid.uuid4()}"
    yield path
    if os.path.exists(path):
        os.remove(path)


@pytest.fixture
def cores() -> None:
    """Skips where one replay has to wait for the other."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one processor")


LEAKS = {
    "the order of a set": "ask(list({str(n) for n in range(50)}))  # here",
    "hash()": "ask(hash('prompt'))  # here",
    "id()": "ask(f'{id(ask)}')  # here",
    "the repr of an object": "ask(repr(object()))  # here",
    "a native generator": "ask(open('/dev/urandom', 'rb').read(4).hex())  # here",
    "a process id": "ask(os.getpid())  # here",
    "a clock that is not captured": "ask(os.times().elapsed)  # here",
    "another number of calls": "for _ in range(3 + os.getpid() % 1009):\n    ask(0)  # here",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_verify_cli_exits_nonzero_on_divergence(place: Place, leak: str) -> None:
    """What no recorder can capture reaches a prompt: exit code 1, and on stderr the diff of the first difference with the user's line."""
    recorded(place, "charge(1)\n" + LEAKS[leak])
    done, told = verified(place, fresh=leak == "id()")
    assert done.returncode == 1, done.stderr
    assert told["identical"] is False
    assert "DIVERGENCE: replay" in done.stderr
    if leak != "another number of calls":
        assert line_of(place, "# here") in done.stderr
        assert told["difference"]["where"] == line_of(place, "# here")
        assert "input.prompt" in done.stderr
        assert "recorded" in done.stderr
        assert "in another way" in done.stderr
    by_seed = leak in ("the order of a set", "hash()")
    assert ("with the recording's own hash seed (0) all is identical" in done.stderr) == by_seed
    assert place.effects() == 1


def test_random_in_a_tool_is_reproduced(place: Place) -> None:
    """The twin of the above: ``random.random()`` in a tool and beside it, used in the next prompt, is no divergence."""
    recorded(
        place,
        """
        @traced_tool(side_effect="read_only")
        def roll():
            return random.random()

        ask(f"{roll()} {random.random()} {roll()}")
        print(random.random())
        """,
    )
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert told["identical"] is True


def test_a_file_that_differs(place: Place) -> None:
    """A file that the program reads outside any tool and that has changed since: both replays say so, in the same way, and are given the
    recorded one."""
    (place.directory / "prompt.txt").write_text("be brief")
    recorded(place, "ask(open('prompt.txt').read())  # here")
    assert verified(place)[0].returncode == 0
    (place.directory / "prompt.txt").write_text("be long")
    done, _ = verified(place)
    assert done.returncode == 1
    assert "the file prompt.txt was 8 bytes" in done.stderr
    assert line_of(place, "# here") in done.stderr
    assert "in the same way: what the program depends on is not the same as in the recording" in done.stderr


def test_threads_that_wait_for_one_another(place: Place) -> None:
    """Where both replays wait for what was never recorded, nothing is said to be another one than in the recording."""
    recorded(place, WAITS_FOR_EVER)
    done, _ = verified(place)
    assert done.returncode == 1
    assert "everything in the program waits" in done.stderr
    assert "waits as well" in done.stderr
    assert "is not the same as in the recording" not in done.stderr


def test_an_environment_that_differs(place: Place) -> None:
    """A variable that is read into a prompt is another one here."""
    recorded(place, "ask(os.environ['TENANT'])  # here", TENANT="acme")
    assert verified(place, TENANT="acme")[0].returncode == 0
    done, _ = verified(place, TENANT="bolt")
    assert done.returncode == 1
    assert "'bolt'" in done.stderr
    assert line_of(place, "# here") in done.stderr
    assert (
        "a variable of the environment, the hash seed; where it has several threads or processes, their order"
        in done.stderr
    )


def test_a_thread_race(place: Place) -> None:
    """Which of two busy threads appended when, in no future and no queue, differs from process to process."""
    recorded(
        place,
        """
        import sys; sys.setswitchinterval(1e-6)
        out = []
        def work(n):
            while len(out) < 400_000:
                out.append(n)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        ask(sum(out[::7]))  # here
        """,
    )
    done, _ = verified(place)
    assert done.returncode == 1
    assert line_of(place, "# here") in done.stderr


def test_threads_and_tasks_that_hand_over_in_order_are_identical(place: Place) -> None:
    """Pools, queues and asyncio tasks whose order is recorded are no leak."""
    recorded(
        place,
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor, as_completed

        @traced_tool(side_effect="read_only")
        def fetch(n):
            time.sleep(random.random() / 50)
            return n

        @traced_tool(side_effect="read_only")
        async def fetch_async(n):
            await asyncio.sleep(random.random() / 50)
            return n

        with ThreadPoolExecutor(4) as pool:
            came = [future.result() for future in as_completed([pool.submit(fetch, n) for n in range(8)])]
        ask(came)
        items = queue.Queue()
        for n in range(3):
            threading.Thread(target=lambda n=n: items.put(fetch(n))).start()
        ask([items.get() for _ in range(3)])

        async def main():
            found = []
            for task in asyncio.as_completed([fetch_async(n) for n in range(8)]):
                found.append(await task)
            return found

        ask(asyncio.run(main()))
        """,
    )
    done, _ = verified(place)
    assert done.returncode == 0, done.stderr


# -- what is in no step --------------------------------------------------------------------------------------------------


def test_what_is_printed_is_compared(place: Place) -> None:
    """Every step matches, and a line of output differs: found, with the line that printed it; ``--no-stdout`` leaves output out."""
    recorded(place, "ask(1)\nprint('first')\nprint('pid', os.getpid())  # here")
    done, told = verified(place)
    assert done.returncode == 1
    assert told["difference"]["kind"] == "stdout"
    assert "line 2 of standard output" in done.stderr
    assert line_of(place, "# here") in done.stderr
    assert verified(place, "last", "--no-stdout")[0].returncode == 0


def test_the_result_is_compared(place: Place) -> None:
    """Every step matches, and the run comes to another result."""
    recorded(place, "with record('bill') as run:\n    ask(1)\n    run.set_result({'by': os.getpid()})\n")
    done, told = verified(place)
    assert done.returncode == 1
    assert "another result" in done.stderr
    assert told["difference"]["kind"] == "replay"


def test_the_exit_status_is_compared(place: Place) -> None:
    """Every step matches, and the program, whose runs say nothing of it, leaves with another status."""
    recorded(
        place, "with record('bill') as run:\n    ask(1)\nsys.exit(os.path.exists('now') and 1 + os.getpid() % 200)"
    )
    assert verified(place)[0].returncode == 0
    place.program("", "now")
    done, told = verified(place)
    assert done.returncode == 1
    assert told["difference"]["kind"] == "end"
    assert "end.status" in done.stderr


def test_a_program_that_now_fails(place: Place) -> None:
    """An exception that the recorded program did not raise is a divergence, with its text."""
    recorded(place, "with record('bill'):\n    ask(1)\nif os.path.exists('now'): raise ValueError('new')")
    place.program("", "now")
    done, _ = verified(place)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "new" in done.stderr


def test_a_program_that_dies(place: Place) -> None:
    """A replay whose process is killed is a divergence that says so."""
    recorded(place, "with record('bill'):\n    ask(1)\nif os.path.exists('now'): os.kill(os.getpid(), 9)")
    place.program("", "now")
    done, _ = verified(place)
    assert done.returncode == 1
    assert "status -9" in done.stderr


# -- programs ------------------------------------------------------------------------------------------------------------


@pytest.mark.determinism_full
def test_a_program_with_several_runs(place: Place) -> None:
    """All runs of the program are replayed and compared; one that is not opened any more is a divergence."""
    recorded(
        place,
        """
        for name in ["one", "two", "three"][: 2 if os.path.exists("fewer") else 3]:
            with record(name) as run:
                run.set_result(ask(name))
        """,
    )
    assert len(place.runs) == 3
    done, told = verified(place, place.runs[0].stem)
    assert done.returncode == 0, done.stderr
    assert told["replays"][0]["steps"] == 3
    place.program("", "fewer")
    done, told = verified(place, place.runs[0].stem)
    assert done.returncode == 1
    assert told["difference"]["kind"] == "run"
    assert place.runs[2].stem in done.stderr


@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.determinism_full
def test_an_entry_point(place: Place, kind: str) -> None:
    """``--entry`` calls a function with the recorded input; what it returns is compared."""
    place.program(
        START
        + f"""
@record
{kind}def work(n, extra="x"):
    return [ask(n), extra, os.path.exists("now")]
if __name__ == "__main__":
    {"import asyncio; asyncio.run(work(3))" if kind else "work(3)"}
"""
    )
    subprocess_run = place.cli("run", "agent.py")
    assert subprocess_run.returncode == 0, subprocess_run.stderr
    done, told = verified(place, "last", "--entry", "agent:work")
    assert done.returncode == 0, done.stderr
    assert told["replays"][0]["steps"] == 1
    place.program("", "now")
    done, _ = verified(place, "last", "--entry", "agent:work")
    assert done.returncode == 1
    assert "another result" in done.stderr


@pytest.mark.determinism_full
def test_agents_that_write_to_one_another(place: Place) -> None:
    """The inter-agent view of both replays is compared too, and its digest told."""
    recorded(
        place,
        """
        from tracekit.agents import agent, receive_task, respond, send_task
        with agent("planner"):
            message = send_task("worker", {"find": "a flat"})
        with agent("worker"):
            task = receive_task(message)
            answer = respond(task, ask(task.payload))
        """,
    )
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert len(told["forms_sha256"]["inter-agent"]) == 64


@pytest.mark.determinism_full
def test_processes_that_the_program_starts(place: Place) -> None:
    """They are replayed in fresh processes too, their steps compared, and what leaks into one of them is found."""
    place.program(
        START + "print(ask(sys.argv[1]), ask(list({str(n) for n in range(50)}) if os.environ.get('LEAK') else 0))\n",
        "child.py",
    )
    body = """
        import subprocess
        for n in sys.argv[1:]:
            done = subprocess.run([sys.executable, "child.py", n], capture_output=True, text=True)
            ask(done.stdout)
        """
    recorded(place, body, "0", "1")
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert told["replays"][0]["steps"] == 6
    recorded(place, body, "0", LEAK="1")  # one is enough: eight replays are made of it
    done, _ = verified(place, LEAK="1")
    assert done.returncode == 1
    assert str(place.directory / "child.py") in done.stderr
    assert "with the recording's own hash seed (0) all is identical" in done.stderr


@pytest.mark.determinism_full
def test_a_message_that_differs(place: Place) -> None:
    """What one agent says to another is a step like any other."""
    recorded(place, "from tracekit.agents import send_task\nsend_task('worker', os.getpid())  # here")
    done, _ = verified(place)
    assert done.returncode == 1
    assert line_of(place, "# here") in done.stderr


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.determinism_full
def test_a_run_that_was_killed(place: Place, inside: bool) -> None:
    """Identical as far as its log goes is not called right: exit code 3. Killed earlier, or with another step, it is a divergence."""
    killed = "os.kill(os.getpid(), 9)"
    start = START + f"@traced_tool(side_effect='read_only')\ndef die():\n    {killed}\n"
    end = "die()" if inside else killed
    script = place.program(start + f"ask(1)\nask(2)\n{end}\n")
    assert place.cli("run", script).returncode == -9
    done, told = verified(place)
    assert done.returncode == 3, done.stderr
    assert told["incomplete"] == [place.run]
    assert "compared up to the end of its log" in done.stderr
    place.program(start + f"ask(1)\nask(os.getpid())\n{end}\n")
    assert verified(place)[0].returncode == 1
    place.program(start + f"ask(1)\n{killed}\n")
    assert verified(place)[0].returncode == 1


@pytest.mark.determinism_full
def test_a_killed_run_whose_next_call_is_blocked(place: Place) -> None:
    """What is refused after the log's end (here a process that never joins) is no divergence: exit code 3. With a step left it is one."""
    script = place.program(
        START + "import subprocess\nask(1)\nask(2)\nif os.path.exists('killed'): os.kill(os.getpid(), 9)\n"
        "subprocess.run(['true'])\nask(3)\n"
    )
    place.program("", "killed")
    assert place.cli("run", script).returncode == -9
    (place.directory / "killed").unlink()
    done, told = verified(place)
    assert done.returncode == 3, done.stderr
    assert told["incomplete"] == [place.run]
    place.program(START + "import subprocess\nask(1)\nsubprocess.run(['true'])\nask(2)\n")
    done, _ = verified(place)
    assert done.returncode == 1
    assert "start a process" in done.stderr


#: A child that is killed when it has made its steps and waits; what the program does in another way when it is run again comes after.
KILLED_CHILD = """
import subprocess
again = os.path.exists("again")
child = subprocess.Popen([sys.executable, "child.py"], stdout=subprocess.PIPE)
child.stdout.readline()
child.kill()
child.wait()
charge(1)
"""
CHILD = START + "ask(1)\n# less\nask(2)\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.determinism_full
def test_a_killed_child_of_a_run_that_has_an_end(place: Place) -> None:
    """The run is identical, exit code 0, and what has no end is named, for that child was compared as far as it came."""
    place.program(CHILD, "child.py")
    recorded(place, KILLED_CHILD)
    (segment,) = (path.stem for path in place.runs if path.stem.count("."))
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert told["identical"] is True
    assert told["incomplete"] == [segment]
    assert told["replays"][0]["steps"] == 5  # the process and its end by a signal are two of them
    assert segment in done.stderr
    assert "the run has no end" not in done.stderr


MORE = {
    "a payment": "charge(2)  # more",
    "a process": "subprocess.run(['true'])  # more",
    "its death": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.determinism_full
def test_a_killed_child_excuses_nothing_of_the_run(place: Place, more: str) -> None:
    """A call more than recorded in a run that has an end is a divergence, as it is without a child that was killed."""
    place.program(CHILD, "child.py")
    recorded(place, KILLED_CHILD + f"if again: {MORE[more]}\n")
    place.program("", "again")
    assert place.cli("replay", "last").returncode != 0
    done, told = verified(place)
    assert done.returncode == 1, done.stderr
    assert told["identical"] is False
    assert told["difference"]["kind"] == "replay"
    if more != "its death":
        assert line_of(place, "# more") in done.stderr
    assert place.effects() == 1


@pytest.mark.determinism_full
def test_a_killed_child_that_now_does_less(place: Place) -> None:
    """A recorded step that the child comes no more to is a divergence, though its log has no end."""
    place.program(CHILD.replace("# less", "if os.path.exists('again'): sys.exit(print('up', flush=True))"), "child.py")
    recorded(place, KILLED_CHILD)
    place.program("", "again")
    done, told = verified(place)
    assert done.returncode == 1, done.stderr
    assert told["identical"] is False
    assert "never reached step" in done.stderr


def test_a_program_without_a_fixed_hash_seed(place: Place) -> None:
    """Recorded by the program itself, under a hash seed of its process: a sorted set is identical, the order of a set is found."""
    for text, code in (("sorted", 0), ("list", 1)):
        place.program(START + f"with record('own'):\n    ask({text}({{str(n) for n in range(50)}}))\n")
        environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
        environment.pop("PYTHONHASHSEED", None)
        subprocess.run([sys.executable, "agent.py"], cwd=place.directory, env=environment, check=True)
        done, told = verified(place)
        assert done.returncode == code, done.stderr
        if code:
            assert told["difference"]["with_recorded_hash_seed"] is None


@pytest.mark.determinism_full
def test_more_replays(place: Place) -> None:
    """``--replays`` makes it likelier that a small set shows its order; each has a hash seed of its own."""
    recorded(place, "ask(1)")
    done, told = verified(place, "last", "--replays", "3")
    assert done.returncode == 0
    assert len({replay["hash_seed"] for replay in told["replays"]} | {0}) == 4


# -- unusable ------------------------------------------------------------------------------------------------------------


def test_what_is_unusable(place: Place) -> None:
    """No such run, a damaged one, a file that is no recording, a program that is another one: exit code 2, and why."""
    assert verified(place, "nothing")[0].returncode == 2
    assert verified(place, "last")[0].returncode == 2
    recorded(place, "with record('x'):\n    ask(1)")
    place.program("print('something else')", "other.py")
    done, _ = verified(place, "last", "--", "other.py")
    assert done.returncode == 2
    assert "never opened the run" in done.stderr
    assert "something else" not in done.stdout
    (path,) = place.runs
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"lane":0', b'"lane":1')
    (place.directory / "damaged.jsonl").write_bytes(b"".join(lines))
    done, _ = verified(place, "damaged.jsonl", "--", "agent.py")
    assert done.returncode == 2
    for name, text in (("empty.jsonl", ""), ("text.txt", "hello\n"), ("list.json", "[1]\n")):
        (place.directory / name).write_text(text)
        assert verified(place, name)[0].returncode == 2, name


def test_a_file_that_is_not_of_the_store_needs_its_program_named(place: Place) -> None:
    """A program is never run on the word of somebody's file: exit code 2, and with the program named it is verified."""
    recorded(place, "ask(1)")
    copy = place.directory / "copy.jsonl"
    copy.write_bytes(place.runs[0].read_bytes())
    done, _ = verified(place, "copy.jsonl")
    assert done.returncode == 2
    assert "not a run of your own store" in done.stderr
    assert verified(place, "copy.jsonl", "--", "agent.py")[0].returncode == 0


def test_a_run_that_names_no_program(place: Place) -> None:
    """Recorded at a prompt, it can't be verified by itself: exit code 2, and what to name."""
    place.program(START + "def main():\n    with record('x') as run:\n        run.set_result(ask(1))\n", "lib.py")
    code = "from tracekit import record; import lib; lib.main()"
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join([*PACKAGES, "."])}
    subprocess.run([sys.executable, "-c", code], cwd=place.directory, env=environment, check=True)
    done, _ = verified(place)
    assert done.returncode == 2
    assert "names no program" in done.stderr
    assert verified(place, "last", "--entry", "lib:main")[0].returncode in (0, 1)


def test_what_has_nothing_to_replay(place: Place) -> None:
    """A run in which nothing was captured shows nothing: exit code 2."""
    script = place.program("from tracekit import record\nwith record('x'):\n    pass\n")
    assert place.cli("run", script).returncode == 0
    done, _ = verified(place)
    assert done.returncode == 2, done.stderr


def test_chance_is_not_blamed_on_the_hash_seed(place: Place, shared: str) -> None:
    """That two replays under the recording's own hash seed happen to be right says nothing yet: each seed has to do the same again."""
    recorded(
        place,
        """
        with open(sys.argv[1], "a") as file:  # where no replay has a layer
            file.write("x")
            file.flush()
            times = os.fstat(file.fileno()).st_size
        # Of the recording, of two replays side by side, of one after the other.
        ask("odd" if times in (2, 3, 4) else "even")
        """,
        shared,
    )
    done, told = verified(place)
    assert done.returncode == 1
    assert told["difference"]["with_recorded_hash_seed"] is False
    assert "hash seed (0) all is identical" not in done.stderr


def test_a_program_that_prints_what_its_run_warns_of(place: Place) -> None:
    """``run.warnings`` is what the recorded run said, in each replay: what there is to say of a replay is in its report."""
    recorded(
        place,
        """
        from tracekit import record

        @traced_tool(side_effect="read_only")
        def take(lock):
            return 1

        with record("own") as run:
            take(threading.Lock())
        print(run.warnings)
        """,
    )
    done, told = verified(place)
    assert done.returncode == 0, done.stderr
    assert told["identical"] is True
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0
    assert "can't be recorded" in replayed.stdout
    assert "hash seed" not in replayed.stdout


def test_a_file_that_is_called_otherwise(place: Place) -> None:
    """A file is a file whatever its name is: what it is not is told, not that there is no such run."""
    (place.directory / "bin").write_bytes(os.urandom(200) + b"\n")
    done = place.cli("verify-determinism", "bin")
    assert done.returncode == 2
    assert "no run 'bin'" not in done.stderr
    assert str(place.directory / "bin") in done.stderr
