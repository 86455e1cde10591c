"""Removal and compression of finished runs. Nothing that is still needed is removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Final

import orjson

from .._journal.durable import sync_directory
from .._journal.packing import is_packed, pack_file, unpack_file
from .._journal.reader import Trace
from .._journal.store import Store, beside, file_name, first_entry, is_segment, live_writer, shown_as, summary
from ..errors import RunStateError, TracekitError
from .recovery import decision_on

__all__ = ["compress", "needed", "no_run", "owners_of_keys", "remove", "uncompress"]


def needed(store: Store, path: str, owners: Mapping[str, int], *, died: bool = True) -> Iterator[str]:
    """Yield the reasons why the run in the file at ``path`` is still needed: it is running, steps are in doubt, it
    is damaged, other runs are answered by it.

    ``owners`` are the runs that have keys of calls which happen once in the store (see ``owners_of_keys``). With
    ``died`` a run without an end is needed, too: it may be resumed.
    """
    files = (path, *beside(path))
    if any(_is_written(file) for file in files):
        yield "a process has it open"
        return
    run_id = file_name(path).stem
    try:
        decision = decision_on(path)
    except (TracekitError, OSError):
        decision = None
    if decision is None:
        yield "it can't be read, so what it did is not known"
    elif decision.in_doubt and decision.leaves_in_doubt:
        steps = ", ".join(map(str, decision.in_doubt))
        yield f"step {steps} is in doubt: `tracekit in-doubt` says what to do"
    elif decision.state == "broken":
        yield f"it does not verify, so what it did is not known: `tracekit verify {shown_as(path)}` says why"
    elif died and summary(path).end is None:
        yield "it has no end, and may be resumed"
    if count := owners.get(run_id, 0) if _is_in(store, path) else 0:
        yield f"{count} {'call' if count == 1 else 'calls'} that happen once in this store {'is' if count == 1 else 'are'} answered from it"


def owners_of_keys(store: Store) -> Mapping[str, int]:
    """Return how many keys of calls that happen once in the store each run has."""
    found: dict[str, int] = {}
    directory = os.path.join(store.root, "keys")
    try:
        names = [file.path for file in os.scandir(directory) if len(file.name) == 64]
    except FileNotFoundError:
        return found
    for path in names:
        with suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as file:
            owner = str(orjson.loads(file.readline())["run_id"])
            found[owner] = found.get(owner, 0) + 1
    return found


def _is_in(store: Store, path: str) -> bool:
    return os.path.dirname(os.path.abspath(path)) == os.path.abspath(store.runs)


def no_run(store: Store, path: str) -> str | None:
    """Return why the file at ``path`` is not that of a whole run; ``None`` if it is: any file in the store, however
    damaged, and elsewhere one that begins as a trace does."""
    if is_segment(path):
        run = file_name(path).run
        return f"it is one process of the run {run}: `tracekit rm {run}` removes all of it"
    return None if _is_in(store, path) or first_entry(path).get("type") == "run.started" else "it is no trace"


def remove(path: str) -> int:
    """Remove the run in the file at ``path`` with everything that is kept for it; return the number of bytes.

    Raises ``RunStateError`` if it is being written. Its own file is removed first: the rest after an interrupted
    removal belongs to no run.
    """
    directory, name = os.path.split(os.path.abspath(path))
    run_id = file_name(name).stem
    with ExitStack() as stack:
        for file in (path, *beside(path)):
            if stack.enter_context(live_writer(file)):
                raise _is_open(file)
        size = 0
        for file in (path, *_all_of(directory, run_id)):
            with suppress(FileNotFoundError):
                size += os.stat(file).st_size
                os.unlink(file)
    sync_directory(directory)
    return size


#: What follows the id in the names of a run's other files, by directory. (Another run may be called RUN.more.)
_PROCESS: Final = r"(?:[0-9a-f]{16}\.)?"
_OTHERS: Final = {
    "runs": re.compile(rf"[0-9a-f]{{16}}\.jsonl|{_PROCESS}(?:vault|seal|cut-\d+(?:\.\d+)?)"),
    "heads": re.compile(r"[0-9a-f]{16}|"),
    "indexes": re.compile(r"[0-9a-f]{16}|"),
    "settled": re.compile(rf"{_PROCESS}\d+"),
}


def _all_of(runs: str, run_id: str) -> Iterator[str]:
    """Yield every file of a run but its own: its processes', vaults, recovered remains, kept tips, indexes, notes.

    Only beside its own file, in ``runs``, and in the store that this directory belongs to: a copy has nothing in the
    store of the original.
    """
    for kind, others in _OTHERS.items():
        if kind != "runs" and os.path.basename(runs) != "runs":
            continue
        directory = runs if kind == "runs" else os.path.join(os.path.dirname(runs), kind)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        for name in names:
            head, dot, rest = name[: len(run_id)], name[len(run_id) : len(run_id) + 1], name[len(run_id) + 1 :]
            if head == run_id and dot in (".", "") and others.fullmatch(rest):
                yield os.path.join(directory, name)


def compress(store: Store, path: str) -> tuple[int, int]:
    """Compress the files of the run at ``path``; return the number of bytes before and after.

    Raises ``RunStateError`` if the run is not complete. It is verified first, and the new files are compared with the
    old ones before they replace them.
    """
    before = after = 0
    with Trace(path) as trace:
        verdict = store.judge_run(trace)
    if verdict.state != "complete":
        raise RunStateError(
            f"{verdict.run_id or path} is {verdict.state} ({verdict.problem}); only complete runs are compressed",
            path=path,
            next_action=f"`tracekit verify {shown_as(path)}` says what is wrong with it",
        )
    for file in (path, *beside(path)):
        with live_writer(file) as written, open(file, "rb") as source, Trace(file) as trace:
            if written:
                raise _is_open(file)
            size = os.fstat(source.fileno()).st_size
            before += size
            if is_packed(source.fileno()) or trace.status.state != "complete":
                after += size
                continue
            pack_file(source.fileno(), file, trace.end_of(trace.status.count - 1))
            after += os.stat(file).st_size
    return before, after


def uncompress(path: str) -> tuple[int, int]:
    """Restore the files of the run at ``path`` from ``compress``; return the number of bytes before and after."""
    before = after = 0
    for file in (path, *beside(path)):
        with open(file, "rb") as source:
            before += os.fstat(source.fileno()).st_size
            if is_packed(source.fileno()):
                unpack_file(source.fileno(), file)
            after += os.stat(file).st_size
    return before, after


def _is_written(path: str) -> bool:
    try:
        with live_writer(path) as written:
            return written
    except OSError:
        return False


def _is_open(path: str) -> RunStateError:
    return RunStateError(f"a process has {path} open", path=path, next_action="wait until its run has ended")
