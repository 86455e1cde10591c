"""``tracekit replay``: replay the program of a recorded run in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import click

from .._journal.entry import ENDS, FAMILIES
from .._journal.reader import Trace
from .._journal.store import Store, before_last, file_name, holder, shown_as
from .._runs.program import Program
from .._runs.remote import is_url
from .._runtime.redaction import Originals
from .._runtime.verdict import CAN_BE_INEXACT
from ..errors import RecoveryRefusedError, RunStateError, TracekitError
from .options import COMMAND, STORE
from .output import (
    DIFFERENT,
    INCOMPLETE,
    RIGHT,
    brief,
    complete_run,
    emit,
    fail,
    function_name,
    located,
    message,
    printable,
)
from .output import local as output_local
from .run import launch, launcher, named_program

__all__ = [
    "ALLOW_HOST",
    "IGNORE",
    "ISOLATE",
    "LIVE_ENV",
    "LIVE_FILES",
    "STRICT",
    "Prepared",
    "by_kind",
    "check_given",
    "hash_seed",
    "live_kinds",
    "of_a_replay",
    "prepared",
    "program_of",
    "replay",
    "replay_instructions",
    "started",
    "trusted",
]

# -- programs ----------------------------------------------------------------------------------------------------------
#
# The program with which a recorded run is replayed, and its directory.


def program_of(
    trace: Trace, store: Store, path: str, command: tuple[str, ...], entry: str | None, verb: str
) -> tuple[Program, str]:
    """Return the program of a recorded run and its directory: the ``command`` that the user names, else the recorded
    one.

    ``verb`` is the command's name, for messages. Raises ``RunStateError`` if the trace is not the user's own or names
    no program, and for an imported run, which has no program.
    """
    if trace.imported_from is not None:
        raise RunStateError(
            f"{path} was imported from {trace.imported_from}: it answers the HTTP requests of a test, and is not a recording of a program",
            next_action="use it in a test (@pytest.mark.tracekit), or `with tracekit.replay(PATH):`; or record a program: tracekit run",
        )
    if command:
        named = named_program(command)
        return named, named.cwd
    if entry is not None:
        return Program(None, None, (), os.getcwd()), os.getcwd()
    if not trusted(store, path):
        raise RunStateError(
            f"{path} is not a run of your own store, so the program that it names is not run",
            next_action=_of_test(trace, path, verb)
            or f"name the program: tracekit {verb} {shown_as(path)} -- SCRIPT [ARGS…], or --entry module:function",
        )
    program = Program.of(Originals(trace.path).first(trace).get("meta", {}).get("program_command") or {})
    if program is None:
        raise RunStateError(
            f"{path} names no program (it was recorded in a prompt or an embedded interpreter)",
            next_action=f"name it: tracekit {verb} {shown_as(path)} -- SCRIPT [ARGS…], or --entry module:function",
        )
    missing = next((name for name in (program.cwd, program.script) if name and not os.path.exists(name)), None)
    if missing is not None:
        raise RunStateError(
            f"the run was recorded at {missing}, which is not here",
            next_action=f"name the program: tracekit {verb} {shown_as(path)} -- SCRIPT [ARGS…], or --entry module:function",
        )
    return program, program.cwd


#: A test's id in pytest, used by its plugin as the run's name.
_TEST: Final = re.compile(r"[^:\n]+\.py(::[^\n]+)+")


def _of_test(trace: Trace, path: str, verb: str) -> str | None:
    """Return the command for a trace recorded by pytest's plugin; ``None`` for any other."""
    name = trace.entry(1).get("name")
    if not isinstance(name, str) or not _TEST.fullmatch(name):
        return None
    return f"it is of a test: tracekit {verb} {shlex.quote(path)} -- -m pytest {shlex.quote(name)}"


def check_given(trace: Trace, program: Program, command: tuple[str, ...], entry: str | None) -> None:
    """Raise ``RecoveryRefusedError`` if the run would be resumed with a placeholder for a secret in the arguments or
    the input."""
    first, originals = trace.entry(1), Originals(trace.path)
    if entry is not None:
        if originals.lack(first, "input"):
            raise _placeholder(
                first["run_id"],
                "redacted_input",
                f"the recorded input of the run, with which {entry} would be called, has lost a secret",
                "resume it by its program, or with `resume()` in Python, with the input as it was",
            )
    elif not command and originals.lack(first, "meta/program_command/arguments"):
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
    """Return whether a trace is a run of the user's own store."""
    inside = os.path.realpath(path).startswith(os.path.realpath(store.root) + os.sep)
    return inside and os.stat(path).st_uid == os.getuid()


def hash_seed(trace: Trace) -> dict[str, str]:
    """Return the recorded ``PYTHONHASHSEED``, so that sets have the same order."""
    seed = (trace.entry(1).get("meta", {}).get("environment") or {}).get("hash_seed")
    return {"PYTHONHASHSEED": str(seed)} if isinstance(seed, int) else {}


# -- replay ------------------------------------------------------------------------------------------------------------
#
# ``tracekit replay``: run the recorded program again, from its trace.


#: Options of every command that replays.
STRICT: Final = click.option(
    "--strict", multiple=True, type=click.Choice(CAN_BE_INEXACT), help="Make a replay with this remark inexact."
)
IGNORE: Final = click.option(
    "--ignore",
    multiple=True,
    metavar="KIND=FIELD",
    help="Leave a field out of the comparison (llm=input.body.user).",
)
ALLOW_HOST: Final = click.option(
    "--allow-host", "allow_hosts", multiple=True, metavar="HOST[:PORT]", help="Let the program reach this host."
)
LIVE_ENV: Final = click.option(
    "--live-env",
    "live_env",
    multiple=True,
    metavar="NAME",
    help="Use today's value of this environment variable.",
)
LIVE_FILES: Final = click.option(
    "--live-files", "live_files", multiple=True, metavar="GLOB", help="Use today's content of these files."
)
ISOLATE: Final = click.option(
    "--isolate",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Cut off the network below Python too.",
)

#: The common arguments and options of ``tracekit replay`` and ``tracekit debug``.
_OPTIONS: Final = (
    click.argument("run", shell_complete=complete_run),
    COMMAND,
    STORE,
    click.option(
        "--entry",
        metavar="MODULE:FUNCTION",
        callback=function_name,
        help="Call this function with the recorded input instead of the program.",
    ),
    click.option("--no-writes", is_flag=True, help="Block file writes and deletions of the replayed program too."),
    click.option(
        "--writes",
        type=click.Choice(["scratch", "real"]),
        default="scratch",
        show_default=True,
        help="Where the program's files go: into a scratch layer that is gone afterwards, or to their real place.",
    ),
    click.option(
        "--writes-to", type=click.Path(file_okay=False), metavar="DIRECTORY", help="Keep what the program wrote there."
    ),
    click.option("--on-divergence", type=click.Choice(["raise", "warn"]), default="raise", show_default=True),
    STRICT,
    IGNORE,
    click.option("--guard", type=click.Choice(["process", "context", "off"]), default="process", show_default=True),
    ALLOW_HOST,
    LIVE_ENV,
    LIVE_FILES,
    ISOLATE,
    click.option(
        "--grace",
        type=click.FloatRange(0, 86_400),
        default=10.0,
        show_default=True,
        help="Seconds that a replay has to end by itself after it has failed or nothing in it moves.",
    ),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def of_a_replay(function: _Command) -> _Command:
    """Decorate a command with the common arguments and options of replays."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class Prepared(NamedTuple):
    """A replay that can be started: its instructions, the environment and the directory of its program, and the trace."""

    instructions: dict[str, Any]
    environment: dict[str, str]
    cwd: str
    path: str
    store: Store


def prepared(run: str, command: tuple[str, ...], store: str | None, verb: str, options: dict[str, Any]) -> Prepared:
    """Prepare the replay of ``run`` for ``tracekit verb``; print what will be replayed. Raises ``TracekitError`` if it
    can't be replayed."""
    if options["live"] or options["ignore"]:
        from .._runs.replay import ignored_fields, kinds_that_go_live  # much that a replay needs, another process here

        try:
            options["live"] = kinds_that_go_live(live_kinds(options["live"]))
            ignored_fields(by_kind(options["ignore"]))
        except ValueError as error:
            raise click.UsageError(f"--{error}") from None
    where = output_local(store)
    path = str(located(run, where))
    with Trace(path, indexed=True) as trace:
        where.check_replayable(trace)
        as_json = options.pop("as_json", False)
        if options.pop("dry_run", False):
            _dry(trace, where, as_json)
        program, cwd = program_of(trace, where, path, command, options["entry"], verb)
        environment = hash_seed(trace)
        lost = not command and Originals(path).lack(trace.entry(1), "meta/program_command/arguments")
    which = f"{run} ({file_name(path).stem})" if before_last(run) is not None else run
    message(f"tracekit: replaying {which}: {options['entry'] or program}")
    if holder(path):
        message("tracekit: the run is still being recorded: it is replayed as far as its log goes now")
    if lost:
        what = f"-m {program.module}" if program.module else program.script
        message(
            "tracekit: arguments of it were redacted in the trace; if it needs them as they were, name them: "
            f"tracekit {verb} {run} -- {what} ARGS…"
        )
    if options["isolate"] == "on" and any(kind.partition(":")[0] in FAMILIES for kind in options["live"]):
        raise click.UsageError("--live reaches the network, and --isolate=on cuts it off")
    if options["writes_to"] is not None and options["writes"] == "real":
        raise click.UsageError("--writes-to keeps what is written in a scratch layer, and --writes real wants none")
    return Prepared(replay_instructions(run, path, where, program, options), environment, cwd, path, where)


def started(
    found: Prepared, instructions: Mapping[str, Any], pipes: Sequence[int], streams: tuple[int, int] | None
) -> subprocess.Popen[bytes]:
    """Start ``tracekit.cli.launch`` as a child process with these ``pipes``, which Ctrl-C does not interrupt.

    ``streams`` are its stdout and its stderr; ``None``: those of this process, and its terminal.
    """
    stdout, stderr = streams or (None, None)
    terminal = streams is None and sys.stdin is not None and sys.stdin.isatty()
    variables = {**os.environ, **found.environment, "TRACEKIT_LAUNCH": json.dumps(instructions)}
    return subprocess.Popen(
        launcher(),
        env=variables,
        cwd=found.cwd,
        stdin=None if terminal else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pipes,
        process_group=0,
    )


@click.command(context_settings={"allow_interspersed_args": True})
@of_a_replay
@click.option("--dry-run", is_flag=True, help="Print the recorded result without running anything.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON.")
@click.option(
    "--live",
    multiple=True,
    metavar="KIND[:NAME][=INSTEAD]",
    help="Let llm, tool or http calls go live, or only those of one name (llm=MODEL: to that model); decide again with "
    "policy.check=MODULE:FUNCTION; shift the clock with clock=30d or clock=DATE. Writes a new run.",
)
def replay(run: str, command: tuple[str, ...], store: str | None, **options: Any) -> None:
    """Replay RUN (an id, the beginning of one, "last", or a path): its program runs again, answered from the trace.

    The program is taken from the trace only if the run is in your own store; for any other file name it yourself: tracekit replay
    PATH -- SCRIPT [ARGS…]. Exit codes: 0 exact, except for what you allowed; 1 not exact, or damage; 2 usage error; 3 not known,
    since the recording has no end.

    \b
    Examples:
      tracekit replay last
      tracekit replay last --live llm           # ask the model again
      tracekit replay last --entry shop:answer  # call one function
      tracekit replay sent.jsonl -- agent.py    # a trace you got
    """
    try:
        found = prepared(run, command, store, "replay", options)
    except TracekitError as error:
        fail(error)
    launch(found.instructions, found.environment, found.cwd, stays=is_url(run))


def _dry(trace: Trace, where: Store, as_json: bool) -> NoReturn:
    """Print the recorded result and whether the run can be replayed; exit with the code of that verdict."""
    from .._runs.reading import error_text, read_run

    with read_run(trace.path, where) as read:
        answer = read.verdict.can_be_replayed
    last = trace.last
    summary = {"run_id": last["run_id"], "from_replay": True}
    ended = last["type"] == "run.completed"
    if ended:
        summary["result"] = trace.expand(last.get("output"))
    else:
        summary |= {"error": last.get("error"), "end": last["type"]}
        message("tracekit: the recorded run has no result")
    if as_json:
        emit({**summary, "can_be_replayed": answer.as_dict()})
    else:
        error = error_text(last["error"]) if "error" in last else "it has no end"
        result = brief(summary["result"], 10_000) if ended else f"none: {error}"
        click.echo(f"result           {printable(result)}")
        click.echo(f"can be replayed  {printable(answer.text)}")
    if answer.answer is False:
        message(f"tracekit: can it be replayed? {answer.text}")
        sys.exit(DIFFERENT)
    sys.exit(RIGHT if last["type"] in ENDS else INCOMPLETE)


def live_kinds(instructions: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the kinds in ``--live``, with what replaces them."""
    if isinstance(instructions, Mapping):
        return dict(instructions)
    pairs = (one.partition("=") for one in instructions)
    return {kind: instead if equals else None for kind, equals, instead in pairs}


def by_kind(kinds: Iterable[str]) -> dict[str, list[str]]:
    """Return the fields of ``--ignore``, by kind of step."""
    found: dict[str, list[str]] = {}
    for one in kinds:
        kind, equals, field = one.partition("=")
        if not equals:
            raise ValueError(f"ignore takes KIND=FIELD, as in tool:search=input.trace_id, not {one!r}")
        found.setdefault(kind, []).append(field)
    return found


#: The defaults of a replay.
_DEFAULTS: Final[dict[str, Any]] = {
    "entry": None, "isolate": "auto", "grace": 10.0, "on_divergence": "raise", "strict": (), "ignore": (), "guard": "process",
    "allow_hosts": (), "live": (), "live_env": (), "live_files": (), "no_writes": False, "writes": "scratch", "writes_to": None,
    "branches": None,
}  # fmt: skip


def replay_instructions(
    run: str, path: str, store: Store, program: Program, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the instructions with which ``tracekit.cli.launch`` replays a run; ``chosen`` are options that differ from
    the defaults."""
    options = {**_DEFAULTS, **chosen}
    return {
        "mode": "replay",
        "run": run,
        "path": os.path.abspath(path),
        "store": os.path.abspath(store.root),
        **program.as_dict(),
        "entry": options["entry"],
        "isolate": options["isolate"],
        "trusted": trusted(store, path),
        "writes": options["writes"],
        "writes_to": options["writes_to"] and os.path.abspath(options["writes_to"]),
        "grace": options["grace"],
        "options": {
            "store": None,
            "on_divergence": options["on_divergence"],
            "strict": list(options["strict"]),
            "ignore": by_kind(options["ignore"]),
            "guard": options["guard"],
            "allow_hosts": list(options["allow_hosts"]),
            "dry_run": options["no_writes"],
            "live_env": list(options["live_env"]),
            "live_files": list(options["live_files"]),
            "redact": [],
            "live": options["live"],
            "branches": options["branches"],
        },
    }
