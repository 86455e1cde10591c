"""The runs of a store: ``tracekit list`` with the state and cost of each, ``rm``, ``prune`` and ``compress``."""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import click
import orjson

from .._journal.entry import info_of
from .._journal.reader import Trace, open_trace
from .._journal.store import RunSummary, Store, holder
from .._runs import housekeeping
from .._runs.reading import Taken, taken_in
from ..errors import RunNotFoundError, TracekitError
from . import output
from .options import JSON_LINES, READ_STORE, STORE
from .output import age, dollars, duration, located, moment, named, printable, progress, short

__all__ = ["compress", "list_", "prune", "rm"]

# -- list --------------------------------------------------------------------------------------------------------------

_DIGEST: Final = re.compile("[0-9a-f]{4,64}")
_STYLES: Final = {
    "complete": "green",
    "failed": "red",
    "running": "cyan",
    "died": "bold yellow",
    "aborted": "yellow",
    "broken": "bold red",
    "unreadable": "red",
}
_ENDS: Final = {"run.completed": "complete", "run.failed": "failed", "run.aborted": "aborted"}
#: The most runs listed as text by default.
_SHOWN: Final = 50

#: The sort keys of the list.
_SORTS: Final = ("started", "name", "state", "took", "cost", "tokens", "entries", "size")


class Row:
    """A run in the list: its summary, its state, and, unless only its ends are read, what its model calls used.

    Until it is examined, the state is what its last line says.
    """

    def __init__(self, run: RunSummary) -> None:
        self.run: Final = run
        self.state = _state_of(run)
        self.taken: Taken | None = None
        self._verified = False

    @property
    def took(self) -> int | None:
        """Nanoseconds from its begin to its end; ``None`` if it has no end, or its beginning can't be read."""
        if self.run.ended_ns is None or not self.run.started_ns:
            return None
        return self.run.ended_ns - self.run.started_ns

    def verify(self) -> None:
        """Verify it, with the files of its child processes: one that does not verify is broken, whatever its last line
        says."""
        if self._verified:
            return
        self._verified = True
        try:
            with Trace(self.run.path) as trace:
                verdict = Store.judge_run(trace)
            if verdict.state == "broken":
                self.state = "broken"
            elif verdict.end is not None:
                self.state = _ENDS[verdict.end]
        except RunNotFoundError:  # pruned meanwhile
            pass
        except (OSError, TracekitError):
            self.state = "unreadable"

    def look(self) -> None:
        """Verify it, and read what its model calls used."""
        self.verify()
        if self.taken is None:
            self.taken = taken_in(self.run.path)

    def by(self, key: str) -> Any:
        """Return its sort key; unknown values come last."""
        taken = self.taken or Taken()
        values: dict[str, Any] = {
            "started": self.run.started_ns,
            "took": self.took,
            "cost": taken.cost_usd,
            "tokens": taken.input_tokens + taken.output_tokens,
            "entries": self.run.count,
            "size": self.run.size,
        }
        return values[key] if values[key] is not None else -1

    def as_dict(self) -> dict[str, Any]:
        taken = {} if self.taken is None else self.taken._asdict()
        return {**self.run._asdict(), "state": self.state, **taken}


def _state_of(run: RunSummary) -> str:
    """Return ``complete``, ``failed`` or ``aborted``; for a run without an end ``running`` while a process has it open,
    else ``died``.

    ``unreadable`` if this user may not open its file.
    """
    if run.end is not None:
        return _ENDS[run.end]
    try:
        return "running" if holder(run.path) else "died"
    except FileNotFoundError:  # pruned meanwhile
        return "died"
    except OSError:
        return "unreadable"


@click.command("list")
@JSON_LINES
@READ_STORE
@click.option(
    "--limit", metavar="N", type=click.IntRange(0), help="Only the first N, 0 for all (default for text: 50)."
)
@click.option(
    "--name", "names", metavar="GLOB", multiple=True, help="Only runs of this name (nightly, 'nightly*'). Repeatable."
)
@click.option(
    "--state",
    "states",
    type=click.Choice([*_STYLES]),
    multiple=True,
    help="Only runs in this state; died: no end, and no process runs it; broken: damaged. Repeatable.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=moment,
    help="Only runs that began later: a date, a date and time, or 30m, 12h, 2d ago.",
)
@click.option("--before", metavar="TIME", callback=moment, help="Only runs that began earlier.")
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="started",
    show_default=True,
    help="Newest, longest, most expensive … first; names alphabetically.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option(
    "--quick",
    is_flag=True,
    help="Read only the first and last line of each run: no tokens, no cost, and damage between them is not seen.",
)
@click.option(
    "--envelope-hash", metavar="HASH", help="Runs that routed this request; the beginning of either hash is enough."
)
def list_(
    as_json: bool,
    store: str | None,
    limit: int | None,
    names: tuple[str, ...],
    states: tuple[str, ...],
    since: datetime | None,
    before: datetime | None,
    sort: str,
    reverse: bool,
    quick: bool,
    envelope_hash: str | None,
) -> None:
    """List the runs of the store, the newest first: id, name, state, age, duration, tokens, cost and entries.

    Each run that is listed is verified, and its model calls are read for the cost (with the extra `prices`).

    \b
    Examples:
      tracekit list --state died --since 12h
      tracekit list --sort cost --limit 10
      tracekit list --name 'nightly*' --json | jq .cost_usd
    """
    with output.reported():
        digest = None if envelope_hash is None else _digest(envelope_hash)
        where = named(store)
        rows = [
            Row(run)
            for run in _chosen(where, digest)
            if (not names or any(fnmatchcase(run.name or "", name) for name in names))
            and (since is None or run.started_ns >= since.timestamp() * 1e9)
            and (before is None or run.started_ns < before.timestamp() * 1e9)
        ]
        rows = _sorted(_in_states(rows, states, quick), sort, reverse, quick)
        most = (0 if as_json else _SHOWN) if limit is None else limit
        shown = rows[:most] if most else rows
        if not quick:
            for row in progress(shown, "reading the runs"):
                row.look()
        if as_json:
            output.emit(row.as_dict() for row in shown)
        elif not rows:
            if names or states or since or before:
                text = f"No run in {where.root} matches; without these options, `tracekit list` shows all."
            else:
                which = "no run" if envelope_hash is None else f"no run of the request {envelope_hash}"
                text = f"There is {which} in {where.root}. `tracekit run SCRIPT` records one; TRACEKIT_DIR or --store names another store."
            output.message(text)
        else:
            _print(shown)
        if len(shown) < len(rows) and limit is None:
            output.message(f"… and {len(rows) - len(shown)} more: --limit 0 lists all")
        broken = [row.run.run_id for row in shown if row.state == "broken"]
        if broken and not as_json:
            count = "1 run is" if len(broken) == 1 else f"{len(broken)} runs are"
            output.message(f"{count} damaged: `tracekit verify {printable(broken[0])}` says where")
        for text in output.no_files(where).values():
            output.message(text)


def _in_states(rows: list[Row], states: Sequence[str], quick: bool) -> list[Row]:
    """Return the runs in these states; a run in any state may turn out to be broken."""
    if not states:
        return rows
    wanted = {*states}
    if not quick:
        for row in progress(rows, "verifying the runs"):
            if row.state in wanted or "broken" in wanted:
                row.verify()
    return [row for row in rows if row.state in wanted]


def _sorted(rows: list[Row], key: str, reverse: bool, quick: bool) -> list[Row]:
    if key in ("cost", "tokens"):
        if quick:
            raise click.UsageError(f"--sort {key} needs what --quick leaves out")
        for row in progress(rows, "reading the runs"):
            row.look()
    if key == "state" and not quick:
        for row in progress(rows, "verifying the runs"):
            row.verify()
    if key in ("name", "state"):
        return sorted(rows, key=lambda row: (row.run.name or "") if key == "name" else row.state, reverse=reverse)
    return sorted(rows, key=lambda row: (row.by(key), row.run.run_id), reverse=not reverse)


def _digest(envelope_hash: str) -> str:
    digest = envelope_hash.removeprefix("sha256:").lower()
    if re.fullmatch("[0-9a-f]{1,3}", digest):
        raise click.UsageError(f"--envelope-hash is at least 4 hex digits, and {envelope_hash!r} is too short")
    if not _DIGEST.fullmatch(digest):
        raise click.UsageError(f"--envelope-hash is sha256: and 4 to 64 hex digits, not {envelope_hash!r}")
    return digest


def _chosen(where: Store, digest: str | None) -> tuple[RunSummary, ...]:
    runs = where.list()
    if digest is None:
        return runs
    return tuple(
        run for run in runs if any(_received(path, digest) for path in (run.path, *where.segments(run.run_id)))
    )


def _received(path: str, digest: str) -> bool:
    """Return whether an intent in this file has a hash (its own, or that of its identity) that begins with these hex
    digits."""
    try:
        with open_trace(path) as file:
            if not os.fstat(file.fileno()).st_size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return any(_is_one(line, digest) for line in _lines(data, b'_hash":"sha256:' + digest.encode()))
    except (OSError, TracekitError):
        return False


def _lines(data: mmap.mmap, wanted: bytes) -> Iterator[bytes]:
    at = data.find(wanted)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        yield data[start : end if end >= 0 else len(data)]
        at = data.find(wanted, end) if end >= 0 else -1


def _is_one(line: bytes, digest: str) -> bool:
    try:
        entry = orjson.loads(line)
    except ValueError:
        return False
    if not isinstance(entry, Mapping) or entry.get("type") != "intent.received":
        return False
    info = info_of(entry)
    return any(str(info.get(key, "")).startswith(f"sha256:{digest}") for key in ("envelope_hash", "identity_hash"))


#: The columns, as ``_cells`` fills them, and those that are aligned as figures.
_HEADS: Final = ("run", "name", "state", "age", "took", "tokens", "cost", "entries")
_FIGURES: Final = frozenset(("took", "tokens", "cost", "entries"))


def _print(rows: Sequence[Row]) -> None:
    """Print a table without wrapping its lines: ids must stay copyable.

    On a terminal, columns that have no room are left out, the last one first.
    """
    from rich.text import Text

    cells = [_HEADS, *map(_cells, rows)]
    used = [number for number in range(len(_HEADS)) if any(row[number] for row in cells[1:])]
    widths = {_HEADS[number]: max(len(row[number]) for row in cells) for number in used}
    with output.paged() as console:
        left_out = output.without_room(console, widths, list(widths)[:2:-1])
        used = [number for number in used if _HEADS[number] not in left_out]
        for number, row in enumerate(cells):
            line = Text("")
            for column in used:
                head = _HEADS[column]
                wide = widths[head]
                cell = row[column].rjust(wide) if head in _FIGURES else row[column].ljust(wide)
                style = "dim" if number == 0 else _STYLES.get(row[column], "none") if head == "state" else ""
                line += Text(cell + "  ", style=style)
            line.rstrip()
            console.print(line, soft_wrap=True)
        output.print_left_out(console, left_out[::-1])


def _cells(row: Row) -> tuple[str, ...]:
    run, taken = row.run, row.taken or Taken()
    tokens = taken.input_tokens + taken.output_tokens
    return (
        printable(run.run_id),
        short(run.name or "", 30),
        row.state,
        age(run.started_ns) if run.started_ns else "?",
        "" if row.took is None else duration(row.took),
        f"{tokens:,}" if tokens else "",
        dollars(taken.cost_usd) if taken.cost_usd else "",
        "" if run.count is None else str(run.count),
    )


# -- rm, prune, compress -----------------------------------------------------------------------------------------------


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=output.complete_run)
@click.option(
    "--force", is_flag=True, help="Also remove runs that are in doubt, damaged, have no end, or answer other runs."
)
@STORE
def rm(runs: tuple[str, ...], force: bool, store: str | None) -> None:
    """Remove runs, including the files of their child processes and everything kept with them.

    A run that a process has open is never removed. A run that has a step in doubt, is damaged, has no end, or answers calls that happen
    once in the store is refused without --force (with it, a call under such a key is refused for good); then nothing is removed, and the
    exit code is 4. The same goes for a file that is no trace, or only one process of a run. A copy outside the store is
    removed alone, and the run stays.

    \b
    Examples:
      tracekit rm 01a2007d     # the beginning of an id is enough
      tracekit rm last~1 last  # the two newest
    """
    with output.reported():
        where = output.local(store, *runs)
        paths = list(dict.fromkeys(located(run, where) for run in runs))
        owners = housekeeping.owners_of_keys(where)
        refused, forced = False, True
        for path in paths:
            never = housekeeping.no_run(where, path)
            for reason in [never] if never else [] if force else housekeeping.needed(where, path, owners):
                output.message(f"{_stem(path)} is not removed: {reason}")
                refused, forced = True, forced and never is None
        if refused:
            output.message(f"nothing was removed{'; --force removes those that no process has open' if forced else ''}")
            raise SystemExit(output.REFUSED)
        for path in paths:
            size = housekeeping.remove(path)
            click.echo(f"removed {printable(_stem(path))} ({_bytes(size)})")


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    required=True,
    callback=moment,
    help="Runs that began before this: 30d, 12h, or a date.",
)
@click.option("--keep-failed", is_flag=True, help="Keep runs that failed.")
@click.option("--name", "names", metavar="GLOB", multiple=True, help="Only runs of this name. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@STORE
def prune(
    older_than: datetime, keep_failed: bool, names: tuple[str, ...], dry_run: bool, yes: bool, store: str | None
) -> None:
    """Remove old runs that have ended.

    Runs that are going on, have no end, are damaged, have a step in doubt, or answer calls that happen once in the store are always
    kept, and counted. The command asks before it removes anything; without a terminal it requires --yes. Exit code: 0, also if there is
    nothing to remove.

    \b
    Examples:
      tracekit prune --older-than 30d --dry-run            # look first
      tracekit prune --older-than 30d --keep-failed --yes  # every night
    """
    with output.reported():
        output.local(store)
        where = named(store, existing=True)
        owners = housekeeping.owners_of_keys(where)
        old = [
            run
            for run in where.list()
            if run.started_ns < older_than.timestamp() * 1e9
            and (not names or any(fnmatchcase(run.name or "", name) for name in names))
            and not (keep_failed and run.end == "run.failed")
        ]
        going: list[RunSummary] = []
        left: dict[str, int] = {}
        for run in progress(old, "looking which runs are needed"):
            reason = next(housekeeping.needed(where, run.path, owners), None)
            if reason is None:
                going.append(run)
            else:
                why = reason.partition(":")[0] if not reason.startswith("step ") else "a step is in doubt"
                left[why] = left.get(why, 0) + 1
        for why, count in left.items():
            output.message(f"left: {_runs(count)}: {printable(why)}")
        size = _bytes(sum(run.size for run in going))
        if not going:
            output.message("There is no run to remove.")
            return
        if dry_run:
            for run in going:
                click.echo(f"{printable(run.run_id)}  {short(run.name or '', 30)}  {age(run.started_ns)} old")
            output.message(f"would remove {_runs(len(going))} ({size})")
            return
        if not yes and not _confirmed(f"remove {_runs(len(going))} ({size}) for good?"):
            output.message("nothing was removed")
            return
        for run in progress(going, "removing"):
            housekeeping.remove(run.path)
        click.echo(f"removed {_runs(len(going))} ({size})")


def _confirmed(question: str) -> bool:
    """Ask, with no as the default. Raises ``UsageError`` where nobody can answer."""
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        output.message("")  # the line of the question ends here
        if sys.stdin.isatty():
            raise KeyboardInterrupt from None
        raise click.UsageError("nobody can answer without a terminal: say --yes, or --dry-run to look first") from None


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=output.complete_run)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=moment,
    help="Every complete run that began before this: 7d, 12h, or a date.",
)
@click.option("--undo", is_flag=True, help="Restore the uncompressed files.")
@STORE
def compress(runs: tuple[str, ...], older_than: datetime | None, undo: bool, store: str | None) -> None:
    """Compress complete runs in place, to about a tenth of their size; every command reads them as before.

    Each is verified first, and the written file is compared with the original. Hashes, seals and kept tips refer to the content,
    and stay right. Without tracekit, `zcat -f` reads either form. Exit code: 2 for a run that is not complete.

    \b
    Examples:
      tracekit compress --older-than 7d
      tracekit compress --undo last
    """
    with output.reported():
        if bool(runs) == (older_than is not None):
            raise click.UsageError("name runs, or say --older-than AGE")
        where = output.local(store, *runs) if runs else named(output.local(store).root, existing=True)
        paths = [located(run, where) for run in runs]
        if older_than is not None:
            paths = [run.path for run in where.list() if run.end and run.started_ns < older_than.timestamp() * 1e9]
        before = after = done = 0
        for path in progress(paths, "decompressing" if undo else "compressing"):
            try:
                was, now = housekeeping.uncompress(path) if undo else housekeeping.compress(where, path)
            except TracekitError as error:
                if older_than is None:
                    raise
                output.message(f"left: {error}")
                continue
            before, after, done = before + was, after + now, done + 1
        click.echo(f"{'decompressed' if undo else 'compressed'} {_runs(done)}: {_bytes(before)} -> {_bytes(after)}")


def _stem(path: str) -> str:
    return os.path.basename(path).removesuffix(".jsonl")


def _runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"


def _bytes(size: int) -> str:
    units = [(name, 1024**power) for power, name in enumerate(("bytes", "KiB", "MiB", "GiB"))]
    name, one = next((unit for unit in reversed(units) if size >= unit[1]), units[0])
    return f"{size / one:.1f} {name}" if one > 1 else f"{size} {name}"
