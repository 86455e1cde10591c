"""The store: names that stay in it, one writer a file, heads, segments."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path

import pytest

from tests.support.plain_writer import RUN, entry, lines, small_run, write
from tests.support.processes import python
from tracekit._journal import store as journal_store
from tracekit._journal.store import live_writer, new_run_id, segment_of
from tracekit._journal.tip import read_tip
from tracekit.errors import LogWriteError, RunNotFoundError, RunStateError, TraceIntegrityError
from tracekit.integration import Store, Trace, segments_beside, valid_run_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def _put(store: Store, run_id: str = RUN, entries: list[dict[str, object]] | None = None) -> Path:
    return write(Path(store.path(run_id)), small_run() if entries is None else entries, run_id=run_id)


def _mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_run_ids_are_ordered_uuids() -> None:
    """Run ids are version 7 UUIDs, each greater than the one before in its process."""
    ids = [new_run_id() for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert {uuid.UUID(run_id).version for run_id in ids} == {7}
    assert {uuid.UUID(run_id).variant for run_id in ids} == {uuid.RFC_4122}
    assert all(valid_run_id(run_id) for run_id in ids)


@pytest.mark.parametrize(
    "run_id",
    [
        *["a.jsonl", "a.0123456789abcdef", "a\\b", "１"],
        "",
        ".",
        "..",
        "../a",
        "a/b",
        "/nonexistent/a",
        "a..b",
        "-a",
        "_a",
        ".a",
        "a\0",
        "a\n",
        "ä",
        "a b",
        "a" * 129,
    ],
)
def test_a_run_id_cannot_leave_the_directory(store: Store, run_id: str) -> None:
    """An id that is no safe file name of a run is refused wherever a file would be made of it."""
    for use in (store.path, store.create):
        with pytest.raises(RunStateError, match="can't be a run id"):
            use(run_id)
    with pytest.raises(RunNotFoundError):
        store.find(run_id)
    assert not os.path.exists(store.root)


def test_the_store_is_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, else TRACEKIT_DIR, else .tracekit of the directory at that moment."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "there"))
    assert Store().root == str(tmp_path / "there")
    assert Store(tmp_path / "here").root == str(tmp_path / "here")
    monkeypatch.delenv("TRACEKIT_DIR")
    monkeypatch.chdir(tmp_path)
    found = Store()
    monkeypatch.chdir("/")
    assert found.root == str(tmp_path / ".tracekit")


# -- finding -----------------------------------------------------------------------------------------------------------


def test_a_run_is_found(store: Store) -> None:
    """By id, by a beginning that only one id has, and by path."""
    paths = {run_id: str(_put(store, run_id)) for run_id in ("alpha-1", "alpha-2", "beta")}
    assert store.find("alpha-2") == paths["alpha-2"]
    assert store.find("b") == paths["beta"]
    assert store.find(paths["beta"]) == paths["beta"]
    assert store.find(Path(paths["alpha-1"])) == paths["alpha-1"]


def test_a_run_that_is_not_there(store: Store, tmp_path: Path) -> None:
    """The error names the store and what comes near; a beginning that several have says which."""
    _put(store, "alpha-1"), _put(store, "alpha-2")
    with pytest.raises(RunNotFoundError, match="2 runs begin with 'alph'") as caught:
        store.find("alph")
    assert "alpha-1, alpha-2" in str(caught.value)
    with pytest.raises(RunNotFoundError, match="say which: alpha-") as caught:
        store.find("alpga-1")
    assert caught.value.__dict__["store"] == store.root
    for missing in ("", str(tmp_path / "no.jsonl"), tmp_path):
        with pytest.raises(RunNotFoundError):
            store.find(missing)
    with pytest.raises(RunNotFoundError, match=r"there is no run 'x' in .*none"):
        Store(tmp_path / "none").find("x")


def test_the_list_is_newest_first(store: Store) -> None:
    """Every run by its first and last line, the newest first; segments are none, and damage does not end the list."""
    _put(store, "old"), _put(store, "new", [{**small_run()[0], "ts_ns": 1_770_000_000_000_000_000}])
    Path(store.path("torn")).write_bytes(b'{"v":1,')
    write(Path(store.path("old", "0" * 16)), small_run(), run_id="old")
    runs = store.list()
    assert [run.run_id for run in runs] == ["new", "old", "torn"]
    assert [store.find(name) for name in ("last", "last~1", "last~2")] == [run.path for run in runs]
    with pytest.raises(RunNotFoundError, match="only 3 runs"):
        store.find("last~3")
    assert (runs[1].name, runs[1].end, runs[1].count) == ("small", "run.completed", 8)
    assert (runs[0].end, runs[0].count, runs[2].count) == (None, 1, None)
    assert Store(store.root + "-none").list() == ()


def test_the_summary_of_a_large_run(store: Store) -> None:
    """A last line of a few hundred KB is found; a torn one after it is passed over."""
    entries = small_run()
    entries[-1]["output"] = "x" * 300_000
    path = _put(store, entries=entries)
    path.write_bytes(path.read_bytes() + b'{"v":1,"seq"')
    assert store.list()[0].end == "run.completed"


# -- creating and reopening --------------------------------------------------------------------------------------------


def test_what_is_created_is_private(store: Store) -> None:
    """Directories are 0700, files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        journal = store.create()
        journal.append("run.started", 0, 0, b',"name":"x"')
        journal.close()
        store.keep_tip(journal.run_id, journal.seq, journal.head.decode())
    finally:
        os.umask(before)
    assert {_mode(path) for path in (store.root, store.runs, store.tips)} == {0o700}
    assert {_mode(path) for path in (journal.path, os.path.join(store.tips, journal.run_id))} == {0o600}
    assert os.listdir(store.tips) == [journal.run_id]


def test_a_run_is_created_once(store: Store) -> None:
    """A second run of the same id is refused and the first stays as it was; so is one through a dangling link."""
    store.create("a").close()
    with pytest.raises(RunStateError, match="already"):
        store.create("a")
    os.symlink("/nonexistent/x", store.path("b"))
    with pytest.raises(RunStateError, match="already"):
        store.create("b")


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    """Where no file can be made, the answer is LogWriteError, and says where."""
    (tmp_path / "file").touch()
    with pytest.raises(LogWriteError, match="file"):
        Store(tmp_path / "file").create()


def test_reopening_continues(store: Store) -> None:
    """Reopened, a run goes on with the next number, the same chain and times that do not go back; a torn tail is cut off."""
    path = _put(store, entries=[{**each, "ts_ns": 4_000_000_000_000_000_000} for each in small_run(end=False)])
    path.write_bytes(path.read_bytes() + b'{"torn')
    journal, verdict = store.reopen(RUN)
    assert (verdict.torn_bytes, journal.seq) == (6, 7)
    assert journal.append("recovery.started", 0, 1, b"") == 8
    journal.close()
    with Trace(path) as trace:
        assert (trace.check().count, trace.entry(8)["ts_ns"]) == (8, 4_000_000_000_000_000_000)


def test_an_empty_run_is_reopened(store: Store) -> None:
    """A run killed in its first write has no entry and is begun again in the same file."""
    path = _put(store, entries=[])
    path.write_bytes(b'{"v":1,"se')
    journal, _ = store.reopen(RUN)
    assert journal.append("run.started", 0, 0, b',"name":"x"') == 1
    journal.close()
    assert Trace(path).check().count == 1


def test_a_broken_run_is_not_reopened(store: Store) -> None:
    """Damage is never cut off unasked; a lost tail is when it is accepted, anything else never."""
    damaged = lines(small_run(end=False, effects=False), run_id=RUN)
    damaged[2] = damaged[2].replace(b"chat", b"chot")
    path = _put(store)
    path.write_bytes(b"".join(damaged))
    with pytest.raises(TraceIntegrityError, match="accept-lost-tail"):
        store.reopen(RUN)
    assert path.read_bytes() == b"".join(damaged)
    journal, verdict = store.reopen(RUN, accept_lost_tail=True)
    journal.close()
    assert verdict.lost_tail
    assert Trace(path).check().count == 2
    damaged = lines(small_run(end=False), run_id=RUN)
    damaged[2] = damaged[2].replace(b"chat", b"chot")
    path.write_bytes(b"".join(damaged))
    with pytest.raises(TraceIntegrityError):
        store.reopen(RUN, accept_lost_tail=True)


def test_a_sealed_run_has_no_lost_tail(store: Store) -> None:
    """A run whose head was kept was on the device as a whole: damage in it is never called the work of a power loss."""
    path = _put(store, entries=small_run(effects=False))
    head = Trace(path).status.head
    path.write_bytes(
        b"".join(lines(small_run(effects=False), run_id=RUN)[:7]).replace(b'"text":"hallo"', b'"text":"hollo"')
    )
    assert store.verify(RUN).lost_tail
    store.keep_tip(RUN, 8, head)
    assert not store.verify(RUN).lost_tail


def test_a_second_live_writer_is_refused(store: Store) -> None:
    """While a run is written, a second writer is refused and told by whom, in the same process and in another."""
    journal = store.create("a")
    journal.append("run.started", 0, 0, b',"name":"x"')
    code = f"from tracekit._journal.store import Store\nStore({store.root!r}).reopen('a')"
    other = python("-c", code)
    assert "RunStateError" in other.stderr
    assert f"process {os.getpid()}" in other.stderr
    with pytest.raises(RunStateError, match="this one"):
        store.reopen("a")
    journal.close()
    store.reopen("a")[0].close()


def test_who_only_looks_is_no_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long somebody reads a log to see whether it has a writer, who wants to write it waits, and is not refused."""
    journal = store.create("a")
    journal.append("run.started", 0, 0, b',"name":"x"')
    journal.close()
    looks: list[float] = []
    looking = live_writer(store.path("a"))
    assert not looking.__enter__()

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 100:
            looking.__exit__(None, None, None)

    monkeypatch.setattr(journal_store._reality, "sleep", pause)
    store.reopen("a")[0].close()
    assert len(looks) == 100


def test_a_stale_lock_never_blocks(store: Store) -> None:
    """A writer that was killed leaves no lock behind."""
    code = (
        f"import os, signal\nfrom tracekit._journal.store import Store\njournal = Store({store.root!r}).create('a')\n"
        "journal.append('run.started', 0, 0, b',\"name\":\"x\"')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = python("-c", code)
    assert killed.returncode == -9
    journal, verdict = store.reopen("a")
    assert (journal.seq, verdict.state) == (1, "incomplete")
    journal.close()


# -- kept tips (seals are in test_seals.py) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("junk", "what"),
    [
        (b"", "it is empty"),
        (b"junk", "it is not JSON"),
        (b"[]", "it holds a list, not an object"),
        (b"{}", "it has no 'run_id'"),
        (b'{"run_id":"%b","count":8,"head":"x"}' % RUN.encode(), "it has no 'kept_at'"),
        (b'{"run_id":"%b","count":"8","head":"x","kept_at":1}' % RUN.encode(), "its 'count' is text, not a number"),
        (b'{"run_id":"other","count":8,"head":"x","kept_at":1}', "is the kept tip of another run, other"),
    ],
)
def test_a_head_that_is_none(store: Store, junk: bytes, what: str) -> None:
    """A head file that holds something else (another version's, say) is reported with what it lacks and what to do, not taken for a
    missing one. The trace is not to blame."""
    path = _put(store)
    store.keep_tip(RUN, 8, Trace(path).status.head)
    kept = Path(store.tips, RUN)
    assert read_tip(str(kept)) is not None
    kept.write_bytes(junk)
    verdict = store.verify(RUN)
    assert (verdict.state, verdict.unread, verdict.last_good_seq) == ("broken", str(kept), 8)
    assert str(kept) in str(verdict.problem)
    assert what in str(verdict.problem)
    with Trace(path) as trace, pytest.raises(TraceIntegrityError, match="the trace itself verifies: remove"):
        store.check(trace)
    kept.unlink()
    assert store.verify(RUN).state == "complete"


def test_a_head_of_the_users_own(store: Store) -> None:
    """``verify(head=…)`` is right for the very run and broken for any other."""
    head = Trace(_put(store)).status.head
    assert store.verify(RUN, head=head.upper() + "\n").state == "complete"
    assert store.verify(RUN, head="0" * 64).state == "broken"


def test_files_that_were_exchanged(store: Store) -> None:
    """A file that holds another run than its name says is broken."""
    path = _put(store, "a")
    path.rename(store.path("b"))
    assert "file of run b holds run a" in str(store.verify("b").problem)
    with Trace(store.path("b")) as trace, pytest.raises(TraceIntegrityError):
        store.check(trace)


# -- segments ----------------------------------------------------------------------------------------------------------


def _family(store: Store, *, listed: bool = True, child_end: bool = True) -> tuple[Path, Path]:
    name = segment_of("/worker#1")
    parent = small_run(end=False)
    named = json.loads(lines(parent)[4])["hash"]
    child = [
        entry("run.started", name="child", cause=[{"run_id": RUN, "seq": 5, "hash": named}]),
        entry("clock", name="t", values=[1]),
    ]
    if child_end:
        child.append(entry("run.completed", meta={"count": 3}))
    child_path = write(Path(store.path(RUN, name)), child)
    with Trace(child_path) as trace:
        said = (
            {"segment": name, "count": trace.status.count, "head": trace.status.head}
            if child_end
            else {"segment": name, "open": True}
        )
    parent.append(entry("run.completed", meta={"count": 8, **({"segments": [said]} if listed else {})}))
    return _put(store, entries=parent), child_path


def test_a_segment_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments of a directory that has not changed for a while are listed once, and anew when it changes."""
    listed: list[str] = []
    listdir = os.listdir

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def listdir(self, directory: str) -> list[str]:
            listed.append(directory)
            return listdir(directory)

    monkeypatch.setattr(journal_store, "system", Counting())
    monkeypatch.setattr(journal_store, "is_past", lambda stamp: True)
    trace, other = tmp_path / "test_a[1.5].jsonl", tmp_path / "test_b.jsonl"
    trace.touch()
    other.touch()
    assert [segments_beside(str(one)) for one in (trace, other, trace)] == [(), (), ()]
    assert listed == [str(tmp_path)]
    before = os.stat(tmp_path).st_ctime_ns
    segment = tmp_path / "test_a[1.5].0123456789abcdef.jsonl"
    while os.stat(tmp_path).st_ctime_ns == before:  # the clock of a file system ticks slowly
        segment.touch()
        segment.unlink()
    segment.touch()
    while os.stat(tmp_path).st_ctime_ns == before:
        os.utime(tmp_path)
    assert segments_beside(str(trace)) == (str(segment),)
    assert segments_beside(str(other)) == ()


def test_segments_are_verified(store: Store) -> None:
    """A run is complete when its segments are, each with its state."""
    _, child = _family(store)
    verdict = store.verify(RUN)
    assert (verdict.state, [segment["state"] for segment in verdict.segments]) == ("complete", ["complete"])
    assert store.segments(RUN) == (str(child),)
    assert store.find(child.stem) == str(child)


def test_a_segment_that_is_open(store: Store) -> None:
    """A segment without an end is told as open where the run's last entry lists it so, and the run is what its own file says;
    a segment that the run's end knows nothing of makes it incomplete."""
    _family(store, listed=True, child_end=False)
    verdict = store.verify(RUN)
    assert (verdict.state, [segment["state"] for segment in verdict.segments]) == ("complete", ["incomplete"])
    assert "open" in verdict.segments[0]["problem"]
    _family(store, listed=False, child_end=False)
    assert store.verify(RUN).state == "incomplete"


def test_a_segment_of_a_segment_is_tied_to_what_started_it(store: Store) -> None:
    """A grandchild's segment carries the hash of its parent's entry, which `verify` looks up in that segment, too: another hash, an
    entry that is not there, and a parent without a file break the run."""
    _, child = _family(store)
    inner = segment_of("/worker#1/inner#1")
    hashes = [json.loads(line)["hash"] for line in child.read_bytes().splitlines()]
    for seq, told, segment, state in (
        (2, hashes[1], child.stem[-16:], "complete"),
        (2, hashes[0], child.stem[-16:], "broken"),
        (9, hashes[1], child.stem[-16:], "broken"),
        (0, hashes[1], child.stem[-16:], "broken"),
        (2, hashes[1], segment_of("/nobody#1"), "broken"),
        (2, hashes[1], "../elsewhere", "broken"),
    ):
        cause = {"run_id": RUN, "seq": seq, "hash": told, "segment": segment}
        write(
            Path(store.path(RUN, inner)),
            [entry("run.started", name="grandchild", cause=[cause]), entry("run.completed", meta={"count": 2})],
        )
        verdict = store.verify(RUN)
        (found,) = [one for one in verdict.segments if one["segment"] == inner]
        assert (found["state"], verdict.state) == (state, state)
        assert state == "complete" or "started by another entry" in found["problem"]


def test_a_segment_removed_exchanged_or_cut(store: Store) -> None:
    """A segment's file that is gone, rewritten, cut off, or started by another entry breaks its run."""
    parent, child = _family(store)
    whole = child.read_bytes()
    child.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert "differs from what the run's end says" in str(store.verify(RUN).problem)
    child.write_bytes(whole.replace(b'"child"', b'"chald"'))
    assert store.verify(RUN).state == "broken"
    child.unlink()
    assert "missing" in str(store.verify(RUN).problem)
    child.write_bytes(whole)
    other = small_run(end=False)
    other[4]["name"] = "other"
    other.append(json.loads(lines(other)[0]) and entry("run.completed", meta={"count": 8}))
    write(parent, other)
    assert "another entry" in str(store.verify(RUN).problem)


def test_a_store_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    """A run whose store is a link to a missing directory is refused with an error that names the store."""
    (tmp_path / "store").symlink_to(tmp_path / "missing" / "store")
    with pytest.raises(LogWriteError, match="store/runs"):
        Store(tmp_path / "store").create(RUN)
