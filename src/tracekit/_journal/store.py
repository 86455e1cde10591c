"""A directory of runs: names, files, locks, child segments and summaries."""

from __future__ import annotations

import builtins
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, runtime_checkable

import orjson

from .. import _reality
from .._lazy import NamedTuple, expression
from .._native import sha256_hex
from .._reality import open_file, system
from ..errors import LogWriteError, RunNotFoundError, RunStateError, TraceIntegrityError
from . import seals
from .durable import is_past, make_directory, sync_directory
from .entry import DEFAULT, ENDS, Limits, causes_of, meta_of, too_deep
from .tip import SEAL_KEY_VARIABLE, check_kept, check_tip_hash, seal_of, write_tip
from .vault import vault_key
from .writer import Durability, Journal

if TYPE_CHECKING:
    from .reader import Collector, Trace, Verdict

__all__ = [
    "SEGMENT",
    "SUFFIX",
    "FileName",
    "HasPath",
    "RunSummary",
    "Store",
    "before_last",
    "beside",
    "entries_of",
    "fate",
    "file_beside",
    "file_name",
    "first_entry",
    "holder",
    "holds_its_run",
    "is_segment",
    "lane_of",
    "last_entry",
    "live_writer",
    "lock",
    "new_run_id",
    "remedy_for",
    "segment_in",
    "segment_of",
    "segment_state",
    "store_named",
    "summary",
    "valid_run_id",
    "writer",
]

# -- names -------------------------------------------------------------------------------------------------------------
#
# Run ids, which sort by time and are valid file names.

#: The suffix of trace files, and the pattern of a segment's name without suffix.
SUFFIX: Final = ".jsonl"
SEGMENT: Final = expression(r"(?P<run>.+)\.(?P<segment>[0-9a-f]{16})", re.ASCII)

#: The characters of a run id.
_ID: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class _RunIds:
    """The ids of new runs: version 7 UUIDs, each greater than those before it in this process."""

    def __init__(self) -> None:
        self._lock: Final = _reality.OwnLock()
        #: 48 bits of milliseconds and 12 bits of their fraction (RFC 9562, method 3).
        self._last = 0

    def new(self) -> str:
        """Return a new run id."""
        with self._lock:
            ns = _reality.time_ns()
            tick = (ns // 1_000_000 << 12) | (ns % 1_000_000 * 4096 // 1_000_000)
            if tick <= self._last:
                tick = self._last + 1
            self._last = tick
        random_bits = int.from_bytes(_reality.urandom(8), "big") & ((1 << 62) - 1)
        text = f"{(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | random_bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


new_run_id: Final = _RunIds().new


def valid_run_id(run_id: str) -> bool:
    """Return whether a run id is a valid file name within its directory and not a segment's name."""
    return (
        0 < len(run_id) <= 128
        and run_id[0] not in "._-"
        and _ID.issuperset(run_id)
        and ".." not in run_id
        and not run_id.endswith(SUFFIX)
        and not ("." in run_id and SEGMENT.fullmatch(run_id))
    )


class FileName(NamedTuple):
    """What the name of a trace file says: the run, and the segment (``None``: the run's own file). ``stem`` is the name
    without directory and suffix."""

    stem: str
    run: str
    segment: str | None


@lru_cache(4096)
def file_name(path: str) -> FileName:
    """Return what the name of a trace file says, given its path, name or stem."""
    stem = os.path.basename(path).removesuffix(SUFFIX)
    found = SEGMENT.fullmatch(stem) if "." in stem else None
    return FileName(stem, stem, None) if found is None else FileName(stem, found["run"], found["segment"])


def holds_its_run(path: str, run_id: object) -> bool:
    """Return whether a trace file that belongs to ``run_id`` has the right name. A file outside every store may have
    any name."""
    path = os.path.abspath(path)
    return os.path.basename(os.path.dirname(path)) != "runs" or run_id in (None, file_name(path).run)


def segment_in(path: str) -> str | None:
    """Return the segment that this file holds, by its name; ``None`` for a run's own file."""
    return file_name(path).segment


def segment_of(lane_path: str) -> str:
    """Return the segment name of a child process, given its lane path: 16 hex digits."""
    return sha256_hex(lane_path.encode("utf-8", "surrogatepass"))[:16]


def _signing_key() -> seals.SigningKey | None:
    """Return the key with which runs are sealed, if the environment names one."""
    return seals.SigningKey.of() if os.environ.get(SEAL_KEY_VARIABLE) else None


def file_beside(path: str, segment: str | None) -> str:
    """Return the file of a segment (``None``: the run's own) of the run to which the file at ``path`` belongs:
    ``<stem>.<16 hex>.jsonl``."""
    path = os.path.abspath(path)
    return os.path.join(os.path.dirname(path), _stem(file_name(path).run, segment) + SUFFIX)


# -- lock --------------------------------------------------------------------------------------------------------------
#
# One live writer per file. The kernel releases the lock when its holder dies, so there are no stale locks.

#: Seconds between two attempts while readers briefly hold a shared lock (see ``live_writer``).
_APART: Final = 0.002


def lock(fd: int, path: str) -> None:
    """Take the writer's lock of the open file ``fd``, held until it is closed. Raises ``RunStateError`` if there is a
    live writer.

    A reader that checks for a writer holds a shared lock, and is waited for.
    """
    import fcntl

    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _is_written(fd, path) from None
        fcntl.flock(fd, fcntl.LOCK_UN)
        _reality.sleep(_APART)


def _is_written(fd: int, path: str) -> RunStateError:
    pid = _holder(fd)
    who = "another process" if pid is None else f"process {pid}"
    return RunStateError(
        f"{path} is being written by {who}" + (" (this one)" if pid == os.getpid() else ""),
        path=path,
        pid=pid,
        next_action="wait until that run has ended, or end that process",
    )


@_reality.off_loop()
def holder(path: str) -> int | bool:
    """Return who writes the file at ``path``: a pid, ``True`` if the system does not name it, ``False`` for nobody.
    Changes nothing.

    ``/proc/locks`` alone is not enough: it omits other containers, and layered file systems have other inode numbers
    there.
    """
    import fcntl

    fd = system.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(fd) or True
        return False
    finally:
        system.close(fd)


@contextmanager
def live_writer(path: str) -> Iterator[bool]:
    """Yield whether the file at ``path`` has a live writer; if not, nobody can become one inside the block."""
    import fcntl

    fd = system.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield True
        else:
            yield False
    finally:
        system.close(fd)


#: How often the kernel's list of locks is read for a lock known to be held; if it is never found, the holder stays
#: unnamed.
_LOCK_LIST_READS: Final = 8


def _holder(fd: int) -> int | None:
    """Return the pid that the kernel reports for the lock, if it does (Linux)."""
    about = system.fstat(fd)
    wanted = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        # The kernel returns the list in pieces: a lock released between two of them can hide another. So it is read
        # again.
        for _ in range(_LOCK_LIST_READS):
            with open_file("/proc/locks", encoding="ascii") as file:
                for line in file:
                    words = line.split()
                    if "FLOCK" in words and "->" not in words and wanted in words:
                        return int(words[words.index(wanted) - 1])
    except (OSError, ValueError):
        pass
    return None


# -- writer ------------------------------------------------------------------------------------------------------------
#
# Identifies the writer of a file, so that a copy of the file is not continued while the writer lives: the lock belongs
# to the file, and a copy has none.


@_reality.off_loop()
def writer(path: str) -> dict[str, Any] | None:
    """Describe this process as the writer of the file at ``path``, unique within this boot and distinguishing the file
    from copies.

    Returns ``None`` if the system does not identify the boot (Linux does).
    """
    process = _process(os.getpid())
    if process is None:
        return None
    found = system.stat(path)
    return {**process, "file": [found.st_dev, found.st_ino]}


@lru_cache(maxsize=1)
def _process(pid: int) -> dict[str, Any] | None:
    """This process, which has the number ``pid``, among all others."""
    boot, start = _boot(), _start_of("self")
    if boot is None or start is None:
        return None
    return {"boot": boot, "space": _pid_space(), "pid": pid, "start": start}


@_reality.off_loop()
def fate(writer: Mapping[str, Any] | None, path: str) -> Literal["ended", "alive", "unknown"]:
    """Return what became of the process described by ``writer``, given its unlocked file at ``path``.

    If this is the file that it wrote, its lock would show that it lives. For a copy, the process is looked up by pid
    and start time, which are unique within a boot. On another boot, host or container it is unknown. If nothing was
    recorded, the lock is the only evidence.
    """
    if not isinstance(writer, Mapping) or not isinstance(writer.get("boot"), str):
        return "ended"
    if writer["boot"] != _boot():
        return "unknown"
    found = system.stat(path)
    if writer.get("file") == [found.st_dev, found.st_ino]:
        return "ended"
    if writer.get("space") != _pid_space() or type(writer.get("pid")) is not int:
        return "unknown"
    pid, start = writer["pid"], _start_of(writer["pid"])
    if start is None and _hidden(pid):
        return "unknown"
    return "alive" if start is not None and start == writer.get("start") else "ended"


def _boot() -> str | None:
    try:
        with open_file("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode("ascii").strip()
    except OSError:
        return None


def _pid_space() -> str | None:
    """Return the process's pid namespace: each container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _start_of(pid: int | str) -> int | None:
    """Return when a process was started, in ticks since boot; ``None`` if it has ended or can't be examined."""
    try:
        with open_file(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(words[19]) if len(words) > 19 and words[0] not in (b"Z", b"X") else None


def _hidden(pid: int) -> bool:
    """Return whether the process exists but belongs to another user and can't be examined."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


# -- summary -----------------------------------------------------------------------------------------------------------
#
# A run at a glance, from its first and last lines, unverified.

#: How much of the end of a file is read at first, and at most.
_EDGE: Final = 64 << 10
_MOST: Final = 8 << 20


class RunSummary(NamedTuple):
    """The contents of a run's first and last line, unverified. Times in ns since the epoch, ``size`` in bytes.

    ``end`` is ``run.completed``, ``run.failed``, ``run.aborted``, or ``None`` for a run without an end.
    """

    run_id: str
    path: str
    name: str | None
    started_ns: int
    ended_ns: int | None
    end: str | None
    count: int | None  # type: ignore[assignment]  # hides tuple.count
    size: int


@_reality.off_loop()
def summary(path: str) -> RunSummary:
    """Summarise a trace file by its first and last complete lines. Never raises, whatever the file contains."""
    run_id = file_name(path).stem
    try:
        with open_file(path, "rb") as file:
            size = system.fstat(file.fileno()).st_size
            first, last = map(_parsed, _edges(file, path, size))
    except OSError:
        size, first, last = 0, {}, {}
    end = last.get("type") if last.get("type") in ENDS else None
    return RunSummary(
        run_id,
        path,
        first.get("name"),
        _whole_number(first.get("ts_ns")) or 0,
        _whole_number(last.get("ts_ns")) if end else None,
        end,
        _whole_number(last.get("seq")),
        size,
    )


@_reality.off_loop()
def first_entry(path: str) -> dict[str, Any]:
    """Return the first entry of a trace file, unverified; empty if there is none."""
    from .packing import is_packed

    with open_file(path, "rb") as file:
        return _parsed(
            _edges(file, path, system.fstat(file.fileno()).st_size)[0]
            if is_packed(file.fileno())
            else _first_line(file)
        )


@_reality.off_loop()
def last_entry(path: str) -> dict[str, Any]:
    """Return the last complete entry of a trace file, unverified; empty if there is none, or if a torn line follows."""
    from .packing import is_packed

    with open_file(path, "rb") as file:
        size = system.fstat(file.fileno()).st_size
        if is_packed(file.fileno()):
            return _parsed(_edges(file, path, size)[1])
        if size == 0 or system.pread(file.fileno(), 1, size - 1) != b"\n":
            return {}
        return _parsed(_last_line(file, size))


def entries_of(path: str, *, marked: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the entries of a trace file, unverified; invalid lines are skipped.

    With ``marked``, only lines that contain these bytes.
    """
    from .reader import open_trace

    with open_trace(path) as file:
        for line in file:
            if marked not in line:
                continue
            entry = _parsed(line) if line.endswith(b"\n") else {}
            if entry.get("type"):
                yield entry


def _edges(file: Any, path: str, size: int) -> tuple[bytes, bytes]:
    """Return the first and last complete lines; empty if there is none or it is too long for a summary."""
    from .packing import ends_of, is_packed

    if not is_packed(file.fileno()):
        return _first_line(file), _last_line(file, size)
    try:
        first, last = ends_of(file.fileno(), path, _MOST)
    except TraceIntegrityError:  # verification reports it
        return b"", b""
    line = first[: first.find(b"\n") + 1]
    return line, last if last.endswith(b"\n") else b""


def _first_line(file: Any) -> bytes:
    line: bytes = file.readline(_MOST)
    return line if line.endswith(b"\n") else b""


def _last_line(file: Any, size: int) -> bytes:
    """Return the last complete line; empty if it is too long for a summary."""
    edge = _EDGE
    while True:
        file.seek(max(0, size - edge))
        tail: bytes = file.read(edge)
        end = tail.rfind(b"\n")
        start = tail.rfind(b"\n", 0, max(end, 0)) + 1
        if end >= 0 and (start > 0 or edge >= size):
            return tail[start : end + 1]
        if edge >= min(size, _MOST):
            return b""
        edge *= 8


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        data = {} if too_deep(line, DEFAULT.depth) else orjson.loads(line or b"{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None


# -- segments ----------------------------------------------------------------------------------------------------------
#
# The files of a run's child processes: which exist, how each ends, and whether they match what the run's own file says
# about them.

_NAME: Final = expression("[0-9a-f]{16}")


@_reality.off_loop()
def beside(path: str) -> tuple[str, ...]:
    """Return the segments beside the run's file at ``path``, by name. A segment itself has none."""
    directory, name = os.path.split(os.path.abspath(path))
    if is_segment(path):
        return ()
    stem = file_name(name).stem
    try:
        facts = system.stat(directory)
        if is_past(facts.st_ctime_ns):
            known = _segments_in(directory, facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
            names = known.get(stem, [])
        else:
            start = f"{stem}."
            names = _segments(one for one in system.listdir(directory) if one.startswith(start)).get(stem, [])
    except OSError:
        return ()
    found = (os.path.join(directory, one) for one in names)
    return tuple(one for one in found if os.path.isfile(one))


def _segments(names: Iterable[str]) -> dict[str, list[str]]:
    """Return those of the names that are segments', sorted, by the run that they belong to."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        about = file_name(name)
        if about.segment is not None and about.stem != name:
            found.setdefault(about.run, []).append(name)
    return found


@lru_cache(maxsize=4)
def _segments_in(directory: str, *facts: int) -> dict[str, list[str]]:
    """Return the segments in a directory by run. ``facts`` are its state, so old that any later change shows in them.

    A test suite has hundreds of traces in one directory, and looks for the segments of each.
    """
    return _segments(system.listdir(directory))


def is_segment(path: str) -> bool:
    """Return whether a file has the name of a segment."""
    return file_name(path).segment is not None


def lane_of(first: dict[str, Any], name: str) -> str:
    """Return the lane of a segment's process, from its first entry; the segment's name if it does not say."""
    lane = meta_of(first).get("lane")
    return lane.strip("/") if isinstance(lane, str) else name


@_reality.off_loop()
def segment_state(path: str) -> dict[str, Any]:
    """Return what the run's last entry says about the segment at ``path``: where it ended, and whether it was still
    open."""
    from .reader import Trace

    with Trace(path) as trace:
        verdict = trace.status
    about: dict[str, Any] = {"segment": segment_in(path)}
    if verdict.state != "complete":
        about["open"] = True
    if verdict.state == "complete" or verdict.count:
        about.update(count=verdict.count, head=verdict.head)
    return about


@_reality.off_loop()
def with_segments(trace: Trace, verdict: Verdict, judge: Callable[[Trace], Verdict]) -> Verdict:
    """Return the verdict on a run whose own file has ``verdict``, with its segments as judged by ``judge``; each gets a
    ``state``."""
    listed = {str(segment.get("segment")): segment for segment in verdict.segments}
    for path in beside(trace.path):
        listed.setdefault(str(segment_in(path)), {"unlisted": True})
    judged = []
    for name, stated in sorted(listed.items()):
        state, problem = _judged(trace, file_beside(trace.path, name), name, stated, judge)
        left_open = state == "incomplete" and bool(stated.get("open"))
        if left_open:  # the run's last entry says so itself: it is as it was
            problem = f"open: its process had not ended it when the run ended ({problem})"
        judged.append({"segment": name, **stated, "state": state, "problem": problem})
        ended_open = state == "incomplete" and verdict.state == "complete" and not left_open
        if verdict.state != "broken" and (state == "broken" or ended_open):
            verdict = verdict._replace(state=state, problem=f"segment {name}: {problem}", line=None, lost_tail=False)
    return verdict._replace(segments=tuple(judged))


def _judged(
    parent: Trace, path: str, name: str, stated: dict[str, Any], judge: Callable[[Trace], Verdict]
) -> tuple[Any, str | None]:
    """Return state and problem of one segment, compared with what the run's last entry says about it."""
    from .reader import Trace

    if not _NAME.fullmatch(name):
        return "broken", "its name is none"
    try:
        trace = Trace(path, parent.limits)
    except RunNotFoundError:
        return "broken", "its file is missing"
    with trace:
        verdict = judge(trace)
        if verdict.state == "broken":
            return "broken", f"line {verdict.line}: {verdict.problem}" if verdict.line else verdict.problem
        if verdict.run_id not in (None, parent.status.run_id):
            return "broken", f"it belongs to run {verdict.run_id}"
        count = stated.get("count")
        if type(count) is int and (verdict.count < count or trace.hash_of(count) != stated.get("head")):
            return "broken", _otherwise(verdict.count, count, stated)
        first = trace.entry(1) if verdict.count else {}
        meta = first.get("meta")
        if isinstance(meta, dict) and meta.get("segment", name) != name:
            return "broken", f"it holds segment {meta['segment']}: it is a copy, or was renamed"
        if not _linked(parent, first):
            return "broken", "it was started by another entry than the one it names"
        return verdict.state, verdict.problem


def _otherwise(found: int, count: int, stated: dict[str, Any]) -> str:
    what = "it is empty" if not found else f"its last {count - found} of {count} entries were cut off"
    return f"it differs from what the run's end says: {count} entries with tip hash {stated.get('head')}" + (
        f"; {what}" if found < count else ""
    )


def _linked(parent: Trace, first: dict[str, Any]) -> bool:
    """Return whether the entry that a segment names as its origin, in the run's own file or another segment, has the
    hash it states."""
    from .reader import Trace

    for cause in causes_of(first):
        if "hash" not in cause:
            continue
        segment = cause.get("segment")
        if segment is None:
            return _has(parent, cause)
        if not (isinstance(segment, str) and _NAME.fullmatch(segment)):
            return False
        try:
            with Trace(file_beside(parent.path, segment), parent.limits) as trace:
                return _has(trace, cause)
        except (RunNotFoundError, TraceIntegrityError):
            return False
    return True


def _has(trace: Trace, cause: Mapping[str, Any]) -> bool:
    seq = cause["seq"]
    return bool(0 < seq <= trace.status.count and trace.hash_of(seq) == cause["hash"])


# -- cuts --------------------------------------------------------------------------------------------------------------
#
# Bytes that recovery cuts off the end of a file are kept beside it: ``<the trace's name without .jsonl>.cut-<offset>``.

_PIECE: Final = 1 << 20


def keep_cut(fd: int, path: str, offset: int) -> str:
    """Copy the content of the open file ``fd`` at ``path`` from ``offset`` on; return the copy's path. On the device on
    return.

    Bytes that were copied already (by a process that died before it cut them) are not copied twice. Other bytes cut off
    earlier at the same offset are kept; the new copy then gets a number.
    """
    base = f"{path.removesuffix(SUFFIX)}.cut-{offset}"
    kept, number = base, 1
    while _reality.there(kept):
        if _same(fd, offset, kept):
            break
        number += 1
        kept = f"{base}.{number}"
    else:
        _copy(fd, offset, kept)
    sync_directory(os.path.dirname(path))
    return kept


def _copy(fd: int, offset: int, kept: str) -> None:
    temporary = f"{kept}.{_reality.urandom(8).hex()}.tmp"
    out = system.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            while piece := system.pread(fd, _PIECE, offset):
                offset += system.write(out, piece)
            _reality.fdatasync(out)
        finally:
            system.close(out)
        system.rename(temporary, kept)
    except BaseException:
        system.unlink(temporary)
        raise


def _same(fd: int, offset: int, kept: str) -> bool:
    with open_file(kept, "rb") as file:
        while True:
            old = file.read(_PIECE)
            if old != system.pread(fd, max(len(old), 1), offset):
                return False
            if not old:
                return True
            offset += len(old)


# -- runs --------------------------------------------------------------------------------------------------------------
#
# The store, a directory of runs: find, list, create, reopen, seal, verify.
#
# ::
#
#     .tracekit/                              0700; ``TRACEKIT_DIR`` names another
#         .gitignore                          ``*``
#         runs/<run_id>.jsonl                 0600; one file per run
#         runs/<run_id>.<16 hex>.jsonl        one for each child process that joined the run (a segment)
#         runs/<run_id>.cut-<offset>          bytes that recovery cut off at that offset, see ``cuts``
#         heads/<run_id>                      the last hash of the run, see ``tip``
#         secret                              0600; the secret of the keys, see ``keys``
#         keys/<64 hex>                       0600; one file per call that happens once in the whole store
#         keys/<64 hex>.settled               0600; a person's statement about that call after its run had ended


@_reality.off_loop()
def shown_as(path: str) -> str:
    """Return how to name the run in this file in a command, here and now: its id if that finds it, else the path."""
    import shlex

    store = os.path.abspath(store_named(None))
    here = os.path.dirname(os.path.abspath(path)) == os.path.join(store, "runs")
    return file_name(path).stem if here and path.endswith(SUFFIX) else shlex.quote(os.path.abspath(path))


#: What to do about a run that is not in the store: if the store has others, and if it has none.
_OF_OTHERS: Final = "`tracekit list` shows the runs of a store; --store or TRACEKIT_DIR names another"
_OF_NONE: Final = (
    "`tracekit run SCRIPT` records one; go to the directory that your program runs in, or name its store with "
    "--store or TRACEKIT_DIR"
)
_URL: Final = expression(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(text: object) -> bool:
    """Return whether a store or run is named by a URL."""
    # Most are paths, for which nothing has to be compiled.
    return isinstance(text, str) and "://" in text and _URL.match(text) is not None


def store_named(store: str | os.PathLike[str] | None) -> str:
    """Return the directory or URL of the store that is meant: ``store``, else ``TRACEKIT_DIR``, else ``.tracekit``."""
    return os.fspath(store or os.environ.get("TRACEKIT_DIR") or ".tracekit")


#: The newest run, or an earlier one.
_LAST: Final = expression(r"last(?:~([0-9]{1,9}))?")


def before_last(run: str) -> int | None:
    """Return how many runs before the newest one ``last`` or ``last~2`` means; ``None`` for any other name."""
    found = _LAST.fullmatch(run)
    return None if found is None else int(found[1] or 0)


@runtime_checkable
class HasPath(Protocol):
    """An object with the path of a run's file: a ``Run``, a ``TraceWriter``."""

    @property
    def path(self) -> str: ...


class Store:
    """A directory of runs: ``root``, or ``TRACEKIT_DIR``, or ``.tracekit`` in the current directory.

    With ``file``, a run created here goes to that file and its segments lie beside it. What runs share (the secret,
    keys) stays in ``root``; the tip hash of such a run is not kept.

    Examples:
        >>> from tracekit import record
        >>> from tracekit.integration import Store
        >>> with record("support") as run:
        ...     pass
        >>> store = Store()
        >>> store.find("last") == run.path
        True
        >>> store.verify("last").state
        'complete'
    """

    @_reality.off_loop()
    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, file: str | os.PathLike[str] | None = None
    ) -> None:
        named = store_named(root)
        #: With which the run that was created last is sealed.
        self._key: seals.SigningKey | None = None
        self.file: Final = None if file is None else os.path.abspath(file)
        self._url: Final = named if is_url(named) else None
        if self._url is None:
            self.root: Final = os.path.abspath(named)
            self.runs: Final = os.path.join(self.root, "runs") if self.file is None else os.path.dirname(self.file)
            self.tips: Final = os.path.join(self.root, "heads")

    @classmethod
    def at(cls, store: str | os.PathLike[str] | Store | None) -> Store:
        """Return the store that a caller means: a directory, a ``Store``, or ``None`` for the default one."""
        return store if isinstance(store, Store) else cls(store)

    @classmethod
    @_reality.off_loop()
    def of(cls, path: str) -> Store:
        """Return the store that a trace file is in; for a file outside of any store: an empty one."""
        runs = os.path.dirname(os.path.abspath(path))
        return cls(os.path.dirname(runs) if os.path.basename(runs) == "runs" else runs)

    def __getattr__(self, name: str) -> NoReturn:
        """A store at a URL has no directories here: only runs that are named by their paths can be read with it."""
        if name not in ("root", "runs", "tips"):
            raise AttributeError(name)
        raise RunStateError(
            f"{self._url} is a URL, which is only read: a store in which runs are recorded or changed is a directory",
            next_action="record into a directory and copy it to the URL, or copy the store here first",
        )

    def __repr__(self) -> str:
        root = self._url or self.root
        return f"<Store {root}>" if self.file is None else f"<Store {root}, {self.file}>"

    # -- names ---------------------------------------------------------------------------------------------------------

    def path(self, run_id: str, segment: str | None = None) -> str:
        """Return the file of a run (or segment), existing or not. Raises ``RunStateError`` for an id that is not a
        valid file name."""
        if not valid_run_id(run_id):
            raise RunStateError(
                f"{run_id!r} can't be a run id",
                next_action="use letters, digits, '.', '_' and '-', 128 at most, a letter or digit first, no '..'",
            )
        if self.file is not None:
            return file_beside(self.file, segment)
        return os.path.join(self.runs, _stem(run_id, segment) + SUFFIX)

    @_reality.off_loop()
    def find(self, run: str | os.PathLike[str]) -> str:
        """Return the file of a run, named by id, unique prefix of an id, path, or as ``last``, ``last~1`` (the newest,
        the one before it) …

        Raises ``RunNotFoundError``, with what exists instead.
        """
        if isinstance(run, str) and (before := before_last(run)) is not None:
            return self._newest(before)
        if not isinstance(run, str) or os.sep in run or (run.endswith(SUFFIX) and _reality.there(run)):
            return _existing(os.fspath(run), self._url or self.root)
        stems = self._stems()
        if run in stems:
            return os.path.join(self.runs, run + SUFFIX)
        ids = [stem for stem in stems if not is_segment(stem)]
        matches = [run_id for run_id in ids if run and run_id.startswith(run)]
        if len(matches) == 1:
            return os.path.join(self.runs, matches[0] + SUFFIX)
        raise self._missing(run, ids, sorted(matches))

    def _newest(self, before: int) -> str:
        runs = self.list()
        if before < len(runs):
            return runs[before].path
        count = {0: "there is no run", 1: "there is only one run"}.get(len(runs), f"there are only {len(runs)} runs")
        raise RunNotFoundError(
            f"{count} in {self.root}",
            store=self.root,
            next_action=_OF_OTHERS if runs else _OF_NONE,
        )

    def segments(self, run_id: str) -> tuple[str, ...]:
        """Return the files of a run's segments."""
        return beside(self.path(run_id))

    @_reality.off_loop()
    def list(self) -> tuple[RunSummary, ...]:
        """Return a summary of every run, newest first, from its first and last line."""
        paths = (os.path.join(self.runs, stem + SUFFIX) for stem in self._stems() if not is_segment(stem))
        return tuple(sorted(map(summary, paths), key=lambda run: (run.started_ns, run.run_id), reverse=True))

    @_reality.off_loop()
    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return the file of every run, ordered by id (oldest first, unless ids were chosen), and those of its
        segments."""
        runs: dict[str, tuple[str, ...]] = {}
        for stem in sorted(self._stems()):  # a run comes before its segments
            path, run = os.path.join(self.runs, stem + SUFFIX), os.path.join(self.runs, file_name(stem).run + SUFFIX)
            if path == run:
                runs[path] = ()
            elif run in runs:
                runs[run] += (path,)
        return runs

    @contextmanager
    def files(self, *runs: str | os.PathLike[str] | HasPath) -> Iterator[builtins.list[Trace]]:
        """Open and verify every file of these runs (ids, paths, ``Run`` objects): each run's own file, then those of
        its child processes."""
        from .reader import Trace

        with ExitStack() as stack:
            found: dict[str, Trace] = {}

            def open_one(path: str) -> None:
                real = os.path.realpath(path)
                if real not in found:
                    found[real] = trace = stack.enter_context(Trace(path))
                    self.check(trace)

            for run in runs:
                path = self.find(run.path if isinstance(run, HasPath) else run)
                open_one(path)
                run_id = found[os.path.realpath(path)].check().run_id
                if isinstance(run_id, str) and os.path.realpath(path) == os.path.realpath(self.path(run_id)):
                    for segment in self.segments(run_id):
                        open_one(segment)
            yield [*found.values()]

    @_reality.off_loop()
    def no_files(self) -> tuple[str, ...]:
        """Return the paths with the name of a run that are not files: pipes, directories, dangling links."""
        try:
            with system.scandir(self.runs) as files:
                return tuple(sorted(file.path for file in files if file.name.endswith(SUFFIX) and not _is_file(file)))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def _stems(self) -> set[str]:
        """Return the names of run files. Pipes and directories are skipped, so that nothing blocks on them."""
        try:
            with system.scandir(self.runs) as files:
                return {file.name[: -len(SUFFIX)] for file in files if file.name.endswith(SUFFIX) and _is_file(file)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def _missing(self, run: str, ids: Sequence[str], matches: Sequence[str]) -> RunNotFoundError:
        if not run:
            what, near = "the name of the run is empty: an unset variable?", []
        elif matches:
            what, near = f"{len(matches)} runs begin with {run!r} in {self.root}", [*matches[:5]]
        else:
            from difflib import get_close_matches

            what, near = f"there is no run {run!r} in {self.root}", get_close_matches(run, ids, 3)
            if "." in run:
                what = f"there is no file {run} here, and no run of that name in {self.root}"
        if near:
            next_action = "say which: " + ", ".join(near)
        else:
            next_action = _OF_OTHERS if ids else _OF_NONE
        return RunNotFoundError(what, store=self.root, run=run, close=near, next_action=next_action)

    # -- writing -------------------------------------------------------------------------------------------------------

    @_reality.off_loop()
    def create(
        self,
        run_id: str | None = None,
        *,
        segment: str | None = None,
        durability: Durability = "effects",
        encode_read: Callable[[Any], bytes] | None = None,
    ) -> Journal:
        """Create the journal of a new run, or of a new segment: 0600, locked, its directory synced.

        Raises ``RunStateError`` if the run exists, and ``LogWriteError`` if the store can't be written.
        """
        run_id = new_run_id() if run_id is None else run_id
        path = self.path(run_id, segment)
        if self.file is not None and segment is None:
            self._check_file(self.file)
        if _reality.there(seal := seal_of(path), link=True) and not _reality.there(path, link=True):
            raise RunStateError(
                f"there is a seal {seal} of a trace that is gone: it would be taken for one of this run",
                run_id=run_id,
                next_action="remove it, or name another file",
            )
        # An unreadable key is an error now, not only when the run is complete; and by then the program may have left the
        # directory from which the key is named, or emptied its environment.
        self._key = _signing_key()
        vault_key()
        try:
            self._make(self.runs, durability != "none")
        except OSError as error:
            raise _unwritable(path, run_id, error) from error
        try:
            fd = system.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except FileExistsError:
            raise self._exists_already(path, run_id, segment) from None
        except OSError as error:
            raise _unwritable(path, run_id, error) from error
        try:
            lock(fd, path)
            if durability != "none":
                sync_directory(self.runs)
        except OSError as error:
            system.close(fd)
            raise _unwritable(path, run_id, error) from error
        except BaseException:
            system.close(fd)
            raise
        more: dict[str, Any] = {} if encode_read is None else {"encode_read": encode_read}
        return Journal(fd, path, run_id, durability=durability, root=self.root, **more)

    def _exists_already(self, path: str, run_id: str, segment: str | None) -> RunStateError:
        if self.file is not None:
            return RunStateError(
                f"there is a file {path} already",
                run_id=run_id,
                next_action="name another file, or remove this one (it is a recorded run) to record it again",
            )
        return RunStateError(
            f"there is a run {_stem(run_id, segment)} in {self.root} already",
            run_id=run_id,
            next_action="choose another run id",
        )

    @staticmethod
    def _check_file(path: str) -> None:
        name = os.path.basename(path)
        if not name.endswith(SUFFIX) or name == SUFFIX or is_segment(name):
            raise RunStateError(
                f"{path} can't be the file of a run",
                next_action="name it ….jsonl (one that ends in 16 hexadecimal digits before that is of a child process)",
            )

    @_reality.off_loop()
    def reopen(
        self,
        run: str | os.PathLike[str],
        *,
        durability: Durability = "effects",
        encode_read: Callable[[Any], bytes] | None = None,
        accept_lost_tail: bool = False,
        collect: Sequence[type[Collector]] = (),
        check: Callable[[Trace, Verdict], None] | None = None,
    ) -> tuple[Journal, Verdict]:
        """Reopen the journal of an existing run to continue it; return it with the verdict on what was found.

        A torn last line is cut off, a lost tail only if accepted (the verdict reports both); what is cut off is kept
        beside the file. ``check`` may refuse by raising: it is called when nobody else can write and nothing has been
        changed. ``collect`` names collectors for ``check`` and later users. Raises ``RunStateError`` if the run is
        being written, ``TraceIntegrityError`` if it is broken.
        """
        from .packing import is_packed
        from .reader import Trace, not_found

        path = self.find(run)
        try:
            fd = system.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise not_found(path) from None  # deleted meanwhile
        except OSError as error:
            raise _unwritable(path, file_name(path).stem, error, _UNCHANGED) from error
        try:
            lock(fd, path)
            with Trace(path, collect=collect) as trace:
                verdict = self.judge(trace)
                if verdict.state == "broken" and not (accept_lost_tail and verdict.lost_tail):
                    raise _broken(path, verdict)
                if check is not None:
                    check(trace, verdict)
                if is_packed(fd):
                    raise RunStateError(
                        f"{path} is compressed: nothing can be added to it",
                        path=path,
                        next_action=f"`tracekit compress --undo {verdict.run_id}` first",
                    )
                size = trace.end_of(verdict.count)
                stamp = trace.entry(verdict.count)["ts_ns"] if verdict.count else 0
            if size != verdict.size:
                try:
                    keep_cut(fd, path, size)
                    system.ftruncate(fd, size)
                    system.fsync(fd)
                except OSError as error:
                    raise _unwritable(path, verdict.run_id or "", error) from error
        except BaseException:
            system.close(fd)
            raise
        more: dict[str, Any] = {} if encode_read is None else {"encode_read": encode_read}
        run_id = verdict.run_id or file_name(path).stem
        journal = Journal(
            fd,
            path,
            run_id,
            durability=durability,
            seq=verdict.count,
            head=verdict.head.encode(),
            size=size,
            ts=stamp,
            root=self.root,
            **more,
        )
        return journal, verdict

    @_reality.off_loop()
    def keep_tip(
        self,
        run_id: str,
        count: int,
        head: str,
        *,
        segment: str | None = None,
        durable: bool = True,
    ) -> None:
        """Keep the tip of a run (or segment) that has ended, and seal it if ``TRACEKIT_SEAL_KEY_FILE`` names a key, or did when
        the run was created."""
        path = os.path.join(self.tips, _stem(run_id, segment))
        try:
            if self.file is None:
                self._make(self.tips, durable)
                write_tip(path, count, head, sync=durable)
            if (key := self._key or _signing_key()) is not None:
                path = self.path(run_id, segment)
                seals.add_seal(path, key, run_id, count, head, segment=segment, sync=durable)
        except OSError as error:
            raise _unwritable(path, run_id, error) from error

    def seals_runs(self) -> bool:
        """Return whether a run that ends now is to be sealed."""
        return self._key is not None or bool(os.environ.get(SEAL_KEY_VARIABLE))

    def _make(self, path: str, sync: bool) -> None:
        if make_directory(self.root, sync=sync):
            _ignored_by_git(self.root)
        make_directory(path, sync=sync, mode=0o700 if self.file is None else 0o777)

    # -- verifying -----------------------------------------------------------------------------------------------------

    def verify(
        self,
        run: str | os.PathLike[str],
        *,
        head: str | None = None,
        keys: seals.PublicKeys | None = None,
        limits: Limits = DEFAULT,
    ) -> Verdict:
        """Verify a run with all its segments, its kept tips, and ``head``, a tip hash kept by the user.

        Seals are checked with ``keys``; the verdict's ``seal`` is the result. Each of the verdict's ``segments`` has a
        ``state``.
        """
        from .reader import Trace

        with Trace(self.find(run), limits) as trace:
            return self.judge_run(trace, keys=keys, head=head)

    @staticmethod
    @_reality.off_loop()
    def judge(trace: Trace, *, keys: seals.PublicKeys | None = None) -> Verdict:
        """Return the verdict on one file, including its name, its kept tip and the seals beside it."""
        verdict = seals.check_seal(trace, trace.status, keys)
        directory, name = os.path.split(os.path.abspath(trace.path))
        if os.path.basename(directory) != "runs":
            return verdict
        expected = file_name(name).run
        if verdict.run_id not in (None, expected):
            problem = f"the file of run {expected} holds run {verdict.run_id}: it is a copy, or was renamed"
            if verdict.state != "broken":
                verdict = verdict._replace(state="broken", problem=problem, line=1)
            return verdict._replace(lost_tail=False)
        kept = os.path.join(os.path.dirname(directory), "heads", file_name(name).stem)
        return check_kept(trace, verdict, kept)

    @staticmethod
    @_reality.off_loop()
    def judge_run(trace: Trace, *, keys: seals.PublicKeys | None = None, head: str | None = None) -> Verdict:
        """Return the verdict on a run with its segments, the files of its child processes: none may be damaged,
        truncated or missing."""
        verdict = Store.judge(trace, keys=keys)
        if head is not None:
            verdict = check_tip_hash(verdict, head)
        if verdict.state == "broken" or is_segment(trace.path):
            return verdict
        found: dict[str, Verdict] = {}

        def judge(one: Trace) -> Verdict:
            found[str(segment_in(one.path))] = Store.judge(one, keys=keys)
            return found[str(segment_in(one.path))]

        listed = verdict.segments
        verdict = with_segments(trace, verdict._replace(segments=_with_sealed(verdict)), judge)
        seal = verdict.seal or {}
        if seal.get("state") == "valid" and (name := seals.uncovered(verdict, found, listed)) is not None:
            text = f"{seal['text']}, which does not cover the child process {name}: it continued, or started, after the seal was made"
            verdict = verdict._replace(seal={**seal, "state": "extended", "text": text})
        return verdict

    def check(self, trace: Trace) -> Verdict:
        """Return the verdict on a run; raise ``TraceIntegrityError`` if it or one of its segments is broken."""
        trace.check()
        verdict = self.judge_run(trace)
        if verdict.state == "broken":
            raise _broken(trace.path, verdict)
        return verdict

    def check_replayable(self, trace: Trace) -> Verdict:
        """Return the verdict on a run that can be replayed: not broken (``check``), and with at least one entry, else
        ``RunStateError``."""
        return self.check_filled(trace, "replay")

    def check_filled(self, trace: Trace, what: str) -> Verdict:
        """Return the verdict on a run that is not broken (``check``) and has an entry; without one there is nothing to
        ``what``, which is a ``RunStateError``."""
        verdict = self.check(trace)
        if verdict.count == 0:
            raise RunStateError(
                f"{trace.path} has no entries: there is nothing to {what}",
                next_action="its process died before the run began; `tracekit list` shows the other runs",
            )
        return verdict


def _with_sealed(verdict: Verdict) -> tuple[dict[str, Any], ...]:
    """Return what a run's end, and its seal, say about its segments. Those without an end at that time may be longer
    now, not shorter."""
    stated = {str(one.get("segment")): one for one in verdict.segments}
    for name, sealed in (verdict.seal or {}).get("segments", {}).items():
        if name not in stated or stated[name].get("open"):
            stated[name] = {**stated.get(name, {"segment": name, "unlisted": True}), **sealed}
    return tuple(stated.values())


def _is_file(file: os.DirEntry[str]) -> bool:
    try:
        return file.is_file()  # follows a link without any further system call
    except OSError:
        return False


def _ignored_by_git(root: str) -> None:
    """Keep runs out of git: they contain prompts and answers, and must not be committed by accident."""
    with suppress(OSError), open_file(os.path.join(root, ".gitignore"), "x", encoding="ascii") as file:
        file.write("*\n")


def _stem(run_id: str, segment: str | None) -> str:
    return run_id if segment is None else f"{run_id}.{segment}"


def _existing(path: str, store: str) -> str:
    try:
        regular = stat.S_ISREG(system.stat(path).st_mode)
    except (OSError, ValueError):
        regular = False
    if not regular:
        raise RunNotFoundError(
            f"there is no trace {path}", store=store, run=path, next_action="`tracekit list` shows the runs of a store"
        )
    return path


def remedy_for(verdict: Verdict) -> str | None:
    """Return what to do about an unreadable file beside a trace, if there is one."""
    if verdict.unread is None:
        return None
    return f"the trace itself verifies: remove {verdict.unread} to take it as it is, or bring that file back as it was"


def _broken(path: str, verdict: Verdict) -> TraceIntegrityError:
    return TraceIntegrityError(
        f"{path} is broken: line {verdict.line}: {verdict.problem}"
        if verdict.line
        else f"{path} is broken: {verdict.problem}",
        path=path,
        line=verdict.line,
        problem=verdict.problem,
        lost_tail=verdict.lost_tail,
        next_action="accept the lost tail (`--accept-lost-tail`): nothing in it was an effect"
        if verdict.lost_tail
        else remedy_for(verdict) or "don't trust this trace; take a copy that verifies (`tracekit verify`)",
    )


_ELSEWHERE: Final = "free space, make the directory writable, or name another store with TRACEKIT_DIR"
_UNCHANGED: Final = (
    "make the file and its directory writable for this user, or work on a copy of the store (TRACEKIT_DIR, --store)"
)


def _unwritable(path: str, run_id: str, error: OSError, next_action: str = _ELSEWHERE) -> LogWriteError:
    return LogWriteError(
        f"{path} can't be written: {error.strerror if error.filename == path else error}",
        run_id=run_id,
        path=path,
        next_action=next_action,
    )
