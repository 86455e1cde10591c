"""``tracekit verify``, ``seal``, ``keygen`` and ``schema``: check a trace, sign it, print its schemas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import click

from .._capture.plugins import forms
from .._journal.entry import load_schema
from .._journal.reader import Trace, Verdict
from .._journal.seals import PublicKeys, SigningKey, add_seal, new_key
from .._journal.store import Store, beside, is_segment, live_writer, remedy_for, segment_in
from .._journal.tip import SEAL_KEY_VARIABLE
from ..errors import RunStateError, TraceError
from . import output
from .options import JSON, READ_STORE, STORE
from .output import located, printable

__all__ = ["KEYS", "keygen", "schema", "seal", "verify"]

#: The option of the commands that check seals.
KEYS: Final = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="A public key; the run must be sealed with one of the given keys.",
)

# -- verify ------------------------------------------------------------------------------------------------------------
#
# ``tracekit verify RUN``: is the trace whole, unchanged, and cleanly ended?

_EXIT: Final = {"complete": output.RIGHT, "incomplete": output.INCOMPLETE, "broken": output.DIFFERENT}
#: The most violations of the schema that are shown.
_MAX_BREACHES: Final = 20


@click.command()
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@click.option("--head", metavar="HASH", help="The tip hash (of the last entry) that you kept.")
@KEYS
@click.option("--schema", "by_schema", is_flag=True, help="Also check each entry against the JSON Schema.")
@READ_STORE
@JSON
def verify(
    run: str, head: str | None, keys: tuple[str, ...], by_schema: bool, store: str | None, as_json: bool
) -> None:
    """Check that a trace is complete, unchanged and cleanly ended.

    RUN is an id, the beginning of one, "last", or a path. The chain of hashes detects all damage and every edit that does not
    recompute it; --head or --key detects those too. If TRACEKIT_SEAL_KEY_FILE is set and no --key is given, its public key is
    required. Exit code: 0 complete, 1 broken, or not sealed with such a key, 3 incomplete (no end, or a torn last line), 2 if there
    is no such run.

    \b
    Examples:
      tracekit verify last
      tracekit verify run.jsonl --key seal.key.pub
    """
    with output.reported():
        if head is not None and not _is_hash(head):
            raise click.BadParameter("a tip hash is 64 hexadecimal digits", param_hint="--head")
        where = output.readable(store, run)
        path = located(run, where)
        with output.working("verifying"):
            verdict = where.verify(path, head=head, keys=trusted(keys))
            breaches = _breaches(path) if by_schema else []
        if as_json:
            schema = {"schema": breaches} if by_schema else {}
            output.emit({**verdict._asdict(), "path": path, "imported_from": _source(path, verdict), **schema})
        else:
            _print(path, verdict)
            if (source := _source(path, verdict)) is not None:
                output.message(f"  imported from {printable(source)}: what that tool has recorded, and nothing else")
        for breach in breaches:
            output.message(f"line {breach['line']}: {breach['problem']}")
        sys.exit(output.DIFFERENT if breaches or unsealed(verdict) else _EXIT[verdict.state])


def _source(path: str, verdict: Verdict) -> str | None:
    """Return the tool whose recording the run was imported from, if its first entry verifies."""
    if not verdict.count or verdict.last_good_seq == 0:
        return None
    with Trace(path) as trace:
        return trace.imported_from


def trusted(files: tuple[str, ...]) -> PublicKeys | None:
    """Return the public keys in these files, else the one of the key that seals here; ``None`` if there is neither."""
    if files:
        return PublicKeys.of(files)
    own = SigningKey.of()
    return None if own is None else own.public


def unsealed(verdict: Verdict) -> bool:
    """Return whether a seal was requested, and none holds for everything in the file."""
    return verdict.seal is not None and verdict.seal["state"] not in ("valid", "unchecked")


def sealed_line(verdict: Verdict) -> tuple[str, str] | None:
    """Return the state of a run's seal as a line, and its style; ``None`` if there is no seal and none was requested."""
    seal = verdict.seal
    if seal is None:
        return None
    marks = {"valid": ("sealed: ", "green"), "unchecked": ("seal: ", "yellow")}
    mark, style = marks.get(str(seal["state"]), ("not sealed as it is: ", "bold red"))
    when = f", {output.local_time(seal['sealed_at'])}" if "sealed_at" in seal else ""
    return f"{mark}{seal['text']}{when}", style


def _is_hash(text: str) -> bool:
    return len(text.strip()) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in text.strip())


def _print(path: str, verdict: Verdict) -> None:
    from rich.text import Text

    console = output.console()
    style = {"complete": "bold green", "incomplete": "bold yellow", "broken": "bold red"}[verdict.state]
    console.print(Text(verdict.state, style=style) + Text(f"  {printable(path)}"), soft_wrap=True)
    if verdict.problem:
        where = f"line {verdict.line}: " if verdict.line else ""
        console.print(f"  {where}{printable(verdict.problem)}", soft_wrap=True)
    if (remedy := remedy_for(verdict)) is not None:
        console.print(f"  {printable(remedy)}", soft_wrap=True)
    if verdict.state == "broken":
        good = verdict.last_good_seq
        console.print(f"  {f'the first {good} entries verify' if good else 'no entry verifies'}")
    else:
        console.print(f"  {verdict.count} entries, tip hash {verdict.head}", soft_wrap=True)
    if (line := sealed_line(verdict)) is not None:
        console.print(Text(f"  {printable(line[0])}", style=line[1]), soft_wrap=True)
    if verdict.lost:
        console.print(f"  {verdict.lost} more could not be written when it was recorded: they are missing")
    for segment in verdict.segments:
        problem = f": {segment['problem']}" if segment.get("problem") else ""
        text = f"  segment {segment.get('segment')} {segment.get('state')}{problem}"
        console.print(printable(text), soft_wrap=True)


def _breaches(path: str) -> list[dict[str, Any]]:
    """Return the first entries that violate the schema: line and problem."""
    check = validator()
    found: list[dict[str, Any]] = []
    with Trace(path) as trace:
        for line, entry in enumerate(trace.entries(damaged=True), 1):
            for error in check.iter_errors(entry):
                found.append({"line": line, "problem": printable(f"{error.json_path}: {error.message}"[:300])})
                if len(found) == _MAX_BREACHES:
                    return found
    return found


# -- seal --------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=output.complete_run)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(),
    envvar=SEAL_KEY_VARIABLE,
    show_envvar=True,
    help="The private key (Ed25519).",
)
@STORE
def seal(runs: tuple[str, ...], key: str | None, store: str | None) -> None:
    """Sign the traces of runs, so that `tracekit verify --key` detects any later change.

    The seal is beside the trace, as RUN.seal, and covers every existing entry, including those of child processes. A run without an
    end can be sealed as it is; one that is still going on or is broken cannot. If TRACEKIT_SEAL_KEY_FILE is set during the
    recording, runs are sealed as they end.

    \b
    Examples:
      tracekit keygen seal.key
      tracekit seal last --key seal.key
      tracekit verify last --key seal.key.pub
    """
    if key is None:
        raise click.UsageError(
            "name the private key: --key FILE, or TRACEKIT_SEAL_KEY_FILE; `tracekit keygen FILE` makes one"
        )
    with output.reported():
        where, signing = output.local(store, *runs), SigningKey.of(key)
        assert signing is not None
        for run in runs:
            path = located(run, where)
            with output.working("verifying, and sealing"):
                count = _seal(path, where, signing)
            click.echo(f"sealed  {printable(path)}\n  {count} entries, with {signing.id}")


def _seal(path: str, where: Store, signing: SigningKey) -> int:
    """Seal one run; return how many entries of its own file the seal covers."""
    if is_segment(path):
        raise RunStateError(f"{path} is of a child process", path=path, next_action="seal its run, which covers it")
    with ExitStack() as stack, Trace(path) as trace:
        for file in (path, *beside(path)):
            if stack.enter_context(live_writer(file)):
                raise RunStateError(
                    f"a process has {file} open", path=file, next_action="seal the run when it has ended"
                )
        verdict = where.check_filled(trace, "seal")
        segments = {}
        for file in beside(path):
            with Trace(file) as other:
                segments[str(segment_in(file))] = {"count": other.status.count, "head": other.status.head}
        try:
            add_seal(path, signing, str(verdict.run_id), verdict.count, verdict.head, segments=segments)
        except OSError as error:
            raise TraceError(
                f"the seal can't be written: {error}", path=path, next_action="copy the run to where it can"
            ) from error
    return verdict.count


@click.command()
@click.argument("file", type=click.Path())
def keygen(file: str) -> None:
    """Create a pair of keys for seals: FILE is the private one, FILE.pub the public one.

    Both are PEM (PKCS #8 and SPKI), as `openssl genpkey -algorithm ed25519` makes them; keys of `ssh-keygen -t ed25519` work as
    well. Keep the private key where only the sealing user can read it, and give the public one to those who verify.

    \b
    Examples:
      tracekit keygen seal.key
      export TRACEKIT_SEAL_KEY_FILE=seal.key  # seals each run
    """
    with output.reported():
        fingerprint = new_key(file)
        click.echo(f"{file} seals, {file}.pub verifies: {fingerprint}")


# -- schema ------------------------------------------------------------------------------------------------------------
#
# ``tracekit schema``: the JSON Schemas of the trace format and of its views.


@click.command()
@click.argument("form", metavar="[FORM]", default="trace")
def schema(form: str) -> None:
    """Print the JSON Schema (2020-12) of a line.

    FORM is "trace" (what record() writes; the default), or another form that is installed: "inter-agent" (what `tracekit export --to
    inter-agent` writes), "execution" (the record of a routed intent).

    \b
    Examples:
      tracekit schema > trace.schema.json
      tracekit schema inter-agent
    """
    with output.reported():
        output.emit(_load(form), pretty=sys.stdout.isatty())


def _load(name: str) -> Mapping[str, Any]:
    if name == "trace":
        return load_schema()
    schemas = {form.name: schema for form in forms().values() if (schema := form.schema()) is not None}
    if name not in schemas:
        known = ", ".join(map(repr, ["trace", *schemas]))
        raise click.BadParameter(f"{name!r} is not one of {known}.", param_hint="[FORM]")
    return schemas[name]


def validator() -> Any:
    """Return a validator of entries from the jsonschema package; without it, end the command and name the extra to
    install."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        output.message("Checking against the schema needs jsonschema: python -m pip install jsonschema")
        sys.exit(output.USAGE_ERROR)
    return Draft202012Validator(load_schema())
