"""A process is killed at named points and at random instants: the trace keeps what the program saw, announces what it
did, and is never damaged."""

from __future__ import annotations

import random
import signal

import pytest

from tests.crash.conftest import Kill
from tracekit.testing import CRASH_POINTS

#: What the victim's second irreversible call leaves at each point: (intentions of `pay 1`, marks of `pay 1`, outcomes of `pay 1`).
#: Steps of a round: look, pay, book, refuse, listen; points of effects count pay, book and refuse where they are synced.
AT_SECOND_PAY = {
    "before-intent-write": (6 + 1, (0, 0, 0)),
    "mid-intent-write": (6 + 1, (0, 0, 0)),
    "after-intent-write": (6 + 1, (1, 0, 0)),
    "after-intent-sync": (3 + 1, (1, 0, 0)),
    "before-effect": (6 + 1, (1, 0, 0)),
    "after-effect": (6 + 1, (1, 1, 0)),
    "before-outcome-write": (6 + 1, (1, 1, 0)),
    "mid-outcome-write": (6 + 1, (1, 1, 0)),
    "after-outcome-write": (6 + 1, (1, 1, 1)),
    "after-outcome-sync": (3 + 1, (1, 1, 1)),
}


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_killed_at_a_named_point(point: str, kill: Kill) -> None:
    """At each named point the trace has what was observed, effects have intentions, the run reads as incomplete, and it
    can be reopened."""
    [left] = kill({"point": point})
    assert left.end == -signal.SIGKILL, left.errors
    left.check()
    torn = point.startswith("mid-")
    assert bool(left.verdict.torn_bytes) is torn
    assert left.verdict.state == ("complete" if point == "after-seal-before-tip" else "incomplete")
    left.check_reopened()


@pytest.mark.parametrize("point", AT_SECOND_PAY)
def test_an_irreversible_effect_at_each_of_its_points(point: str, kill: Kill) -> None:
    """An irreversible call killed at each of its points leaves exactly what belongs there: nothing, an intention, an
    effect in doubt, or an outcome."""
    nth, expected = AT_SECOND_PAY[point]
    [left] = kill({"point": point, "nth": nth})
    assert left.end == -signal.SIGKILL, left.errors
    pays = [event for event in left.events() if event.name == "pay" and event.input == {"number": 1}]
    assert (len(pays), left.ledger["pay 1"], sum(event.finished for event in pays)) == expected
    left.check()
    left.check_reopened()


def test_a_stream_keeps_every_piece_that_was_delivered(kill: Kill) -> None:
    """If the process is killed in the middle of a streamed piece, the trace has every earlier piece, and the torn one
    was not delivered."""
    [left] = kill({"point": "mid-chunk", "nth": 3})
    assert [name for name, _, _ in left.observed].count("listen") == 2
    left.check()


def test_what_nobody_kills_ends_sealed(kill: Kill) -> None:
    """Left alone, the victim ends, and a complete trace has everything that it saw and did."""
    [alone, threads] = kill({}, {"threads": 3})
    for left, rounds in ((alone, 3), (threads, 9)):
        assert left.end == 0, left.errors
        assert left.verdict.state == "complete"
        assert sum(left.ledger.values()) == 3 * rounds
        assert len(left.observed) == 7 * rounds
        left.check()


def _random_jobs(count: int, seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    return [
        {
            "delay": rng.uniform(0, 0.15),
            "under_way": rng.random() < 0.75,  # on a busy machine, too; else it may not have begun
            "rounds": 10_000,
            "threads": rng.choice([0, 0, 2, 4]),
            "durability": rng.choice(["effects", "effects", "always", "none"]),
        }
        for _ in range(count)
    ]


def _check_random(kill: Kill, count: int, seed: int) -> None:
    late = 0
    for left in kill(*_random_jobs(count, seed)):
        assert left.end == -signal.SIGKILL, left.errors
        left.check()
        if left.path.exists():
            late += len(left.observed) > 0
            left.check_reopened()
    assert late > count // 4  # the kills did hit runs that were under way


def test_killed_at_random_instants(kill: Kill) -> None:
    """The same promises hold when the process is killed at a random instant, with and without threads, at every
    durability."""
    _check_random(kill, 24, 20261121)


@pytest.mark.crash_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_killed_at_many_random_instants(seed: int, kill: Kill) -> None:
    """The same promises hold for two thousand random kills."""
    _check_random(kill, 100, seed)


@pytest.mark.crash_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_killed_at_every_passing_of_a_named_point(point: str, kill: Kill) -> None:
    """The same promises hold at every passing of every named point in the victim's run, at every durability."""
    passings = 1 if "seal" in point else 24
    for left in kill(
        *(
            {"point": point, "nth": nth, "durability": durability, "rounds": 4}
            for nth in range(1, passings + 1)
            for durability in ("effects", "always", "none")
        )
    ):
        assert left.end in (0, -signal.SIGKILL), left.errors
        left.check()
        left.check_reopened()
