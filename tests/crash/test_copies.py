"""A copy of a store is not resumed while the process that wrote the original lives, or may live."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.tracing import of_type
from tracekit import recovery, resume, traced_tool
from tracekit._journal import store as store_module
from tracekit.cli import main
from tracekit.errors import RecoveryRefusedError

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

PROGRAM = """
import sys
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def pay(cents):
    with open("ledger", "a") as ledger:
        ledger.write(f"{cents}\\n")

@traced_tool(side_effect="read_only")
def ask():
    print("asking", flush=True)
    return sys.stdin.readline()

with record("job", run_id="job"):
    ask()
    pay(5)
"""


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> None:
    Path("ledger").write_text(f"{cents}\n")


@traced_tool(side_effect="read_only")
def ask() -> str:
    return "yes"


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start a program, in its own directory, that waits for an answer in the middle of its run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    process = subprocess.Popen(
        [sys.executable, "program.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "asking\n"
    yield process
    process.kill()
    process.stdin.close()
    process.stdout.close()
    process.wait()


def codes(store: Path) -> list[str]:
    (decision,) = recovery.scan(store)
    return [str(reason["code"]) for reason in decision.refusals if reason["code"] != "running"]


def cli(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(main, ["recovery", "resume", "job", "--check", "--json", *arguments])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_copy_is_not_resumed_while_the_original_lives(
    waiting: subprocess.Popen[str], tmp_path: Path, stopped: bool
) -> None:
    """A copy is refused however and wherever it was made, even if the original's process is stopped, or the caller says
    ``original_is_dead``."""
    if stopped:
        waiting.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, waiting.pid, os.WSTOPPED | os.WNOWAIT)
    subprocess.run(["cp", "-a", "store", "copy"], check=True)
    shutil.copytree("store", "far/away/store")
    for store in (tmp_path / "store", tmp_path / "copy", tmp_path / "far" / "away" / "store"):
        assert codes(store) == ["held"]
        for word in (False, True):
            with pytest.raises(RecoveryRefusedError) as caught, resume("job", store=store, original_is_dead=word):
                raise AssertionError("it went on")
            assert caught.value.reasons[0]["code"] == "held"
            assert caught.value.reasons[0]["pid"] == waiting.pid
        code, decision = cli("--store", str(store))
        assert (code, decision["decision"]) == (4, "abort")
    assert not (tmp_path / "ledger").exists()
    waiting.kill()
    waiting.wait()
    assert codes(tmp_path / "copy") == codes(tmp_path / "store") == []
    with resume("job", store=tmp_path / "copy"):
        ask()
        pay(5)
    assert (tmp_path / "ledger").read_text() == "5\n"


def test_a_copy_of_a_resumed_run_belongs_to_who_resumed_it(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    """Of a run that was resumed, the process that resumed it last decides whether a copy may be resumed."""
    waiting.kill()
    waiting.wait()
    with resume("job", store=tmp_path / "store"):
        ask()
        shutil.copytree("store", "copy")
        assert codes(tmp_path / "copy") == ["held"]
        pay(5)
    # This process knows that it has no such run open any more.
    assert codes(tmp_path / "copy") == []


@pytest.mark.parametrize("what", ["_boot", "_pid_space"])
def test_of_another_host_nobody_knows(
    waiting: subprocess.Popen[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another host, after a restart, or in another container a copy is refused until a person declares the process
    dead, and the log keeps that."""
    shutil.copytree("store", "copy")
    monkeypatch.setattr(store_module, what, lambda: "another")
    store = tmp_path / "copy"
    assert codes(store) == ["elsewhere"]
    with pytest.raises(RecoveryRefusedError, match="--original-is-dead"), resume("job", store=store):
        raise AssertionError("it went on")
    assert cli("--store", str(store))[0] == 4
    assert cli("--store", str(store), "--original-is-dead")[1]["decision"] == "resume"
    assert not (tmp_path / "ledger").exists()
    with resume("job", store=store, original_is_dead=True) as run:
        ask()
        pay(5)
    (started,) = of_type(run, "recovery.started")
    assert started["meta"]["original_is_dead"] is True
    assert (tmp_path / "ledger").read_text() == "5\n"


def test_the_file_itself_is_judged_by_its_lock(
    waiting: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process restarted in another container of the same host may resume its own file without a declaration, because
    the file's lock is free, whatever the process ids are."""
    monkeypatch.setattr(store_module, "_pid_space", lambda: "another")
    assert codes(tmp_path / "store") == ["held"]
    waiting.kill()
    waiting.wait()
    assert codes(tmp_path / "store") == []
