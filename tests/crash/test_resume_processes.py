"""A run is killed just after it started a process that has written nothing yet: the process is not started a second
time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.support.recovered import free_decision

WORKER = """
import os, sys, time
while not os.path.exists("go"):  # before it has imported tracekit
    time.sleep(0.01)
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"paid {n}\\n")

pay(17)
open("paid", "w").close()
"""

PROGRAM = """
import multiprocessing, os, signal, subprocess, sys
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look():
    with open("effects", "a") as file:
        file.write("looked\\n")

@traced_tool(side_effect="reversible")
def start():
    subprocess.Popen([sys.executable, "worker.py"])
    os.kill(os.getpid(), signal.SIGKILL)

def by_popen():
    subprocess.Popen([sys.executable, "worker.py"])

def by_multiprocessing():
    import worker_function
    multiprocessing.get_context("spawn").Process(target=worker_function.work).start()

def by_fork():
    if not os.fork():
        os.execv(sys.executable, [sys.executable, "worker.py"])

def in_a_tool():
    start()

if __name__ == "__main__":
    with record("parent"):
        look()
        globals()[sys.argv[1]]()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", ["by_popen", "by_multiprocessing", "by_fork", "in_a_tool"])
def test_a_process_is_not_started_twice(way: str, tmp_path: Path) -> None:
    """The decision to resume is the same however far the started process has come by then."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "worker_function.py").write_text("def work():\n    import runpy\n    runpy.run_path('worker.py')\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}

    def run(*words: str) -> int:
        # No pipe: the process that was started has the same output, and outlives the program.
        with (tmp_path / "output").open("w") as output:
            return subprocess.run(
                [sys.executable, *words], cwd=tmp_path, env=environment, stdout=output, stderr=output, timeout=100
            ).returncode

    assert run("program.py", way) == -signal.SIGKILL
    decision = free_decision(tmp_path / "store")
    assert decision.decision == "abort"
    assert {reason["code"] for reason in decision.refusals} <= {
        "process_started",
        "segments",
        *(["irreversible_pending"] if way == "by_popen" else []),
    }
    assert run("-m", "tracekit", "recovery", "resume", "last") == 4, (tmp_path / "output").read_text()
    (tmp_path / "go").touch()
    limit = monotonic() + 60
    while not (tmp_path / "paid").exists():
        assert monotonic() < limit, (tmp_path / "output").read_text()
        sleep(0.01)
    assert (tmp_path / "effects").read_text().split("\n") == ["looked", "paid 17", ""]
