"""Reading a trace: what is told of a complete, incomplete, torn, damaged or missing one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.plain_writer import RUN, chained, entry, lines, small_run, write
from tracekit._journal.reader import Limits, scan
from tracekit._reality import system
from tracekit.errors import RunNotFoundError, TraceIntegrityError, TraceVersionError
from tracekit.integration import Trace


def _documented_verify() -> object:
    """The verifier that docs/reference/trace-format.md shows."""
    page = Path(__file__).parents[2] / "docs/reference/trace-format.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    return names["verify"]


def test_a_sealed_run_verifies(tmp_path: Path) -> None:
    """A run that ended cleanly is complete: count, head, end and run id are told, and every entry comes back as written."""
    path = write(tmp_path / "a.jsonl", small_run())
    with Trace(path) as trace:
        verdict = trace.check()
        assert (verdict.state, verdict.count, verdict.end, verdict.run_id) == ("complete", 8, "run.completed", RUN)
        assert verdict.head == json.loads(path.read_bytes().splitlines()[-1])["hash"]
        assert list(trace.entries()) == [json.loads(line) for line in path.read_bytes().splitlines()]
        assert [trace.entry(seq) for seq in (8, 1, 4)] == [list(trace.entries())[i] for i in (7, 0, 3)]
        assert [trace.hash_of(seq) for seq in (0, 8)] == ["0" * 64, verdict.head]
        assert len(trace) == 8


def test_a_run_without_end_is_unsealed(tmp_path: Path) -> None:
    """A run without an end verifies and is incomplete, never complete; so is an empty file."""
    assert Trace(write(tmp_path / "a.jsonl", small_run(end=False))).status.state == "incomplete"
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    verdict = Trace(empty).status
    assert (verdict.state, verdict.count) == ("incomplete", 0)
    assert "no entries" in str(verdict.problem)


def test_the_documented_verifier_agrees(tmp_path: Path) -> None:
    """The verifier that the format's page shows gives the same answers as tracekit."""
    verify = _documented_verify()
    assert callable(verify)
    complete = write(tmp_path / "a.jsonl", small_run())
    assert verify(complete) == ("complete", 8)
    assert verify(write(tmp_path / "b.jsonl", small_run(end=False))) == ("incomplete", 7)
    complete.write_bytes(complete.read_bytes()[:-3])
    assert verify(complete) == ("torn", 7)
    complete.write_bytes(complete.read_bytes().replace(b'"to":"a"', b'"to":"b"'))
    with pytest.raises(AssertionError, match="line 5"):
        verify(complete)


def test_a_missing_trace_is_not_an_empty_one(tmp_path: Path) -> None:
    """Where there is no file the answer is RunNotFoundError, from every door."""
    for path in (tmp_path / "no.jsonl", tmp_path / "no" / "no.jsonl"):
        with pytest.raises(RunNotFoundError):
            Trace(path)
        with pytest.raises(RunNotFoundError):
            list(scan(path))


@pytest.mark.parametrize("torn", [b'{"v":1,"seq":9,"run', b"\0" * 4096, b'{"v":1}', b"\0" * 10 + b'"hash'])
def test_a_torn_tail_is_left_out(tmp_path: Path, torn: bytes) -> None:
    """Whatever stands after the last newline is reported and left out; all before it is readable and the run incomplete."""
    path = write(tmp_path / "a.jsonl", small_run())
    path.write_bytes(path.read_bytes() + torn)
    trace = Trace(path)
    verdict = trace.check()
    assert (verdict.state, verdict.count, verdict.torn_bytes, verdict.line) == ("incomplete", 8, len(torn), 9)
    assert len(list(trace.entries())) == 8
    assert trace.end_of(8) == path.stat().st_size - len(torn)


def test_damage_names_the_line(tmp_path: Path) -> None:
    """A complete line that does not verify is damage, at the end too, and the error names file and line."""
    whole = lines(small_run())
    for number in range(1, len(whole) + 1):
        changed = [*whole]
        changed[number - 1] = changed[number - 1].replace(b'"lane":0', b'"lane":1')
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"".join(changed))
        with pytest.raises(TraceIntegrityError, match=f"line {number} ") as caught:
            Trace(path).check()
        assert (caught.value.__dict__["line"], caught.value.__dict__["path"]) == (number, str(path))
        verdict = Trace(path).status
        assert (verdict.state, verdict.line, verdict.last_good_seq) == ("broken", number, number - 1)


def test_entries_up_to_the_damage(tmp_path: Path) -> None:
    """Iterating over a damaged trace raises at the damage, and only who asks for it gets the good beginning."""
    path = write(tmp_path / "a.jsonl", small_run())
    path.write_bytes(path.read_bytes().replace(b'"output":true', b'"output":null'))
    found = []
    with pytest.raises(TraceIntegrityError, match="line 6"):
        found.extend(each["seq"] for each in Trace(path).entries())
    assert [each["seq"] for each in Trace(path).entries(damaged=True)] == [1, 2, 3, 4, 5]
    with pytest.raises(IndexError):
        Trace(path).entry(6)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"seq": 9}, "should be entry 3"),
        ({"seq": True}, "wrong type|should be"),
        ({"run_id": "other"}, "belongs to run"),
        ({"ts_ns": 5}, "dated before"),
        ({"ts_ns": "5"}, "wrong type"),
        ({"ts_ns": 1.76e18}, "wrong type"),
        ({"parent": 3}, "no earlier entry"),
        ({"parent": 0}, "no earlier entry"),
        ({"parent": "1"}, "no earlier entry"),
        ({"step": 99}, "no earlier entry"),
        ({"step": True}, "no earlier entry"),
        ({"lane": -1}, "wrong type"),
        ({"type": 5}, "wrong type"),
        ({"v": 2}, "version 2"),
        ({"v": "1"}, "version '1'"),
        ({"v": True}, "version True"),
    ],
)
def test_a_chain_that_holds_is_not_enough(tmp_path: Path, fields: dict[str, object], problem: str) -> None:
    """Entries that are chained right but numbered, dated or referred wrongly are damage as well."""
    entries = small_run()
    entries[2] = {**entries[2], **fields}
    with pytest.raises(TraceIntegrityError, match=problem) as caught:
        Trace(write(tmp_path / "a.jsonl", entries)).check()
    assert caught.value.__dict__["line"] == 3


def test_the_end_counts(tmp_path: Path) -> None:
    """An end that names another number of entries is damage; one that names none seals nothing."""
    entries = small_run(end=False)
    wrong = [*entries, entry("run.completed", meta={"count": 9})]
    assert Trace(write(tmp_path / "a.jsonl", wrong)).status.state == "broken"
    bare = [*entries, entry("run.completed")]
    assert Trace(write(tmp_path / "b.jsonl", bare)).status.state == "incomplete"


def test_a_newer_version_is_told(tmp_path: Path) -> None:
    """A trace of a newer major version is refused as such, whether or not its chain is ours."""
    path = write(tmp_path / "a.jsonl", small_run(), v=2)
    for data in (path.read_bytes(), path.read_bytes().replace(b'"hash":"', b'"link":"')):
        path.write_bytes(data)
        with pytest.raises(TraceVersionError, match="version 2"):
            Trace(path).check()


def test_a_newer_minor_version_is_kept(tmp_path: Path) -> None:
    """Unknown types and keys of a later minor version are chained, kept and shown."""
    entries = small_run()
    entries.insert(3, entry("future.thing", colour="blue", meta={"new": [1]}))
    entries[4]["step"] = 3
    entries[-1]["meta"]["count"] += 1
    entries[6].update(parent=6, step=6)
    trace = Trace(write(tmp_path / "a.jsonl", entries))
    assert trace.check().state == "complete"
    assert trace.entry(4)["colour"] == "blue"


def test_the_order_of_keys_does_not_matter(tmp_path: Path) -> None:
    """A trace whose keys stand in another order, ``hash`` apart, verifies."""
    previous, written = "0" * 64, []
    for line in lines(small_run()):
        whole = json.loads(line)
        del whole["hash"]
        line, previous = chained(dict(sorted(whole.items(), reverse=True)), previous)
        written.append(line)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(written))
    assert Trace(path).check().state == "complete"


# -- lost tails --------------------------------------------------------------------------------------------------------


def _holed(path: Path, entries: list[dict[str, object]], line: int) -> Trace:
    """A file in which a power loss left zeros in one line and whole lines after it."""
    written = lines(entries)
    written[line - 1] = b"\0" * (len(written[line - 1]) - 1) + b"\n"
    path.write_bytes(b"".join(written))
    return Trace(path)


def test_a_lost_tail_is_broken_and_told_apart(tmp_path: Path) -> None:
    """Damage with no effect and no end among it is marked as a lost tail, and stays damage."""
    entries = small_run(end=False, effects=False)
    verdict = _holed(tmp_path / "a.jsonl", entries, 3).status
    assert (verdict.state, verdict.lost_tail, verdict.last_good_seq) == ("broken", True, 2)
    with pytest.raises(TraceIntegrityError):
        Trace(tmp_path / "a.jsonl").check()


@pytest.mark.parametrize(
    "late",
    [
        entry("tool.call", name="pay", input={}, meta={"side_effect": "irreversible"}),
        entry("tool.call", name="book", input={}, meta={"version": 1, "side_effect": "reversible"}),
        entry("tool.call", name="unknown", input={}),
        entry("http.request", name="POST", input={}),
        entry("run.completed", meta={"count": 8}),
    ],
)
def test_damage_before_an_effect_is_no_lost_tail(tmp_path: Path, late: dict[str, object]) -> None:
    """If an effect's intention (or the end) comes after the first wrong line, it had been synced: that is damage, not power loss."""
    entries = [*small_run(end=False, effects=False), late]
    assert not _holed(tmp_path / "a.jsonl", entries, 3).status.lost_tail


def test_no_promise_no_lost_tail(tmp_path: Path) -> None:
    """A run recorded with durability "none" promised nothing of its effects: no damage in it is called harmless."""
    entries = small_run(end=False, effects=False)
    entries[0]["meta"] = {"durability": "none"}
    assert not _holed(tmp_path / "a.jsonl", entries, 3).status.lost_tail


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_line_over_the_limit(tmp_path: Path) -> None:
    """A line over the limit is refused by its number without being read whole; a torn tail of any length is only torn."""
    entries = small_run(end=False)
    entries[3]["output"] = "x" * 5000
    path = write(tmp_path / "a.jsonl", entries)
    assert Trace(path).check().count == 7
    small = Limits(line=1000)
    with pytest.raises(TraceIntegrityError, match="line 4 is longer than 1000"):
        Trace(path, small).check()
    path = write(tmp_path / "b.jsonl", small_run(end=False))
    path.write_bytes(path.read_bytes() + b"\0" * 3_000_000)
    verdict = Trace(path, small).check()
    assert (verdict.count, verdict.torn_bytes) == (7, 3_000_000)


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("[" * 290 + "]" * 290, True),
        ("[" * 350 + "]" * 350, False),
        ('{"a":' * 350 + "1" + "}" * 350, False),
        ('[{"a":' * 170 + "1" + "}]" * 170, False),
        (json.dumps("[" * 5000 + '"\\"[{'), True),
        ("[" + ",".join(["[]"] * 5000) + "]", True),
        ("[" * 5000 + "]" * 5000, False),
    ],
)
def test_nesting_is_bounded(tmp_path: Path, value: str, right: bool) -> None:
    """Values deeper than 300 levels are refused by line before they are parsed; brackets in strings and side by side are none."""
    entries = small_run(end=False)
    entries[3]["output"] = "PLACE"
    path = tmp_path / "a.jsonl"
    previous, written = "0" * 64, []
    from tests.support.plain_writer import chained_raw

    for line in lines(entries):
        body = line[:-76].replace(b'"PLACE"', value.encode())
        line, previous = chained_raw(body, previous)
        written.append(line)
    path.write_bytes(b"".join(written))
    if right:
        assert Trace(path).check().count == 7
    else:
        with pytest.raises(TraceIntegrityError, match="line 4 nests deeper than 300"):
            Trace(path).check()


def test_a_line_of_empty_lists_cannot_exhaust_memory(tmp_path: Path) -> None:
    """A line that would take many times its length in memory is refused before it is parsed."""
    entries = small_run(end=False)
    entries[3]["output"] = [[]] * 200_000
    path = write(tmp_path / "a.jsonl", entries)
    assert Trace(path).check().count == 7
    with pytest.raises(TraceIntegrityError, match="line 4 would take too much memory"):
        Trace(path, Limits(expanded=4 << 20)).check()


@pytest.mark.parametrize("body", [b"[1,2]", b"5", b'"text"', b'{"v":1', b"\xff\xfe", b"{}"])
def test_a_chained_line_that_is_no_entry(tmp_path: Path, body: bytes) -> None:
    """A line that is chained right and is not a JSON object, or holds none of the keys, is damage by line."""
    from tests.support.plain_writer import chained_raw

    path = tmp_path / "a.jsonl"
    path.write_bytes(chained_raw(body, "0" * 64)[0])
    with pytest.raises(TraceIntegrityError, match="line 1"):
        Trace(path).check()


def test_an_entry_changed_while_it_is_read(tmp_path: Path) -> None:
    """Random access checks each entry against its hash again: a file exchanged under the reader is told."""
    path = write(tmp_path / "a.jsonl", small_run())
    trace = Trace(path)
    trace.check()
    with path.open("r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data.replace(b'"to":"a"', b'"to":"b"'))
    with pytest.raises(TraceIntegrityError, match="line 5 was changed"):
        trace.entry(5)


def test_entries_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small entries that are asked for in order take one read of the file; in any order they are the same."""
    path = write(tmp_path / "a.jsonl", small_run())
    whole = [json.loads(line) for line in path.read_bytes().splitlines()]
    reads: list[int] = []

    def pread(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return os.pread(fd, size, at)

    with Trace(path) as trace:
        trace.check()
        monkeypatch.setattr(system, "pread", pread)
        assert [trace.entry(seq) for seq in range(2, len(whole) + 1)] == whole[1:]
        assert len(reads) == 1
        assert [trace.entry(seq) for seq in range(len(whole), 0, -1)] == whole[::-1]
