"""How a difference is told: field by field, texts as a diff, the recorded step and the user's own line."""

from __future__ import annotations

import copy
import inspect
import pickle
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import of_type, recorded
from tracekit import DivergenceError, TraceExhaustedError, record, replay, traced_tool
from tracekit._runtime.divergence import describe, looks_like_a_read, nearest
from tracekit._runtime.matching import OPAQUE, differences, steady
from tracekit._values import dumps
from tracekit.integration import to_json

HERE = Path(__file__).name


@traced_tool(side_effect="read_only")
def ask(prompt: Any, **options: Any) -> str:
    return "answer"


def diverging(recorded_prompt: Any, prompt: Any, **options: Any) -> DivergenceError:
    run, _ = recorded(lambda: ask(recorded_prompt))
    with pytest.raises(DivergenceError) as failure, replay(run):
        ask(prompt, **options)
    return failure.value


# -- differences --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": 1}, {"b": 1}, ["a", "b"]),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, ["a[1]", "a[2]"]),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, ["a.b[0].c"]),
        ([{"m": 1, "n": 1}, {"m": 2}, {"m": 3}], [{"m": 2}, {"m": 3}, {"m": 4}], ["[0]", "[2]"]),
        ([{"m": 1, "n": 2}, {"m": 3}], [{"m": 0}, {"n": 2, "m": 1}, {"m": 3}], ["[0]"]),
        ([1, 2, 3, 4, 5], [1, 3, 9, 5], ["[1]", "[3]"]),
        ([1, True], [1, 1], ["[1]"]),
        ({"a": 1}, {"a": 1.0}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 0.0}, {"a": -0.0}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ([], {}, [""]),
        ("a", "b", [""]),
    ],
)
def test_differences_are_the_leaves_that_differ(one: Any, other: Any, paths: list[str]) -> None:
    """Each differing leaf is named once by its path; two trees with different bytes never count as equal."""
    assert [found["path"] for found in differences(one, other)] == paths
    assert (dumps(one) == dumps(other)) == (not paths)


def test_an_absent_side_is_left_out() -> None:
    """A field that only one side has is told apart from one that is null."""
    assert differences({"a": None}, {}) == [{"path": "a", "recorded": None}]
    assert differences({}, {"a": None}) == [{"path": "a", "actual": None}]
    assert "(nothing)" in describe(differences({"a": 1}, {}))


def test_many_differences_are_cut_with_their_count() -> None:
    """A message stays readable: the first dozen fields, then how many more there are."""
    text = describe(differences({"a": list(range(100))}, {"a": list(range(100, 200))}))
    assert len(text.splitlines()) < 60
    assert "and 88 more fields" in text


# -- the message of a step ----------------------------------------------------------------------------------------------------


def test_a_message_shows_both_sides_the_step_and_the_users_line() -> None:
    """Recorded and actual value, the recorded step with its type and name, file and line of the user's call, and what to do."""
    line = inspect.getsourcelines(diverging)[1] + 3
    failure = diverging("red", "blue")
    text = str(failure)
    for part in ("input.prompt", "'red'", "'blue'", "tool.call 'ask'", "step 2", f"{HERE}:{line}", "tracekit show"):
        assert part in text, text
    assert "src/tracekit" not in text
    assert failure.location is not None
    assert failure.location.endswith(f"{HERE}:{line}")
    assert failure.recorded["input"]["prompt"] == "red"  # type: ignore[attr-defined]
    assert failure.actual["input"]["prompt"] == "blue"  # type: ignore[attr-defined]
    assert failure.differences == [{"path": "input.prompt", "recorded": "red", "actual": "blue"}]  # type: ignore[attr-defined]


LINES = [f"Rule {i}: be kind to customer number {i} and never promise a refund." for i in range(40)]


def test_a_changed_long_prompt_is_shown_as_a_unified_diff() -> None:
    """Of a long text only the changed lines and their neighbours are shown."""
    changed = [*LINES[:20], "Rule 20: promise everything.", *LINES[21:]]
    text = str(diverging("\n".join(LINES), "\n".join(changed)))
    assert f"-{LINES[20]}" in text
    assert "+Rule 20: promise everything." in text
    assert "@@" in text
    assert "Rule 30" not in text


def test_a_changed_word_in_one_long_line_is_shown() -> None:
    """Two long lines that differ far in are cut to where they differ."""
    one = "word " * 500 + "RECORDED tail " + "word " * 100
    other = "word " * 500 + "ACTUAL tail " + "word " * 100
    text = str(diverging(one, other))
    assert "RECORDED" in text
    assert "ACTUAL" in text
    assert max(len(line) for line in text.splitlines()) < 250


@pytest.mark.parametrize(
    ("one", "other"), [("x" * 70, "x" * 70 + "\n"), ("a\nb" * 40, "a\r\nb" * 40), ("x" * 200, "x" * 300)]
)
def test_texts_that_differ_in_line_ends_or_length_show_something(one: str, other: str) -> None:
    """A difference that a line diff can't see is shown all the same."""
    shown = describe(differences({"t": one}, {"t": other})).splitlines()
    assert len(shown) >= 3


def test_the_nearest_recorded_step_is_named() -> None:
    """The message names the recorded step that resembles the call most, and whether it was answered already."""

    def program(*prompts: str) -> None:
        for prompt in prompts:
            ask(prompt)

    run, _ = recorded(lambda: program("plan the trip", "book the flight", "pay the hotel"))
    seqs = [entry["seq"] for entry in of_type(run, "tool.call")]
    with pytest.raises(DivergenceError) as failure, replay(run):
        program("plan the trip", "pay the hotel")
    assert f"nearest recorded step: {seqs[2]}, with equal input" in str(failure.value)
    with pytest.raises(DivergenceError) as failure, replay(run):
        program("plan the trip", "plan the trip")
    assert f"nearest recorded step: {seqs[0]} (already answered), with equal input" in str(failure.value)
    with pytest.raises(TraceExhaustedError) as exhausted, replay(run):
        program("plan the trip", "book the flight", "pay the hotel", "pay the hotel")
    assert f"nearest recorded step: {seqs[2]} (already answered), with equal input" in str(exhausted.value)


def test_nearest_finds_the_most_alike_or_nobody() -> None:
    """Equal wins, then the most alike; what resembles nothing has no nearest."""
    candidates = [(1, {}, b"plan the trip"), (2, {}, b"book the flight now")]
    assert nearest(b"book the flight", candidates) == (2, False)
    assert nearest(b"plan the trip", candidates) == (1, True)
    assert nearest(b"0123456789", candidates) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1763766000.25, 1763766012.75),
        (str(uuid.UUID(int=1 << 120)), str(uuid.UUID(int=5 << 120))),
        ("2026-11-21T10:00:00.123456", "2026-11-21T10:00:01.123456"),
        (1763766000123, 1763766012123),
    ],
)
def test_a_difference_that_looks_like_a_clock_or_an_id_gets_a_hint(one: Any, other: Any) -> None:
    """Where an instant, an id or a draw was not captured, the message says how to have it captured."""
    assert "user_modules" in str(diverging(one, other))


def test_an_ordinary_difference_gets_no_hint() -> None:
    """Words and small numbers that differ are not taken for clock reads or random numbers, so no hint speaks of those."""
    for one, other in (("red", "blue"), (1, 2), ([1], [2]), (True, False)):
        assert not looks_like_a_read(differences({"a": one}, {"a": other}))


def test_the_caller_is_found_through_libraries_and_threads() -> None:
    """The line is the user's innermost one, whatever of the standard library is between it and the step."""
    import functools

    run, _ = recorded(lambda: ask("a"))
    with pytest.raises(DivergenceError) as failure, replay(run):
        functools.reduce(lambda _, prompt: ask(prompt), ["b"], None)
    assert HERE in str(failure.value.location)


# -- the error as an object ---------------------------------------------------------------------------------------------------


def test_a_divergence_travels_with_its_facts() -> None:
    """Pickled, copied, or raised again it says the same."""
    failure = diverging({"a": [1]}, {"a": [2]})
    for twin in (pickle.loads(pickle.dumps(failure)), copy.copy(failure), failure.fresh()):
        assert type(twin) is DivergenceError
        assert str(twin) == str(failure)
        assert twin.differences == failure.differences


def test_a_divergence_keeps_what_was_asked_for_as_it_was() -> None:
    """The program may change its objects afterwards; the error does not follow."""
    run, _ = recorded(lambda: ask(["a"]))
    prompt = ["b"]
    with pytest.raises(DivergenceError) as failure, replay(run):
        ask(prompt)
    prompt.append("c")
    assert failure.value.actual["input"]["prompt"] == ["b"]  # type: ignore[attr-defined]


def test_a_secret_is_in_no_message() -> None:
    """What differs is shown redacted."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
    failure = diverging("hello", "hello " + secret)
    assert secret not in str(failure)
    assert secret not in repr(failure.actual)  # type: ignore[attr-defined]


# -- opaque values ------------------------------------------------------------------------------------------------------------


def test_opaque_values_are_compared_without_their_identity() -> None:
    """Addresses and ``id()`` are left out, everything else of a description counts; ordinary texts are never touched."""

    def opaque(text: str) -> dict[str, Any]:
        return {"$t": "opaque", "type": "m:C", "repr": text}

    assert steady(opaque("<C id=140331871127440>")) == steady(opaque("<C id=94331871127>"))
    assert steady([{"a": opaque("<C 0x7f12ab34cd>")}]) == steady([{"a": opaque("<C 0x55aabbccdd>")}])
    assert steady(opaque("<C 17>")) != steady(opaque("<C 18>"))
    plain = {"repr": "0x7f12ab34cd", "n": ["140331871127440"]}
    assert steady(plain) == plain
    assert OPAQUE in dumps(to_json(open))


def test_a_hint_at_clock_and_dice_only_where_it_fits() -> None:
    """Ids, instants and draws inside texts are told from words; numbers of everyday size are not suspected."""
    from tracekit._runtime.divergence import looks_like_a_read

    def differs(recorded: object, actual: object) -> bool:
        return looks_like_a_read([{"path": "x", "recorded": recorded, "actual": actual}])

    first, second = "9f0c2a4e-7d0b-4a52-9c6e-1f2e3d4c5b6a", "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"
    assert differs(f"ticket {first}, please", f"ticket {second}, please")
    assert differs("at 2026-11-21 10:31:02 it rained", "at 2026-11-22 09:00:11 it rained")
    assert differs(1795302360.2, 1795302361.9)
    assert not differs(
        "be kind - to all - of them - and brief - please", "never be kind - to all - of them - and brief - please"
    )
    assert not differs(3, 4)


def test_a_short_text_of_several_lines_is_shown_as_a_diff() -> None:
    """A prompt of three lines is read line by line, not as two escaped strings."""
    from tracekit._runtime.divergence import describe
    from tracekit._runtime.matching import differences

    shown = describe(differences("one\ntwo\nthree", "one\n2\nthree"))
    assert "-two" in shown
    assert "+2" in shown


def test_a_lone_line_of_execution_is_no_matter_of_order() -> None:
    """A divergence of a program with one thread says nothing of threads."""

    @traced_tool(side_effect="read_only")
    def look(n: int) -> int:
        return n

    with record("alone") as run:
        look(1)
    with pytest.raises(DivergenceError) as caught, replay(run):
        look(2)
    assert "other threads" not in str(caught.value)


def test_a_temporary_directory_that_was_left_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recorded name is taken the program gets another one: the failure says which directory to move away."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def program() -> Path:
        made = Path(tempfile.mkdtemp())
        ask(f"work in {made}")
        return made

    run, left = recorded(program)
    with pytest.raises(DivergenceError, match=f"{left} is still there") as failure, replay(run):
        program()
    assert f"move {left} away" in str(failure.value)
    left.rename(tmp_path / "kept")
    with replay(run) as session:
        assert program() == left
    assert session.report.exact
