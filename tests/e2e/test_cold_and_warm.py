"""What a process does only once may or may not be part of a run: one recorded cold replays exactly in a warm process,
and the other way round."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import cold_and_warm
from tests.support.place import Place
from tracekit import replay

AGENTS = ("plain", "awaited", "threaded")
STATES = ("cold", "warm")
SOURCE = Path(cold_and_warm.__file__)


class Recorded(NamedTuple):
    place: Place
    #: Run ids, and what each request saw, by agent and state.
    ids: dict[tuple[str, str], str]
    seen: dict[tuple[str, str], str]

    def path(self, agent: str, state: str) -> str:
        return str(self.place.store / "runs" / f"{self.ids[agent, state]}.jsonl")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A request to each agent in a new process, and one to each in a process that has filled its cache."""
    place = Place(tmp_path_factory.mktemp("service"))
    place.program(SOURCE.read_text(), "service.py")
    place.program("from service import *\nfrom service import warmed\nwarmed()\n", "warm_service.py")
    found = Recorded(place, {}, {})
    for state in STATES:
        process = place.python("service.py", state)
        assert process.returncode == 0, process.stderr
        ids = [line for line in process.stderr.splitlines() if len(line) == 36]
        for agent, run, seen in zip(AGENTS, ids, process.stdout.splitlines(), strict=True):
            found.ids[agent, state], found.seen[agent, state] = run, seen
    return found


both = pytest.mark.parametrize("now", STATES)
was_ = pytest.mark.parametrize("was", STATES)
each = pytest.mark.parametrize("agent", AGENTS)


@both
@was_
@each
def test_with_replay(recorded: Recorded, agent: str, was: str, now: str) -> None:
    """``with replay()`` in this process is exact with an empty cache and with a full one."""
    cold_and_warm.CACHE.clear()
    if now == "warm":
        cold_and_warm.warmed()
    function = getattr(cold_and_warm, agent)
    with replay(recorded.path(agent, was)) as session:
        seen = function(f"what of {agent}?")
        if asyncio.iscoroutine(seen):
            seen = asyncio.run(seen)
    assert json.dumps(seen) == recorded.seen[agent, was]
    assert session.report.exact, session.report.as_dict()


@both
@was_
@each
def test_by_entry(recorded: Recorded, agent: str, was: str, now: str) -> None:
    """``tracekit replay --entry`` is exact in a new process and in one that has filled its cache before."""
    module = "service" if now == "cold" else "warm_service"
    exactly(recorded, agent, was, "replay", recorded.ids[agent, was], "--entry", f"{module}:ask_{agent}")


@both
@was_
def test_by_the_program(recorded: Recorded, was: str, now: str) -> None:
    """``tracekit replay`` runs the program again, which may fill its cache first; each request is answered from its own
    run."""
    process = recorded.place.cli("replay", recorded.path("awaited", was), "--", "service.py", now)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [recorded.seen[agent, was] for agent in AGENTS]


def test_in_async_tests(recorded: Recorded) -> None:
    """An asynchronous test, whose runner wraps it in a task, replays what was recorded under ``asyncio.run``."""
    cases = {
        f"{was}-{now}": [recorded.path("awaited", was), now, recorded.seen["awaited", was]]
        for was in STATES
        for now in STATES
    }
    recorded.place.program(ASYNC_TESTS.format(cases=cases), "test_service.py")
    process = recorded.place.python("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:xdist", "test_service.py")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "4 passed" in process.stdout


ASYNC_TESTS = """
import json
import pytest
import service
from tracekit import replay

CASES = {cases!r}

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES)
async def test_request(case):
    path, now, seen = CASES[case]
    service.CACHE.clear()
    if now == "warm":
        service.warmed()
    with replay(path) as session:
        assert json.dumps(await service.awaited("what of awaited?")) == seen
    assert session.report.exact
"""


def exactly(recorded: Recorded, agent: str, was: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = recorded.place.cli(*arguments)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[:1] == [recorded.seen[agent, was]]
    return process
