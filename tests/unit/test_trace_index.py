"""Indexes of large traces: a later replay begins at once by one, and nothing is believed of a trace by it that is not so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.plain_writer import chained
from tracekit import Run, record, replay, resume, traced_tool
from tracekit._journal import indexes
from tracekit._journal.reader import Scan
from tracekit._runtime.replayer import for_replay
from tracekit.cli import main
from tracekit.errors import TraceIntegrityError
from tracekit.integration import Store, Trace

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.jsonl"))
#: The steps of the run, and what each gives: enough for an index to be worth it.
STEPS, TEXT = 9, "x" * (1 << 20)


@traced_tool(side_effect="read_only")
def page(number: int) -> str:
    return f"{number}{TEXT}"


@pytest.fixture
def run() -> Run:
    """A complete run of some 9 MB, with an index, since it was replayed."""
    with record("large", run_id="large") as run:
        read_all()
    replayed()
    assert index().exists()
    return run


def read_all() -> None:
    for number in range(STEPS):
        page(number)


def replayed() -> None:
    with replay("large") as session:
        read_all()
    assert session.report.verdict.answer == "exact"


def index() -> Path:
    return Path(os.environ["TRACEKIT_DIR"]) / "indexes" / "large"


def broken_in_replay() -> str:
    """What a replay says that comes to its first step only, where it begins at all."""
    with pytest.raises(TraceIntegrityError) as error, replay("large"):
        page(0)
    return str(error.value)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The traces that were read through since."""
    found: list[str] = []
    read = Scan._open

    def through(scan: Scan) -> object:
        found.append(os.path.basename(scan.path))
        return read(scan)

    monkeypatch.setattr(Scan, "_open", through)
    return found


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_a_later_replay_begins_without_reading_the_trace_through(run: Run, passes: list[str]) -> None:
    """The first replay keeps an index, and the next one, exact as the first, reads only the steps that it answers."""
    replayed()
    assert passes == []
    index().unlink()
    replayed()
    assert passes == ["large.jsonl"]


def test_a_trace_is_read_through_once_for_a_replay_or_a_resumption(passes: list[str]) -> None:
    """Verifying, deciding and indexing are one pass."""
    with record("large", run_id="large"):
        page(0)
        page(1)
    replay_of = Store().path("large")
    passes.clear()
    with replay("large"):
        page(0)
        page(1)
    assert passes == ["large.jsonl"]
    cut = Path(replay_of)
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:-1]))
    (cut.parent.parent / "heads" / "large").unlink()
    passes.clear()
    with resume("large"):
        page(0)
        page(1)
    assert passes == ["large.jsonl"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_an_index_says_what_reading_the_trace_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every golden trace, whatever is in it, the index gives the same as the pass that it stands for."""
    monkeypatch.setattr("tracekit._journal.reader._INDEXED", 0)
    copy = tmp_path / "runs" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    kinds = for_replay(str(path))._collect
    with for_replay(str(copy)) as first, for_replay(str(copy)) as later, Trace(copy) as plain:
        verdicts = [one.status for one in (first, later, plain)]
        assert verdicts[0] == verdicts[1] == verdicts[2]
        assert (tmp_path / "indexes" / path.stem).exists() == (verdicts[0].state == "complete")
        for kind in kinds:
            states = [one.collected(kind).state() for one in (first, later, plain)]  # type: ignore[attr-defined]
            assert states[0] == states[1] == states[2]
        assert [first.line(seq) for seq in range(1, len(first) + 1)] == [
            later.line(seq) for seq in range(1, len(later) + 1)
        ]


# -- what it is not believed -------------------------------------------------------------------------------------------


def flipped(at: float) -> Callable[[bytes], bytes]:
    """One bit changed, so far into the file."""

    def change(data: bytes) -> bytes:
        place = min(int(len(data) * at), len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return change


def without_line(number: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        del lines[number]
        return b"".join(lines)

    return change


def twice_the_end(data: bytes) -> bytes:
    return data + data.splitlines(keepends=True)[-1]


def another_answer(data: bytes) -> bytes:
    """The last answer another one of the same length, and the chain made new from there: only the kept tip says so."""
    lines = data.splitlines(keepends=True)
    previous = json.loads(lines[-4])["hash"]
    for number in (-3, -2, -1):
        entry = json.loads(lines[number])
        del entry["hash"]
        if entry["type"] == "blob":
            entry["output"] = "y" * len(entry["output"])
        lines[number], previous = chained(entry, previous)
    assert len(b"".join(lines)) == len(data)
    return b"".join(lines)


CHANGES = {
    "first line": flipped(0.0001),
    "first step": flipped(0.05),
    "middle": flipped(0.5),
    "last step": flipped(0.97),
    "last byte": flipped(1.0),
    "a line is gone": without_line(8),
    "the last lines are gone": lambda data: b"".join(data.splitlines(keepends=True)[:-3]),
    "the end twice": twice_the_end,
    "rewritten with its chain": another_answer,
}


@pytest.mark.parametrize("change", CHANGES)
def test_damage_anywhere_is_reported_with_an_index_as_without(run: Run, change: str) -> None:
    """A bit, a line or the end of a trace that was changed behind the last step of a replay is told before it begins, though the file
    has the size and the times that it had; in the same words as where there is no index."""
    path = Path(run.path)
    before = path.stat()
    path.write_bytes(CHANGES[change](path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with_index = broken_in_replay()
    index().unlink()
    assert broken_in_replay() == with_index


def test_another_trace_under_the_name_is_not_answered_by_the_index(run: Run) -> None:
    """A trace that verifies, put in the place of the one that was indexed, is replayed as it is."""
    path = Path(run.path)
    path.write_bytes(another_answer(path.read_bytes()))
    (path.parent.parent / "heads" / "large").unlink()
    with replay("large"):
        answers = [page(number) for number in range(STEPS)]
    assert answers[-2:] == [f"{STEPS - 2}{TEXT}", "y" * len(f"{STEPS - 1}{TEXT}")]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"{}\n",
        lambda data: b"null\n" + sha256(b"null\n").digest(),
        flipped(0.001),
        flipped(0.5),
        flipped(1.0),
    ],
    ids=["empty", "cut", "longer", "no index", "null", "first line", "middle", "checksum"],
)
def test_a_damaged_index_is_left_out_and_made_anew(
    run: Run, change: Callable[[bytes], bytes], passes: list[str]
) -> None:
    """A replay does not notice it but for the time that it takes, and the next one has an index again."""
    sound = index().read_bytes()
    index().write_bytes(change(sound))
    replayed()
    assert passes == ["large.jsonl"]
    assert index().read_bytes() == sound


@pytest.mark.parametrize("module", ["_journal.reader", "_runtime.index", "_runtime.places"])
def test_an_index_of_other_code_is_left_out(
    run: Run, passes: list[str], monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """What an index says goes by the code that made it: that of another version, in any part, is made anew."""
    of = indexes.fingerprint_of
    monkeypatch.setattr(
        "tracekit._journal.indexes.fingerprint_of",
        lambda *modules: "later" if f"tracekit.{module}" in modules else of(*modules),
    )
    replayed()
    assert passes == ["large.jsonl"]
    replayed()
    assert passes == ["large.jsonl"]


def test_who_verifies_believes_no_index(run: Run) -> None:
    """Whoever writes the store can write an index that fits a trace which was changed: ``verify`` and ``audit`` read every line."""
    path = Path(run.path)
    data = index().read_bytes()
    path.write_bytes(flipped(0.5)(path.read_bytes()))
    line, _, rest = data.partition(b"\n")
    forged = {**json.loads(line), "content": sha256(path.read_bytes()).hexdigest()}
    whole = json.dumps(forged, separators=(",", ":")).encode() + b"\n" + rest[:-32]
    index().write_bytes(whole + sha256(whole).digest())
    with pytest.raises(TraceIntegrityError), replay("large"):
        read_all()  # what is answered is checked against its own hash all the same
    assert Store().verify("large").state == "broken"
    for command in ("verify", "audit"):
        assert CliRunner().invoke(main, [command, "large"]).exit_code == 1


# -- where it is -------------------------------------------------------------------------------------------------------


def test_an_index_goes_with_its_run(run: Run) -> None:
    """``rm`` leaves nothing of a run; compressing it changes nothing that the index is of."""
    assert (index().stat().st_mode & 0o777, index().parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert CliRunner().invoke(main, ["compress", "large"]).exit_code == 0
    replayed()
    assert CliRunner().invoke(main, ["rm", "large"]).exit_code == 0
    assert not index().exists()


def test_a_small_run_and_one_without_end_have_no_index() -> None:
    """An index is for what takes long to read, and does not change any more."""
    with record("small", run_id="large"):
        page(0)
    with replay("large"):
        page(0)
    assert not index().exists()
    with record("open", run_id="open") as run:
        read_all()
    path = Path(run.path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    (path.parent.parent / "heads" / "open").unlink()
    with replay("open"):
        read_all()
    assert not index().with_name("open").exists()


def test_where_no_index_can_be_written_the_replay_goes_on(run: Run, passes: list[str]) -> None:
    """A store that may only be read, or is full, costs a replay nothing but the pass."""
    index().unlink()
    index().parent.rmdir()
    index().parent.write_bytes(b"")  # no directory, for root neither
    replayed()
    replayed()
    assert passes == ["large.jsonl"] * 2
