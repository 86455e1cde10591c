"""``tracekit run``: record an unmodified program."""

from __future__ import annotations

import os

import click

from .launching import launch

__all__ = ["run"]

#: Recorded programs run with a fixed hash seed, so that set order is no source of difference; what it is does not matter.
_SEED = "0"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", help="Run a module, as python -m does.")
@click.option("--name", help="The run's name; the script or module by default.")
@click.option(
    "--store", type=click.Path(file_okay=False), help="The directory of runs (default: TRACEKIT_DIR, .tracekit)."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(module: str | None, name: str | None, store: str | None, command: tuple[str, ...]) -> None:
    """Record a program as it is: SCRIPT [ARGS…] or -m MODULE [ARGS…].

    Its own record() blocks win; without one the whole program is one run. The program's stdout and exit status are its own.
    """
    if module is None and not command:
        raise click.UsageError("name a SCRIPT, or a module with -m")
    if module is None and not os.path.exists(command[0]):
        raise click.UsageError(f"there is no script {command[0]!r}")
    if store is not None:
        os.environ["TRACEKIT_DIR"] = os.path.abspath(store)
    environment = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "") or _SEED}
    if not environment["PYTHONHASHSEED"].isdigit():
        environment["PYTHONHASHSEED"] = _SEED
    told = {
        "mode": "record",
        "name": name,
        "module": module,
        "script": None if module is not None else os.path.abspath(command[0]),
        "arguments": list(command if module is not None else command[1:]),
        "cwd": os.getcwd(),
    }
    launch(told, environment)
