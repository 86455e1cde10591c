"""``tracekit verify`` and ``tracekit schema``: check a trace's hash chain, and print the trace format's JSON Schemas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from .._capture.plugins import forms
from .._journal import schema as format_schema
from .._journal.reader import Trace, Verdict
from . import output
from .output import located, printable

__all__ = ["schema", "verify"]

# -- verify ------------------------------------------------------------------------------------------------------------
#
# ``tracekit verify RUN``: is the trace whole, unchanged, and cleanly ended?

_EXIT: Final = {"complete": output.RIGHT, "incomplete": output.INCOMPLETE, "broken": output.DIFFERENT}


@click.command()
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@click.option("--head", metavar="HASH", help="The tip hash (that of the last entry) as you kept it.")
@click.option("--schema", "by_schema", is_flag=True, help="Check each entry against the JSON Schema too.")
@click.option("--store", metavar="DIR", help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(run: str, head: str | None, by_schema: bool, store: str | None, as_json: bool) -> None:
    """Check that a trace is whole, unchanged, and cleanly ended.

    RUN is an id, the beginning of one, "last", or a path. The chain of hashes detects all damage and every edit that does not
    recompute it; --head (or a seal: TRACEKIT_SEAL_KEY_FILE) detects those too. Exit code: 0 complete, 1 broken, 3 incomplete (no
    end, or a torn last line), 2 if there is no such run.
    """
    with output.reported():
        if head is not None and not _is_hash(head):
            raise click.BadParameter("a tip hash is 64 hexadecimal digits", param_hint="--head")
        where = output.readable(store, run)
        path = located(run, where)
        verdict = where.verify(path, head=head)
        breaches = _breaches(path, verdict) if by_schema else []
        if as_json:
            output.emit({**verdict._asdict(), "path": path, **({"schema": breaches} if by_schema else {})})
        else:
            _print(path, verdict)
        for breach in breaches:
            output.message(f"line {breach['line']}: {breach['problem']}")
        sys.exit(_EXIT[verdict.state] if not breaches else output.DIFFERENT)


def _is_hash(text: str) -> bool:
    return len(text.strip()) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in text.strip())


def _print(path: str, verdict: Verdict) -> None:
    from rich.text import Text

    console = output.console()
    style = {"complete": "bold green", "incomplete": "bold yellow", "broken": "bold red"}[verdict.state]
    console.print(Text(verdict.state, style=style) + Text(f"  {printable(path)}"), soft_wrap=True)
    if verdict.problem:
        where = f"line {verdict.line}: " if verdict.line else ""
        console.print(f"  {where}{printable(verdict.problem)}", markup=False, soft_wrap=True)
    if verdict.state == "broken":
        console.print(f"  the first {verdict.last_good_seq} entries verify", markup=False)
    else:
        console.print(f"  {verdict.count} entries, tip hash {verdict.head}", markup=False, soft_wrap=True)
    if verdict.lost:
        console.print(
            f"  {verdict.lost} more could not be written when it was recorded: they are missing", markup=False
        )
    for segment in verdict.segments:
        problem = f": {segment['problem']}" if segment.get("problem") else ""
        text = f"  segment {segment.get('segment')} {segment.get('state')}{problem}"
        console.print(printable(text), markup=False, soft_wrap=True)


def _breaches(path: str, verdict: Verdict, most: int = 20) -> list[dict[str, Any]]:
    """The first entries that violate the schema: line and problem."""

    check = validator()
    found: list[dict[str, Any]] = []
    with Trace(path) as trace:
        for line, entry in enumerate(trace.entries(damaged=True), 1):
            for error in check.iter_errors(entry):
                found.append({"line": line, "problem": printable(f"{error.json_path}: {error.message}"[:300])})
                if len(found) == most:
                    return found
    return found


# -- schema ------------------------------------------------------------------------------------------------------------
#
# ``tracekit schema``: the JSON Schemas of the trace format and of its views.


@click.command()
@click.argument("form", metavar="[FORM]", default="trace")
def schema(form: str) -> None:
    """Print the JSON Schema (2020-12) that each line keeps to.

    FORM is "trace" (what record() writes; the default), or another form that is installed: "inter-agent" (what `tracekit export --to
    inter-agent` writes), "execution" (the record of a routed intent).
    """
    with output.reported():
        output.emit(_load(form), pretty=sys.stdout.isatty())


def _load(name: str) -> Mapping[str, Any]:
    if name == "trace":
        return format_schema.load()
    schemas = {form.name: schema for form in forms().values() if (schema := form.schema()) is not None}
    if name not in schemas:
        known = ", ".join(map(repr, ["trace", *schemas]))
        raise click.BadParameter(f"{name!r} is not one of {known}.", param_hint="[FORM]")
    return schemas[name]


def validator() -> Any:
    """A validator of entries from the jsonschema package; without it, ends the command and names the extra to install."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        output.message("Checking against the schema needs jsonschema: python -m pip install jsonschema")
        sys.exit(output.USAGE_ERROR)
    return Draft202012Validator(format_schema.load())
