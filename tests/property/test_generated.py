"""Generated concurrent programs, recorded and replayed: each replay sees the same and is exact."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import generated
from tests.support.generated import KINDS, Checker, Load, Pace, check, replayed, twice
from tests.support.simulation import Shuffled, misread_places
from tracekit import record, replay
from tracekit.errors import ReplayError


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_statement(kind: str) -> None:
    """A program of one statement of each kind is exact: slower than recorded on asyncio, and at once on uvloop."""
    rng = random.Random(zlib.crc32(kind.encode()))
    found = KINDS[kind]
    statement = [kind, *(draw(rng, 0, found.where) for draw in found.arguments)]
    program = [statement] if found.where == "task" else [["t_to_thread", [statement]]]
    check(program, first=generated.loops()["asyncio"], recorded_at=Pace(0.2), replayed_at=Pace(1))
    check(program, first=generated.loops()["uvloop"], recorded_at=Pace(0.2), replayed_at=Pace(0))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(8, 22))
def test_programs(seed: int, loop: str) -> None:
    """Whatever tasks and threads came to, and in which order, is what they come to in a replay at another pace, which is exact."""
    twice(generated.generate(seed), loop, seed)


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    found = Checker()
    yield found
    found.close()


@pytest.mark.programs_full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("first", range(1, 1001, 20))
def test_a_thousand_programs(first: int, loop: str, checker: Checker, tmp_path: Path) -> None:
    """The same, of a thousand programs, twenty at a time; one that hangs says where, and the others go on."""
    differ = []
    for seed in range(first, first + 20):
        place = tmp_path / str(seed)
        place.mkdir()
        try:
            checker.check(seed, loop, place)
        except generated.Differs as error:
            differ.append(f"program {seed}: {error}")
    assert not differ, "\n\n".join(differ)


def test_a_program_that_hangs_is_ended_with_its_stacks(tmp_path: Path) -> None:
    """A program that hangs is ended, its stacks are in the failure, and the next program is checked as usual."""
    checker = Checker(hangs_after=0.001)
    try:
        with pytest.raises(generated.Differs, match=r"(?s)Timeout.*most recent call first.*File"):
            checker.check(1, "asyncio", tmp_path)
        with pytest.raises(generated.Differs, match="Timeout"):
            checker.check(2, "asyncio", tmp_path)
    finally:
        checker.close()


@pytest.mark.parametrize("courtesy", [0, 10_000_000_000], ids=["none", "ten seconds"])
def test_what_threads_are_left_to_do_first_decides_nothing(courtesy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For how long a thread that computes may go on before an event that is due: none or much, what is recorded has its order."""
    monkeypatch.setattr("tracekit._runtime.schedule._COURTESY", courtesy)
    locked = frozenset({"th_lock", "th_poll"})
    for seed in range(30, 36):
        twice(generated.generate(seed, without=locked), ("asyncio", "uvloop")[seed % 2], seed)


#: Kinds of statements that have to do with threads.
THREADS = frozenset(
    {
        "t_crowd", "t_executor", "t_give_up", "t_hand_over", "t_hop", "t_poll_thread", "t_pool", "t_threaded", "t_threads", "t_to_thread",
        *(name for name, kind in KINDS.items() if kind.where == "thread"),
    }
)  # fmt: skip


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(6, 9))
def test_programs_that_were_edited_since(seed: int, loop: str) -> None:
    """With a statement more or less a replay fails, or is exact where nothing of that was captured. It ends, and calls nothing."""
    rng, made, program = random.Random(seed), generated.loops()[loop], generated.generate(seed)
    with record("generated", durability="none") as run:
        generated.run_on(made, Pace(None, seed), lambda: generated.seen_by(program))
    executed = generated.executed
    for n in range(3):
        other, session = generated.edited(program, rng), replay(run)
        try:
            with session:
                generated.run_on(made, Pace(None, seed + n), functools.partial(generated.seen_by, other))
        except ReplayError:
            assert not session.report.exact
        else:
            assert session.report.exact
        assert generated.executed == executed
        gc.collect()  # of these coroutines, here


@pytest.mark.parametrize("seed", range(200, 220))
def test_loops_to_which_the_outside_comes_at_another_moment(seed: int) -> None:
    """Answers and timers reach the loop in another round of it each time, and the program sees what it saw. (Its clock is its own.)"""
    program = generated.generate(seed, without=THREADS | {"t_clock"})
    check(program, first=lambda: Shuffled(seed), second=lambda: Shuffled(seed + 1))


def test_a_replay_does_not_wait() -> None:
    """A program that slept for a day is replayed without sleeping."""
    program: Any = [["t_fetch", 20_000], ["t_sleep", 86_400_000], ["t_fetch", 1]]
    check(program, first=lambda: Shuffled(1), second=generated.loops()["asyncio"])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_fifty_at_once(loop: str) -> None:
    """Fifty calls at once, answered in another order than they were made: each gets its own answer, in that order."""
    twice([["t_as_completed", [[["t_fetch", 7 * i % 50]] for i in range(50)]]], loop, 1)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_twenty_threads(loop: str) -> None:
    """Twenty threads that make calls, read clocks and draw numbers, two thirds of them under a lock that they share."""
    work = [
        [["th_call", 0], ["th_clock"], ["th_random"], *([["th_lock", i % 3, 0]] if i % 3 else [])] for i in range(20)
    ]
    twice([["t_threads", work]], loop, 1)


HOPS: list[Any] = [
    [["t_hop", 20], ["t_hand_over", 0, 5]],
    [["t_hop", 0], ["t_first", [[["t_sleep", 1]], [["t_fetch", 1]]]]],
    [["t_cancel", 2, [["t_hop", 20], ["t_soon", 0], ["t_call", 0]]]],
    [["t_wait_for", 1, [["t_hop", 300], ["t_call", 0]]]],
    [["t_as_completed", [[["t_hop", 1], ["t_fetch", 8]], [["t_fetch", 3]], [["t_instant"], ["t_failing", 1]]]]],
    [["t_cancel", 5, [["t_threaded", 30], ["t_event", 1, 10], ["t_sleep", 13]]]],
    [["t_gather", [[["t_fetch", 13], ["t_hop", 50]], [["t_hand_over", 2, 5], ["t_event", 2, 2]]]]],
]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("program", HOPS, ids=lambda program: "-".join(sorted(generated.kinds_of(program))))
def test_what_a_thread_gives_in_which_nothing_is_captured(program: Any, loop: str) -> None:
    """It comes where it came, faster and slower, and where a limit or a cancellation came first, never."""
    for recorded_at, replayed_at in ((1, 0), (0.2, 1), (1, 1)):
        check(program, first=generated.loops()[loop], recorded_at=Pace(recorded_at), replayed_at=Pace(replayed_at))


#: Programs that once were not exact: what they are about.
FOUND: dict[str, Any] = {
    "the end of a span is brought by nobody": [["t_span", [["t_threaded", 1]]], ["t_poll", 3, [["t_sleep", 2]]]],
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("about", FOUND)
def test_programs_that_were_not_exact(about: str, loop: str) -> None:
    """Each is the smallest program that showed its fault."""
    for seed in range(3):
        twice(FOUND[about], loop, seed)


def test_a_failing_program_is_made_smaller() -> None:
    """What has nothing to do with a failure is taken out of the program that shows it, on all levels."""
    first = [[["t_fetch", 1], ["t_hop", 2]], [["t_hop", 1]]]
    program: Any = [
        ["t_queue", [1, 2, 3], 2],
        ["t_gather", [[["t_first", first], ["t_clock"]], [["t_sleep", 5]]]],
        ["t_random"],
    ]
    least = generated.smaller(program, lambda candidate: "t_hop" in generated.kinds_of(candidate))
    assert [name for name, *_ in least] == ["t_hop"]
    nested = generated.smaller(program, lambda candidate: {"t_first", "t_hop"} <= generated.kinds_of(candidate))
    assert len(str(nested)) < 80


#: Time limits around threads: what a thread does after its limit belongs to nobody once its block is over.
LIMITS = frozenset({"t_timeout", "t_wait_for", "t_wait", "t_cancel", "t_deadlines"})


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(106, 110))
def test_recorded_alone_and_replayed_under_load(seed: int, loop: str) -> None:
    """A run that was recorded alone replays exactly on a busy loop and a busy machine."""
    program, made = generated.generate(seed, without=LIMITS), generated.loops()[loop]
    ((run, seen),) = generated.recorded_together([program], made, Pace(1))
    replayed(program, run, seen, made, Pace(None, seed), on_the_loop=True, load=Load())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(101, 105))
def test_recorded_together_and_replayed_alone(seed: int, loop: str) -> None:
    """Four runs that share a busy loop and a busy machine replay one by one, alone: none depends on what was beside it."""
    programs = [generated.generate(seed * 10 + n, without=LIMITS, most=3) for n in range(4)]
    made = generated.loops()[loop]
    for program, (run, seen) in zip(
        programs, generated.recorded_together(programs, made, Pace(None, seed), Load()), strict=True
    ):
        replayed(program, run, seen, made, Pace(0.2), on_the_loop=True)


def chained(entries: list[dict[str, Any]], path: Path) -> Path:
    """A trace of these entries, each with the hash that it must have."""
    tip, lines = "0" * 64, []
    for entry in entries:
        body = json.dumps({k: v for k, v in entry.items() if k != "hash"}, separators=(",", ":"), ensure_ascii=False)[
            :-1
        ]
        tip = hashlib.sha256((tip + body).encode()).hexdigest()
        lines.append(f'{body},"hash":"{tip}"}}\n')
    path.write_text("".join(lines))
    return path


def test_a_place_that_is_off_by_one_is_found(tmp_path: Path) -> None:
    """Were the place of the last event recorded one callback too early or too late, a program that polls would see it."""
    program: Any = [["t_poll", 0, [["t_fetch", 3]]]]
    made = generated.loops()["asyncio"]
    ((run, seen),) = generated.recorded_together([program], made, Pace(1))
    replayed(program, run, seen, made, Pace(1), on_the_loop=True)
    entries = [json.loads(line) for line in Path(run.path).read_bytes().splitlines()]
    places = [entry["place"]["lanes"] for entry in entries if entry["type"] == "tool.return" and "place" in entry]
    assert places
    for lanes in places[-1:]:  # where the answer came that ends the polling
        lane = max(lanes, key=lambda each: lanes[each] or 0)
        for wrong in (1, -1):
            lanes[lane] += wrong
            path = chained(entries, tmp_path / f"{run.id}.jsonl")
            lanes[lane] -= wrong
            with pytest.raises(generated.Differs):
                replayed(program, path, seen, made, Pace(1), on_the_loop=True)


@pytest.mark.parametrize("wrong", [1, -1], ids=["too late", "too early"])
def test_the_generated_programs_find_places_that_are_off_by_one(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were places read one callback too late or too early, one of the first dozen programs would not be exact."""

    def programs() -> None:
        for seed in range(1, 13):
            twice(generated.generate(seed), "asyncio", seed)

    misread_places(monkeypatch, by=wrong)
    with pytest.raises(generated.Differs):
        programs()
