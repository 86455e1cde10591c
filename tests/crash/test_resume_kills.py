"""An agent with effects of all three classes is killed and resumed again and again: nothing seen is lost, and nothing
irreversible happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.agent import REFUSED
from tests.crash.lives import Agents, Commands, Life
from tests.support.oracle import Log


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    made = Agents(tmp_path_factory.mktemp("agents"))
    yield made
    made.close()


def lives(agents: Agents, directory: Path, seeds: Iterator[int], kills: int) -> list[Life]:
    """Play lives until there have been so many kills."""
    lived: list[Life] = []
    while sum(life.kills for life in lived) < kills:
        seed = next(seeds)
        life = Life(agents, directory / f"life{seed}", seed)
        life.live()
        lived.append(life)
    return lived


def test_killed_and_resumed_at_random(agents: Agents, tmp_path: Path) -> None:
    """Every promise holds after each of some twenty kills; a run that may go on is resumed until it ends, and then
    replays exactly."""
    lived = lives(agents, tmp_path, iter(range(10_000)), 20)
    assert any(life.cycle for life in lived)


def test_killed_and_resumed_by_the_command_line(tmp_path: Path) -> None:
    """The same promises hold when each process is fresh and only the command line knows that the program is resumed."""
    lived = lives(Commands(), tmp_path, iter(range(2, 10_000)), 5)
    assert any(life.cycle for life in lived)


def test_resumed_by_two_at_once(agents: Agents, tmp_path: Path) -> None:
    """If two processes resume one run, one continues it, the other is refused, and nothing happens twice."""
    other = Agents(tmp_path / "other")
    try:
        resumed = 0
        for seed in range(40):
            life = Life(agents, tmp_path / f"life{seed}", seed)
            died = life.job("record") | {"point": "after-outcome-write", "nth": 5}
            assert agents.live(died) < 0
            if Log(life.path).opinion().decision != "resume":  # another thread was in an irreversible step just then
                continue
            life.cycle = 1
            for process in (agents, other):
                process.begin(life.job("resume"))
            assert sorted((agents.end(), other.end())) == [0, REFUSED], life.errors
            log = Log(life.path)
            assert log.finished
            assert [entry["type"] for entry in log.entries].count("recovery.started") == 1
            life.check(log)
            resumed += 1
            if resumed == 4:
                break
        assert resumed == 4
    finally:
        other.close()


@pytest.mark.crash_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(5))
def test_killed_and_resumed_at_random_many_times(agents: Agents, tmp_path: Path, part: int) -> None:
    """The same promises hold for more than five hundred kills."""
    lives(agents, tmp_path, iter(range(1000 * part, 1000 * part + 1000)), 110)


@pytest.mark.crash_full
@pytest.mark.timeout(900)
def test_killed_and_resumed_by_the_command_line_many_times(tmp_path: Path) -> None:
    """The same promises hold for fifty kills by the command line."""
    lives(Commands(), tmp_path, iter(range(20_000, 30_000)), 50)
