"""``tracekit report``: runs as one HTML file."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import click

from .. import _reality
from .._journal.durable import replacing
from .._journal.entry import meta_of
from .._journal.store import Store, shown_as
from .._runs.comparing import compare
from .._runs.page import GENERATOR, page
from .._runs.reading import RunView
from ..errors import RunNotFoundError, RunStateError, TraceError
from . import output
from .options import READ_STORE
from .output import located
from .show import explain

__all__ = ["check_page", "report", "write_page"]


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=output.complete_run)
@READ_STORE
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help='The file to write, "-" for stdout (default: the id of the last run, with .html).',
)
@click.option("--no-diff", is_flag=True, help="Don't compare two runs, or a partial replay with its original.")
@click.option("--whole", is_flag=True, help="Don't cut long texts, and include every piece of every stream.")
def report(runs: tuple[str, ...], store: str | None, file: str | None, no_diff: bool, whole: bool) -> None:
    """Write runs as one HTML file to read and to pass on: it needs no network and no tracekit.

    It has the time line, every step with its input and outcome, prompts as messages with the changes since the previous turn,
    streams, tokens and cost, the boundary and the verdict, and for two runs their differences. A partial replay is compared with
    the run that it replays, if that is in the store.

    Secrets are placeholders in it, as in the trace. Everything else that was recorded is in it: give it only to those to whom you
    would give the trace. A text of more than 100,000 characters is cut and marked. An existing file is replaced only if it is such
    a report. Exit code: 0, 1 if a trace is damaged, 2 if there is no such run.

    \b
    Examples:
      tracekit report last
      tracekit report last~1 last -o changes.html  # and what differs
    """
    with output.reported():
        where = output.readable(store, *runs)
        target = file or ""
        if target not in ("", "-"):
            check_page(target)
        with ExitStack() as stack:
            views = [stack.enter_context(output.read(located(run, where), where)) for run in runs]
            if len(views) == 1 and not no_diff and (origin := _origin(views[0], where)) is not None:
                views.insert(0, stack.enter_context(origin))
            compared = compare(*views) if len(views) == 2 and not no_diff else None
            answers = [explain(one) for one in views]
            damaged = [shown_as(one.path) for one in views if one.state == "broken"]
            text = page(
                views,
                compared,
                answers=answers,
                whole=whole,
                walked=lambda steps: output.progress(steps, "reading the steps"),
            )
            for name in damaged:
                output.message(
                    f"tracekit: {name} is damaged, and the page has only what verifies: `tracekit verify {name}`"
                )
            status = output.DIFFERENT if damaged else output.RIGHT
            name = f"{os.path.basename(views[-1].path).partition('.jsonl')[0]}.html"  # a trace may contain any id
        if target == "-":
            click.echo(text.encode(), nl=False)  # the page says that it is UTF-8
            sys.exit(status)
        target = target or name
        write_page(target, text)
        click.echo(target)
        output.message(f"tracekit: {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
        sys.exit(status)


def _origin(view: RunView, where: Store) -> RunView | None:
    """Return the origin of a partial replay; ``None`` for any other run, and if it is not in the store."""
    origin = meta_of(view.own.first).get("origin")
    named = origin.get("run_id") if isinstance(origin, dict) else None
    if not isinstance(named, str):
        return None
    try:
        return output.read(located(named, where), where)
    except RunNotFoundError:
        output.message(
            f"tracekit: the run that it is a replay of, {output.printable(named)}, is not in the store: not compared"
        )
        return None


def write_page(target: str, text: str) -> None:
    """Write a page into a file that does not exist, or is such a page already: atomically."""
    check_page(target)
    try:
        with replacing(os.path.abspath(target), sync=False) as fd:
            left = text.encode()
            while left:
                left = left[_reality.write(fd, left) :]
    except OSError as error:
        raise TraceError(
            f"{target} can't be written: {error.strerror}",
            path=target,
            next_action="name a file in a directory that is there, and that you may write to",
        ) from None


def check_page(target: str) -> None:
    """Raise ``RunStateError`` if the file exists and is no report: nothing else is replaced."""
    try:
        with open(target, encoding="utf-8", errors="replace") as found:
            if found.read(len(GENERATOR)) in (GENERATOR, ""):
                return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError) as error:
        raise RunStateError(f"{target} can't be written: {error.strerror}", next_action="name a file with -o") from None
    raise RunStateError(
        f"{target} exists already, and is not a report of tracekit",
        next_action="name another file with -o, or remove it",
    )
