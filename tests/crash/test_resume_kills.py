"""An agent of all three classes, killed and resumed and killed again: nothing seen is lost, nothing irreversible is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.lives import Agents, Life


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    made = Agents(tmp_path_factory.mktemp("agents"))
    yield made
    made.close()


def lives(agents: Agents, directory: Path, seeds: Iterator[int], kills: int) -> list[Life]:
    """Lives until so many kills."""
    lived: list[Life] = []
    while sum(life.kills for life in lived) < kills:
        seed = next(seeds)
        life = Life(agents, directory / f"life{seed}", seed)
        life.live()
        lived.append(life)
    return lived


def test_killed_and_resumed_at_random(agents: Agents, tmp_path: Path) -> None:
    """After each of some twenty kills every promise holds; runs that may go on do so, to an end that replays exactly."""
    lived = lives(agents, tmp_path, iter(range(10_000)), 20)
    assert any(life.cycle for life in lived)


@pytest.mark.crash_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(5))
def test_killed_and_resumed_at_random_many_times(agents: Agents, tmp_path: Path, part: int) -> None:
    """The same, more than five hundred times in all."""
    lives(agents, tmp_path, iter(range(1000 * part, 1000 * part + 1000)), 110)
