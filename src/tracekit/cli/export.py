"""``tracekit export``: runs in other forms."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final

import click

from .._capture.plugins import Form, forms
from .._journal.reader import Trace
from .._journal.store import shown_as
from .._runs.perfetto import Perfetto
from ..errors import TraceError
from ..otel import Otlp
from . import output
from .options import READ_STORE
from .output import located, printable

__all__ = ["export"]

#: Keys of an entry that only the trace format itself needs.
_OWN: Final = frozenset({"hash"})


class _Expanded(Form):
    """Each entry with values instead of references; entries that only hold referenced values are omitted."""

    name = "expanded"
    summary = "the entries with every value written out."

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        import orjson

        for trace in traces:
            for entry in trace.entries():
                if entry["type"] != "blob":
                    yield orjson.dumps(_whole(trace, entry), option=orjson.OPT_APPEND_NEWLINE)


#: The forms in which runs can be written, or sent.
_FORMS: Final = {
    form.name: form for form in (*forms().values(), _Expanded(), Perfetto(), Otlp()) if form.exports or form.sends
}


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=output.complete_run)
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice([*_FORMS]),
    help=" ".join(f"{form.name}: {form.summary}" for form in _FORMS.values()),
)
@click.option("--payloads", is_flag=True, help="Include messages, arguments and results if the form leaves them out.")
@click.option("-o", "--output", "target", metavar="FILE", help="Write into this file, which must not exist yet.")
@click.option("--endpoint", metavar="URL", help="Where to send it (otlp; default: OTEL_EXPORTER_OTLP_ENDPOINT).")
@READ_STORE
def export(
    runs: tuple[str, ...], form: str, payloads: bool, target: str | None, endpoint: str | None, store: str | None
) -> None:
    """Write runs in another form, to stdout or into a file, or send them.

    RUN is an id, the beginning of one, "last", or a path; name several runs if their agents exchanged messages. Every file is
    verified first. Exit code: 1 for damage, 2 if there is no such run, if the events cannot be ordered (a parent is in a run that
    was not named), or if nothing could be sent.

    \b
    Examples:
      tracekit export last --to perfetto -o run.json
      tracekit export last --to otlp --endpoint http://127.0.0.1:4318
    """
    chosen = _FORMS[form]
    if payloads and not chosen.payloads:
        having = ", ".join(f"--to {one.name}" for one in _FORMS.values() if one.payloads) or "no form"
        raise click.BadParameter(f"only {having} has payloads apart", param_hint="--payloads")
    if target is not None and chosen.sends:
        raise click.BadParameter(f"--to {form} is sent, not written; say --endpoint", param_hint="--output")
    if endpoint is not None and not chosen.sends:
        raise click.BadParameter(f"--to {form} is written, not sent; say --output", param_hint="--endpoint")
    with output.reported():
        where = output.readable(store, *runs)
        with ExitStack() as stack:
            with output.working("verifying"):
                traces = stack.enter_context(where.files(*(located(run, where) for run in runs)))
            for trace in traces:
                if not trace.check().count:
                    output.message(f"tracekit: {printable(shown_as(trace.path))} has no entries to export")
            if chosen.sends:
                with output.working("sending"):
                    sent = chosen.send(traces, endpoint=endpoint, payloads=payloads)
                output.message(sent)
                return
            pieces = chosen.export(traces, payloads=payloads)
            if target is None and sys.stdout.isatty():
                _write(sys.stdout.buffer, map(output.escaped, pieces))
                return
            with output.working("writing"):
                _write(sys.stdout.buffer, pieces) if target is None else _into(target, pieces)


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
    whole = list(pieces)  # before the file is created: an error leaves none
    try:
        with open(target, "xb") as out:
            _write(out, whole)
    except OSError as error:
        raise TraceError(
            f"{target} can't be written: {error.strerror}",
            path=target,
            next_action="name a new file, in a directory that is there",
        ) from None
