"""Calls under an exactly-once key happen once, through kills, resumes and other processes; the effects are counted
outside the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.crash import once_program
from tests.support.processes import command, python
from tracekit import record, recovery, replay, resume
from tracekit.errors import RecoveryRefusedError
from tracekit.integration import Store, Trace
from tracekit.recovery import settle

ROOT = Path(__file__).parents[2]
BEFORE = ("before-key", "before-intent-write", "mid-intent-write")
WITHIN = (
    "after-intent-write",
    "after-intent-sync",
    "before-key-is-used",
    "before-effect",
    "after-effect",
    "before-outcome-write",
    "mid-outcome-write",
)
AFTER = ("after-outcome-write", "after-outcome-sync")
DONE = ("after-effect", "before-outcome-write", "mid-outcome-write", *AFTER)


class Place:
    """The store, and the ledger of effects outside it."""

    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "ledger"

    @property
    def effects(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0

    def start(self, **job: Any) -> subprocess.Popen[str]:
        job = {"ledger": str(self.ledger), **job}
        line = command("-m", "tests.crash.once_program", json.dumps(job))
        return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def here(self, **job: Any) -> None:
        """Let the program of this process do the same."""
        once_program.JOB = {"ledger": str(self.ledger), **job}

    def run(self, **job: Any) -> list[Any]:
        """Another run, in this process: what its calls came to, once it has been replayed, too."""
        self.here(**job)
        with record("another") as run:
            found = once_program.agent()
        with replay(run.id) as session:
            assert once_program.agent() == found
        assert session.report.exact
        return found

    def kill(self, **job: Any) -> str:
        """Run it until it is killed; its run's id."""
        before = {run.run_id for run in Store().list()}
        process = self.start(**job)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        (run_id,) = {run.run_id for run in Store().list()} - before
        return run_id


def resumed(run_id: str) -> list[Any]:
    """Resume a run in this process, which is another program, with the given settings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tracekit: resuming .* has changed", RuntimeWarning)
        with resume(run_id):
            return once_program.agent()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("point", [*BEFORE, *WITHIN, *AFTER])
def test_another_run_after_a_kill(place: Place, point: str) -> None:
    """Wherever the first run is killed, another run of the store never repeats the effect: it makes it if nothing had
    begun, takes the result if the log has it, and is otherwise refused with the name of the run in doubt."""
    first = place.kill(point=point)
    assert place.effects == (1 if point in DONE else 0)
    found = place.run()
    assert found[0] == found[1]
    if point in WITHIN:
        assert found[0].startswith("refused: ")
        assert first in found[0]
        assert place.effects == (1 if point in DONE else 0)
    else:
        assert found[0]["paid"] == "ACME"
        assert place.effects == 1
    assert place.run() == found


@pytest.mark.parametrize("store", [True, False])
def test_a_resumed_run_knows_its_keys(place: Place, store: bool) -> None:
    """If the run is killed after the call, a resumed run that calls under the same key again is answered from the log."""
    run_id = place.kill(stop=True, store=store)
    place.here(store=store)
    found = resumed(run_id)
    assert place.effects == 1
    assert found[0] == found[1]
    with replay(run_id) as session:
        assert once_program.agent() == found
    assert session.report.exact
    assert place.effects == 1


def test_a_resumed_run_makes_an_undoable_call_again(place: Place) -> None:
    """A reversible call that was cut off is made again by the run that has its key; the new result then answers every
    later call."""
    job = {"side_effect": "reversible"}
    run_id = place.kill(point="after-effect", **job)
    place.here(**job)
    found = resumed(run_id)
    assert found[0] == found[1]
    assert place.effects == 2
    assert place.run(**job) == found
    assert place.effects == 2


def test_a_doubtful_call_is_not_resumed_over(place: Place) -> None:
    """An irreversible call that was cut off is made again by nobody, neither by its own run nor by another."""
    run_id = place.kill(point="after-effect")
    place.here()
    with pytest.raises(RecoveryRefusedError):
        resumed(run_id)
    assert place.run()[0].startswith("refused: ")
    assert place.effects == 1


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("how", ["missing", "another"])
def test_a_resumed_run_needs_the_secret_of_its_keys(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: bool, how: str
) -> None:
    """A run restored without the store's secret is refused before anything is live; with the right secret it is
    resumed, and its keys again hold for the other runs of the store."""
    run_id = place.kill(stop=True, store=store)
    kept, log = Path(Store().root, "secret").read_bytes(), Path(Store().find(run_id)).read_bytes()
    for name in ("wrong", "right"):
        moved = tmp_path / name
        (moved / "runs").mkdir(parents=True)
        (moved / "runs" / f"{run_id}.jsonl").write_bytes(log)
        monkeypatch.setenv("TRACEKIT_DIR", str(moved))
        if name == "right" or how == "another":
            (moved / "secret").write_bytes(kept if name == "right" else b"x" * 32)
        place.here(store=store)
        if name == "wrong":
            (decision,) = recovery.scan()
            assert [reason["code"] for reason in decision.refusals] == ["secret_missing"]
            with pytest.raises(RecoveryRefusedError, match="secret of the store"):
                resumed(run_id)
            assert (moved / "runs" / f"{run_id}.jsonl").read_bytes() == log
            assert (moved / "secret").exists() == (how == "another")
        else:
            found = resumed(run_id)
            assert found[0]["paid"] == "ACME"
        assert place.effects == 1
    assert found[1] == found[0]
    if store:
        assert place.run(store=store) == found
    assert place.effects == 1


@pytest.mark.parametrize("done", [True, False])
def test_what_an_operator_settles_holds_for_the_key(place: Place, done: bool) -> None:
    """A call settled as done answers its key with the given output, in the run and in the store; one settled as not
    done frees the key."""
    run_id = place.kill(point="after-effect" if done else "after-intent-sync")
    with Trace(Store().find(run_id)) as trace:
        (call,) = [entry["seq"] for entry in trace.entries() if entry["type"] == "tool.call"]
    said = {"output": {"paid": "by hand"}} if done else {"not_done": True}
    settle(run_id, call, reason="looked it up", **said)
    place.here()
    found = resumed(run_id)
    assert place.effects == 1
    assert found[0] == found[1]
    assert found[0]["paid"] == ("by hand" if done else "ACME")
    assert place.run() == found
    assert place.effects == 1


def test_two_processes_at_once(place: Place, tmp_path: Path) -> None:
    """Sixteen threads in two processes call under one key: there is one effect, all get its result, and both runs
    replay exactly."""
    start = tmp_path / "start"
    processes = [place.start(threads=8, start=str(start)) for _ in range(2)]
    start.touch()
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = [json.loads(out) for out, _ in outputs]
    assert place.effects == 1
    given = [one for each in found for one in each["found"] if isinstance(one, dict)]
    assert len(given) == 16
    assert all(one == given[0] for one in given)
    assert all(each["exact"] for each in found)
    assert not [name for name in os.listdir(Path(Store().root, "keys")) if name.endswith(".tmp")]


FORKS = """
import json, os, sys, threading
from tests.crash import once_program
from tests.support.once import once
from tracekit import record

once_program.JOB = {"ledger": sys.argv[1]}
call = once(once_program.pay)
inside, told = threading.Event(), threading.Event()

def own(given):
    return in_child(lambda: said(owned, given))

owned = once(own)

def slow(given):
    inside.set()
    told.wait()
    return once_program.pay(given)

slowly = once(slow)

def said(call, given):
    try:
        return call(given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def in_child(work):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(into, json.dumps(work()).encode())
        os._exit(0)
    told.set()
    os.waitpid(pid, 0)
    return json.loads(os.read(out, 65536))

with record("forks") as run:
    found = {"first of all": [in_child(lambda: call("first")), call("first")]}
    found["before"] = [call("before"), in_child(lambda: call("before"))]
    found["child first"] = [in_child(lambda: call("after")), call("after"), in_child(lambda: call("after"))]
    found["parent first"] = [call("last"), in_child(lambda: call("last"))]
    thread = threading.Thread(target=said, args=(slowly, "slow"))
    thread.start()
    inside.wait()
    told.clear()
    found["slow"] = [in_child(lambda: said(slowly, "slow")), said(slowly, "slow")]
    thread.join()
    found["own"] = owned("own")
print(json.dumps(found))
"""


def test_forked_processes_share_the_keys_of_their_run(place: Place) -> None:
    """All processes of a run share its keys, wherever the call was made; a child waits for a call that its parent is
    making, unless it was forked inside that call."""
    done = python("-W", "ignore", "-c", FORKS, str(place.ledger), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert place.ledger.read_text().split("\n")[:-1] == ["pay first", "pay before", "pay after", "pay last", "pay slow"]
    for given in ("first of all", "before", "child first", "parent first", "slow"):
        assert all(one == found[given][0] for one in found[given])
    assert found["slow"][0]["paid"] == "slow"
    assert "ContractViolationError" in found["own"]
    assert Store().verify(Store().list()[0].run_id).state == "complete"


def test_a_call_whose_process_dies_is_not_waited_for_any_longer(place: Place, tmp_path: Path) -> None:
    """If a process is killed while another run waits for its call, the waiting run is refused with the name of the run
    in doubt and makes no effect."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    process = place.start(hold=str(hold))
    with open(hold):  # it is inside its call, and waits there
        first = Store().list()[0].run_id
        place.here()
        with ThreadPoolExecutor(1) as pool, record("waits") as run:
            waiting = pool.submit(once_program.one, once_program.tool())
            while b'"duplicate_of"' not in Path(Store().path(run.id)).read_bytes():
                assert not waiting.done()
            process.kill()
            process.communicate()
            said = waiting.result()
    assert said.startswith("refused: ")
    assert first in said
    assert place.effects == 1
    assert place.run()[0].startswith("refused: ")
    assert place.effects == 1


_TOKEN = """
import os, signal, sys
from tests.support.once import once
from tracekit import record, replay, resume, traced_tool

@traced_tool(side_effect="read_only")
def stop():
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)

def token(given):
    with open("ledger", "a") as file:
        file.write("token\\n")
    return "sk-ant-api03-" + "eZx9qT7mB2" * 4

def program():
    ask = once(token, store=False)
    first = ask("ACME")
    stop()
    return [first, ask("ACME")]

if sys.argv[1] == "die":
    with record("token", run_id="token"):
        program()
given = "sk-ant-api03-" + "fZx9qT7mB2" * 4
with resume("token", supply={2: given}):
    assert program() == [given, given]
with replay("token"):
    program()
"""


def test_what_an_operator_supplies_answers_the_key_too(tmp_path: Path) -> None:
    """If a result lost a secret and an operator supplies it, the same call past the end of the log is answered with
    what was supplied."""

    def run(what: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": paths}
        return python("-W", "ignore", "-c", _TOKEN, what, cwd=tmp_path, env=environment)

    assert run("die").returncode == -signal.SIGKILL
    (decision,) = recovery.scan()
    assert [reason["code"] for reason in decision.refusals] == ["redacted_output"]
    went = run("go on")
    assert went.returncode == 0, went.stderr
    assert (tmp_path / "ledger").read_text() == "token\n"
    assert b"Zx9qT7mB2" not in Path(Store().path("token")).read_bytes()
