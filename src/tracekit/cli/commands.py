"""The ``tracekit`` command: a group of tracekit's own commands and those of other packages."""

from __future__ import annotations

import codecs
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from .._announced import Announcement, announced

__all__ = ["COMMANDS", "CONTINUES", "GROUP", "UnusableCommandError", "main"]

#: Sections of ``tracekit --help``: command, its module, and its line in the help. The object in the module is named
#: like the command.
_SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Record and replay": {
        "run": ("run", "Record a program as it is."),
        "replay": ("replay", "Run a recorded program again, answered from its trace."),
        "debug": ("debug", "Step forward and back through a run, in your own code."),
        "dap": ("dap", "The same in an editor, by the Debug Adapter Protocol."),
        "demo": ("demo.command", "Record an agent, replay it exactly, and see two changes detected."),
    },
    "Look at runs": {
        "list": ("runs", "List the runs of the store."),
        "show": ("show", "Show a run: what happened, step by step, and why."),
        "diff": ("diff", "Show the differences between two runs."),
        "report": ("report", "Write runs as one HTML file."),
        "failures": ("failures", "List the failures of many runs."),
        "text": ("text", "Print a trace as text for a review: the same for equal recordings."),
        "executions": ("executions", "list, show, diff and trace as one group."),
    },
    "Test a change": {
        "regress": ("regress", "Replay many runs against today's code."),
        "verify-determinism": ("verify_determinism", "Replay a run twice and compare everything."),
        "doctor": ("doctor", "Find what a replay of a program could not control, and how to fix it."),
    },
    "After a crash": {
        "in-doubt": ("recovery", "List the irreversible steps that may or may not have happened."),
        "recovery": ("recovery", "Decide what to do with runs that died, and resume them."),
    },
    "Trust a trace": {
        "verify": ("verify", "Check that a trace is complete and unchanged."),
        "audit": ("audit", "Account for a run: who did what, what allowed it, and the result."),
        "seal": ("verify", "Sign runs, so that any later change is detected."),
        "keygen": ("verify", "Create a pair of keys for seals."),
    },
    "Operate": {
        "serve": ("serve", "Serve the health and the metrics of a store over HTTP."),
        "export": ("export", "Write runs in another form: OpenTelemetry, Perfetto, events of agents …"),
        "estimate": ("estimate", "Estimate what a run will cost."),
        "prune": ("runs", "Remove old runs that have ended."),
        "rm": ("runs", "Remove runs."),
        "compress": ("runs", "Compress complete runs; every command reads them as before."),
    },
    "Help": {
        "docs": ("docs", "Show a page of the documentation, an error, or a public name."),
        "schema": ("verify", "Print the JSON Schema of the trace format, or of a view."),
    },
}
COMMANDS: Final = {name: about for section in _SECTIONS.values() for name, about in section.items()}


#: The key in click's ``Context.meta`` under which a command that continues a run names its file.
CONTINUES: Final = "tracekit.continues"
#: The entry-point group in which packages announce further commands: a name, and a click command or group.
GROUP: Final = "tracekit.commands"


class UnusableCommandError(click.ClickException):
    """A command of another package that can't be loaded; the others work."""

    exit_code = 2


#: What stands for tracekit's own signs where the output can't have them.
_IN_ASCII: Final = {"“": '"', "”": '"', "’": "'", "…": "...", "→": "->", "–": "-", "µ": "u", "×": "x", "·": "-"}


def _other_signs(error: UnicodeError) -> tuple[str, int]:
    """An error handler for encoding: a plain sign in the place of one of tracekit's own, and an escape for any other."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = (
        _IN_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode()
        for one in error.object[error.start : error.end]
    )
    return "".join(found), error.end


def _print_everything() -> None:
    """Let the standard streams print every text, whatever their encoding: a trace may contain any character."""
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
        if encoding not in ("utf-8", "utf8") and hasattr(stream, "reconfigure"):
            codecs.register_error("tracekit.signs", _other_signs)
            stream.reconfigure(errors="tracekit.signs")


class _Commands(click.Group):
    """A click group that imports a command only when it is called, so that ``--help`` is fast."""

    def main(self, *args: Any, **options: Any) -> Any:
        _print_everything()
        return super().main(*args, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_announced()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
            command: click.Command = getattr(module, cmd_name.replace("-", "_") + ("_" if cmd_name == "list" else ""))
            return command
        points = _announced().get(cmd_name)
        return None if points is None else _loaded(cmd_name, points)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {
            title: [(name, text) for name, (_, text) in commands.items()] for title, commands in _SECTIONS.items()
        }
        sections["Extensions"] = [(name, _first_line(points[0])) for name, points in _announced().items()]
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), 3, 0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            what = f"there is no command {args[0]!r}"
            if args[0].endswith(".py"):
                hint = f"`tracekit run {args[0]}` records a program; "
            ctx.fail(f"{what}: {hint}`tracekit --help` lists the commands")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.MissingParameter as error:
            wanted = error.param and (error.param.metavar or error.param.name or "").strip("[].").upper()
            if wanted not in ("RUN", "RUNS", "OTHER"):
                raise
            text = f"name {'another' if wanted == 'OTHER' else 'a'} run: `last` for the newest one, an id or its beginning, or a path"
            raise click.UsageError(f"{text}; `tracekit list` lists the runs", error.ctx) from None
        except click.UsageError as error:
            of = error.ctx and error.ctx.command
            if of is None or any(isinstance(one, click.Argument) for one in of.params) or isinstance(of, click.Group):
                raise
            if not error.message.startswith("Got unexpected extra argument"):
                raise
            what = f"`{error.ctx.command_path}` is about all runs of a store (--store DIR)"  # type: ignore[union-attr]
            raise click.UsageError(
                f"{error.message}: {what}; `tracekit show RUN --why` answers for one", error.ctx
            ) from None
        except KeyboardInterrupt:
            # Not click's status 1, which would be an answer: a difference, or damage.
            click.echo("interrupted", err=True)
            from .output import INTERRUPTED, stands

            if (path := ctx.meta.get(CONTINUES)) is not None:
                stands(path)
            sys.exit(INTERRUPTED)


# -- commands of other packages ----------------------------------------------------------------------------------------


def _announced() -> dict[str, list[Announcement]]:
    """Return the announcements of each command, by its name. No package can replace a command of tracekit's own."""
    found: dict[str, list[Announcement]] = {}
    for point in sorted(announced(GROUP), key=lambda point: point.name):
        if point.name not in COMMANDS:
            found.setdefault(point.name, []).append(point)
    return found


def _loaded(name: str, points: list[Announcement]) -> click.Command:
    packages = sorted({point.package for point in points})
    if len({point.value for point in points}) > 1:
        raise UnusableCommandError(
            f"several packages have a command {name!r}: {', '.join(packages)}; remove all but one"
        )
    try:
        command = points[0].load()
    except (Exception, SystemExit) as error:
        from .._values import exception_text

        raise UnusableCommandError(
            f"the command {name!r} of the package {packages[0]} can't be loaded: {exception_text(error)}; "
            "update or remove that package"
        ) from error
    if not isinstance(command, click.Command):
        raise UnusableCommandError(
            f"what the package {packages[0]} announces as the command {name!r} is not a click command: {command!r:.80}"
        )
    return command


def _first_line(point: Announcement) -> str:
    """Return the first sentence of a command's docstring; nothing is imported, so that ``--help`` always works."""
    import ast
    from importlib.machinery import PathFinder

    try:
        where, spec = None, None
        parts = point.module.split(".")
        for number in range(len(parts)):
            spec = PathFinder.find_spec(".".join(parts[: number + 1]), where)
            where = None if spec is None else spec.submodule_search_locations
        with open(spec.origin, encoding="utf-8") as file:  # type: ignore[union-attr, arg-type]
            tree = ast.parse(file.read())
        text = next(
            ast.get_docstring(one)
            for one in tree.body
            if isinstance(one, ast.FunctionDef) and one.name == point.attribute
        )
        return (text or "").partition("\n\n")[0].replace("\n", " ")
    except (ImportError, OSError, SyntaxError, ValueError, TypeError, AttributeError, StopIteration):
        return f"(of the package {point.package})"


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from .._native import FORM
        from .._version import __version__

        click.echo(f"tracekit {__version__} ({'with' if FORM == 'C' else 'without'} its C extension)")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Record a real run of an LLM agent, and replay it exactly: the same code, with every answer from the recording.

    \b
    A first look:
      tracekit run agent.py   # record a program as it is
      tracekit show last      # what it did
      tracekit replay last    # run it again, answered from the recording
      tracekit docs tutorial  # fifteen minutes, no API key

    Data goes to stdout, as text or, with --json, as JSON; messages go to stderr. Exit codes: 0 success, 1 a difference or
    damage, 2 usage error or unreadable input, 3 incomplete, 4 refused, 130 interrupted.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise click.UsageError("the working directory does not exist any more; change to another one") from None
    segments = sys.modules.get("tracekit._runs.segments")
    if segments is not None:  # started by a recorded program, but not part of it
        segments.leave()
