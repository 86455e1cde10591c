"""The ``tracekit`` command. Each subcommand has a module of its own, imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

__all__ = ["main"]

#: Command -> (module, its line in ``tracekit --help``). The object in the module is named like the command.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("demo.command", "Record a real agent, replay it exactly, and see two cheats refused."),
    "run": ("replay", "Record an unmodified program."),
    "replay": ("replay", "Run a recorded program again, answered from its trace."),
    "list": ("executions", "List the runs of the store."),
    "show": ("show", "Show a run: what happened, step by step, and why."),
    "verify": ("verify", "Check that a trace is whole and unchanged."),
    "verify-determinism": ("verify_determinism", "Replay a run twice, and compare all that its program did."),
    "failures": ("failures", "List what went wrong, over many runs."),
    "recovery": ("recovery", "Decide what to do with runs that did not end."),
    "executions": ("executions", "List, show, trace and compare runs: other names for what is above."),
    "estimate": ("estimate", "Say what a run will take, before it is begun."),
    "route": ("route", "Ask the agents of a program for an answer to one request, on the record."),
    "schema": ("verify", "Print the JSON Schema of the trace format, or of a view."),
    "export": ("export", "Write runs in another form: events of agents, agentloom, expanded."),
    "import": ("export", "Make a run of a recording of agentloom."),
}


class _Commands(click.Group):
    """A click group that imports a command only when it is called, so that ``--help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name][0]}", __name__)
        command: click.Command = getattr(
            module, cmd_name.replace("-", "_") + ("_" if cmd_name in ("list", "import") else "")
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from .._version import __version__

        click.echo(f"tracekit {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Record an LLM agent, replay it exactly.

    Data goes to stdout (JSON when piped or with --json), messages to stderr. Exit codes: 0 right, 1 a difference or
    damage, 2 usage error or unreadable input, 3 unsealed, 4 refused.
    """
    joining = sys.modules.get("tracekit._runs.joining")
    if joining is not None:  # started by a recorded program, and no part of it
        joining.leave()
