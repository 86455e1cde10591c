"""Generated concurrent programs, recorded and replayed: each replay sees the same and is exact."""

from __future__ import annotations

import random
import zlib

import pytest

from tests.support import generated
from tests.support.generated import KINDS, Load, Pace, check, replayed


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"t_as_completed", "t_cancel"}))
def test_each_kind_of_statement(kind: str) -> None:
    """A program of one statement of each kind is exact: slower than recorded on asyncio, and at once on uvloop."""
    rng = random.Random(zlib.crc32(kind.encode()))
    found = KINDS[kind]
    statement = [kind, *(draw(rng, 0, found.where) for draw in found.arguments)]
    program = [statement] if found.where == "task" else [["t_to_thread", [statement]]]
    check(program, first=generated.loops()["asyncio"], recorded_at=Pace(0.2), replayed_at=Pace(1))
    check(program, first=generated.loops()["uvloop"], recorded_at=Pace(0.2), replayed_at=Pace(0))


def test_a_failing_program_is_made_smaller() -> None:
    """What has nothing to do with a failure is taken out of the program that shows it, on all levels."""
    program = generated.generate(60)
    assert {"t_queue", "t_hop", "t_gather"} <= generated.kinds_of(program)
    least = generated.smaller(program, lambda candidate: "t_hop" in generated.kinds_of(candidate))
    assert [name for name, *_ in least] == ["t_hop"]
    nested = generated.smaller(program, lambda candidate: {"t_first", "t_hop"} <= generated.kinds_of(candidate))
    assert len(str(nested)) < 80


#: Time limits around threads: what a thread does after its limit belongs to nobody once its block is over.
LIMITS = frozenset({"t_timeout", "t_wait_for", "t_wait", "t_cancel", "t_deadlines"})


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_recorded_alone_and_replayed_under_load(seed: int, loop: str) -> None:
    """A run that was recorded alone replays exactly on a busy loop and a busy machine."""
    program, made = generated.generate(seed, without=LIMITS), generated.loops()[loop]
    ((run, seen),) = generated.recorded_together([program], made, Pace(1))
    replayed(program, run, seen, made, Pace(None, seed), on_the_loop=True, load=Load())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_recorded_together_and_replayed_alone(seed: int, loop: str) -> None:
    """Four runs that share a busy loop and a busy machine replay one by one, alone: none depends on what was beside it."""
    programs = [generated.generate(seed * 10 + n, without=LIMITS, most=3) for n in range(4)]
    made = generated.loops()[loop]
    for program, (run, seen) in zip(
        programs, generated.recorded_together(programs, made, Pace(None, seed), Load()), strict=True
    ):
        replayed(program, run, seen, made, Pace(0.2), on_the_loop=True)
