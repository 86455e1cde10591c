"""``tracekit executions``: commands on runs under the names that other tools use, and the entries of a run as JSON."""

from __future__ import annotations

import sys

import click

from .._journal.reader import Trace
from . import output
from .diff import diff
from .options import READ_STORE
from .output import located, printable
from .runs import list_
from .show import show, whole

__all__ = ["executions"]

# -- executions --------------------------------------------------------------------------------------------------------
#
# ``tracekit executions``: the same commands grouped.


@click.group()
def executions() -> None:
    """List, show, trace and compare runs.

    \b
    Examples:
      tracekit executions list
      tracekit executions trace last
    """


executions.add_command(list_, "list")
executions.add_command(show, "show")
executions.add_command(diff, "diff")


@executions.command("trace", short_help="Print the entries of a run as JSON lines.")
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@READ_STORE
@click.option("--expand", is_flag=True, help="Put values in place of the references to them.")
def trace(run: str, store: str | None, expand: bool) -> None:
    """Print the entries of RUN as JSON lines.

    Exit code: 0 for a whole trace, with or without an end; 1 for a broken one, of which the entries that verify are printed.

    \b
    Examples:
      tracekit executions trace last | jq .type
      tracekit executions trace last --expand
    """
    with output.reported(), Trace(located(run, where := output.readable(store, run))) as file:
        verdict = where.judge_run(file)
        output.emit(whole(file, 1, expand))
        if verdict.state == "broken" or verdict.problem:
            output.message(f"{verdict.state}: {printable(str(verdict.problem))}")
        if verdict.state == "broken":
            sys.exit(output.DIFFERENT)
