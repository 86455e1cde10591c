"""What a program reads from outside by itself is recorded where it reads it, and is what it was in a replay."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tracekit import DivergenceError, InexactReplayError, record, replay, traced_tool

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
    return [
        entry
        for path in place.runs
        for line in path.read_bytes().splitlines()
        if (entry := json.loads(line))["type"] == kind
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
    place.program(BEGIN + "print(look(os.environ['CITY']), os.environ.get('CITY'))\n")
    place.cli("run", "agent.py", CITY="Graz")
    again = place.cli("replay", "last", CITY="Linz")
    assert (again.returncode, again.stdout) == (1, "Graz Graz\n")
    (told, *_) = [line for line in again.stderr.splitlines() if "CITY" in line]
    assert all(part in told for part in ("'Graz'", "'Linz'", "the program was given the recorded one", "agent.py:"))
    assert "1 input that is another one here" in again.stderr
    assert "--live-env CITY" in again.stderr


def test_todays_value_where_the_caller_wants_it(place: Place) -> None:
    """``--live-env`` takes names and patterns; what follows from another value is compared as ever."""
    place.program(BEGIN + "print(look(1), os.environ.get('LOG_LEVEL'))\n")
    place.cli("run", "agent.py", LOG_LEVEL="INFO")
    for name in ("LOG_LEVEL", "LOG_*"):
        again = place.cli("replay", "last", "--live-env", name, LOG_LEVEL="DEBUG")
        assert (again.returncode, again.stdout) == (0, "1 DEBUG\n"), again.stderr
        assert "exact but for 1 input of today" in again.stderr


def test_any_value_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is no text, and names that look like the log's own."""
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
if not os.path.exists("again"):
    open("again", "w").close()
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
