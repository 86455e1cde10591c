"""What a program reads from outside by itself is recorded where it reads it, and is what it was in a replay."""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import PACKAGES, READINTO, TOOL, Place
from tests.support.plain_writer import chained
from tracekit import (
    DivergenceError,
    InexactReplayError,
    InexactReplayWarning,
    LiveCallBlockedError,
    record,
    replay,
    traced_tool,
)

BEGIN = """
import os, subprocess, sys
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

"""

SECRET = "sk-proj-" + "a1B2" * 12


@traced_tool(side_effect="read_only")
def look(n: Any) -> Any:
    return n


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def entries(place: Place, kind: str = "input") -> list[dict[str, Any]]:
    """What was read; not how a file was before it was changed, nor how a step left it."""
    return [
        entry
        for path in place.runs
        for line in path.read_bytes().splitlines()
        if (entry := json.loads(line))["type"] == kind and entry.get("name") not in ("kept", "left")
    ]


def values(place: Place) -> list[dict[str, Any]]:
    return [one["output"] for one in entries(place)]


READS = """
print(look(os.environ["CITY"]), os.environ.get("CITY"), os.getenv("CITY"), "CITY" in os.environ)
print(look(os.environ.get("GONE", "default")), os.getenv("GONE"), "GONE" in os.environ)
try:
    os.environ["GONE"]
except KeyError as error:
    print(error)
"""


def test_a_variable_is_what_it_was(place: Place) -> None:
    """However it is asked for: one that is absent in the replay, one that was absent in the recording. Each is in the log once."""
    place.program(BEGIN + READS)
    done = place.cli("run", "agent.py", CITY="Graz")
    assert (done.returncode, done.stdout) == (0, "Graz Graz Graz True\ndefault None False\n'GONE'\n"), done.stderr
    assert values(place) == [{"CITY": "Graz"}, {"GONE": None}]
    assert entries(place)[0]["input"]["where"].endswith(f"agent.py:{BEGIN.count(chr(10)) + 2}")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_another_value_of_today_is_said_and_is_not_the_programs(place: Place) -> None:
    """The recorded one serves, stderr says so when it happens, with the line, and the replay is inexact."""
    place.program(BEGIN + "print(look(os.environ['CITY']), os.environ.get('CITY'), os.environ.get('WAY'))\n")
    place.cli("run", "agent.py", CITY="Graz")
    again = place.cli("replay", "last", CITY="Linz", WAY="by train")
    assert (again.returncode, again.stdout) == (1, "Graz Graz None\n")
    (told, *_) = [line for line in again.stderr.splitlines() if "CITY" in line]
    assert all(part in told for part in ("'Graz'", "'Linz'", "the program was given the recorded one", "agent.py:"))
    assert "2 inputs that are different here" in again.stderr
    assert "`--live-env CITY --live-env WAY`" in again.stderr


def test_todays_value_where_the_caller_wants_it(place: Place) -> None:
    """``--live-env`` takes names and patterns; what follows from another value is compared as ever."""
    place.program(BEGIN + "print(look(1), os.environ.get('LOG_LEVEL'))\n")
    place.cli("run", "agent.py", LOG_LEVEL="INFO")
    for name in ("LOG_LEVEL", "LOG_*"):
        again = place.cli("replay", "last", "--live-env", name, LOG_LEVEL="DEBUG")
        assert (again.returncode, again.stdout) == (0, "1 DEBUG\n"), again.stderr
        assert "exact but for 1 input of today" in again.stderr


def test_any_variable_of_the_environment_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is not valid text, an empty or long one, and variables whose names look like tags of the trace format."""
    strange = {"CITY": os.fsdecode(b"\xff\xfe"), "$t": "opaque", "$ref": "1", "EMPTY": "", "LONG": "x" * 5000}
    for name, value in strange.items():
        monkeypatch.setenv(name, value)
    with record("r", store=tmp_path) as run:
        assert look({name: os.environ[name] for name in strange}) == strange
    for name in strange:
        monkeypatch.delenv(name)
    with replay(run.id, store=tmp_path) as session:
        assert look({name: os.environ[name] for name in strange}) == strange
    assert session.report.exact


def test_what_the_program_sets_is_its_own(place: Place) -> None:
    """Set, changed, taken away, taken over from a file: it comes to the same in the replay, where today's value is another or none."""
    place.program(
        BEGIN
        + """
print(look(os.environ.get("MODE")))
os.environ["MODE"] = "fast"
print(look(os.environ["MODE"]))
os.environ.update(MODE="slow")
print(look(os.environ["MODE"]))
print(look(os.environ.pop("MODE")), look(os.environ.get("MODE")))
print(look(os.environ.pop("CITY")), look(os.environ.get("CITY")))
print(look(os.environ.setdefault("AREA", "north")), look(os.environ["AREA"]))
"""
    )
    done = place.cli("run", "agent.py", CITY="Graz")
    assert done.stdout.split() == ["None", "fast", "slow", "slow", "None", "Graz", "None", "north", "north"]
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    again = place.cli("replay", "last", CITY="Graz")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_a_value_comes_when_it_came(place: Place) -> None:
    """A variable that is not there at first, and is set by the program, by a library, by a tool: each reading sees what it saw, with steps
    in between and without."""
    library = place.directory / "site-packages"
    library.mkdir()
    (library / "variables.py").write_text("import os\ndef put(name, value):\n    os.environ[name] = value\n")
    place.program(
        BEGIN
        + """
sys.path.insert(0, "site-packages")
import variables

@traced_tool(side_effect="read_only")
def login():
    os.environ["TOKEN_OF_TOOL"] = "tool"

def read(name):
    return os.environ.get(name)

def mode():
    if read("MODE") is None:
        variables.put("MODE", "library")
    return read("MODE")

print(read("AREA"), mode(), read("TOKEN_OF_TOOL"))
os.environ["AREA"] = "program"
print(read("AREA"), look(1))
login()
print(read("TOKEN_OF_TOOL"), read("AREA"), mode())
"""
    )
    done = place.cli("run", "agent.py")
    assert done.stdout.split() == ["None", "library", "None", "program", "1", "tool", "program", "library"]
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_packages_that_make_ids_and_read_settings_for_the_program(place: Place) -> None:
    """What they draw and the variables that they read are the program's: here packages of the names of python-ulid and
    python-decouple."""
    library = place.directory / "site-packages"
    library.mkdir()
    (library / "ulid.py").write_text("import os\ndef new():\n    return os.urandom(10).hex()\n")
    (library / "decouple.py").write_text("import os\ndef config(name):\n    return os.environ[name]\n")
    place.program(
        BEGIN
        + "sys.path.insert(0, 'site-packages')\nimport decouple, ulid\nprint(look(ulid.new()), look(decouple.config('AREA')))\n"
    )
    done = place.cli("run", "agent.py", AREA="north")
    again = place.cli("replay", "last")
    assert (done.returncode, again.returncode, again.stdout) == (0, 0, done.stdout), again.stderr


def test_what_a_library_sets_for_the_program_need_not_be_there(place: Place) -> None:
    """A ``.env`` file that the replay has not, or has otherwise."""
    library = place.directory / "site-packages"
    library.mkdir()
    (library / "dotenv.py").write_text(
        "import os\ndef load_dotenv(path):\n    if os.path.exists(path):\n        for line in open(path):\n"
        "            name, _, value = line.strip().partition('=')\n            os.environ.setdefault(name, value)\n"
    )
    place.program(
        BEGIN
        + "sys.path.insert(0, 'site-packages')\nimport dotenv\ndotenv.load_dotenv('.env')\nprint(look(os.environ['CITY']))\n"
    )
    (place.directory / ".env").write_text("CITY=Graz\n")
    assert place.cli("run", "agent.py").stdout == "Graz\n"
    (place.directory / ".env").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, "Graz\n"), again.stderr
    (place.directory / ".env").write_text("CITY=Linz\n")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, "Graz\n"), again.stderr


def test_a_secret_is_not_in_the_log(place: Place) -> None:
    """Today's serves, which can't be compared; where there is none, the program gets a placeholder."""
    place.program(BEGIN + "print(look(1), len(os.environ['SERVICE_API_KEY']))\n")
    done = place.cli("run", "agent.py", SERVICE_API_KEY=SECRET)
    assert done.stdout == f"1 {len(SECRET)}\n"
    assert all(SECRET not in path.read_text() for path in place.runs)
    assert "REDACTED" in values(place)[0]["SERVICE_API_KEY"]
    place.program(BEGIN + "print(look(1), len(os.environ['SERVICE_KEY'] + os.environ['DATABASE']))\n", "url.py")
    place.cli("run", "url.py", SERVICE_KEY="rather-another-one", DATABASE="pg://me:hunter2hunter2@db/a")
    text = "".join(path.read_text() for path in place.runs)
    assert ("rather-another-one" in text, "hunter2hunter2" in text) == (False, False)
    again = place.cli("replay", "last", SERVICE_KEY="another", DATABASE="pg://me:password!@db/a")
    assert again.returncode == 0, again.stderr
    again = place.cli("replay", "last", SERVICE_KEY="another", DATABASE="pg://me:password!@db/b")
    assert (again.returncode, "password!" in again.stderr, "DATABASE" in again.stderr) == (1, False, True), again.stderr
    os.unlink(place.runs[-1])
    again = place.cli("replay", "last", SERVICE_API_KEY="another")
    assert (again.returncode, again.stdout) == (0, "1 7\n"), again.stderr
    assert place.cli("replay", "last").returncode == 0


def test_what_says_where_a_process_runs_is_no_input(place: Place) -> None:
    """Nor is what is handed on to another process whole, what a tool reads, and what a library reads for itself."""
    place.program(
        BEGIN
        + """
import urllib.request

@traced_tool(side_effect="read_only")
def read():
    return os.environ["CITY"]

print(os.environ["PATH"] != "", os.environ.get("HOME") != "", os.environ.get("PYTHONPATH") != "")
print(read(), len({**os.environ, "MORE": "1"}) > 3, len(dict(os.environ)) > 3, len(os.environ.copy()) > 3)
urllib.request.getproxies()
"""
    )
    done = place.cli("run", "agent.py", CITY="Graz")
    assert (done.returncode, entries(place)) == (0, []), done.stderr
    again = place.cli("replay", "last", HOME="/elsewhere")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_what_a_process_of_the_run_reads_is_in_its_own_file(place: Place) -> None:
    """A child that joins, replayed without the variable."""
    place.program("import os, tracekit\nprint(os.environ['CITY'])\n", "child.py")
    place.program(BEGIN + "look(1)\nsubprocess.run([sys.executable, 'child.py'], check=True)\n")
    done = place.cli("run", "agent.py", CITY="Graz")
    assert (done.returncode, done.stdout) == (0, "Graz\n"), done.stderr
    assert values(place) == [{"CITY": "Graz"}]
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, "Graz\n"), again.stderr


def test_killed_after_a_read_and_resumed(place: Place) -> None:
    """What the program got to see is in the log, and the resumed run gets it while its log lasts; then today's, which is recorded."""
    place.program(
        BEGIN
        + f"""
print(look(os.environ["CITY"]))
if not os.path.exists("../again"):  # beside the program: a layer has the files of its directory as the run found them
    open("../again", "w").close()
    os.kill(os.getpid(), {int(signal.SIGKILL)})
print(look(2), os.environ["CITY"])
"""
    )
    assert place.cli("run", "agent.py", CITY="Graz").returncode != 0
    assert values(place) == [{"CITY": "Graz"}]
    resumed = place.cli("recovery", "resume", "last", CITY="Linz")
    assert (resumed.returncode, resumed.stdout.splitlines()[-2:]) == (0, ["Graz", "2 Linz"]), resumed.stderr
    assert values(place) == [{"CITY": "Graz"}, {"CITY": "Linz"}]
    assert place.cli("replay", "last").stdout == "Graz\n2 Linz\n"


def test_in_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``record()`` and ``replay()`` do the same, and leave ``os.environ`` as it was."""
    before = dict(vars(type(os.environ)))
    monkeypatch.setenv("CITY", "Graz")
    with record("r", store=tmp_path) as run:
        look(os.environ["CITY"])
    monkeypatch.setenv("CITY", "Linz")
    said = "CITY was 'Graz' in the recording and is 'Linz' here"
    with pytest.raises(InexactReplayError, match=said), replay(run.id, store=tmp_path):
        look(os.environ["CITY"])
    with pytest.raises(DivergenceError, match="Linz"), replay(run.id, store=tmp_path, live_env=["CITY"]):
        look(os.environ["CITY"])
    monkeypatch.delenv("CITY")
    with replay(run.id, store=tmp_path) as session:
        look(os.environ["CITY"])
        assert "OTHER" not in os.environ
    assert session.report.exact
    assert [one.code for one in session.report.verdict.remarks] == ["unrecorded_input"]
    assert vars(type(os.environ)) == before
    assert "CITY" not in os.environ


# -- files -----------------------------------------------------------------------------------------------------------------


def test_a_file_is_what_it_was(place: Place) -> None:
    """However it is opened, in a replay that does not have it; each is in the log once, by its path from the working directory.

    Modules that have a reference of their own to ``open`` are no exception, whenever they were imported.
    """
    place.program(
        BEGIN
        + """
import importlib, json, pathlib, sys, tarfile
import xml.dom.minidom, xml.etree.ElementTree
here = pathlib.Path("data")
print(look(open("data/a.txt").read()), (here / "a.txt").read_text(), open(os.path.abspath("data/a.txt"), "rb").read())
print([line for line in open("data/lines.txt", newline="")], json.load(open(file="data/x.json", encoding="utf-8")))
print((here / "bytes").read_bytes())
for library in ("gzip", "bz2", "lzma", "compression.zstd")[: 4 if sys.version_info >= (3, 14) else 3]:
    print(importlib.import_module(library).open("data/" + library).read())
with tarfile.open("data/all.tar", "r:") as archive:
    print(archive.getnames())
print(xml.etree.ElementTree.parse("data/x.xml").getroot().tag, xml.dom.minidom.parse("data/y.xml").documentElement.tagName)
with open("data/a.txt") as file:
    print(file.name, file.seek(1), file.read(1), file.fileno() > 2, file.mode)
"""
    )
    data = place.directory / "data"
    data.mkdir()
    (data / "a.txt").write_text("Grüße")
    (data / "lines.txt").write_bytes(b"one\r\ntwo\n")
    (data / "x.json").write_text('{"a": 1}')
    (data / "bytes").write_bytes(b"\xff\x00")
    libraries = ("gzip", "bz2", "lzma", "compression.zstd")[: 4 if sys.version_info >= (3, 14) else 3]
    for library in libraries:
        (data / library).write_bytes(importlib.import_module(library).compress(b"packed"))
    with tarfile.open(data / "all.tar", "w") as archive:
        archive.add(data / "a.txt", "a.txt")
    for name, text in {"x.xml": "<x/>", "y.xml": "<y/>"}.items():
        (data / name).write_text(text)
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    names = [one["input"]["name"] for one in entries(place)]
    assert names == [
        "data/a.txt",
        "data/lines.txt",
        "data/x.json",
        "data/bytes",
        *(f"data/{library}" for library in libraries),
        "data/all.tar",
        *(f"data/{name}" for name in ("x.xml", "y.xml")),
    ]
    assert entries(place)[0]["output"]["data/a.txt"] == {
        "size": 7,
        "sha256": hashlib.sha256("Grüße".encode()).hexdigest(),
        "content": "Grüße",
    }
    assert place.cli("replay", "last").returncode == 0
    shutil.rmtree(data)
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_paths_as_bytes(place: Place) -> None:
    """A file or directory that is named by bytes, or by an entry of a directory that was, is what it was, with names of that type."""
    place.program(
        BEGIN
        + """
for file in (b"data/a.txt", os.path.join(os.fsencode(os.getcwd()), b"data/a.txt")):
    with open(file) as opened:
        print(look(opened.read()), opened.name == file)
print(os.read(os.open(b"data/a.txt", os.O_RDONLY), 9), sorted(os.listdir(b"data")))
with os.scandir(b".") as found:
    for entry in found:
        if entry.name == b"data":
            print(entry.path, sorted(one.name for one in os.scandir(entry)), sorted(os.listdir(entry)))
for ask in (open, os.listdir, os.scandir):
    try:
        ask(b"none")
    except FileNotFoundError as error:
        print(error.filename)
"""
    )
    data = place.directory / "data"
    data.mkdir()
    (data / "a.txt").write_text("one")
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "b'a.txt'" in done.stdout
    assert ("file", "data/a.txt") in {(one["name"], *one["output"]) for one in entries(place)}
    (data / "a.txt").write_text("two")
    (data / "b.txt").write_text("more")
    replayed = place.cli("replay", place.run)
    assert replayed.stdout == done.stdout, replayed.stderr
    assert "the file data/a.txt was 3 bytes" in replayed.stderr


def test_changes_by_keyword(place: Place) -> None:
    """How a file was before the run is kept, however the functions that change it are given its name."""
    place.program(
        BEGIN
        + """
with open("new.txt", "w") as file:
    file.write("new")
print(look(open("old.txt").read()))
os.replace(src="new.txt", dst="old.txt")
os.remove(path=b"gone.txt")
print(open("old.txt").read(), os.path.exists("gone.txt"))
"""
    )
    for name in ("old.txt", "gone.txt"):
        (place.directory / name).write_text(name)
    done = place.cli("run", "agent.py")
    assert (done.returncode, done.stdout) == (0, "old.txt\nnew False\n"), done.stderr
    lines = [json.loads(line) for path in place.runs for line in path.read_bytes().splitlines()]
    kept = {name for one in lines if one.get("name") == "kept" for name in one["output"]}
    assert {"new.txt", "old.txt", "gone.txt"} <= kept
    replayed = place.cli("replay", place.run)
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr


def test_a_file_of_the_programs_that_a_step_has_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what a step wrote into a file of the program's is not kept, the replay says so."""
    monkeypatch.chdir(tmp_path)

    @traced_tool(side_effect="reversible")
    def fill(size: int) -> None:
        with open("own.txt", "a") as file:
            file.write("y" * size)

    def codes(size: int) -> list[str]:
        def program() -> None:
            Path("own.txt").write_text("x")
            fill(size)

        with record("job") as run:
            program()
        (tmp_path / "own.txt").unlink()
        with replay(run) as session:
            program()
        return [one.code for one in session.report.verdict.remarks]

    assert codes(10) == []
    assert codes(400_000) == ["not_kept"]


def test_another_file_of_today_is_said_and_is_not_the_programs(place: Place) -> None:
    """The recorded content serves, stderr says so, and the replay is inexact; ``--live-files`` takes today's."""
    place.program(BEGIN + "print(look(1), open('prompt.txt').read())\n")
    prompt = place.directory / "prompt.txt"
    prompt.write_text("Be brief.")
    place.cli("run", "agent.py")
    prompt.write_text("Be long.")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, "1 Be brief.\n"), again.stderr
    told = [line for line in again.stderr.splitlines() if "prompt.txt" in line]
    assert "the program was given the recorded one" in told[0]
    assert "--live-files prompt.txt" in again.stderr
    again = place.cli("replay", "last", "--live-files", "*.txt")
    assert (again.returncode, again.stdout) == (0, "1 Be long.\n"), again.stderr
    assert "exact but for 1 input of today" in again.stderr
    assert prompt.read_text() == "Be long."


def test_a_file_that_was_not_there_is_not_there(place: Place) -> None:
    """The program gets the error that it got."""
    place.program(
        BEGIN
        + """
try:
    print(open("settings.json").read())
except FileNotFoundError as error:
    print(look(str(error)), error.errno, error.filename)
"""
    )
    done = place.cli("run", "agent.py")
    assert place.cli("replay", "last").returncode == 0
    (place.directory / "settings.json").write_text("{}")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, done.stdout), again.stderr


def test_what_the_program_has_written_itself_is_no_input(place: Place) -> None:
    """It writes it in a replay, too. What a tool has written, which a replay does not run, is one: each reading has what it had."""
    place.program(
        BEGIN
        + """
@traced_tool(side_effect="reversible")
def write(text):
    with open("by_tool.txt", "w") as file:
        file.write(text)

with open("own.txt", "w") as file:
    file.write("mine")
print(look(open("own.txt").read()))
write("first")
print(look(open("by_tool.txt").read()))
write("second")
print(look(open("by_tool.txt").read()), look(open("by_tool.txt").read()))
"""
    )
    done = place.cli("run", "agent.py")
    assert done.stdout == "mine\nfirst\nsecond second\n"
    assert [one["input"]["name"] for one in entries(place)] == ["by_tool.txt", "by_tool.txt"]
    (place.directory / "by_tool.txt").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    (place.directory / "by_tool.txt").write_text("second")  # as the recorded run has left it
    again = place.cli("replay", "last")
    assert again.stdout == done.stdout, again.stderr


@pytest.mark.parametrize("name", [".env", "id_rsa.pub", "keys/server.pem", "large", "../outside.txt"])
def test_content_that_is_not_kept(place: Place, name: str) -> None:
    """Credentials, what is large, and what is outside the working directory: a hash alone. Equal, it is the file of today; where it is
    another one or none, the replay says so."""
    place.directory = place.directory / "here"
    (place.directory / "keys").mkdir(parents=True)
    path = place.directory / name
    path.write_text("x" * (300_000 if name == "large" else 30))
    place.program(
        BEGIN + f"try:\n    print(look(1), len(open({name!r}).read()))\nexcept FileNotFoundError:\n    print('none')\n"
    )
    done = place.cli("run", "agent.py")
    (value,) = values(place)[0].values()
    assert sorted(value) == ["sha256", "size"]
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    path.write_text("other")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, "1 5\n"), again.stderr
    path.unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, "none\n"), again.stderr
    assert "is not there here" in again.stderr


def test_how_much_is_kept(place: Place) -> None:
    """``--keep-files SIZE`` before the program says of how large files, ``0`` of none; a process that joins holds to it; what is no size is
    a usage error."""
    place.program("import tracekit\nprint(len(open('larger').read()))\n", "child.py")
    place.program(
        BEGIN + "print(look(len(open('large').read())))\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"
    )
    for name, size in (("large", 300_000), ("larger", 400_000)):
        (place.directory / name).write_text("x" * size)
    for size, kept in (("1M", [True, True]), ("350K", [True, False]), ("0", [False, False])):
        done = place.cli("run", "--keep-files", size, "agent.py")
        assert done.returncode == 0, done.stderr
        found = {name: "content" in value for one in values(place) for name, value in one.items()}
        assert [found["large"], found["larger"]] == kept
        if size == "1M":
            for name in found:
                (place.directory / name).rename(place.directory / f"{name}.away")
            again = place.cli("replay", "last")
            assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
            for name in found:
                (place.directory / f"{name}.away").rename(place.directory / name)
        for path in place.runs:
            path.unlink()
    done = place.cli("run", "--keep-files", "much", "agent.py")
    assert (done.returncode, "'much' is not a size" in done.stderr) == (2, True), done.stderr


def test_a_file_by_its_descriptor(place: Place) -> None:
    """``os.open`` for reading is as ``open``: the recorded content, where a replay lacks the file, and its absence; not a directory's."""
    place.program(
        BEGIN
        + """
fd = os.open("a.txt", os.O_RDONLY)
print(look(os.read(fd, 3)), os.pread(fd, 9, 0), os.fstat(fd).st_size, os.get_inheritable(fd))
os.close(fd)
try:
    os.open("none", os.O_RDONLY)
except FileNotFoundError as error:
    print(error)
os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY))
"""
    )
    (place.directory / "a.txt").write_text("content")
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert [[*one] for one in values(place)] == [["a.txt"], ["none"]]
    (place.directory / "a.txt").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    (place.directory / "none").write_text("today")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, done.stdout), again.stderr


def test_many_files_that_differ_are_told_in_short(place: Place) -> None:
    """Few of them as they are read, all of them counted, and one pattern says what lets them be today's."""
    place.program(f"""{TOOL}
from pathlib import Path
for n in range(9):
    print(len(Path(f"data/{{n}}/options").read_text()), charge(n))
""")
    for n in range(9):
        (place.directory / "data" / str(n)).mkdir(parents=True)
        (place.directory / "data" / str(n) / "options").write_text("then")
    place.cli("run", "agent.py", "--keep-files", "0")
    for n in range(9):
        (place.directory / "data" / str(n) / "options").write_text("now")
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 1
    assert replayed.stderr.count("in the recording and is 3 bytes") == 5 + 5  # when they are read, and at the end
    assert "and 4 more" in replayed.stderr
    assert "`--live-files 'data/*/options'`" in replayed.stderr
    allowed = place.cli("replay", "last", "--live-files", "data/*/options")
    assert allowed.returncode == 0, allowed.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_that_the_system_makes_at_each_reading(place: Place) -> None:
    """The program is given what was recorded just before its own reading, and told so where it differs; each reading of
    a task or thread is one of its own, whatever steps are between them."""
    place.program(f"{TOOL}\nprint(open('/proc/version').read(), charge(1))")
    recorded = place.cli("run", "agent.py")
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    place.program(f"{TOOL}\nprint([one for one in open(f'/proc/{{os.getpid()}}/status') if 'id:' in one], charge(1))")
    recorded = place.cli("run", "agent.py")
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert "exact, 1 file of the system as it was" in replayed.stderr
    place.program(f"{TOOL}\nprint(os.listdir(f'/proc/{{os.getpid()}}/ns'), charge(1))")
    place.cli("run", "agent.py")
    replayed = place.cli("replay", "last")
    assert "exact (1 step matched)" in replayed.stderr, replayed.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_each_reading_of_such_a_file_is_its_own(place: Place) -> None:
    """Readings with no step between them, in several threads, some of which give the same twice."""
    place.program(
        TOOL
        + """
import ctypes, os, threading
def mark(text):  # the name of this process, which is another one in a replay
    ctypes.CDLL(None).prctl(15, f"{text}{os.getpid()}".encode(), 0, 0, 0)

def read(name="sys/kernel/random/uuid"):
    with open(f"/proc/{name}") as file:
        return file.read().strip()

first = [read(), read()]
second = [read(), charge(1), read(), read()]
found = {}
def work(number):
    charge(number)
    found[number] = [read(), read()]
for number in (2, 3):
    thread = threading.Thread(target=work, args=(number,))
    thread.start()
    thread.join()
names = []
for text in ("one", "one", "two", "two", "one"):
    mark(text)
    names.append(read("self/comm"))
charge(len({*first, *second, *found[2], *found[3]}))
charge(names)
print([name.strip("0123456789") for name in names])
"""
    )
    recorded = place.cli("run", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == "['one', 'one', 'two', 'two', 'one']\n"
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert "exact" in replayed.stderr


def test_what_is_no_regular_file_or_no_reading_of_the_program(place: Place) -> None:
    """Devices, pipes, descriptors, what a library opens for itself, what is installed, what a tool reads."""
    place.program(
        BEGIN
        + """
import linecache, tokenize

@traced_tool(side_effect="read_only")
def read():
    return open("agent.py").read(6)

print(repr(read()), open(os.devnull).read(), len(linecache.getlines("agent.py")) > 3)
out, into = os.pipe()
os.close(into)
print(open(out).read())
import click
print(len(open(click.__file__).read()) > 3, len(open(os.__file__).read()) > 3, len(os.listdir(os.path.dirname(click.__file__))) > 3)
"""
    )
    done = place.cli("run", "agent.py")
    assert (done.returncode, entries(place)) == (0, []), done.stderr
    assert place.cli("replay", "last").returncode == 0


def test_a_secret_in_a_file(place: Place) -> None:
    """It is not in the log; a replay without the file gives the program a placeholder, and says so."""
    place.program(BEGIN + "import json\nprint(look(1), len(json.load(open('settings.json'))['api_key']) > 3)\n")
    (place.directory / "settings.json").write_text(json.dumps({"api_key": SECRET}))
    done = place.cli("run", "agent.py")
    assert all(SECRET not in path.read_text() for path in place.runs)
    assert place.cli("replay", "last").returncode == 0
    (place.directory / "settings.json").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "exact, 1 redacted" in again.stderr


def test_where_somebody_has_replaced_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's own files: what it has put in the place of ``open`` before the block is asked."""
    for _ in range(2):
        with record("r", store=tmp_path):
            look(1)
    real = builtins.open

    def fake(file: Any, *args: Any, **kwargs: Any) -> Any:
        return io.StringIO("faked") if file == "nowhere" else real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", fake)
    with record("r", store=tmp_path):
        assert open("nowhere").read() == "faked"
    assert builtins.open is fake


def test_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay elsewhere finds a file by its path from the working directory; ``open`` is what it was when the block has ended."""
    before = builtins.open, io.open, inspect.getattr_static(builtins, "open")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    (here / "a.txt").write_text("content")
    monkeypatch.chdir(here)
    with record("r", store=tmp_path) as run:
        look(Path("a.txt").read_text())
        assert builtins.open is io.open
        assert pickle.loads(pickle.dumps(open)) is open
    monkeypatch.chdir(there)
    with replay(run.id, store=tmp_path) as session:
        look(Path("a.txt").read_text())
    assert session.report.exact
    assert (builtins.open, io.open, inspect.getattr_static(builtins, "open")) == before
    assert not list(there.iterdir())


# -- directories -----------------------------------------------------------------------------------------------------------

LISTS = """
import glob, pathlib
print(look(os.listdir("data")), [path.name for path in pathlib.Path("data").iterdir()], sorted(glob.glob("data/*.txt")))
print(look([(place, sorted(below), sorted(names)) for place, below, names in os.walk("data")]))
with os.scandir("data") as found:
    print(sorted((one.name, one.path, one.is_dir(), one.is_file()) for one in found))
print(sorted(map(str, pathlib.Path("data").rglob("*"))))
try:
    os.listdir("nowhere")
except FileNotFoundError as error:
    print(error)
"""


def test_what_is_in_a_directory(place: Place) -> None:
    """However it is asked for; its names come in the recorded order, what is gone is among them, and what was born later is not."""
    place.program(BEGIN + LISTS)
    data = place.directory / "data"
    (data / "below").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.md", "below/d.txt"):
        (data / name).write_text(name)
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "other entries" not in again.stderr
    (data / "later.txt").write_text("later")
    (data / "a.txt").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "directories with other entries" in again.stderr
    (place.directory / "nowhere").mkdir()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, done.stdout), again.stderr


def test_a_directory_that_is_gone(place: Place) -> None:
    """A replay has its names, which of them are directories, and the content of its files."""
    place.program(
        BEGIN + "for place, below, names in os.walk('data'):\n"
        "    print(look(place), sorted(below), [(name, open(os.path.join(place, name)).read()) for name in sorted(names)])\n"
    )
    (place.directory / "data" / "below").mkdir(parents=True)
    for name in ("a.txt", "below/d.txt"):
        (place.directory / "data" / name).write_text(name)
    done = place.cli("run", "agent.py")
    shutil.rmtree(place.directory / "data")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_the_order_of_a_directory_is_the_recorded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system has another one; ``live_files`` takes today's."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "three"):
        (tmp_path / "d" / name).mkdir(parents=True)
    with record("r", store=tmp_path / "store") as run:
        recorded = os.listdir("d")
        look(recorded)
    before = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": [*reversed(before(path))])
    with replay(run.id, store=tmp_path / "store") as session:
        look(os.listdir("d"))
    assert session.report.exact
    with pytest.raises(DivergenceError), replay(run.id, store=tmp_path / "store", live_files=["d"]):
        look(os.listdir("d"))


def test_a_file_that_the_run_reads_and_then_writes(place: Place) -> None:
    """Its state of the next day: a replay gives the program what it read, and what it writes is gone: the file is as it was."""
    place.program(
        BEGIN
        + """
state = int(open("state").read())
print(look(state))
with open("state", "w") as file:
    file.write(str(state + 1))
print(open("state").read())
"""
    )
    (place.directory / "state").write_text("1")
    done = place.cli("run", "agent.py")
    assert done.stdout == "1\n2\n", done.stderr
    (place.directory / "state").write_text("7")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "exact" in again.stderr
    assert (place.directory / "state").read_text() == "7"


def test_a_file_that_a_library_opens(place: Place) -> None:
    """What an installed package reads for the program is recorded as what the program reads itself, and what it changes is as it was; not
    what it keeps for itself, and no code."""
    package = place.directory / "site-packages"
    package.mkdir()
    (package / "frames.py").write_text(
        "def read(path):\n    with open(path) as file:\n        return file.read()\n"
        "def write(path, text):\n    with open(path, 'w') as file:\n        file.write(text)\n"
    )
    for name in ("rows.csv", ".cache", "agent.py"):
        (place.directory / name).write_text(name)
    place.program(
        BEGIN
        + "import frames\nprint(look(frames.read('rows.csv')), len(frames.read('.cache')), len(frames.read('agent.py')) > 1)\n"
        "frames.write('rows.csv', 'more')\n"
    )
    variables = {"PYTHONPATH": os.pathsep.join([str(package), *PACKAGES])}
    done = place.cli("run", "agent.py", **variables)
    assert [one["input"]["name"] for one in entries(place)] == ["rows.csv"], done.stderr
    (place.directory / "rows.csv").unlink()
    (place.directory / ".cache").write_text("10-letters"[:6])
    again = place.cli("replay", "last", **variables)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


@pytest.mark.parametrize(
    "read",
    ["open(shutil.copy('it', 'copied')).read()", "filecmp.cmp('it', 'same', shallow=False)"],
    ids=["copy", "cmp"],
)
def test_what_the_standard_library_reads_for_a_program(place: Place, read: str) -> None:
    """A file that a function of the standard library copies or compares is an input: the program gets what was recorded,
    and the replay reports that it has another content now."""
    place.program(BEGIN + f"import filecmp, shutil\nprint(look({read}))\n")
    for name in ("it", "same"):
        (place.directory / name).write_text("as it was")
    done = place.cli("run", "agent.py")
    assert done.stdout in ("as it was\n", "True\n")
    (place.directory / "it").write_text("as it is.")
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (1, done.stdout), again.stderr
    assert "the file it was 9 bytes" in again.stderr


def test_another_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there is there: the program is given today's, and that it is another one is a remark."""
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    monkeypatch.chdir(places[0])
    with record("r", store=tmp_path / "store") as run:
        assert os.getcwd() == str(Path.cwd()) == str(places[0])
        look(1)
    for place, line in zip(places, ("exact", "exact, 1 other current directory"), strict=True):
        monkeypatch.chdir(place)
        with replay(run.id, store=tmp_path / "store") as session:
            assert Path.cwd() == place
            look(1)
        assert session.report.verdict.line == line


READINGS = {
    "input": "input()",
    "read": "sys.stdin.read()",
    "readline": "sys.stdin.readline()",
    "lines": "[*sys.stdin]",
    "with": "[*within(sys.stdin)]",
    "buffer": "sys.stdin.buffer.read1().decode()",
    "fileinput": "[*fileinput.input([])]",
    "descriptor": "os.read(0, 6).decode()",
}


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_standard_input_of_a_block(place: Place, read: str) -> None:
    """However a block reads standard input, its replay gets what was recorded, whatever there is to read now; after the
    block, ``sys.stdin`` is the one before."""
    program = """
import fileinput, io, os, sys
from tracekit import record, replay
before = sys.stdin

def within(stream):
    with stream as opened:
        yield from opened

with {block}:
    assert isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.fileno() == 0
    print(look({read}))
assert sys.stdin is before
"""
    place.program(BEGIN + program.format(block="record('r')", read=read))
    done = place.python("agent.py", input="hello\nworld\n")
    assert (done.returncode, done.stderr, "hello" in done.stdout) == (0, "", True)
    again = place.program(BEGIN + program.format(block=f"replay({place.run!r})", read=read), "again.py")
    replayed = place.python(again, input="others\n")
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr


@pytest.mark.parametrize("password", ["hi", "correct horse battery"])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_password_that_is_typed(place: Place, password: str, terminal: bool) -> None:
    """What ``getpass`` returns is in no file, and a replay does not ask for it, on a terminal or not."""
    program = """
import os, pty, sys, warnings
from getpass import getpass
from tracekit import record, replay
warnings.simplefilter("ignore")
def ask():
    with {block} as run:
        password = getpass()
        look(len(password) > 1)
        print("typed:", password)
{start}
"""
    typed = password + "\n"
    start = f"""
child, ours = pty.fork()
if not child:
    ask()
    sys.stdout.flush()
    os._exit(0)
said = b""
while b"assword" not in said:
    said += os.read(ours, 100)
os.write(ours, {typed.encode()!r})
try:
    while said:
        said = os.read(ours, 1000)
        sys.stdout.write(said.decode())
except OSError:  # the other side is closed
    os.waitpid(child, 0)
"""
    place.program(BEGIN + program.format(block="record('r')", start=start if terminal else "ask()"))
    done = place.python("agent.py", input=typed)
    assert (done.returncode, f"typed: {password}" in done.stdout) == (0, True), done.stderr
    assert f'"{password}' not in (place.store / "runs" / f"{place.run}.jsonl").read_text()
    again = place.program(BEGIN + program.format(block=f"replay({place.run!r})", start="ask()"), "again.py")
    replayed = place.python(again, input="")
    assert (replayed.returncode, "typed: REDACTED_" in replayed.stdout) == (0, True), replayed.stderr


@pytest.mark.parametrize("read", ["open(0).read()", "sys.stdin.buffer.raw.readline()"])
def test_standard_input_that_is_read_in_another_way(place: Place, read: str) -> None:
    """A stream of its own over the descriptor is not captured: the recording says so, a replay refuses it, and
    ``tracekit doctor`` says which way is captured."""
    place.program(BEGIN + f"import sys\nwith record('r'):\n    look(str({read}))\n")
    done = place.python("agent.py", input="hello\n")
    assert "reading standard input (" in done.stderr, done.stderr
    assert json.loads(place.cli("show", "last", "--why", "--json").stdout)["can_be_replayed"]["answer"] is False
    program = place.program(
        BEGIN + f"import sys\nfrom tracekit import replay\nwith replay({place.run!r}):\n    look(str({read}))\n",
        "again.py",
    )
    again = place.python(program, input="hello\n")
    assert (again.returncode, "was about to read standard input" in again.stderr) == (1, True), again.stderr
    found = {
        one["code"]: one
        for one in json.loads(place.cli("doctor", "--run", "last", "--json", seeds=("0", "1", "2")).stdout)["findings"]
    }
    assert "sys.stdin" in found["stdin"]["mend"]
    assert "tracekit run" not in found["stdin"]["mend"]


PIPES = """
import asyncio, uvloop
from tracekit import replay

async def line(fd):
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
    return await reader.readline()

def within():
    reads, writes = os.pipe()
    os.write(writes, b"own\\n")
    return asyncio.run(line(reads))

def loop(made):
    with asyncio.Runner(loop_factory=made) as runner:
        return runner.run(line(os.dup(0)))

ways = {
    "asyncio": lambda: loop(asyncio.SelectorEventLoop), "uvloop": lambda: loop(uvloop.new_event_loop),
    "number": lambda: open(0, closefd=False).readline(), "within": within,
}
for way, read in ways.items():
    with record(way) as run:
        look(1)
        read()
    try:
        with replay(run.id) as session:
            look(1)
            read()
    except BaseException as error:
        print(way, type(error).__name__)
    else:
        print(way, session.report.verdict.line)
"""


def test_pipes_that_are_fed_from_outside(place: Place) -> None:
    """The run says what a replay lacks, and the replay refuses it: read by an event loop, or by number. The program's own are neither."""
    place.program(BEGIN + PIPES)
    done = place.python("agent.py", input="hello\n" * 3)
    refused = [f"{way} LiveCallBlockedError" for way in ("asyncio", "uvloop", "number")]
    assert done.stdout.splitlines() == [*refused, "within exact"], done.stderr
    why = [json.loads(place.cli("show", str(run), "--why", "--json").stdout) for run in place.runs]
    assert [one["can_be_replayed"]["answer"] for one in why] == [False, False, False, True]


def test_a_named_pipe_that_was_fed_from_outside(place: Place) -> None:
    """Its replay does not wait for somebody to feed it."""
    place.program(BEGIN + "look(1)\nprint(open('pipe').read())\n")
    pipe = place.directory / "pipe"
    os.mkfifo(pipe)
    feeds = threading.Thread(target=pipe.write_text, args=("hello",))
    feeds.start()
    done = place.cli("run", "agent.py")
    feeds.join()
    assert (done.stdout, f"reading {pipe} (" in done.stderr) == ("hello\n", True), done.stderr
    again = place.cli("replay", "last")
    assert (again.returncode, f"was about to read {pipe}" in again.stderr) == (1, True), again.stderr


def test_bytes_of_standard_input(place: Place) -> None:
    """Read by its descriptor or through its buffer, in any way, they are what they were."""
    place.program(
        BEGIN
        + "import io\nlook(os.read(0, 2))\nfound = sys.stdin.buffer\nfilled = bytearray(3)\n"
        + "print(found.readline(), found.read(2), found.peek()[:1], next(found), found.readinto(filled), filled)\n"
        + "print(io.TextIOWrapper(found, encoding='utf-8').read())\n"
    )
    done = place.cli("run", "agent.py", input="0\na\nbcd\neee\nfé\n")
    assert done.stdout == "b'a\\n' b'bc' b'd' b'd\\n' 3 bytearray(b'eee')\n\nfé\n\n", done.stderr
    again = place.cli("replay", "last", input="other\n")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_a_buffer_filled_from_standard_input(tmp_path: Path) -> None:
    """``os.readinto``, which Python has from 3.14 on, fills the program's buffer with what it had, in a replay too; of another
    file it is left alone."""
    program = """
import array
from tracekit import record, replay
filled, others = array.array("H", [0] * 4), bytearray(3)
with {block} as run:
    print(os.readinto(0, filled), filled.tobytes(), os.readinto(0, others), bytes(others), os.readinto(0, others))
    ours, theirs = os.pipe()
    os.write(theirs, b"mine")
    print(os.readinto(ours, others), bytes(others))
"""
    place = Place(tmp_path)
    place.program(READINTO + program.format(block="record('r')"))
    done = place.python("agent.py", input="12345678ab")
    assert done.stdout == "8 b'12345678' 2 b'ab\\x00' 0\n3 b'min'\n", done.stderr
    again = place.program(READINTO + program.format(block=f"replay({place.run!r})"), "again.py")
    replayed = place.python(again, input="x")
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr


def test_a_library_that_looks_through_all_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees each as it is, set by the program or before, and none of them is an input of the run."""
    from urllib.request import getproxies_environment

    before = type(os.environ).__dict__.get("items")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:1")
    with record("r", store=tmp_path) as run:
        monkeypatch.setenv("FTP_PROXY", "http://proxy.test:2")
        assert look({"found": getproxies_environment()})["found"]["https"] == "http://proxy.test:1"
        assert getproxies_environment()["ftp"] == "http://proxy.test:2"
    assert '"name":"environment"' not in Path(run.path).read_text()
    assert type(os.environ).__dict__.get("items") is before


def test_what_a_library_finds_is_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and values that are no text, another mapping of the same kind, and an iteration that goes on while a variable is set."""
    code = "def pairs(variables):\n    return [*variables.items()]\n\ndef begun(variables):\n    return iter(variables.items())\n"
    library: dict[str, Any] = {}
    exec(compile(code, str(tmp_path / "site-packages" / "proxies" / "look.py"), "exec"), library)
    monkeypatch.setitem(os.environb, b"BYTES_\xff", b"\xe9\xff")
    monkeypatch.setenv("EMPTY", "")
    for variables in (os.environ, os.environb):
        bare = library["pairs"](variables)
        with record("r", store=tmp_path):
            assert library["pairs"](variables) == bare == [(name, variables[name]) for name in variables]
            begun = library["begun"](variables)
            monkeypatch.setenv("ANOTHER", "1")
            assert [*begun][: len(bare)] == bare
            monkeypatch.delenv("ANOTHER")
    assert ("BYTES_\udcff", "\udce9\udcff") in os.environ.items()


DELETED = """
import string
from collections import ChainMap
print(look(1))
del os.environ["CITY"]
print(os.environ.get("CITY"), os.environ.pop("WAY"), os.environ.pop("WAY", "none"))
try:
    del os.environ["GONE"]
except KeyError as error:
    print(error)
print(os.path.expandvars("$REGION/x"), string.Template("$REGION").substitute(os.environ))
print(ChainMap({}, os.environ, {"REGION": "default"})["REGION"])
"""


@pytest.mark.parametrize("today", [{}, {"GONE": "1", "REGION": "Tyrol", "CITY": "Linz"}])
def test_a_variable_that_is_taken_away_or_expanded(place: Place, today: dict[str, str]) -> None:
    """Whether there is one to take away is as it was, and so is what the standard library reads of the variables for the program."""
    place.program(BEGIN + DELETED)
    done = place.cli("run", "agent.py", CITY="Graz", WAY="by train", REGION="Styria")
    assert done.stdout == "1\nNone by train none\n'GONE'\nStyria/x Styria\nStyria\n", done.stderr
    again = place.cli("replay", "last", **today)
    assert again.stdout == done.stdout, again.stderr
    assert again.returncode == (1 if today else 0), again.stderr  # another value of today is reported


@pytest.mark.parametrize("value", [7, {"a": 1}, [1]])
def test_a_recorded_variable_that_is_no_text_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """Whatever the file of another writer says that a variable was, the replay names it as a difference."""
    monkeypatch.setenv("REGION", "north")
    with record("r", path=tmp_path / "run.jsonl"):
        look(os.environ["REGION"])
    previous, written = "0" * 64, b""
    for line in (tmp_path / "run.jsonl").read_bytes().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if entry.get("name") == "environment":
            entry["output"] = {"REGION": value}
        one, previous = chained(entry, previous)
        written += one
    (tmp_path / "other.jsonl").write_bytes(written)
    with pytest.raises(InexactReplayError) as caught, replay(tmp_path / "other.jsonl"):
        look(os.environ.get("REGION") and "north")
    assert f"REGION was {value!r} in the recording and is 'north' here" in str(caught.value)


GOES = """
import contextlib, subprocess

@traced_tool(side_effect="reversible")
def make(directory):
    print("it ran", file=sys.stderr)
    os.mkdir(directory)
    os.chdir(directory)
    with open("made", "w") as file:
        file.write("in " + directory)

@traced_tool(side_effect="read_only")
def go(directory, error=None):
    with contextlib.chdir("/"):
        os.listdir(".")
    os.chdir(directory)
    if error:
        raise ValueError(error)

@traced_tool(side_effect="read_only")
def back():
    go("..")

home = os.getcwd()

def here():
    return os.path.basename(os.getcwd()), sorted(os.listdir("."))

make("new")
print(here(), open("made").read(), subprocess.check_output(["cat", "made"]))
back()
print(here())
with open("top", "w") as file:
    file.write("top")
try:
    go("new", "wrong")
except ValueError as error:
    print(error, here())
go("/usr")
print(os.getcwd())
os.chdir(home)

@traced_tool(side_effect="reversible")
def walk(error=None):
    make.__wrapped__("walked")
    with open("grows", "w") as file:
        for number in range(2):
            file.write(str(number))
            file.flush()
            yield number
    os.chdir("..")
    with open("after", "w") as file:
        file.write("after")

for number in walk():
    print(number, here(), open("grows").read())
print(here())
"""


def test_the_directory_to_which_a_tool_has_gone(place: Place) -> None:
    """The program goes on there in a replay: in one that the tool has made, above, after an error, outside the working directory;
    and, like the files, between two items of a generator."""
    place.program(BEGIN + "import sys\n" + GOES)
    done = place.cli("run", "agent.py")
    assert (done.returncode, "it ran" in done.stderr) == (0, True), done.stderr
    assert "('new', ['made']) in new b'in new'" in done.stdout
    assert "1 ('walked', ['grows', 'made']) 01" in done.stdout
    for directory in ("new", "walked"):
        shutil.rmtree(place.directory / directory)
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout, "it ran" in again.stderr) == (0, done.stdout, False), again.stderr
    assert not (place.directory / "new").exists()


def test_a_directory_to_which_a_replay_can_not_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the directory is missing, the replay says so and is inexact."""

    @traced_tool(side_effect="read_only")
    def go(directory: str) -> None:
        os.chdir(directory)

    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with record("r", store=tmp_path / "store") as run:
        go("there")
    os.chdir(tmp_path)
    (tmp_path / "there").rmdir()
    block = replay(run.id, store=tmp_path / "store", on_divergence="warn")
    with pytest.warns(InexactReplayWarning, match="1 directory that is missing here"), block as session:
        go("there")
    assert [one.code for one in session.report.verdict.reasons] == ["directory"]


def test_a_file_is_read_whatever_its_time_of_change_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else writes as many bytes and leaves the time of the last change as it was: a recording has what the program
    read then, and what it read before."""
    monkeypatch.chdir(tmp_path)
    texts, wanted, written = list[str](), threading.Semaphore(0), threading.Semaphore(0)

    def rewrites() -> None:
        while wanted.acquire() and texts:
            before = os.stat("settings")
            with open("settings", "r+") as file:
                file.write(texts.pop())
            os.utime("settings", ns=(before.st_atime_ns, before.st_mtime_ns))
            written.release()

    def rewrite(text: str) -> None:
        texts.append(text)
        wanted.release()
        written.acquire()

    def program(rewrite: Any) -> list[str]:
        found = []
        for text in ("new", "now", "new"):
            found.append(look(Path("settings").read_text()))
            rewrite(text)
        return [*found, Path("settings").read_text()]

    other = threading.Thread(target=rewrites)  # of no run
    other.start()
    for just_changed in (True, False):
        Path("settings").write_text("old")
        if not just_changed:
            os.utime("settings", (1, 1))
        with record("job") as run:
            assert program(rewrite) == ["old", "new", "now", "new"]
        with pytest.raises(InexactReplayError, match="the file settings was 3 bytes"), replay(run):
            found = program(lambda text: None)
        assert found == ["old", "new", "now", "new"]
    wanted.release()
    other.join()


def test_what_a_replay_refuses_to_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that refuses a file to a program, since a process of the run may be writing to it, leaves no descriptor of it open."""
    monkeypatch.chdir(tmp_path)

    def program(read: Any) -> None:
        with open("out", "w") as out:
            process = subprocess.Popen(["sleep", "0.1"], stdout=out)
        try:
            read()
        finally:
            process.wait()

    def by_number() -> None:
        os.close(os.open("out", os.O_RDONLY))

    def by_name() -> None:
        with open("out"):
            pass

    def opened() -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return [path for path in found if path == str(tmp_path / "out")]

    for read in (by_number, by_name):
        with pytest.warns(RuntimeWarning, match="whose file is read while"), record("job") as run:
            program(read)
        with pytest.raises(LiveCallBlockedError), replay(run):
            program(read)
        assert opened() == []
