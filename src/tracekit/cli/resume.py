"""``tracekit recovery resume``: go on with a run after a crash."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import orjson

from .._journal.reader import Trace
from .._journal.runs import Store
from .._session.decisions import decision_on
from ..errors import RecoveryRefusedError, TracekitError
from .decided import shown
from .launching import launch
from .output import REFUSED, emit, fail, message, structured
from .programs import check_given, hash_seed, program_of
from .resumers import check_siblings
from .store import located

__all__ = ["resume"]


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("run")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--store", type=click.Path(file_okay=False), help="The directory of runs (default: TRACEKIT_DIR, .tracekit)."
)
@click.option("--check", is_flag=True, help="Stop after the decision.")
@click.option(
    "--entry", metavar="MODULE:FUNCTION", help="Call this function with the recorded input instead of the program."
)
@click.option(
    "--supply",
    multiple=True,
    metavar="STEP=FILE.json",
    help="The output of a step that the log does not have (redacted or opaque).",
)
@click.option(
    "--accept-lost-tail", is_flag=True, help="Cut off what a power loss has left behind the last synced effect."
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="Seconds that a failed replay has to end by itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the decision as JSON, on a terminal too.")
def resume(run: str, command: tuple[str, ...], store: str | None, check: bool, **options: Any) -> None:
    """Go on with RUN after a crash: its program runs again, answered from the log while that lasts, then live.

    Prints the decision first. Exit codes: the program's own; 1 where it no longer follows its log (nothing went live), 4 where
    resuming is refused (finished and broken runs too).
    """
    supplied = _supplied(options["supply"])
    try:
        where = Store(store)
        path = str(located(run, where))
        decision = decision_on(path, supplied=supplied, accept_lost_tail=options["accept_lost_tail"])
        if structured(options["as_json"]):
            emit(decision.as_dict())
        else:
            shown([decision])
        if decision.decision != "resume":
            for reason in decision.refusals:
                message(f"tracekit: refused: {reason['text']}")
            message("tracekit: see docs/reference/recovery.md for what each reason asks for")
            sys.exit(REFUSED)
        with Trace(path) as trace:
            program, cwd = program_of(trace, where, path, command, options["entry"], "recovery resume")
            check_given(trace, program, command, options["entry"])
            environment = hash_seed(trace)
        if options["entry"] is None:
            check_siblings(where, path)
    except RecoveryRefusedError as error:
        if structured(options["as_json"]):
            emit({"run_id": error.run_id, "decision": "abort", "reasons": error.__dict__["reasons"]})
        fail(error)
    except TracekitError as error:
        fail(error)
    if check:
        return
    message(f"tracekit: resuming {decision.run_id}: {options['entry'] or program}")
    told = {
        "mode": "resume",
        "run": run,
        "path": os.path.abspath(path),
        "store": os.path.abspath(where.root),
        "module": program.module,
        "script": program.script,
        "arguments": list(program.arguments),
        "cwd": program.cwd,
        "entry": options["entry"],
        "grace": options["grace"],
        "supply": {str(step): value for step, value in supplied.items()},
        "accept_lost_tail": options["accept_lost_tail"],
    }
    launch(told, environment, cwd)


def _supplied(given: tuple[str, ...]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in given:
        step, _, file = one.partition("=")
        if not step.isdigit() or not file:
            raise click.UsageError(f"--supply takes STEP=FILE.json, not {one!r}")
        try:
            with open(file, "rb") as opened:
                found[int(step)] = orjson.loads(opened.read())
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--supply: {file} can't be read as JSON: {error}") from None
    return found
