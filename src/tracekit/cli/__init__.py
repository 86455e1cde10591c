"""The ``tracekit`` command. Each subcommand has a module of its own, imported when it is called."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

__all__ = ["COMMANDS", "GROUP", "UnusableCommandError", "main"]

#: Command -> (module, its line in ``tracekit --help``). The object in the module is named like the command.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("demo.command", "Record a real agent, replay it exactly, and see two cheats refused."),
    "run": ("replay", "Record an unmodified program."),
    "replay": ("replay", "Run a recorded program again, answered from its trace."),
    "debug": ("debug", "Go back and forth through the steps of a run, in the lines that made them."),
    "list": ("runs", "List the runs of the store."),
    "rm": ("runs", "Remove runs."),
    "prune": ("runs", "Remove old runs that have ended."),
    "compress": ("runs", "Compress complete runs; every command reads them as before."),
    "show": ("show", "Show a run: what happened, step by step, and why."),
    "diff": ("diff", "Show what is different between two runs."),
    "report": ("report", "Write runs as one HTML file, to look at and to pass on."),
    "verify": ("verify", "Check that a trace is whole and unchanged."),
    "audit": ("audit", "Account for a run: who did what, what allowed it, and what came of it."),
    "seal": ("verify", "Sign what runs hold, so that any later change shows."),
    "keygen": ("verify", "Make a pair of keys for seals."),
    "verify-determinism": ("verify_determinism", "Replay a run twice, and compare all that its program did."),
    "regress": ("regress", "Replay every run of a corpus against today's code."),
    "failures": ("failures", "List what went wrong, over many runs."),
    "in-doubt": ("recovery", "List the irreversible steps of which nobody knows whether they happened."),
    "recovery": ("recovery", "Decide what to do with runs that did not end."),
    "executions": ("executions", "List, show, trace and compare runs: other names for what is above."),
    "estimate": ("estimate", "Say what a run will take, before it is begun."),
    "serve": ("serve", "Serve the health and the metrics of a store over HTTP."),
    "text": ("text", "Print a trace as text for a review: the same for equal recordings."),
    "docs": ("docs", "Show a page of the documentation, an error, or a public name."),
    "schema": ("verify", "Print the JSON Schema of the trace format, or of a view."),
    "export": ("export", "Write runs in another form: events of agents, agentloom, expanded."),
}


#: The entry-point group in which packages announce further commands: a name, and a click command or a group of them.
GROUP: Final = "tracekit.commands"


class UnusableCommandError(click.ClickException):
    """A command of another package that can't be had; the others work."""

    exit_code = 2


class _Commands(click.Group):
    """A click group that imports a command only when it is called, so that ``--help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_announced()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = import_module(f".{COMMANDS[cmd_name][0]}", __name__)
            command: click.Command = getattr(module, cmd_name.replace("-", "_") + ("_" if cmd_name == "list" else ""))
            return command
        points = _announced().get(cmd_name)
        return None if points is None else _loaded(cmd_name, points)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in COMMANDS.items()]
        rows += [(name, _first_line(points[0])) for name, points in _announced().items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


# -- commands of other packages ----------------------------------------------------------------------------------------


def _announced() -> dict[str, list[EntryPoint]]:
    """The announcements of each command, by its name. No package takes the name of a command of tracekit's own."""
    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name not in COMMANDS:
            found.setdefault(point.name, []).append(point)
    return found


def _loaded(name: str, points: list[EntryPoint]) -> click.Command:
    packages = sorted({_package(point) for point in points})
    if len({point.value for point in points}) > 1:
        raise UnusableCommandError(
            f"several packages have a command {name!r}: {', '.join(packages)}; remove all but one"
        )
    try:
        command = points[0].load()
    except (Exception, SystemExit) as error:
        raise UnusableCommandError(
            f"the command {name!r} of the package {packages[0]} can't be loaded: {type(error).__name__}: {error}; "
            "update or remove that package"
        ) from error
    if not isinstance(command, click.Command):
        raise UnusableCommandError(
            f"what the package {packages[0]} announces as the command {name!r} is no click command: {command!r:.80}"
        )
    return command


def _package(point: EntryPoint) -> str:
    return point.value if point.dist is None else point.dist.name


def _first_line(point: EntryPoint) -> str:
    """What the source of a command says of it in its first sentence; nothing of it is imported, so that ``--help`` always works."""
    try:
        where, spec = None, None
        parts = point.module.split(".")
        for number in range(len(parts)):
            spec = PathFinder.find_spec(".".join(parts[: number + 1]), where)
            where = None if spec is None else spec.submodule_search_locations
        with open(spec.origin, encoding="utf-8") as file:  # type: ignore[union-attr, arg-type]
            tree = ast.parse(file.read())
        text = next(
            ast.get_docstring(one) for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == point.attr
        )
        return (text or "").partition("\n\n")[0].replace("\n", " ")
    except (ImportError, OSError, SyntaxError, ValueError, TypeError, AttributeError, StopIteration):
        return f"(of the package {_package(point)})"


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from .._version import __version__

        click.echo(f"tracekit {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Record an LLM agent, replay it exactly.

    Data goes to stdout, as text or, with --json, as JSON; messages go to stderr. Exit codes: 0 right, 1 a difference or
    damage, 2 usage error or unreadable input, 3 incomplete, 4 refused.
    """
    joining = sys.modules.get("tracekit._runs.joining")
    if joining is not None:  # started by a recorded program, and no part of it
        joining.leave()
