"""``tracekit replay``: run the recorded program again, from its trace."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from .._engine.program import Program
from .._journal.entry import FAMILIES
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import RunStateError, TracekitError
from .launching import launch
from .output import emit, fail, message
from .programs import hash_seed, program_of
from .store import located

__all__ = ["replay", "told"]


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("run")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--store", type=click.Path(file_okay=False), help="The directory of runs (default: TRACEKIT_DIR, .tracekit)."
)
@click.option(
    "--entry", metavar="MODULE:FUNCTION", help="Call this function with the recorded input instead of the program."
)
@click.option("--dry-run", is_flag=True, help="Print the recorded result without running anything.")
@click.option("--no-writes", is_flag=True, help="Block file writes and deletions of the replayed program too.")
@click.option(
    "--break", "break_at", type=int, metavar="STEP", help="Stop in the debugger at this step, in the user's frame."
)
@click.option("--on-divergence", type=click.Choice(["raise", "warn"]), default="raise", show_default=True)
@click.option(
    "--strict", multiple=True, type=click.Choice(["environment", "clock", "order"]), help="Make this drift a failure."
)
@click.option("--guard", type=click.Choice(["process", "context", "off"]), default="process", show_default=True)
@click.option(
    "--allow-host", "allow_hosts", multiple=True, metavar="HOST[:PORT]", help="A host that the program may reach."
)
@click.option(
    "--isolate",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Cut off the network below Python too.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="Seconds that a failed replay has to end by itself.",
)
def replay(run: str, command: tuple[str, ...], store: str | None, dry_run: bool, **options: Any) -> None:
    """Replay RUN (an id, the beginning of one, "last", or a path): its program runs again, answered from the trace.

    A program is taken from the trace only where the run is one of your own store; for any other file name it yourself:
    tracekit replay PATH -- SCRIPT [ARGS…]. Exit codes: 0 everything matched, 1 a difference or damage, 2 wrong use.
    """
    try:
        where = Store(store)
        path = str(located(run, where))
        with Trace(path) as trace:
            where.check(trace)
            if not len(trace):
                raise RunStateError(
                    f"{path} holds no entry: there is nothing to replay",
                    next_action="its process died before the run began; `tracekit list` shows the other runs",
                )
            if dry_run:
                _dry(trace)
            _check_break(trace, options["break_at"])
            program, cwd = program_of(trace, where, path, command, options["entry"], "replay")
            environment = hash_seed(trace)
    except TracekitError as error:
        fail(error)
    message(f"tracekit: replaying {run}: {options['entry'] or program}")
    if any("[REDACTED:" in argument for argument in program.arguments):
        what = f"-m {program.module}" if program.module else program.script
        message(
            "tracekit: arguments of it were redacted in the trace; if it needs them as they were, name them: "
            f"tracekit replay {run} -- {what} ARGS…"
        )
    launch(told(run, path, where, program, options), environment, cwd)


def _dry(trace: Trace) -> NoReturn:
    last = trace.entry(len(trace))
    if last["type"] == "run.completed":
        emit({"run_id": last["run_id"], "from_replay": True, "result": trace.expand(last.get("output"))})
        sys.exit(0)
    error = last.get("error") if last["type"] == "run.failed" else None
    emit({"run_id": last["run_id"], "from_replay": True, "error": error, "end": last["type"]})
    message("tracekit: the recorded run came to no result")
    sys.exit(0 if error else 3)


def _check_break(trace: Trace, step: int | None) -> None:
    """A stop that never comes would pass for a run that never got there."""
    if step is None:
        return
    entry = trace.entry(step) if 1 <= step <= len(trace) else {}
    if entry.get("type") not in {family.intention for family in FAMILIES.values()}:
        what = f"is a {entry['type']}" if entry else "is not there"
        whose = f", which belongs to step {entry['step']}" if "step" in entry else ""
        raise RunStateError(
            f"--break {step}: no step begins there; entry {step} {what}{whose}",
            next_action="`tracekit show RUN` shows the number of each step",
        )


def told(run: str, path: str, store: Store, program: Program, options: dict[str, Any]) -> dict[str, Any]:
    """The instructions for ``launch``."""
    return {
        "mode": "replay",
        "run": run,
        "path": os.path.abspath(path),
        "store": os.path.abspath(store.root),
        "module": program.module,
        "script": program.script,
        "arguments": list(program.arguments),
        "cwd": program.cwd,
        "entry": options["entry"],
        "break": options["break_at"],
        "isolate": options["isolate"],
        "grace": options["grace"],
        "strict_exit": options["on_divergence"] == "warn",
        "options": {
            "store": None,
            "on_divergence": options["on_divergence"],
            "strict": list(options["strict"]),
            "guard": options["guard"],
            "allow_hosts": list(options["allow_hosts"]),
            "dry_run": options["no_writes"],
            "redact": [],
            "live": [],
        },
    }
