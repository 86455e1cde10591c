"""``tracekit replay``: the debugger, programs that are elsewhere, single functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit._capture import isolation
from tracekit.cli import launch
from tracekit.errors import RunStateError
from tracekit.integration import Store, Trace

PROGRAM = """\
import time
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def send(to):
    print("live")
    return None

where = "acme"
def main():
    started = time.time()
    done = send(where)
    print("after", done)

main()
"""

ENTRY = """\
import asyncio, inspect
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(number):
    return number * 2

@record("handle")
KEYWORD def handle(number):
    return look(number)

def main():
    made = handle(4)
    if inspect.iscoroutine(made):
        asyncio.run(made)
"""


def command(*arguments: str, stdin: str = "", cwd: Path) -> subprocess.CompletedProcess[str]:
    main = "from tracekit.cli import main; main()"
    return python("-c", main, *arguments, input=stdin, cwd=cwd, env=_environment())


def _environment() -> dict[str, str]:
    """Where modules are found does not depend on the working directory."""
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, places))}


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = command("run", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Trace(Store().list()[0].path) as trace:
        return str(next(entry["seq"] for entry in trace.entries() if entry["type"] == "tool.call"))


def test_it_stops_in_the_frame_that_makes_the_step(tmp_path: Path, recorded: str) -> None:
    """The prompt stands at the user's line; what is typed there is no part of the run, and the replay goes on exactly."""
    done = command(
        "replay", "last", "--break", recorded, stdin="p where\np time.time() > 0\nn\np done\nc\n", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert f"{os.sep}program.py(12)main()" in done.stdout
    assert "-> done = send(where)" in done.stdout
    assert "'acme'" in done.stdout
    assert "True" in done.stdout
    assert "program.py(13)main()" in done.stdout
    assert "(Pdb) None" in done.stdout
    assert "after None" in done.stdout
    assert "live" not in done.stdout
    assert "1 steps matched" in done.stderr


def test_leaving_the_debugger_is_no_success(tmp_path: Path, recorded: str) -> None:
    """``q`` ends the replay with exit code 1 and one sentence, without a traceback."""
    done = command("replay", "last", "--break", recorded, stdin="q\n", cwd=tmp_path)
    assert done.returncode == 1
    assert "left in the debugger" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stop_that_would_never_come_is_refused(tmp_path: Path, recorded: str) -> None:
    """An entry at which no step begins is named as what it is."""
    outcome = str(int(recorded) + 1)
    done = command("replay", "last", "--break", outcome, cwd=tmp_path)
    assert done.returncode == 2
    assert f"entry {outcome} is a tool.return, which belongs to step {recorded}" in done.stderr
    assert "is not there" in command("replay", "last", "--break", "999", cwd=tmp_path).stderr


def test_drift_is_told_once(tmp_path: Path, recorded: str) -> None:
    """What the summary says is not said as a Python warning before."""
    path = Store().list()[0].path
    assert json.loads(Path(path).read_bytes().splitlines()[0])["meta"]["environment"]["hash_seed"] == 0
    done = command("replay", path, "--", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_a_program_that_is_not_here_is_named(tmp_path: Path, recorded: str) -> None:
    """A trace that comes from another machine: the replay says which path is missing, and how to name the program."""
    (tmp_path / "program.py").rename(tmp_path / "moved.py")
    done = command("replay", "last", cwd=tmp_path)
    assert done.returncode == 2
    assert "program.py, which is not here" in done.stderr
    assert "Traceback" not in done.stderr
    assert command("replay", "last", "--", "moved.py", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("keyword", ["", "async "])
def test_one_function_is_replayed_with_its_input(tmp_path: Path, keyword: str) -> None:
    """``--entry`` calls a recorded function, coroutine or not, with the arguments that it had."""
    (tmp_path / "service.py").write_text(ENTRY.replace("KEYWORD ", keyword))
    call = "import service; service.main()"
    recorded = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, env=_environment(), check=True, timeout=60)
    assert recorded.returncode == 0
    done = command("replay", "last", "--entry", "service:handle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 steps matched" in done.stderr


def test_isolation_that_was_asked_for_is_had_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--isolate=on`` does not go on without a network namespace; ``auto`` does, and says so."""
    monkeypatch.setattr(isolation, "enter", lambda: "not isolated: not allowed")
    monkeypatch.setattr(isolation, "available", lambda: True)
    with pytest.raises(RunStateError, match="not allowed"):
        launch._isolate("on", [])
    assert launch._isolate("auto", []) == "not isolated: not allowed"
