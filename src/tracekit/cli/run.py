"""``tracekit run``: record a program in a process of its own; and how such a process is started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, NoReturn

import click

from .._runs.program import Program
from .options import COMMAND, STORE

__all__ = ["LikePython", "follow", "launch", "launcher", "named_program", "record_instructions", "run"]

# -- launching ---------------------------------------------------------------------------------------------------------
#
# Starting the process in which a program is recorded or replayed.


def launch(
    instructions: Mapping[str, Any],
    environment: Mapping[str, str],
    cwd: str | None = None,
    *,
    stays: bool = False,
) -> NoReturn:
    """Replace this process by ``tracekit.cli.launch``, so that signals and the exit status are the program's own.

    If it ``stays``, it waits for the program instead, and removes at its own end what it has downloaded for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = launcher()
    if stays or sys.platform == "win32":  # exec starts another process there, and ends this one at once
        variables = {**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps(instructions)}
        # Ctrl-C is the program's: this process waits for it, like a shell does.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        status = subprocess.run(command, env=variables, cwd=cwd, check=False).returncode
        sys.exit(status if status >= 0 else 128 - status)
    if cwd is not None:
        os.chdir(cwd)
    # Nobody wants to see where in an import the new process was when Ctrl-C came: it takes that when it can answer.
    held = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    variables = {**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps({**instructions, "held": held})}
    os.execve(sys.executable, command, variables)


def launcher() -> list[str]:
    """Return the command that starts it: this interpreter with its own options (``-W error``, ``-X dev`` …)."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, "-m", "tracekit.cli.launch"]


def follow(
    instructions: Mapping[str, Any],
    environment: Mapping[str, str],
    cwd: str | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> int:
    """Run ``tracekit.cli.launch`` in a child process without input, and return its exit status."""
    variables = {**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps(instructions)}
    return subprocess.run(
        launcher(), env=variables, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False
    ).returncode


# -- run ---------------------------------------------------------------------------------------------------------------
#
# ``tracekit run``: record an unmodified program.

#: Recorded programs run with a fixed hash seed, so that set order causes no differences; the value does not matter.
_SEED = "0"


def record_instructions(
    module: str | None,
    command: tuple[str, ...],
    *,
    name: str | None = None,
    user_modules: Sequence[str] = (),
    spans: bool = False,
) -> dict[str, Any]:
    """Return the instructions with which ``tracekit.cli.launch`` records a module or a script with its arguments.

    ``"program"`` may be added: the id of this execution, by which its runs are found. Raises ``click.UsageError`` if
    there is no such script.
    """
    program = named_program(command, module)
    return {
        "mode": "record",
        "name": name,
        "module": program.module,
        "script": program.script,
        "called": program.called,
        "arguments": list(program.arguments),
        "cwd": program.cwd,
        "user_modules": list(user_modules),
        "spans": spans,
    }


_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


def named_program(command: Sequence[str], module: str | None = None) -> Program:
    """Return the program that a command line names: a script, ``-m`` and a module, or a command that is installed in this
    environment, with its arguments. A ``python`` before it is left out.

    Raises ``click.UsageError`` if there is none, or it is not written in Python.
    """
    here, words = os.getcwd(), list(command)
    if module is None:
        if words and _PYTHON.fullmatch(words[0]) and not os.path.exists(words[0]):
            del words[0]
        if words[:1] == ["-m"] and len(words) > 1:
            module, words = words[1], words[2:]
    if module is not None:
        return Program(None, module, tuple(words), here)
    if not words:
        raise click.UsageError("name a SCRIPT, or a module with -m")
    name, *arguments = words
    if name == "-c":
        raise click.UsageError("write the code into a file and name that: `tracekit replay` runs it again")
    if name.startswith("-"):
        raise click.UsageError(
            f"{name} is an option of python, not a script: put it before tracekit: python {name} -m tracekit run …"
        )
    if not os.path.exists(name):
        return Program(_installed(name), None, tuple(arguments), here)
    if name.endswith(".jsonl"):
        raise click.UsageError(
            f"{name} is a trace, and no program: `tracekit replay {name}` replays it, `tracekit doctor --run {name}` examines it"
        )
    if os.path.isdir(name) and not os.path.exists(os.path.join(name, "__main__.py")):
        raise click.UsageError(f"{name!r} is a directory, and has no __main__.py: name a script in it")
    return Program(os.path.abspath(name), None, tuple(arguments), here, name)


def _installed(name: str) -> str:
    """Return the path of a command of this environment that is written in Python, such as ``celery``."""
    import shutil
    import sysconfig

    absent = f"there is no script {name!r} in {os.getcwd()}"
    if os.path.dirname(name):
        raise click.UsageError(absent)
    places = (sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath))
    found = next(filter(None, (shutil.which(name, path=place) for place in places)), None)
    if found is None:
        raise click.UsageError(f"{absent}, and no command of that name is installed")
    with open(found, "rb") as file:
        first = file.read(512)
    # A long path is in the second line: installers write a shell script that is also Python.
    line = b"\n".join(first.split(b"\n")[:2]) if first.startswith(b"#!") else b""
    interpreter = re.search(rb"(/.*/)?python[\d.]*", line)
    if interpreter is None:
        raise click.UsageError(
            f"{absent}, and {found} is not written in Python: record the Python program that starts it"
        )
    where = os.fsdecode(interpreter[1] or b"")
    if where and os.path.realpath(where) != os.path.realpath(os.path.dirname(sys.executable)):
        raise click.UsageError(
            f"{found} runs in another environment: install tracekit beside {os.fsdecode(interpreter[0])}, and record it with the "
            "tracekit that is there"
        )
    return os.path.abspath(found)


class LikePython(click.Command):
    """A command for which ``-m MODULE`` ends the options, as for ``python``: the rest belongs to the program, including
    another ``-m``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option)]
        valued = {name for one in options if not one.is_flag for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at].startswith("-m"):
                after = at + (2 if args[at] == "-m" else 1)
                if after <= len(args):
                    args = [*args[:after], "--", *args[after:]]
                break
            at += 2 if args[at] in valued else 1
        return super().parse_args(ctx, args)


@click.command(cls=LikePython, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", help="Run a module, as python -m does.")
@click.option("--name", help="The run's name; by default that of the script or module.")
@STORE
@click.option(
    "--user-module",
    "user_modules",
    multiple=True,
    metavar="NAME",
    help="An installed package that counts as the program's own code.",
)
@click.option(
    "--keep-files",
    metavar="SIZE",
    help="Keep the content of files up to this size (256K by default; 0 keeps none), and 64 times as much in a run.",
)
@click.option(
    "--spans",
    is_flag=True,
    help="Also send the run as OpenTelemetry spans, to OTEL_EXPORTER_OTLP_ENDPOINT.",
)
@COMMAND
def run(
    module: str | None,
    name: str | None,
    store: str | None,
    user_modules: tuple[str, ...],
    keep_files: str | None,
    spans: bool,
    command: tuple[str, ...],
) -> None:
    """Record a program as it is: SCRIPT [ARGS…], -m MODULE [ARGS…], or an installed COMMAND [ARGS…].

    If it opens record() blocks, these are recorded; otherwise the whole program is one run. The program's stdout and exit status
    are its own.

    \b
    Examples:
      tracekit run agent.py "Where is A-1042?"
      tracekit run -m shop.agent -v  # -v is the module's own
      tracekit run celery worker     # a command of this environment
      tracekit run --name nightly agent.py
      tracekit show last             # and look at what was recorded
    """
    instructions = record_instructions(module, command, name=name, user_modules=user_modules, spans=spans)
    if "://" in (store or os.environ.get("TRACEKIT_DIR", "")):
        from .output import local

        local(store)  # nothing is recorded at a URL
    if store is not None:
        os.environ["TRACEKIT_DIR"] = os.path.abspath(store)
    if keep_files is not None:
        from .._capture.inputs import bytes_of

        try:
            bytes_of(keep_files)
        except ValueError as error:
            raise click.UsageError(f"--keep-files: {error}") from None
        os.environ["TRACEKIT_KEEP_FILES"] = keep_files
    environment = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "") or _SEED}
    if not environment["PYTHONHASHSEED"].isdigit():
        environment["PYTHONHASHSEED"] = _SEED
    launch(instructions, environment)
