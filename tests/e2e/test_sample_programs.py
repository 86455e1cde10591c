"""Programs of many kinds, each recorded in one fresh process and replayed in another: they see the same, and nothing happens."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.e2e import sample_programs
from tests.support.processes import python
from tests.support.stub_provider import stub_provider

HERE = Path(sample_programs.__file__)
PACKAGES = [str(Path(tracekit.__file__).parents[1]), str(Path(__file__).parents[2] / "integrations")]


class Directory:
    """Where programs run and the store is; ``warnings`` of what is recorded go to standard error and fail nothing."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.path = path
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        self.environment |= {
            "TRACEKIT_DIR": str(path / ".tracekit"),
            "PYTHONPATH": os.pathsep.join(PACKAGES),
        } | variables

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return python(*arguments, cwd=self.path, env=self.environment, timeout=110)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "tracekit", *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """What each program printed when it was recorded, and when it was replayed (in reverse order, the server gone)."""
    names = list(sample_programs.PROGRAMS)
    path = tmp_path_factory.mktemp("programs")
    with stub_provider() as provider:
        recorded = Directory(path, MODEL_URL=f"{provider.url}/v1").python(str(HERE), "record", *names)
        url = f"{provider.url}/v1"
    replayed = Directory(path, MODEL_URL=url).python(str(HERE), "replay", *reversed(names))
    first, second = (printed(process) for process in (recorded, replayed))
    return {name: (first.get(name, recorded.stderr), second.get(name, replayed.stderr)) for name in names} | {
        "path": (path, path)
    }


def printed(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", sample_programs.PROGRAMS)
def test_a_program_sees_the_same(runs: dict[str, tuple[Any, Any]], name: str) -> None:
    """A program replayed in a fresh process sees what it saw, to the last character, exactly; no tool of it runs."""
    recorded, replayed = runs[name]
    assert isinstance(recorded, dict), recorded
    assert isinstance(replayed, dict), replayed
    assert replayed["seen"] == recorded["seen"]
    assert replayed["done"] == []
    assert replayed["exact"] is True
    assert len(recorded["seen"]) > 0


def test_what_the_tools_did(runs: dict[str, tuple[Any, Any]]) -> None:
    """Side by side with what was seen: retries were made, equal payments that are declared so were made once."""
    assert runs["errors_and_retries"][0]["done"][:3] == ["retried"] * 3
    assert runs["effects_exactly_once"][0]["done"] == ["100", "250", "100", "100"]
    first, again, other, plain, twice = runs["effects_exactly_once"][0]["seen"]
    assert first == again
    assert len({first, other, plain, twice}) == 4


def test_the_secret_is_in_no_trace(runs: dict[str, tuple[Any, Any]]) -> None:
    """Neither the key nor the password that a tool returned is in any file of the store."""
    files = [path for path in (runs["path"][0] / ".tracekit").rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert b"signed in" in written
    assert sample_programs.PLANTED.encode() not in written
    assert b"c0rrect-h0rse-battery" not in written


def test_by_the_command_line(tmp_path: Path) -> None:
    """A program as it is, with asyncio and threads, prints the same under ``tracekit replay``."""
    here = Directory(tmp_path)
    (tmp_path / "agent.py").write_text(COMMAND.format(path=str(HERE.parent)))
    recorded = here.cli("run", "agent.py")
    assert recorded.returncode == 3, recorded.stderr
    assert recorded.stdout.count("\n") == 5
    replayed = here.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


COMMAND = """
import sys
sys.path.insert(0, {path!r})
from sample_programs import PROGRAMS
for name in ("timers", "threads_of_the_loop", "queues", "pools", "clocks_and_random_numbers"):
    print(PROGRAMS[name]())
sys.exit(3)
"""


def test_resumed_after_a_kill(tmp_path: Path) -> None:
    """Killed behind a payment and in the middle of the next call, resumed, and replayed: each payment was made once."""
    here = Directory(tmp_path)
    (tmp_path / "agent.py").write_text(KILLED)
    killed = here.python("agent.py")
    assert killed.returncode == -9, killed.stderr
    assert [
        line["decision"] for line in map(json.loads, here.cli("recovery", "scan", "--json").stdout.splitlines())
    ] == ["resume"]
    resumed = here.cli("recovery", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines()[-2:][0].startswith(killed.stdout.splitlines()[0])
    assert (tmp_path / "effects").read_text() == "paid 1\npaid 2\n"
    replayed = here.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.splitlines()[-1] == resumed.stdout.splitlines()[-1]
    assert (tmp_path / "effects").read_text() == "paid 1\npaid 2\n"


KILLED = """
import asyncio, os, random, signal, time
from pathlib import Path
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible", exactly_once=True)
def pay(n):
    with open("effects", "a") as file:
        file.write(f"paid {n}\\n")
    return random.SystemRandom().random()

@traced_tool(side_effect="read_only")
async def fetch(what):
    await asyncio.sleep(0.005)
    if what == "balance" and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{what} {time.time_ns()}"

async def agent():
    seen = [await asyncio.gather(fetch("a"), fetch("b")), random.random(), pay(1)]
    print("paid", seen[-1], flush=True)
    async with asyncio.timeout(30):
        seen += [await fetch("balance"), await asyncio.to_thread(pay, 2), time.time()]
    return seen

with record("resumed") as run:
    seen = asyncio.run(agent())
    print(seen)
"""
