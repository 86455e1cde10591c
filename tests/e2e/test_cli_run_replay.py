"""``tracekit run`` and ``tracekit replay``: a program as it is, recorded and run again, with its status, input and hash seed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.place import PACKAGES, TOOL, Place
from tests.support.stub_provider import stub_provider


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def exactly(place: Place, recorded: subprocess.CompletedProcess[str], *more: str) -> subprocess.CompletedProcess[str]:
    """The replay of the only run: the same on stdout, exit code 0, no effect."""
    before = place.effects()
    replayed = place.cli("replay", place.run, *more)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert place.effects() == before
    return replayed


def test_a_program_as_it_is(place: Place) -> None:
    """Output, arguments, rng, clock and set order of an unchanged program are the same in its replay; its tool does not run."""
    script = place.program(
        TOOL + "print(sys.argv[1:], charge(5), random.random(), time.time(), {'a', 'b', 'c', 'd', 'e'})\n"
    )
    recorded = place.cli("run", script, "--flag", "two words")
    assert recorded.returncode == 0, recorded.stderr
    assert "['--flag', 'two words'] receipt" in recorded.stdout
    exactly(place, recorded)
    assert place.effects() == 1


def test_a_run_has_the_name_of_its_script(place: Place) -> None:
    """Without ``--name`` it is the file's name, not its path: short in lists, and the same on every machine."""
    script = place.program("print('done')\n")
    assert place.cli("run", os.path.join(place.directory, script)).returncode == 0
    listed = json.loads(place.cli("list", "--json").stdout)
    assert listed["name"] == "agent.py"


def test_the_hash_seed_is_that_of_the_recording(place: Place) -> None:
    """The order of a set of strings is reproduced whatever seed the process that replays was given."""
    script = place.program(TOOL + "charge(1); print(list({str(i) for i in range(50)}))\n")
    recorded = place.cli("run", script, PYTHONHASHSEED="1234")
    replayed = place.cli("replay", place.run, PYTHONHASHSEED="7")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout


def test_modules(place: Place) -> None:
    """``-m`` runs a module of a package, and its replay does as well."""
    (place.directory / "pack").mkdir()
    place.program("", "pack/__init__.py")
    place.program(TOOL + "print(__name__, __package__, sys.argv[1:], charge(5))\n", "pack/work.py")
    recorded = place.cli("run", "-m", "pack.work", "x")
    assert recorded.stdout.startswith("__main__ pack ['x'] receipt"), recorded.stderr
    exactly(place, recorded)


def test_what_follows_a_module_is_the_programs(place: Place) -> None:
    """All after ``-m MODULE`` goes to the program as ``python -m`` would hand it on: another ``-m``, our own options, ``--``."""
    place.program(TOOL + "print(sys.argv[1:], charge(5))\n", "work.py")
    arguments = ["-m", "X", "--name", "theirs", "--store", "s", "--help", "--", "-mY"]
    for ours in (["--name", "ours", "-m", "work"], ["-mwork"]):
        recorded = place.cli("run", *ours, *arguments)
        assert recorded.stdout.startswith(f"{arguments} receipt"), recorded.stderr
        replayed = place.cli("replay", "last")
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert not (place.directory / "s").exists()
    assert sorted(json.loads(line)["name"] for line in place.cli("list", "--json").stdout.splitlines()) == [
        "ours",
        "work",
    ]


#: The first lines of an installed command, of which the third is written for interpreters with a long path.
SHEBANGS = ["#!{0}", "#!/usr/bin/env python3", "#!/bin/sh\n'''exec' '{0}' \"$0\" \"$@\"\n' '''"]


@pytest.mark.parametrize("shebang", SHEBANGS, ids=["python", "env", "sh"])
def test_an_installed_command(place: Place, shebang: str) -> None:
    """A command of the environment is recorded by its name, as a shell finds it, and its replay names it the same way."""
    (place.directory / "bin").mkdir()
    place.program(shebang.format(sys.executable) + "\n" + TOOL + "print(sys.argv, charge(5))\n", "bin/greet")
    (place.directory / "bin" / "greet").chmod(0o755)
    path = f"{place.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
    recorded = place.cli("run", "greet", "--twice", PATH=path)
    assert recorded.stdout.startswith(f"['{place.directory / 'bin' / 'greet'}', '--twice'] receipt"), recorded.stderr
    exactly(place, recorded)
    named = place.cli("replay", place.run, "--", "greet", "--twice", PATH=path)
    assert (named.returncode, named.stdout) == (0, recorded.stdout), named.stderr


#: How an installed command cannot be recorded, and what its user is told.
NOT_RECORDED = {
    "not written in Python": ("#!/bin/sh", "greet is not written in Python"),
    "of another environment": ("#!/opt/other/bin/python3", "install tracekit beside /opt/other/bin/python3"),
}


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_a_command_that_is_no_program_of_this_environment(place: Place, case: str) -> None:
    """Nothing is started, and the message says what would be recorded."""
    shebang, said = NOT_RECORDED[case]
    (place.directory / "bin").mkdir()
    place.program(f"{shebang}\necho hello\n", "bin/greet")
    (place.directory / "bin" / "greet").chmod(0o755)
    done = place.cli("run", "greet", PATH=str(place.directory / "bin"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("command", [["python", "agent.py"], ["python3", "-m", "agent"]])
def test_python_before_the_program_is_left_out(place: Place, command: list[str]) -> None:
    """``tracekit run python agent.py`` records ``agent.py``, as a user of other launchers writes it."""
    place.program(TOOL + "print(charge(5))\n")
    recorded = place.cli("run", *command)
    assert recorded.returncode == 0, recorded.stderr
    exactly(place, recorded)


#: How a run is given something, and what the function gets that ``--entry`` names.
HANDED_ON = {
    "a dictionary is the one argument": ("record('r', input={'sku': 'a', 'n': (1, 2)})", "def handle(request)"),
    "one that is named differently": ("record('r', input={'request': 'a'})", "def handle(event)"),
    "keys that are no names": ("record('r', input={1: 'a', ('b', 2): None})", "def handle(request, retries=3)"),
    "a list": ("record('r', input=['a', b'c'])", "def handle(request)"),
    "by the names of the parameters": ("record('r', input={'sku': 'a', 'n': 2})", "def handle(n, sku)"),
    "more keys than named parameters": ("record('r', input={'sku': 'a', 'n': 2})", "def handle(sku=None, **more)"),
}


@pytest.mark.parametrize("case", HANDED_ON)
def test_an_entry_gets_what_the_run_was_given(place: Place, case: str) -> None:
    """``--entry`` hands on what the run was given, as it was: a dictionary too, unless its keys are the function's parameters."""
    opened, signature = HANDED_ON[case]
    names = [name.strip(" *").partition("=")[0] for name in signature.partition("(")[2].rstrip(")").split(",")]
    got = f"dict({', '.join(f'{name}={name}' for name in names)})"
    source = f"{TOOL}from tracekit import record\n{signature}:\n    print('got', {got})\n    return charge(5)\n"
    place.program(source, "handler.py")
    given = opened.partition("input=")[2].rstrip(")")
    whole = signature.endswith("(request)") or "event" in signature or "retries" in signature
    call = f"handle({given})" if whole else f"handle(**{given})"
    place.program(f"from handler import *\nwith {opened} as run:\n    run.set_result({call})\n", "main.py")
    recorded = place.cli("run", "main.py")
    assert recorded.stdout.startswith("got {"), recorded.stderr
    replayed = place.cli("replay", place.run, "--entry", "handler:handle")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


def test_an_entry_below_its_own_record(place: Place) -> None:
    """The arguments of a decorated function come back as they were given, however it takes them; a tool below stays a tool."""
    source = (
        TOOL + "from tracekit import record\n"
        "@record('r')\n"
        "def handle(first, /, *others, key=1, **more):\n"
        "    print(first, others, key, more)\n"
        "    return charge(5)\n"
        "pay = record('tool')(charge)\n"
    )
    place.program(source, "handler.py")
    place.program("from handler import *\nhandle({'a': 1}, 2, (3,), key=4, more=5)\n", "main.py")
    recorded = place.cli("run", "main.py")
    replayed = place.cli("replay", place.run, "--entry", "handler:handle")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout == "{'a': 1} (2, (3,)) 4 {'more': 5}\n"
    place.program("from handler import *\npay(7)\n", "main.py")
    place.cli("run", "main.py")
    assert place.effects() == 2
    replayed = place.cli("replay", "last", "--entry", "handler:pay")
    assert (replayed.returncode, place.effects()) == (0, 2), replayed.stderr


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no good')", 1, "no good"),
        ("raise SystemExit", 0, ""),
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_the_status_is_the_programs_own(place: Place, ending: str, status: int, said: str) -> None:
    """``run`` passes the program's status through; ``replay`` is 0 where the program ended as it did, whatever that was."""
    script = place.program(TOOL + f"print(charge(5), flush=True)\n{ending}\n")
    recorded = place.cli("run", script)
    assert recorded.returncode == status
    assert said in recorded.stderr
    if status >= 0:
        exactly(place, recorded)
    assert place.cli("verify", place.run).returncode == (0 if status >= 0 else 3)


def test_another_status_is_a_difference(place: Place) -> None:
    """Every step matched, and the program ended differently: exit code 1."""
    script = place.program(TOOL + "charge(5)\nsys.exit(4 if os.path.exists('now') else 0)\n")
    assert place.cli("run", script).returncode == 0
    place.program("", "now")
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "another exit status" in replayed.stderr


def test_standard_input(place: Place) -> None:
    """What the program read is in the trace: its replay needs no input."""
    script = place.program(
        TOOL + "name = input('who? ')\nrest = [line.strip() for line in sys.stdin]\nprint(name, rest, charge(5))\n"
    )
    recorded = place.cli("run", script, input="Ada\none\ntwo\n")
    assert "Ada ['one', 'two'] receipt" in recorded.stdout, recorded.stderr
    replayed = place.cli("replay", place.run, input="somebody else\n")
    assert replayed.returncode == 0, replayed.stderr
    assert "Ada ['one', 'two'] receipt" in replayed.stdout


def test_a_program_with_runs_of_its_own(place: Place) -> None:
    """Its own ``record()`` blocks win: each is a run, and each replays by itself, the others answered from their own files."""
    script = place.program(
        TOOL
        + """
for customer in ("acme", "bolt", "cog"):
    with record(customer) as run:
        run.set_result(charge(len(customer)))
        print(customer, run.result)
"""
    )
    recorded = place.cli("run", script)
    assert recorded.returncode == 0, recorded.stderr
    assert len(place.runs) == 3
    assert place.effects() == 3
    for path in place.runs:
        replayed = place.cli("replay", path.stem)
        assert replayed.returncode == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout
        told = {
            line.split()[2].strip(",:"): line
            for line in replayed.stderr.splitlines()
            if line.startswith("tracekit: replayed")
        }
        assert [run for run, line in told.items() if "the requested run" in line] == [path.stem]
        assert sum("another run of the program" in line for line in told.values()) == 2
    assert f"replaying last ({place.runs[-1].stem}): " in place.cli("replay", "last").stderr
    assert place.effects() == 3


def test_a_program_whose_first_runs_are_opened_at_once(place: Place) -> None:
    """Threads that all open a run of their own as the first thing: each is a run, and the program ends as it would have."""
    script = place.program(
        TOOL
        + """
import threading
start = threading.Barrier(8)

def work(number):
    start.wait()
    with record(f"run {number}") as run:
        run.set_result(charge(number))

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    )
    recorded = place.cli("run", script)
    assert recorded.returncode == 0, recorded.stderr
    assert "LogWriteError" not in recorded.stderr
    assert len(place.runs) == place.effects() == 8


def test_dry_run_executes_nothing(place: Place) -> None:
    """``--dry-run`` prints the recorded result and does not even import the program; no file of the store changes."""
    script = place.program(TOOL + "with record('bill') as run:\n    run.set_result({'paid': charge(5)})\n")
    assert place.cli("run", script).returncode == 0
    place.program("raise AssertionError('imported')\n")
    before = [path.read_bytes() for path in place.runs]
    assert re.search(r"^result +\{.*paid: receipt", place.cli("replay", place.run, "--dry-run").stdout)
    dry = place.cli("replay", place.run, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    told = json.loads(dry.stdout)
    assert told["from_replay"] is True
    assert told["result"]["paid"].startswith("receipt")
    assert [path.read_bytes() for path in place.runs] == before


def test_a_changed_program_is_a_divergence(place: Place) -> None:
    """Exit code 1 and the difference by field, once; no effect, nothing written."""
    script = place.program(TOOL + "print(charge(5))\n")
    place.cli("run", script)
    place.program(TOOL + "print(charge(6))\n")
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "divergence" in replayed.stderr
    assert replayed.stderr.count("recorded  5") == 1
    assert replayed.stderr.count("now       6") == 1
    assert place.effects() == 1
    assert len(place.runs) == 1


def test_an_agent_that_catches_everything(place: Place) -> None:
    """``except Exception`` around each call, and an exit status of 0, make no success of a divergence."""
    text = (
        TOOL
        + """
for i in range(3):
    try:
        print(charge({}))
    except Exception as error:
        print('went on', error)
sys.exit(0)
"""
    )
    script = place.program(text.replace("{}", "i"))
    assert place.cli("run", script).returncode == 0
    place.program(text.replace("{}", "i + (i == 1)"))
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "went on" not in replayed.stdout
    assert place.effects() == 3


_OFTEN = {
    "its own": "look('changed' if CHANGED else 'as it was')",
    "caught": "try:\n    look('changed' if CHANGED else 'as it was')\nexcept BaseException:\n    print('goes on')",
    "a child's": "print(subprocess.run([sys.executable, 'child.py']).returncode >= 0)",
    "a child's, not seen": "print(subprocess.run([sys.executable, 'child.py'], capture_output=True).returncode >= 0)",
    "a pool's": "with ProcessPoolExecutor(1) as pool:\n    pool.submit(work).result()",
}


@pytest.mark.parametrize("whose", _OFTEN)
def test_a_failure_is_reported_once(place: Place, whose: str) -> None:
    """With its advice, when it happens, in whichever process that is; where the program went on and printed more, its end reminds of it."""
    begin = """
import os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
from tracekit import traced_tool
CHANGED = os.path.exists("changed")

@traced_tool(side_effect="read_only")
def look(what):
    return what

def work():
    look("changed" if CHANGED else "as it was")

"""
    place.program(begin + "work()\n", "child.py")
    script = place.program(
        f"{begin}def main():\n{textwrap.indent(_OFTEN[whose], '    ')}\n\nif __name__ == '__main__':\n    main()\n"
    )
    fresh = whose == "a child's"  # for the others it is enough that their processes end as these do
    recorded = place.cli("run", script, fresh=fresh, seeds=("0",))
    assert recorded.returncode == 0, recorded.stderr
    (place.directory / "changed").touch()
    replayed = place.cli("replay", "last", fresh=fresh, seeds=("0",))
    assert replayed.returncode == 1
    said = replayed.stderr
    assert (said.count("[divergence]"), said.count("is not the recorded step"), said.count("  next: ")) == (1, 1, 1)
    assert said.endswith("its program continued all the same\n") == (whose == "caught")


def test_a_program_that_hangs_after_a_divergence(place: Place) -> None:
    """One that waits outside Python is ended after the grace, its stacks on stderr, exit code 1."""
    text = (
        TOOL
        + """
import threading
def work():
    charge({})
worker = threading.Thread(target=work)
worker.start()
worker.join()
if {} == 2:
    import ctypes
    ctypes.CDLL(None).sleep(600)
"""
    )
    script = place.program(text.replace("{}", "1"))
    assert place.cli("run", script).returncode == 0
    place.program(text.replace("{}", "2"))
    replayed = place.cli("replay", place.run, "--grace", "0.5")
    assert replayed.returncode == 1
    assert "divergence" in replayed.stderr
    assert "it is ended" in replayed.stderr
    assert "agent.py" in replayed.stderr


def test_a_trace_from_elsewhere_runs_nothing(place: Place) -> None:
    """The program that a file names is run for runs of the own store only; for any other, the user names it."""
    script = place.program(TOOL + "print(charge(5))\n")
    recorded = place.cli("run", script)
    elsewhere = place.directory / "mail" / "attachment.jsonl"
    elsewhere.parent.mkdir()
    shutil.move(place.runs[0], elsewhere)
    refused = place.cli("replay", str(elsewhere))
    assert refused.returncode in (2, 4)
    assert "not a run of your own store" in refused.stderr
    assert refused.stdout == ""
    named = place.cli("replay", str(elsewhere), "--", script)
    assert named.returncode == 0, named.stderr
    assert named.stdout == recorded.stdout
    assert place.effects() == 1


@pytest.mark.parametrize("command", [["python", "agent.py"], ["agent.py"], ["-m", "agent"]])
def test_the_command_may_be_named(place: Place, command: list[str]) -> None:
    """``-- COMMAND`` runs that program instead of the recorded one."""
    script = place.program(TOOL + "print(charge(5))\n")
    recorded = place.cli("run", script)
    replayed = place.cli("replay", place.run, "--", *command)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "no-such-run"],
        ["replay", "no/such/file.jsonl"],
        ["run"],
        ["run", "nothing.py"],
        ["run", "nothing"],
        ["run", "python", "-u", "agent.py"],
        ["replay"],
        ["frobnicate"],
    ],
)
def test_wrong_use(place: Place, arguments: list[str]) -> None:
    """Exit code 2, a message on stderr, nothing on stdout, no run in its place."""
    done = place.cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr
    assert place.runs == []


def test_damage_is_told_before_anything_runs(place: Place) -> None:
    """One changed byte in the trace: exit code 1, the line is named, the program does not start."""
    script = place.program(TOOL + "print('started', charge(5))\n")
    place.cli("run", script)
    (path,) = place.runs
    path.write_bytes(path.read_bytes().replace(b'"receipt ', b'"Receipt ', 1))
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "line" in replayed.stderr
    assert "started" not in replayed.stdout


def test_a_package_that_counts_as_the_programs_own(place: Place) -> None:
    """``--user-module NAME``: what an installed package reads of the clock and draws, by os.urandom too, is recorded, and served
    in a replay, which is told nothing; without it what it draws so is its own."""
    package = place.directory / "site-packages" / "vendored"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os, time, uuid\n\ndef stamp():\n    return time.time(), str(uuid.uuid4()), os.urandom(4).hex()\n"
    )
    script = place.program(TOOL + "import vendored\nprint(charge(vendored.stamp()))\n")
    path = os.pathsep.join([str(place.directory / "site-packages"), *PACKAGES])
    recorded = place.cli("run", "--user-module", "vendored", script, PYTHONPATH=path)
    assert recorded.returncode == 0, recorded.stderr
    replayed = place.cli("replay", place.run, PYTHONPATH=path)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert place.cli("run", script, PYTHONPATH=path).returncode == 0
    assert place.cli("replay", "last", PYTHONPATH=path).returncode == 1


def test_some_kinds_go_live(place: Place) -> None:
    """``--live KIND[:NAME]`` makes such calls of an unmodified program, answers the others, and says which new run has it all."""
    script = place.program(
        TOOL
        + """
@traced_tool(side_effect="read_only")
def search(what):
    with open("../searched", "a") as file:
        file.write("x")
    return os.path.getsize("../searched")

print(charge(1)[:7], search("a"), search("b"))
"""
    )
    assert place.cli("run", script).stdout == "receipt 1 2\n"
    recorded = place.run
    for live in ("tool", "tool:search"):
        before = (place.directory.parent / "searched").stat().st_size
        replayed = place.cli("replay", recorded, "--live", live)
        assert (replayed.returncode, replayed.stdout) == (0, f"receipt {before + 1} {before + 2}\n"), replayed.stderr
        assert "exact but for 2 " in replayed.stderr
        new = place.runs[-1].stem
        assert new != recorded
        assert f"as run {new}\n" in replayed.stderr
        assert place.effects() == 1
    assert place.cli("verify", "last").returncode == 0
    wrong = place.cli("replay", recorded, "--live", "everything")
    assert (wrong.returncode, "--live takes" in wrong.stderr) == (2, True), wrong.stderr


def test_prices_that_can_not_be_imported_change_nothing(place: Place) -> None:
    """The package of prices imports others, which may not be imported when a program ends: what the run cost is left out."""
    place.program("raise RuntimeError('can not register atexit after shutdown')\n", "genai_prices.py")
    script = place.program(
        """
        import json, sys
        from urllib.request import Request, urlopen

        asked = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}).encode()
        headers = {"content-type": "application/json"}
        with urlopen(Request(sys.argv[1] + "/v1/chat/completions", asked, headers)) as answer:
            print(answer.read())
        """
    )
    with stub_provider() as provider:
        recorded = place.cli("run", script, provider.url)
    replayed = exactly(place, recorded)
    assert "the recorded run took 1 model call" in replayed.stderr
    assert " tokens; cost not known: no price known for gpt-4o" in replayed.stderr
    assert replayed.stderr.rstrip().endswith("the program's status is 0")
