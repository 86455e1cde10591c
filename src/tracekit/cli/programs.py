"""Which program is run again for a recorded run, and where."""

from __future__ import annotations

import json
import os

from .._engine.program import Program
from .._engine.redaction import PLACEHOLDER
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import RecoveryRefusedError, RunStateError

__all__ = ["check_given", "hash_seed", "program_of", "trusted"]


def program_of(
    trace: Trace, store: Store, path: str, command: tuple[str, ...], entry: str | None, verb: str
) -> tuple[Program, str]:
    """The program and the directory to run it in: the ``command`` that the user names, else what the trace says.

    ``verb`` is the command line's word for what is to be done. ``RunStateError`` where the trace is not to be believed or names none.
    """
    if command:
        script = command[1:] if command[0] in ("python", "python3") else command
        if script and script[0] == "-m":
            return Program(None, script[1], tuple(script[2:]), os.getcwd()), os.getcwd()
        return Program(os.path.abspath(script[0]), None, tuple(script[1:]), os.getcwd()), os.getcwd()
    if entry is not None:
        return Program(None, None, (), os.getcwd()), os.getcwd()
    if not trusted(store, path):
        raise RunStateError(
            f"{path} is not a run of your own store, so its program is not run from its word",
            next_action=f"name the program: tracekit {verb} PATH -- SCRIPT [ARGS…], or --entry module:function",
        )
    program = Program.of(trace.entry(1).get("meta", {}).get("program_command") or {})
    if program is None:
        raise RunStateError(
            f"{path} names no program (it was recorded in a prompt or an embedded interpreter)",
            next_action=f"name it: tracekit {verb} RUN -- SCRIPT [ARGS…], or --entry module:function",
        )
    missing = next((name for name in (program.cwd, program.script) if name and not os.path.exists(name)), None)
    if missing is not None:
        raise RunStateError(
            f"the run was recorded at {missing}, which is not here",
            next_action=f"name the program: tracekit {verb} RUN -- SCRIPT [ARGS…], or --entry module:function",
        )
    return program, program.cwd


def check_given(trace: Trace, program: Program, command: tuple[str, ...], entry: str | None) -> None:
    """``RecoveryRefusedError`` where a program that goes live would be given a placeholder in the place of a secret."""
    first = trace.entry(1)
    if entry is not None:
        if PLACEHOLDER.search(json.dumps(trace.expand(first.get("input")))):
            raise _placeholder(
                first["run_id"],
                "redacted_input",
                f"the recorded input of the run, with which {entry} would be called, has lost a secret",
                "resume it by its program, or with `resume()` in Python, with the input as it was",
            )
    elif not command and any(PLACEHOLDER.search(argument) for argument in program.arguments):
        what = f"-m {program.module}" if program.module else program.script
        raise _placeholder(
            first["run_id"],
            "redacted_arguments",
            "the recorded arguments of the program have lost a secret",
            f"name them as they were: tracekit recovery resume RUN -- {what} ARGS…",
        )


def _placeholder(run_id: str, code: str, text: str, next_action: str) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"resuming run {run_id} is refused: {text}",
        run_id=run_id,
        reasons=[{"code": code, "text": text}],
        next_action=next_action,
    )


def trusted(store: Store, path: str) -> bool:
    """Whether a trace is a run of the user's own store."""
    inside = os.path.realpath(path).startswith(os.path.realpath(store.root) + os.sep)
    return inside and os.stat(path).st_uid == os.getuid()


def hash_seed(trace: Trace) -> dict[str, str]:
    """The environment variable that gives sets the order that they had."""
    seed = (trace.entry(1).get("meta", {}).get("environment") or {}).get("hash_seed")
    return {"PYTHONHASHSEED": str(seed)} if isinstance(seed, int) else {}
