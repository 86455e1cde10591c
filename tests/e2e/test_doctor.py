"""``tracekit doctor`` finds what a replay of a program could not control, each with its line and how to mend it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import TOOL, WAITS_FOR_EVER, Place
from tracekit import record
from tracekit.cli import doctor
from tracekit.integration import discover, read_run

#: The hash seeds with which a program is recorded and replayed; an address is another one only in a process that is no fork.
SEEDS = ("0", "1", "2")
PROGRAMS = Path(__file__).parent / "doctor"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A directory with the two programs, and a file outside it that they read."""
    directory = tmp_path / "here"
    directory.mkdir()
    place = Place(directory)
    for name in ("sick.py", "clean.py"):
        place.program((PROGRAMS / name).read_text(), name)
    return place


@pytest.fixture
def outside() -> str:
    """A file below no temporary directory, and not in the working directory of the programs."""
    return str(Path(__file__).with_name("sample_programs.py"))


def line_of(place: Place, name: str, text: str) -> int:
    lines = (place.directory / name).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def named(place: Place, found: dict[str, Any]) -> list[tuple[str, int]]:
    assert {one["file"] for one in found["findings"]} == {str(place.directory / "sick.py")}
    assert all(one["text"] and one["mend"] for one in found["findings"])
    return [(one["code"], one["line"]) for one in found["findings"]]


def test_one_of_each_thing_is_named_with_its_line(place: Place, outside: str) -> None:
    """The order of a set, threads that share a list, an address, a file, a process, a value and a native client are
    named once each, with exit code 1; as the program has irreversible effects, it is recorded only once."""
    done = place.cli("doctor", "--json", "--", "sick.py", outside)
    assert done.returncode == 1, done.stderr
    assert "it runs, and its effects are real" in done.stderr
    found = json.loads(done.stdout)
    lines = {
        line_of(place, "sick.py", "# the order of a set"): {"order"},
        line_of(place, "sick.py", "# threads that share a list"): {"chance", "threads"},
        line_of(place, "sick.py", "# an address"): {"chance", "today", "threads"},
        line_of(place, "sick.py", "# a file whose content is not kept"): {"file"},
        line_of(place, "sick.py", "# a process of which nobody says"): {"undeclared"},
        line_of(place, "sick.py", 'connect("example.com")'): {"not_serialisable"},
        line_of(place, "sick.py", "# a client below Python"): {"native"},
    }
    codes = named(place, found)
    assert [line for _, line in codes] == list(lines)
    assert all(code in lines[line] for code, line in codes), codes
    assert (found["recordings"], len(place.runs), found["status"]) == (1, 1, [0])
    assert "can't be undone" in found["recorded_once"]
    assert "connect" in found["stopped"][0]


def test_a_connection_is_told_which_clients_are_captured() -> None:
    """Those of all installed transports, another package's too."""
    with socket.create_server(("127.0.0.1", 0)) as server, record("connection") as run:
        socket.create_connection(server.getsockname()).close()
    with read_run(run.path) as view:
        (found,) = [one for one in doctor._of_run(view, {}) if one.code == "connect"]
    transports = {name for one in discover().values() if one.patches for name in one.modules}
    assert transports > {"httpx", "requests", "aiohttp", "websockets"}
    assert f"use a client that is captured ({', '.join(sorted(transports))})" in found.mend


def test_a_shell_is_not_declared_by_its_first_word() -> None:
    """What is advised for a program would be dangerous for a shell, which does whatever its text says."""
    with record("processes") as run:
        for command in (["true", "-a"], ["sh", "-c", "true; rm -f x"], "true && rm -f x"):
            subprocess.run(command, shell=isinstance(command, str), check=True)
    with read_run(run.path) as view:
        program, *shells = map(doctor._of_process, view.steps(kinds=("process",)))
    assert (
        'if it only reads, whatever its arguments, say so (tracekit.instrument(processes={"true *": "read_only"}));'
        in program
    )
    assert len(shells) == 2
    assert all(one.startswith("start it in a function with @traced_tool") for one in shells)


MANY = """
import subprocess, sys
from tracekit import record

def twice(*command):
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)

with record("many"):
    twice("true", "-a")
    subprocess.run(["true", "-b"], check=True)
    subprocess.run(["false", "-c"])
"""


def test_a_process_started_often_is_one_finding(place: Place) -> None:
    """Processes of one name, which one declaration is for, are one finding, with how often they were started and each line."""
    place.program(MANY, "many.py")
    done = place.cli("doctor", "--json", "--", "many.py", seeds=SEEDS)
    found = {one["text"].split()[2]: one for one in json.loads(done.stdout)["findings"]}
    assert sorted(found) == ["false", "true"]
    inside, below, once = (line_of(place, "many.py", text) for text in ("subprocess.run(command", '"-b"', '"false"'))
    assert [found[name]["line"] for name in ("true", "false")] == [inside, once]
    assert [found[name]["times"] for name in ("true", "false")] == [3, 1]
    assert found["true"]["also"] == [{"file": str(place.directory / "many.py"), "line": below}]
    text = place.cli("doctor", "--run", "last", seeds=SEEDS).stdout
    assert text.count("  undeclared\n") == 2
    assert f"  (3 times, also at many.py:{below})\n" in text


def test_threads_that_wait_for_one_another_are_told_as_that(place: Place) -> None:
    """If nothing goes on in a replay although nothing has changed since the recording, the advice is about how threads
    hand over what they share."""
    place.program(TOOL + WAITS_FOR_EVER, "waiting.py")
    assert place.cli("run", "waiting.py").returncode == 0
    done = place.cli("doctor", "--json", "--run", "last", "--", "waiting.py", seeds=SEEDS)
    (found,) = json.loads(done.stdout)["findings"]
    assert found["code"] == "waits", found
    assert "queue or a future" in found["mend"]


KILLED = """
import ctypes, signal
charge(1)
ctypes.CDLL(None).kill(os.getpid(), int(signal.SIGKILL))
charge(2)
"""


def test_a_recording_that_was_killed_has_no_other_cause(place: Place) -> None:
    """The run has no end, which is said once, of no line of the program and of no hash seed: what has killed it is not
    in its trace. That a replay is killed as well is nothing more."""
    place.program(TOOL + KILLED, "killed.py")
    assert place.cli("run", "killed.py").returncode == -signal.SIGKILL
    done = place.cli("doctor", "--json", "--run", "last", "--", "killed.py", seeds=SEEDS)
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["code"], found["file"]) == ("incomplete", None)


def test_nothing_is_found_in_the_mended_program(place: Place, outside: str) -> None:
    """An existing run of the mended program is examined by replays alone: no run is written, and the exit code is 0."""
    assert place.cli("run", "clean.py", outside).returncode == 0
    (run,) = place.runs
    before = run.read_bytes()
    done = place.cli("doctor", "--run", "last", seeds=SEEDS)
    assert (done.returncode, place.runs, run.read_bytes()) == (0, [run], before), done.stdout + done.stderr
    assert done.stdout.startswith("nothing found: 1 recording, 2 replays")


def test_usage(place: Place) -> None:
    """Without a program, or for a program or run that does not exist, the exit code is 2, and nothing is run."""
    for arguments in ((), ("--", "nothing.py"), ("--run", "nothing"), ("--run", "last", "--again")):
        assert place.cli("doctor", *arguments).returncode == 2
    assert place.runs == []


@pytest.mark.determinism_full
def test_what_only_reads_is_recorded_twice(place: Place, outside: str) -> None:
    """A program that only reads is recorded under two hash seeds, and each recording is replayed under others; the
    mended program does the same each time."""
    done = place.cli("doctor", "--json", "--", "clean.py", outside, seeds=SEEDS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["recordings"], found["replays"], found["findings"], found["recorded_once"]) == (2, 4, [], None)
    assert len(place.runs) == 2


@pytest.mark.determinism_full
def test_what_is_irreversible_is_done_again_on_request_only(place: Place) -> None:
    """Replays have no effects; the second recording, which does, is made only with ``--again``."""
    script = place.program(TOOL + "\ncharge(1)\n")
    done = place.cli("doctor", "--", script, seeds=SEEDS)
    assert (done.returncode, place.effects()) == (0, 1), done.stdout + done.stderr
    assert "recorded once (--again records it twice)" in done.stdout
    assert place.cli("doctor", "--again", "--", script, seeds=SEEDS).returncode == 0
    assert place.effects() == 3


@pytest.mark.determinism_full
def test_findings_for_people(place: Place, outside: str) -> None:
    """The text lists findings by file and line, each with what to do, and is made from two recordings if that is asked
    for."""
    done = place.cli("doctor", "--again", "--", "sick.py", outside)
    assert done.returncode == 1, done.stderr
    place_of_set = f"sick.py:{line_of(place, 'sick.py', '# the order of a set')}  order"
    assert place_of_set in done.stdout.splitlines()
    assert "sort the set before it reaches a step" in done.stdout
    assert "7 things that a replay does not control (2 recordings, 8 replays)" in done.stdout
    assert len(place.runs) == 2
