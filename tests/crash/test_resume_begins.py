"""If a resume can't begin, it releases whatever it had taken, and the same process can try again."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest

import tracekit
from tests.support.plain_writer import chained
from tests.support.processes import python
from tracekit import record, resume, traced_tool

#: Dies in its run before its first step, or goes on with that run: at first where its log can take nothing more, and then again.
_ENTERED = """
import os, random, resource, signal, socket, sys, time, warnings
from tracekit import current_run, errors, record, replay, resume, traced_tool

@traced_tool(side_effect="irreversible")
def pay(ledger):
    with open(ledger, "a") as file:
        file.write("paid\\n")
    return time.time()

def program():
    return pay(sys.argv[3])

def free():
    assert current_run() is None
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
    assert time.time is clock and random.random.__self__ is random_numbers

clock, random_numbers = time.time, random.random.__self__
if sys.argv[1] == "die":
    with record("entered", run_id="entered", store=sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
full = os.path.getsize(sys.argv[2] + "/runs/entered.jsonl")
for _ in range(2):
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    try:
        with resume("entered", store=sys.argv[2]):
            raise SystemExit("it was entered")
    except errors.LogWriteError:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    free()
with resume("entered", store=sys.argv[2]):
    now = program()
free()
with replay("entered", store=sys.argv[2]):
    assert program() == now
"""


def test_a_resume_that_could_not_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the disk is full when a run is resumed, the process holds nothing of it afterwards, and resumes it once there
    is room."""

    def run(what: str) -> subprocess.CompletedProcess[str]:
        arguments = [what, str(tmp_path / "store"), str(tmp_path / "ledger")]
        return python("-c", _ENTERED, *arguments)

    assert run("die").returncode == -signal.SIGKILL
    went = run("resume")
    assert (went.returncode, went.stdout) == (0, ""), went.stderr
    assert (tmp_path / "ledger").read_text() == "paid\n"


@traced_tool(side_effect="irreversible")
def pay(ledger: str) -> float:
    with open(ledger, "a") as file:
        file.write("paid\n")
    return time.time()


def test_a_resume_that_was_refused_by_its_own_warning_can_be_tried_again(tmp_path: Path) -> None:
    """If warnings are errors, a changed environment keeps the block from beginning; with warnings allowed, the same
    process resumes the run."""
    ledger = tmp_path / "ledger"
    with record("drifted") as run:
        pay(str(ledger))
    first = json.loads(Path(run.path).read_bytes().splitlines()[0])
    del first["hash"]
    first["meta"]["environment"]["python"] = "3.0.1"
    store = tmp_path / "drifted"
    path = store / "runs" / Path(run.path).name
    path.parent.mkdir(parents=True)
    path.write_bytes(chained(first, "0" * 64)[0])
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="Python"):
                resume(path, store=store).__enter__()
        assert tracekit.current_run() is None
    with pytest.warns(RuntimeWarning, match="Python"), resume(path, store=store):
        paid = pay(str(ledger))
    with pytest.warns(RuntimeWarning, match="Python"), tracekit.replay(path, store=store):
        assert pay(str(ledger)) == paid
    assert ledger.read_text() == "paid\n" * 2
