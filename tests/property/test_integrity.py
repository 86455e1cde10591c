"""Whatever is done to the bytes of a finished trace is told."""

from __future__ import annotations

import os
import tempfile
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.plain_writer import RUN, chained, lines, small_run
from tracekit.errors import TraceVersionError
from tracekit.integration import Store, Trace, Verdict

WHOLE = lines(small_run())
DATA = b"".join(WHOLE)


def _judge(data: bytes) -> Verdict:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.jsonl")
        path.write_bytes(data)
        with Trace(path) as trace:
            return trace.status


def test_any_single_changed_bit_is_detected() -> None:
    """Each of the bits of a complete trace, flipped alone, leaves no complete trace: damage before the last newline, torn at it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.jsonl")
        path.write_bytes(DATA)
        with open(path, "r+b", buffering=0) as file:
            for position, bit in product(range(len(DATA)), range(8)):
                os.pwrite(file.fileno(), bytes([DATA[position] ^ 1 << bit]), position)
                _told_at(path, position)
                os.pwrite(file.fileno(), DATA[position : position + 1], position)


def _told_at(path: Path, position: int) -> None:
    """The file, in which one byte is another one, is told as damaged there."""
    with Trace(path) as trace:
        try:
            verdict = trace.status
        except TraceVersionError:
            assert DATA[position : position + 1] == b"1"
            return
    if position == len(DATA) - 1:
        assert (verdict.state, verdict.torn_bytes) == ("incomplete", len(WHOLE[-1]))
    else:
        line = DATA.count(b"\n", 0, position) + 1
        assert (verdict.state, verdict.line) == ("broken", line), position


@pytest.mark.parametrize("number", range(1, len(WHOLE)))
def test_any_line_removed_is_detected(number: int) -> None:
    """A line taken out is told at the line that stands in its place."""
    verdict = _judge(b"".join(WHOLE[: number - 1] + WHOLE[number:]))
    assert (verdict.state, verdict.line) == ("broken", number)
    assert "removed" in str(verdict.problem)


@pytest.mark.parametrize("number", range(1, len(WHOLE) + 1))
def test_any_line_doubled_is_detected(number: int) -> None:
    """A line written twice is told at the second one."""
    verdict = _judge(b"".join(WHOLE[:number] + WHOLE[number - 1 :]))
    assert (verdict.state, verdict.line) == ("broken", number + 1)


@given(st.permutations(range(len(WHOLE))))
@settings(max_examples=examples(100), deadline=None)
def test_any_order_but_the_right_one_is_detected(order: list[int]) -> None:
    """Lines swapped are told at the first one that is out of place."""
    verdict = _judge(b"".join(WHOLE[i] for i in order))
    wrong = [place for place, i in enumerate(order) if place != i]
    assert (verdict.state, verdict.line) == (("broken", wrong[0] + 1) if wrong else ("complete", None))


@given(st.integers(0, len(DATA) - 1))
@settings(max_examples=examples(200), deadline=None)
def test_a_cut_is_told(length: int) -> None:
    """Cut at any byte, a complete trace is incomplete, with as many entries as whole lines and the rest told as torn."""
    verdict = _judge(DATA[:length])
    assert verdict.state == "incomplete"
    assert verdict.count == DATA[:length].count(b"\n")
    assert verdict.torn_bytes == length - sum(map(len, WHOLE[: verdict.count]))


@given(st.integers(0, len(DATA) - 2), st.binary(min_size=1, max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_inserted_bytes_are_detected(position: int, junk: bytes) -> None:
    """Bytes put anywhere before the last newline leave no trace that verifies."""
    changed = DATA[:position] + junk + DATA[position:]
    if changed[: len(DATA)] == DATA:
        return
    assert _judge(changed).state == "broken"


@given(st.binary(max_size=2000))
@settings(max_examples=examples(200), deadline=None)
def test_junk_is_never_a_run(junk: bytes) -> None:
    """No bytes whatever crash the reader, and junk is never a complete run."""
    assert _judge(junk).state in ("incomplete", "broken")
    assert _judge(DATA + junk + b"\n").state == "broken"


@given(st.integers(1, len(WHOLE) - 1))
@settings(deadline=None)
def test_a_kept_head_tells_a_cut_run_from_one_that_never_ended(kept: int) -> None:
    """Whole lines cut off a finished run: with its head kept it is broken and says how many there were; without, incomplete."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(directory)
        path = Path(store.path(RUN))
        path.parent.mkdir(parents=True)
        path.write_bytes(DATA)
        head = store.verify(RUN).head
        path.write_bytes(b"".join(WHOLE[:kept]))
        assert store.verify(RUN).state == "incomplete"
        store.keep_tip(RUN, len(WHOLE), head, durable=False)
        verdict = store.verify(RUN)
        assert verdict.state == "broken"
        assert f"ended with {len(WHOLE)} entries; there are {kept}" in str(verdict.problem)
        path.write_bytes(DATA)
        assert store.verify(RUN).state == "complete"


@given(st.integers(0, len(WHOLE) - 1))
@settings(deadline=None)
def test_an_edit_that_recomputes_every_hash_is_told_by_a_kept_head(number: int) -> None:
    """The chain does not detect an editor who recomputes it; a kept tip, and a tip hash that the user knows, do."""
    entries = small_run()
    entries[number]["name"] = "edited"
    edited = b"".join(lines(entries))
    assert _judge(edited).state == "complete"
    with tempfile.TemporaryDirectory() as directory:
        store = Store(directory)
        path = Path(store.path(RUN))
        path.parent.mkdir(parents=True)
        path.write_bytes(DATA)
        head = store.verify(RUN).head
        path.write_bytes(edited)
        assert store.verify(RUN, head=head).state == "broken"
        assert store.verify(RUN).state == "complete"
        store.keep_tip(RUN, len(WHOLE), head, durable=False)
        assert "rewritten" in str(store.verify(RUN).problem)


def test_a_run_may_be_longer_than_its_kept_head() -> None:
    """A run resumed after it was complete has more entries than its kept tip says; that is right while the tip hash is in it."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(directory)
        path = Path(store.path(RUN))
        path.parent.mkdir(parents=True)
        path.write_bytes(DATA)
        head = store.verify(RUN).head
        store.keep_tip(RUN, len(WHOLE), head, durable=False)
        more = {
            "v": 1,
            "seq": 9,
            "run_id": RUN,
            "type": "recovery.started",
            "ts_ns": 1_760_000_000_000_000_100,
            "lane": 0,
            "parent": 1,
        }
        path.write_bytes(DATA + chained(more, head)[0])
        assert store.verify(RUN).state == "incomplete"
