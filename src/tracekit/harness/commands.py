"""``tracekit import``: recordings of other tools as runs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator

import click

from ..cli import output
from ..errors import RunStateError, TracekitError
from .importing import Imported, cassettes_in, import_agentloom, import_cassette

__all__ = ["import_"]


@click.group("import")
def import_() -> None:
    """Make runs from recordings of other tools.

    \b
    Examples:
      tracekit import vcr tests/cassettes -o tests/traces
      tracekit import agentloom recording.json
    """


@import_.command()
@click.argument("file", metavar="FILE")
@click.option("--run-id", metavar="ID", help="The id of the run (default: a new one).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
def agentloom(file: str, run_id: str | None, as_json: bool, store: str | None) -> None:
    """Make a run from FILE, a recording of agentloom (version 1 or 2).

    `tracekit list`, `show` and `verify` can then read it, and `tracekit export --to agentloom` returns the recording.

    \b
    Examples:
      tracekit import agentloom recording.json
      tracekit show last
    """
    with output.reported():
        writer = import_agentloom(file, store, run_id=run_id)
        if as_json:
            output.emit({"run_id": writer.run_id, "path": writer.path})
        else:
            output.message(f"{writer.run_id}  {writer.path}")


@import_.command()
@click.argument("path", metavar="PATH", type=click.Path())
@click.option(
    "-o",
    "--output",
    "to",
    metavar="PATH",
    type=click.Path(),
    help="The .jsonl file to make, or the directory in which to make one for each cassette (default: a run in the store).",
)
@click.option("--run-id", metavar="ID", help="The id of the run, for a single cassette (default: a new one).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
def vcr(path: str, to: str | None, run_id: str | None, as_json: bool, store: str | None) -> None:
    """Make a run from PATH, a cassette of vcrpy (.yaml, .json), or from each cassette in the directory PATH.

    `tracekit import vcr tests/cassettes -o tests/traces` moves a suite of pytest-recording: a test with
    @pytest.mark.tracekit finds its trace there. An imported run answers HTTP requests by method, URL and body, in the order of
    the cassette; clock, random numbers and tools are live, and the verdict says so. Secrets are redacted as in a recording.
    YAML needs the extra `vcr`. Exit code: 2 if a file cannot be imported; the others still are.

    \b
    Examples:
      tracekit import vcr tests/cassettes/test_search.yaml
      tracekit import vcr tests/cassettes -o tests/traces
    """
    with output.reported():
        if os.path.isdir(path):
            if to is None or to.endswith(".jsonl"):
                raise click.UsageError("of a directory, -o names the directory to write into, as in -o tests/traces")
            if run_id is not None:
                raise click.UsageError("--run-id names the run of one cassette")
        if to is not None and not to.endswith(".jsonl") and os.path.exists(to) and not os.path.isdir(to):
            raise click.UsageError(f"-o {to}: name a .jsonl file that is not there yet, or a directory")
        problems = 0
        for cassette, target in _targets(path, to, store):
            try:
                if to is not None and target is not None and os.path.exists(target):
                    raise RunStateError(
                        f"{cassette} was not imported: {target} exists",
                        next_action="remove that trace to import the cassette again, or name another place with -o",
                    )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they are reported below
                    found = import_cassette(cassette, target, run_id=run_id)
            except TracekitError as error:
                problems += 1
                output.message(f"tracekit: {error}")
                continue
            _say(cassette, found, as_json)
        if problems:
            sys.exit(output.USAGE_ERROR)


def _targets(path: str, to: str | None, store: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield each cassette, and the target of its run; the directories of targets are created."""
    if not os.path.isdir(path):
        if to is not None and not to.endswith(".jsonl"):
            to = os.path.join(to, f"{_stem(os.path.basename(path))}.jsonl")
            os.makedirs(os.path.dirname(to), exist_ok=True)
        yield path, store if to is None else to
        return
    assert to is not None
    none = True
    for cassette in cassettes_in(path):
        none = False
        target = os.path.join(to, f"{_stem(os.path.relpath(cassette, path))}.jsonl")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        yield cassette, target
    if none:
        raise RunStateError(
            f"{path} contains no cassette: no file that ends in .yaml, .yml or .json",
            next_action="name the directory `cassettes` next to the tests",
        )


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


def _say(cassette: str, found: Imported, as_json: bool) -> None:
    if as_json:
        output.emit({"cassette": cassette, **found._asdict()})
        return
    output.message(f"{found.run_id}  {output.printable(found.path)}")
    if found.left_out:
        output.message(f"  {found.left_out} of its interactions were telemetry or a websocket, and are left out")
    for sentence in found.warnings:
        output.message(f"  {output.printable(sentence)}")
