"""``tracekit export RUN --to FORM``: runs in another form."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, Final

import click

from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import TraceError
from . import output
from .store import located

__all__ = ["export"]

#: What stands in a trace for the trace's own sake.
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
    from ..agents.runs import files_of

    with output.reported():
        where = Store(store)
        paths = [located(run, where) for run in runs]
        with files_of(*paths, store=where) as traces:
            pieces = _pieces(form, traces, paths, where, payloads)
            if target is None:
                _write(sys.stdout.buffer, pieces)
            else:
                _into(target, pieces)


def _pieces(form: str, traces: list[Trace], paths: list[str], where: Store, payloads: bool) -> Iterable[bytes]:
    if form == "expanded":
        return _expanded(traces)
    from ..agents import agentloom, graph
    from ..agents.runs import events

    if form == "inter-agent":
        return [graph.serialize(events(*paths, store=where, payloads=payloads))]
    return [agentloom.exported(*traces).dumps().encode()]


def _expanded(traces: list[Trace]) -> Iterable[bytes]:
    """Each entry with what its references stand for; the entries that only hold such values are left out."""
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
    whole = list(pieces)  # before there is a file: an error leaves none
    try:
        with open(target, "xb") as out:
            _write(out, whole)
    except OSError as error:
        raise TraceError(
            f"{target} can't be written: {error.strerror}",
            path=target,
            next_action="name a new file, in a directory that is there",
        ) from None
