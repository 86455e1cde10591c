"""The store: a directory of runs. Find, list, create, reopen, seal, verify.

::

    .tracekit/                              0700; ``TRACEKIT_DIR`` names another
        .gitignore                          ``*``
        runs/<run_id>.jsonl                 0600; one file a run
        runs/<run_id>.<16 hex>.jsonl        one more for each child process that joined it (a segment)
        runs/<run_id>.cut-<offset>          bytes that a recovery cut off at that offset, see ``cuts``
        heads/<run_id>                      what the run ended with, see ``heads``
        secret                              0600; what keys are made with, see ``keys``
        keys/<64 hex>                       0600; one file a call that happens once in the whole store
        keys/<64 hex>.settled               0600; what a person said of that call after its run had ended
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from ..errors import LogWriteError, RunNotFoundError, RunStateError, TraceIntegrityError
from .cuts import keep_cut
from .heads import check_head, check_kept, seal_key, sync_directory, write_head
from .limits import DEFAULT, Limits
from .lock import lock
from .names import SEGMENT, SUFFIX, new_run_id, segment_of, valid_run_id
from .reader import Trace, Verdict
from .scan import not_found
from .segments import beside, is_segment, with_segments
from .summary import RunSummary, summary
from .writer import Durability, Journal

__all__ = ["RunSummary", "Store", "new_run_id", "segment_of", "valid_run_id"]


class Store:
    """A directory of runs: ``root``, else ``TRACEKIT_DIR``, else ``.tracekit`` where the process is."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root: Final = os.path.abspath(root or os.environ.get("TRACEKIT_DIR") or ".tracekit")
        self.runs: Final = os.path.join(self.root, "runs")
        self.heads: Final = os.path.join(self.root, "heads")

    def __repr__(self) -> str:
        return f"<Store {self.root}>"

    # -- names -----------------------------------------------------------------------------------------------------------

    def path(self, run_id: str, segment: str | None = None) -> str:
        """The file of a run (or of one segment of it), existing or not. ``RunStateError`` for an id that is no file name."""
        if not valid_run_id(run_id):
            raise RunStateError(
                f"{run_id!r} can't be a run id",
                next_action="use letters, digits, '.', '_' and '-', 128 at most, a letter or digit first, no '..'",
            )
        return os.path.join(self.runs, _stem(run_id, segment) + SUFFIX)

    def find(self, run: str | os.PathLike[str]) -> str:
        """The file of a run by id, by unique beginning of an id, or by path. ``RunNotFoundError`` says what there is instead."""
        if not isinstance(run, str) or os.sep in run or (run.endswith(SUFFIX) and os.path.exists(run)):
            return _existing(os.fspath(run), self.root)
        stems = self._stems()
        if run in stems:
            return os.path.join(self.runs, run + SUFFIX)
        ids = [stem for stem in stems if not SEGMENT.fullmatch(stem)]
        matches = [run_id for run_id in ids if run and run_id.startswith(run)]
        if len(matches) == 1:
            return os.path.join(self.runs, matches[0] + SUFFIX)
        raise self._missing(run, ids, sorted(matches))

    def segments(self, run_id: str) -> tuple[str, ...]:
        """The files of a run's segments."""
        return beside(os.path.join(self.runs, run_id + SUFFIX))

    def list(self) -> tuple[RunSummary, ...]:
        """Every run, the newest first, by its first and last line."""
        paths = (os.path.join(self.runs, stem + SUFFIX) for stem in self._stems() if not SEGMENT.fullmatch(stem))
        return tuple(sorted(map(summary, paths), key=lambda run: (run.started_ns, run.run_id), reverse=True))

    def paths(self) -> dict[str, tuple[str, ...]]:
        """The file of every run, in the order of their ids (the oldest first, where nobody chose another id), and its segments'."""
        runs: dict[str, tuple[str, ...]] = {}
        for stem in sorted(self._stems()):  # a run comes before its segments
            path, segment = os.path.join(self.runs, stem + SUFFIX), SEGMENT.fullmatch(stem)
            if segment is None:
                runs[path] = ()
            elif (run := os.path.join(self.runs, segment["run"] + SUFFIX)) in runs:
                runs[run] += (path,)
        return runs

    def no_files(self) -> tuple[str, ...]:
        """What lies there under the name of a run and is no file: a pipe, a directory, a link to nothing."""
        try:
            with os.scandir(self.runs) as files:
                return tuple(sorted(file.path for file in files if file.name.endswith(SUFFIX) and not _is_file(file)))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def _stems(self) -> set[str]:
        """What lies there under the name of a run. What is no file (a pipe, a directory) is none: nobody waits for it."""
        try:
            with os.scandir(self.runs) as files:
                return {file.name[: -len(SUFFIX)] for file in files if file.name.endswith(SUFFIX) and _is_file(file)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def _missing(self, run: str, ids: Sequence[str], matches: Sequence[str]) -> RunNotFoundError:
        if matches:
            what, near = f"{len(matches)} runs begin with {run!r} in {self.root}", [*matches[:5]]
        else:
            from difflib import get_close_matches

            what, near = f"there is no run {run!r} in {self.root}", get_close_matches(run, ids, 3)
        if near:
            next_action = "say which: " + ", ".join(near)
        else:
            next_action = (
                "`tracekit list` shows the runs of a store; TRACEKIT_DIR names another" if ids else "the store is empty"
            )
        return RunNotFoundError(what, store=self.root, run=run, close=near, next_action=next_action)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def create(
        self,
        run_id: str | None = None,
        *,
        segment: str | None = None,
        durability: Durability = "effects",
        encode_read: Callable[[Any], bytes] | None = None,
    ) -> Journal:
        """The journal of a new run, or of a new segment of one: 0600, locked, its directory on the device.

        ``RunStateError`` if there is such a run already, ``LogWriteError`` if the store can't be written.
        """
        run_id = new_run_id() if run_id is None else run_id
        path = self.path(run_id, segment)
        seal_key()  # A key that can't be read is told now, not when the run is to be sealed.
        try:
            self._make(self.runs, durability != "none")
        except OSError as error:
            raise _unwritable(path, run_id, error) from error
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise RunStateError(
                f"there is a run {_stem(run_id, segment)} in {self.root} already",
                run_id=run_id,
                next_action="choose another run id",
            ) from None
        except OSError as error:
            raise _unwritable(path, run_id, error) from error
        try:
            lock(fd, path)
            if durability != "none":
                sync_directory(self.runs)
        except OSError as error:
            os.close(fd)
            raise _unwritable(path, run_id, error) from error
        except BaseException:
            os.close(fd)
            raise
        more: dict[str, Any] = {} if encode_read is None else {"encode_read": encode_read}
        return Journal(fd, path, run_id, durability=durability, **more)

    def reopen(
        self,
        run: str | os.PathLike[str],
        *,
        durability: Durability = "effects",
        encode_read: Callable[[Any], bytes] | None = None,
        accept_lost_tail: bool = False,
        limits: Limits = DEFAULT,
        check: Callable[[Trace, Verdict], None] | None = None,
    ) -> tuple[Journal, Verdict]:
        """The journal of a run that is there, to go on where it ends, and the verdict on what was found.

        A torn last line is cut off, a lost tail only if accepted (both stand in the verdict); what is cut off is kept beside the
        file. ``check`` may refuse, by raising, once nobody else can write and before anything is changed. ``RunStateError`` if it is
        being written, ``TraceIntegrityError`` if it is broken.
        """
        path = self.find(run)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise not_found(path) from None  # pruned meanwhile
        except OSError as error:
            raise _unwritable(path, os.path.basename(path).removesuffix(SUFFIX), error, _UNCHANGED) from error
        try:
            lock(fd, path)
            with Trace(path, limits) as trace:
                verdict = self.judge(trace)
                if verdict.state == "broken" and not (accept_lost_tail and verdict.lost_tail):
                    raise _broken(path, verdict)
                if check is not None:
                    check(trace, verdict)
                size = trace.end_of(verdict.count)
                stamp = trace.entry(verdict.count)["ts_ns"] if verdict.count else 0
            if size != verdict.size:
                try:
                    keep_cut(fd, path, size)
                    os.ftruncate(fd, size)
                    os.fsync(fd)
                except OSError as error:
                    raise _unwritable(path, verdict.run_id or "", error) from error
        except BaseException:
            os.close(fd)
            raise
        more: dict[str, Any] = {} if encode_read is None else {"encode_read": encode_read}
        run_id = verdict.run_id or os.path.basename(path)[: -len(SUFFIX)]
        journal = Journal(
            fd,
            path,
            run_id,
            durability=durability,
            seq=verdict.count,
            head=verdict.head.encode(),
            size=size,
            ts=stamp,
            **more,
        )
        return journal, verdict

    def sealed(
        self,
        run_id: str,
        count: int,
        head: str,
        *,
        segment: str | None = None,
        durable: bool = True,
        key: bytes | None = None,
    ) -> None:
        """Keep the head of a run (or segment) that has ended, signed if there is a key (``TRACEKIT_SEAL_KEY_FILE``)."""
        key = seal_key() if key is None else key
        path = os.path.join(self.heads, _stem(run_id, segment))
        try:
            self._make(self.heads, durable)
            write_head(path, count, head, key=key, sync=durable)
        except OSError as error:
            raise _unwritable(path, run_id, error) from error

    def _make(self, path: str, sync: bool) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(self.root)
        os.makedirs(parent, exist_ok=True)
        for made in (self.root, path):
            try:
                os.mkdir(made, 0o700)
            except FileExistsError:
                continue
            if made == self.root:
                _ignored_by_git(made)
            if sync:
                sync_directory(os.path.dirname(made))

    # -- verifying -------------------------------------------------------------------------------------------------------

    def verify(
        self,
        run: str | os.PathLike[str],
        *,
        head: str | None = None,
        key: bytes | None = None,
        limits: Limits = DEFAULT,
    ) -> Verdict:
        """The verdict on a run with all its segments, its kept heads, and the ``head`` that the user kept.

        ``key`` checks the seals (else ``TRACEKIT_SEAL_KEY_FILE``). ``segments`` of the verdict carry a ``state`` each.
        """
        with Trace(self.find(run), limits) as trace:
            return self.judge_run(trace, key=key, head=head)

    def judge(self, trace: Trace, *, key: bytes | None = None) -> Verdict:
        """The verdict on one file, its name and the head kept for it included."""
        verdict = trace.status
        directory, name = os.path.split(os.path.abspath(trace.path))
        if os.path.basename(directory) != "runs":
            return verdict
        stem = name.removesuffix(SUFFIX)
        segment = SEGMENT.fullmatch(stem)
        expected = segment["run"] if segment else stem
        if verdict.run_id not in (None, expected):
            problem = f"the file of run {expected} holds run {verdict.run_id}: it is a copy, or was renamed"
            if verdict.state != "broken":
                verdict = verdict._replace(state="broken", problem=problem, line=1)
            return verdict._replace(lost_tail=False)
        head = os.path.join(os.path.dirname(directory), "heads", stem)
        return check_kept(trace, verdict, head, seal_key() if key is None else key)

    def judge_run(self, trace: Trace, *, key: bytes | None = None, head: str | None = None) -> Verdict:
        """The same on a run with its segments, the files of its child processes: none of them may be damaged, cut or missing."""
        verdict = self.judge(trace, key=key)
        if head is not None:
            verdict = check_head(verdict, head)
        if verdict.state == "broken" or is_segment(trace.path):
            return verdict
        return with_segments(trace, verdict, lambda one: self.judge(one, key=key))

    def check(self, trace: Trace, *, key: bytes | None = None) -> Verdict:
        """The verdict on a run that is not broken, nor one of its segments; else ``TraceIntegrityError``."""
        trace.check()
        verdict = self.judge_run(trace, key=key)
        if verdict.state == "broken":
            raise _broken(trace.path, verdict)
        return verdict


def _is_file(file: os.DirEntry[str]) -> bool:
    try:
        return file.is_file()  # follows a link, and asks the system for nothing else
    except OSError:
        return False


def _ignored_by_git(root: str) -> None:
    """Runs hold what prompts and answers hold: nobody commits them by accident."""
    with suppress(OSError), open(os.path.join(root, ".gitignore"), "x", encoding="ascii") as file:
        file.write("*\n")


def _stem(run_id: str, segment: str | None) -> str:
    return run_id if segment is None else f"{run_id}.{segment}"


def _existing(path: str, store: str) -> str:
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        regular = False
    if not regular:
        raise RunNotFoundError(
            f"there is no trace {path}", store=store, run=path, next_action="`tracekit list` shows the runs of a store"
        )
    return path


def _broken(path: str, verdict: Verdict) -> TraceIntegrityError:
    return TraceIntegrityError(
        f"{path} is broken: line {verdict.line} {verdict.problem}"
        if verdict.line
        else f"{path} is broken: {verdict.problem}",
        path=path,
        line=verdict.line,
        problem=verdict.problem,
        lost_tail=verdict.lost_tail,
        next_action="accept the lost tail (`--accept-lost-tail`): nothing in it was an effect"
        if verdict.lost_tail
        else "don't trust this trace; take a copy that verifies (`tracekit verify`)",
    )


_ELSEWHERE: Final = "free space, or name another store with TRACEKIT_DIR"
_UNCHANGED: Final = (
    "make the file and its directory writable for this user, or work on a copy of the store (TRACEKIT_DIR, --store)"
)


def _unwritable(path: str, run_id: str, error: OSError, next_action: str = _ELSEWHERE) -> LogWriteError:
    return LogWriteError(
        f"{path} can't be written: {error}",
        run_id=run_id,
        path=path,
        next_action=next_action,
    )
