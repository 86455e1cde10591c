"""After a crash, what agents did is undone by ``tracekit recovery abort --tools MODULE``: each once, the last first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.place import PACKAGES, Place

APP = """
import os, signal
from tracekit.agents import AgentRegistry, BaseAgent, IntentRouter

def told(what):
    with open("ledger", "a") as ledger:
        ledger.write(what + "\\n")
    return what

def unbook(payload, output):
    told(f"undo {output}")

async def leave(payload, output):
    told(f"leave {output}")

class Hotel(BaseAgent):
    intent, name, side_effect, priority = "trip", "hotel", "reversible", 2

    def compensate(self, payload, output):
        told(f"check out {output}")

    def handle(self, envelope):
        return told("H1")

def made():
    agents = AgentRegistry([Hotel()])

    @agents.agent(intent="trip", priority=1, side_effect="reversible", compensate=unbook)
    def flight(payload):
        return told("F1")

    @agents.agent(intent="trip", priority=3, side_effect="reversible", compensate=leave)
    async def table(payload):
        return told("T1")

    @agents.agent(intent="trip", priority=4, side_effect="read_only")
    def last(payload):
        os.kill(os.getpid(), signal.SIGKILL)

    return agents
"""
NAMED = {"registry": "registry = made()\n", "router": "router = IntentRouter(made())\nregistry = router.registry\n"}


def route(place: Place) -> subprocess.CompletedProcess[bytes]:
    """``tracekit route``, as a program that can be run again."""
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    command = [sys.executable, "-m", "tracekit", "route", "trip.json", "--app", "app:registry"]
    return subprocess.run(command, cwd=place.directory, env=environment, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("what", NAMED)
def test_agents_are_undone_after_a_crash(tmp_path: Path, what: str) -> None:
    """Whatever they are in a module, by functions, coroutine functions and methods; a second abort is refused."""
    place = Place(tmp_path)
    place.program(APP + NAMED[what], "app.py")
    request = {"intent": "trip", "payload": {"n": 1}, "routing": {"strategy": "broadcast"}}
    (tmp_path / "trip.json").write_text(json.dumps(request))
    assert route(place).returncode == -signal.SIGKILL
    (tmp_path / "keep.py").write_text("")
    refused = place.cli("recovery", "abort", place.run, "--reason", "cancelled", "--tools", "keep")
    assert (refused.returncode, "hotel" in refused.stderr) == (4, True)
    done = place.cli("recovery", "abort", place.run, "--reason", "cancelled", "--tools", "app")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (len(facts["compensated"]), facts["uncompensated"]) == (3, [])
    ledger = (tmp_path / "ledger").read_text().split("\n")[:-1]
    assert ledger == ["F1", "H1", "T1", "leave T1", "check out H1", "undo F1"]
    assert place.cli("recovery", "abort", place.run, "--reason", "again", "--tools", "app").returncode == 4
    assert (tmp_path / "ledger").read_text().split("\n")[:-1] == ledger


def test_an_agent_cut_off_is_undone_before_it_is_asked_again(tmp_path: Path) -> None:
    """``recovery resume`` undoes what the agent may have done, and asks it once more."""
    place = Place(tmp_path)
    text = APP.replace(
        'return told("H1")', 'told("H1"); os.path.exists("again") or os.kill(os.getpid(), 9); return "H1"'
    )
    place.program(text.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass") + NAMED["registry"], "app.py")
    request = {"intent": "trip", "payload": {"n": 1}, "routing": {"strategy": "broadcast"}}
    (tmp_path / "trip.json").write_text(json.dumps(request))
    assert route(place).returncode == -signal.SIGKILL
    (tmp_path / "again").write_text("")
    done = place.cli("recovery", "resume", place.run)
    assert done.returncode == 0, done.stderr
    ledger = (tmp_path / "ledger").read_text().split("\n")[:-1]
    assert ledger == ["F1", "H1", "check out None", "H1", "T1"]
    assert place.cli("replay", place.run).returncode == 0
    assert (tmp_path / "ledger").read_text().split("\n")[:-1] == ledger
