"""After a crash, what agents did is undone by ``tracekit recovery abort --tools MODULE``: each once, the last first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.place import PACKAGES, Place
from tests.support.processes import python

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


def route(place: Place) -> subprocess.CompletedProcess[str]:
    """``tracekit route``, as a program that can be run again."""
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    command = ("-m", "tracekit", "route", "trip.json", "--app", "app:registry")
    return python(*command, cwd=place.directory, env=environment)


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
    done = place.cli("recovery", "abort", "--json", place.run, "--reason", "cancelled", "--tools", "app")
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


STOOD_IN = """
import os, signal
from tracekit import ExecutionContract, traced_tool
from tracekit.agents import AgentRegistry

def told(what):
    with open("ledger", "a") as ledger:
        ledger.write(what + "\\n")
    return what

def cut(what):
    told(what)
    if os.path.exists("die"):
        os.remove("die")
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError(what)

@traced_tool(side_effect="irreversible")
def refund(n):
    told("refund")

def undo(payload):
    told("undo")
    if os.path.exists("broken"):
        raise OSError("it is still there")

def refunded(payload):
    refund(1)

def release(n):
    told("release")

@traced_tool(side_effect="reversible")
def other(n):
    return told("other")

@traced_tool(side_effect="reversible", compensate=release)
def hold(n):
    return cut("hold")

@traced_tool(side_effect="reversible", compensate=release, contract=ExecutionContract(max_retries=1), fallback=[other])
def book(n):
    return cut("book")

registry = AgentRegistry()

def first(**how):
    return registry.agent(intent="trip", name="first", priority=1, **how)

@registry.agent(intent="trip", priority=2, side_effect="reversible")
def second(payload):
    return told("second")
"""
#: The first agent, and what it does: in a run of its own; cut off in the agent, and undone and made again when resumed.
FIRST = {
    "an agent": (
        'first(side_effect="reversible", compensate=undo)(lambda payload: cut("first"))',
        "first undo second",
        "first undo first undo second",
    ),
    "an agent, by a tool": (
        'first(side_effect="reversible", compensate=refunded)(lambda payload: cut("first"))',
        "first refund second",
        "first refund first refund second",
    ),
    "a tool in an agent without a class": (
        "first()(lambda payload: hold(1))",
        "hold second",
        "hold release hold second",
    ),
    "a tool that is tried again and stood in for": (
        "first()(lambda payload: book(1))",
        "book release book release other",
        "book release book release book release other",
    ),
}


def _cut_off(place: Place) -> None:
    place.program(json.dumps({"intent": "trip", "payload": {}, "routing": {"strategy": "fallback"}}), "trip.json")
    (place.directory / "die").write_text("")
    assert route(place).returncode == -signal.SIGKILL


def _ledger(place: Place) -> list[str]:
    return (place.directory / "ledger").read_text().split()


@pytest.mark.parametrize("what", FIRST)
def test_what_a_resumption_undoes_keeps_nobody_from_standing_in(tmp_path: Path, what: str) -> None:
    """Whoever answers where nothing was cut off answers after a crash, too, and the replay is exact."""
    made, straight, resumed = FIRST[what]
    whole, cut = Place(tmp_path / "whole"), Place(tmp_path / "cut")
    for place in (whole, cut):
        place.directory.mkdir()
        place.program(STOOD_IN + made + "\n", "app.py")
    whole.program(json.dumps({"intent": "trip", "payload": {}, "routing": {"strategy": "fallback"}}), "trip.json")
    answered = whole.cli("route", "trip.json", "--app", "app:registry")
    assert _ledger(whole) == straight.split()
    _cut_off(cut)
    done = cut.cli("recovery", "resume", cut.run)
    assert done.returncode == answered.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["payload"] == json.loads(answered.stdout)["payload"]
    assert _ledger(cut) == resumed.split()
    again = cut.cli("replay", cut.run)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(answered.stdout)
    assert _ledger(cut) == resumed.split()


def test_nobody_stands_in_for_an_agent_that_a_resumption_could_not_undo(tmp_path: Path) -> None:
    """What it did before the crash is still there."""
    place = Place(tmp_path)
    place.program(STOOD_IN + FIRST["an agent"][0] + "\n", "app.py")
    _cut_off(place)
    (tmp_path / "broken").write_text("")
    done = place.cli("recovery", "resume", place.run)
    assert "irreversible_step_failed" in done.stdout, done.stdout + done.stderr
    assert _ledger(place) == ["first", "undo"]
