"""``tracekit export`` and ``tracekit import``: traces in other formats."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, Final

import click

from .._journal.reader import Trace
from .._journal.store import Store
from ..errors import TraceError
from . import output
from .output import located

__all__ = ["export", "import_"]

# -- export ------------------------------------------------------------------------------------------------------------
#
# ``tracekit export RUN --to FORM``: runs in another form.

#: Keys of an entry that only the trace format itself needs.
_OWN: Final = frozenset({"hash"})


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(["inter-agent", "agentloom", "expanded"]),
    help="inter-agent: the events of agents in causal order, JSON lines. agentloom: a recording of agentloom. "
    "expanded: the entries with every value written out.",
)
@click.option("--payloads", is_flag=True, help="With inter-agent: what was said, beside its hash.")
@click.option("-o", "--output", "target", metavar="FILE", help="Write into a file that is not there yet.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
def export(runs: tuple[str, ...], form: str, payloads: bool, target: str | None, store: str | None) -> None:
    """Write runs in another form, to stdout or into a file.

    RUN is an id, the beginning of one, "last", or a path; several for agents in several runs that wrote to one another. Every file is
    verified first. Exit code: 1 for damage, 2 if there is no such run, or the events have no order (a parent in a run that was not
    named).
    """
    if payloads and form != "inter-agent":
        raise click.BadParameter("only --to inter-agent has payloads apart", param_hint="--payloads")
    from ..agents.agentloom import files_of

    with output.reported():
        where = Store(store)
        paths = [located(run, where) for run in runs]
        with files_of(*paths, store=where) as traces:
            pieces = _pieces(form, traces, paths, where, payloads)
            if target is None:
                _write(sys.stdout.buffer, map(output.escaped, pieces) if sys.stdout.isatty() else pieces)
            else:
                _into(target, pieces)


def _pieces(form: str, traces: list[Trace], paths: list[str], where: Store, payloads: bool) -> Iterable[bytes]:
    if form == "expanded":
        return _expanded(traces)
    from ..agents import agentloom, graph
    from ..agents.agentloom import events

    if form == "inter-agent":
        return [graph.serialize(events(*paths, store=where, payloads=payloads))]
    return [agentloom.exported(*traces).dumps().encode()]


def _expanded(traces: list[Trace]) -> Iterable[bytes]:
    """Each entry with values in place of references; the entries that only hold such values are left out."""
    import orjson

    for trace in traces:
        for entry in trace.entries():
            if entry["type"] != "blob":
                yield orjson.dumps(_whole(trace, entry), option=orjson.OPT_APPEND_NEWLINE)


def _whole(trace: Trace, entry: dict[str, Any]) -> dict[str, Any]:
    seq = entry["seq"]
    return {
        key: trace.expand(value, before=seq) if key in ("input", "output", "error", "values") else value
        for key, value in entry.items()
        if key not in _OWN
    }


def _write(out: IO[bytes], pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        out.write(piece)
    out.flush()


def _into(target: str, pieces: Iterable[bytes]) -> None:
    whole = list(pieces)  # before the file is made: an error leaves none
    try:
        with open(target, "xb") as out:
            _write(out, whole)
    except OSError as error:
        raise TraceError(
            f"{target} can't be written: {error.strerror}",
            path=target,
            next_action="name a new file, in a directory that is there",
        ) from None


# -- import ------------------------------------------------------------------------------------------------------------
#
# ``tracekit import FILE``: a recording of another tool as a run.


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option("--run-id", metavar="ID", help="What to call the run (default: a new id).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on a terminal too.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
def import_(file: str, run_id: str | None, as_json: bool, store: str | None) -> None:
    """Make a run of FILE, a recording of agentloom (version 1 or 2).

    `tracekit list`, `show` and `verify` read it from then on, and `tracekit export --to agentloom` gives the recording back.
    """
    from ..harness import import_agentloom

    with output.reported():
        writer = import_agentloom(file, store, run_id=run_id)
        if output.structured(as_json):
            output.emit({"run_id": writer.run_id, "path": writer.path})
        else:
            output.message(f"{writer.run_id}  {writer.path}")
