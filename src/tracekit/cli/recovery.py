"""``tracekit recovery``: lists runs without an end, and resumes, aborts or resolves them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final

import click
import orjson

from .._journal.reader import Trace
from .._journal.store import Store, shown_as
from .._runs.recovery import (
    Decision,
    Examined,
    InDoubt,
    UncertainStep,
    advice,
    decision_on,
    examined,
    needs_a_decision,
)
from .._runs.recovery import in_doubt as steps_in_doubt
from ..errors import RecoveryRefusedError, TracekitError
from . import output
from .commands import CONTINUES
from .launch import check_siblings
from .options import COMMAND, JSON, QUICK, READ_STORE, STORE
from .output import REFUSED, brief, duration, emit, fail, located, message, named, printable, shown
from .replay import check_given, hash_seed, program_of
from .run import launch

__all__ = ["in_doubt", "recovery", "resume"]

# -- resume ------------------------------------------------------------------------------------------------------------
#
# ``tracekit recovery resume``: run the program again after a crash.


@click.command(context_settings={"allow_interspersed_args": True}, short_help="Continue a run after a crash.")
@click.argument("run", shell_complete=output.complete_run)
@COMMAND
@STORE
@click.option("--check", is_flag=True, help="Stop after the decision.")
@click.option(
    "--entry",
    metavar="MODULE:FUNCTION",
    callback=output.function_name,
    help="Call this function with the recorded input instead of the program.",
)
@click.option(
    "--supply",
    multiple=True,
    metavar="STEP=FILE.json",
    help="The output of a step that the log does not have (redacted or not serialisable).",
)
@click.option(
    "--accept-lost-tail", is_flag=True, help="Cut off what a power loss has left after the last synced effect."
)
@click.option(
    "--original-is-dead",
    is_flag=True,
    help="State that the process that wrote the log is dead, which cannot be known here: it ran on another host or boot. Kept in the log.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="Seconds that a failed replay has to end by itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the decision as JSON, on either stream.")
def resume(run: str, command: tuple[str, ...], store: str | None, check: bool, **options: Any) -> None:
    """Continue RUN after a crash: its program runs again, answered from the log as far as that goes, then live.

    Prints the decision first: on stdout if the program does not run (--check, a refusal), otherwise on stderr, since stdout is then
    the program's own. Exit codes: the program's own; 1 if it no longer follows its log (nothing went live), 4 if resuming is
    refused (also for finished and broken runs).

    \b
    Examples:
      tracekit recovery resume last --check  # only the decision, and why
      tracekit recovery resume last
      tracekit recovery resume last --entry service:answer
    """
    supplied = _supplied(options["supply"])
    try:
        where = output.local(store, run)
        path = str(located(run, where))
        click.get_current_context().meta[CONTINUES] = path
        decision = decision_on(
            path,
            supplied=supplied,
            accept_lost_tail=options["accept_lost_tail"],
            original_is_dead=options["original_is_dead"],
        )
        runs = decision.decision == "resume" and not check
        if options["as_json"]:
            emit(decision.as_dict(), stderr=runs)
        else:
            shown([decision], stderr=runs)
        if decision.decision != "resume":
            for reason in decision.refusals:
                message(f"tracekit: refused: {reason['text']}")
            message(f"tracekit: next: {printable(advice(decision, path))}")
            if len(decision.in_doubt) > 1:
                message(
                    f"tracekit: {len(decision.in_doubt)} steps are in doubt: `tracekit in-doubt` lists them, with what to do"
                )
            message("tracekit: `tracekit docs recovery` says what each reason asks for")
            sys.exit(REFUSED)
        with Trace(path) as trace:
            program, cwd = program_of(trace, where, path, command, options["entry"], "recovery resume")
            check_given(trace, program, command, options["entry"])
            environment = hash_seed(trace)
        if options["entry"] is None:
            check_siblings(where, path)
    except RecoveryRefusedError as error:
        if options["as_json"]:
            emit({"run_id": error.run_id, "decision": "abort", "reasons": error.__dict__["reasons"]})
        fail(error)
    except TracekitError as error:
        fail(error)
    if check:
        return
    message(f"tracekit: resuming {decision.run_id}: {options['entry'] or program}")
    instructions = {
        "mode": "resume",
        "run": run,
        "path": os.path.abspath(path),
        "store": os.path.abspath(where.root),
        **program.as_dict(),
        "entry": options["entry"],
        "grace": options["grace"],
        "supply": {str(step): value for step, value in supplied.items()},
        "accept_lost_tail": options["accept_lost_tail"],
        "original_is_dead": options["original_is_dead"],
    }
    launch(instructions, environment, cwd)


def _supplied(options: tuple[str, ...]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in options:
        step, _, file = one.partition("=")
        if not step.isdigit() or not file:
            raise click.UsageError(f"--supply takes STEP=FILE.json, not {one!r}")
        try:
            with open(file, "rb") as opened:
                found[int(step)] = orjson.loads(opened.read())
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--supply: {file} can't be read as JSON: {error}") from None
    return found


# -- recovery ----------------------------------------------------------------------------------------------------------
#
# The other subcommands of ``tracekit recovery``.

_REASON: Final = click.option("--reason", metavar="TEXT", required=True, help="The reason; it is kept in the log.")
_BY: Final = click.option("--by", metavar="WHO", help="Who decided (default: the system user).")


@click.group()
def recovery() -> None:
    """Decide what to do with runs that did not end.

    The decision follows from the log alone: the same log gives the same answer, with its reasons.

    \b
    Examples:
      tracekit recovery scan         # which runs died, and may they go on?
      tracekit recovery resume last  # go on with one
      tracekit recovery settle last 6 --not-done --reason "bank says no"
    """


@recovery.command("scan", short_help="List the runs that died, and whether they may be resumed.")
@click.option("--all", "every", is_flag=True, help="List every run, including those that have ended.")
@QUICK
@READ_STORE
@JSON
def scan(every: bool, quick: bool, store: str | None, as_json: bool) -> None:
    """List the runs that did not end, are damaged, or leave something in doubt, and whether they may be resumed. Every run is
    verified.

    As JSON lines: run_id, state, decision (resume or abort), reasons (each with a code), in_doubt and pending steps. Exit code: 0
    if nothing is in doubt, whatever was decided; 1 if something is, or may be (a log is damaged); 2 if there is no store, or
    something in it cannot be read.

    \b
    Examples:
      tracekit recovery scan
      tracekit recovery scan --json | jq .reasons
    """
    with output.reported():
        where = named(store, existing=True)
        unread = [*output.no_files(where).values()]
        in_doubt: list[str] = []
        runs = _examined(where, quick)
        found = _collect_in_doubt(_decisions((run for run in runs if every or needs_a_decision(run)), unread), in_doubt)
        if as_json:
            output.emit(decision.as_dict() for decision in found)
        else:
            if not shown(found) and not unread:
                output.message(f"Every run in {where.root} has ended.")
            _count(where, runs)
        for problem in unread:
            output.message(printable(problem))
        sys.exit(output.USAGE_ERROR if unread else output.DIFFERENT if in_doubt else output.RIGHT)


def _collect_in_doubt(decisions: Iterable[Decision], in_doubt: list[str]) -> Iterator[Decision]:
    """Pass the decisions on, and collect the runs with a step in doubt; a damaged log counts, as it may lack one."""
    for decision in decisions:
        if decision.leaves_in_doubt or decision.state == "broken":
            in_doubt.append(decision.run_id)
        yield decision


def _decisions(runs: Iterable[Examined], unread: list[str]) -> Iterator[Decision]:
    """Yield the decision on each run; files that can't be read are collected in ``unread``."""
    for run in runs:
        try:
            yield decision_on(run.path, segments=run.segments)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except (OSError, TracekitError) as error:
            unread.append(str(error))


def _examined(where: Store, quick: bool) -> list[Examined]:
    def progress(runs: Sequence[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, Sequence[str]]]:
        return output.progress(runs, "verifying the runs")

    return [*examined(where, quick=quick, progress=progress)]


def _count(where: Store, runs: Iterable[Examined]) -> None:
    """Print how much is in doubt, counted like ``tracekit in-doubt``."""
    found = steps_in_doubt(where, runs)
    counts = [
        (len(found.in_doubt), "in doubt"),
        (len(found.running), "being made"),
        (len(found.undeclared), "in doubt and undeclared"),
    ]
    counted = [f"{count} {'step' if count == 1 else 'steps'} {what}" for count, what in counts if count]
    if counted:
        output.message(f"{', '.join(counted)}: `tracekit in-doubt` lists them")


@click.command("in-doubt")
@QUICK
@READ_STORE
@JSON
def in_doubt(quick: bool, store: str | None, as_json: bool) -> None:
    """List every irreversible step that may or may not have happened, over all runs, including those that have ended.

    Each is listed with its tool, arguments, idempotency key, run, host and age, why it is in doubt, and what to do. A step in doubt
    inside another one is listed under that, and settled with it ("inside" has its number). Listed separately: steps that a live
    process is making at this moment, and processes without a declared side effect. As JSON lines: the same, with "state" in_doubt
    or running, and "declared" false for the last. Exit code: 1 if something is in doubt, or may be (a file is damaged or missing);
    2 if there is no store; otherwise 0. Every run is verified.

    \b
    Examples:
      tracekit in-doubt
      tracekit in-doubt --json  # in a script: exit code 1 means look
    """
    with output.reported():
        where = named(store, existing=True)
        found = steps_in_doubt(where, _examined(where, quick))
        if as_json:
            output.emit(one.as_dict() for one in (*found.in_doubt, *found.running, *found.undeclared))
        else:
            _print_steps(found, where)
        no_files = output.no_files(where)
        for path in found.unreadable:
            output.message(
                no_files[path]
                if path in no_files
                else f"{printable(path)} can't be read completely, and may have more: "
                f"`tracekit verify {printable(shown_as(path))}` says why"
            )
        sys.exit(output.DIFFERENT if found.in_doubt or found.unreadable else output.RIGHT)


def _print_steps(found: InDoubt, where: Store) -> None:
    groups = (
        ("in doubt", "bold red", found.in_doubt),
        ("being made right now", "cyan", found.running),
        ("processes in doubt, without a declared side effect", "yellow", found.undeclared),
    )
    with output.paged() as console:
        for title, style, steps in groups:
            if not steps:
                continue
            within = sum(one.inside is not None for one in steps)
            nested = f", {within} of them inside another" if within else ""
            count = f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}{nested}"
            console.print(f"{title}: {count}", style=style)
            for one, depth in _under_each_other(steps):
                _print_uncertain(console, one, depth)
    if not (found.in_doubt or found.running or found.undeclared or found.unreadable):
        output.message(f"Nothing is in doubt in {where.root}.")


def _under_each_other(steps: Sequence[UncertainStep]) -> Iterator[tuple[UncertainStep, int]]:
    """Yield each step, followed by those inside it, which are settled with it; and its depth."""
    inside: dict[tuple[str, str | None, int | None], list[UncertainStep]] = {}
    listed = {(one.run_id, one.segment, one.step) for one in steps}
    stack: list[tuple[UncertainStep, int]] = []
    for one in reversed(steps):
        around = (one.run_id, one.segment, one.inside)
        if around in listed:
            inside.setdefault(around, []).append(one)
        else:
            stack.append((one, 0))
    while stack:
        one, depth = stack.pop()
        yield one, depth
        stack += [(inner, depth + 1) for inner in inside.get((one.run_id, one.segment, one.step), ())]


def _print_uncertain(console: Any, one: UncertainStep, depth: int) -> None:
    from rich.text import Text

    indent = "  " * (depth + 1)
    named = one.arguments if isinstance(one.arguments, dict) and "$t" not in one.arguments else {"": one.arguments}
    arguments = ", ".join(f"{name}={brief(value, 60)}" if name else brief(value, 120) for name, value in named.items())
    place = one.run_id if one.segment is None else f"{one.run_id}.{one.segment}"
    line = Text(f"{indent}{printable(one.name or '?')}", style="bold") + Text(f"({printable(arguments)})")
    line += Text(f"  {printable(one.run_name)}" if one.run_name else "")
    line += Text(f"  {printable(place)} step {one.step}", style="cyan")
    line += Text("" if one.idempotency_key is None else f"  key {brief(one.idempotency_key, 60)}")
    since = (
        f"  {output.local_time(int(one.time.timestamp() * 1e9))} ({duration(int(one.age.total_seconds() * 1e9))} ago)"
    )
    line += Text(since + ("" if one.host is None else f" on {printable(one.host)}"), style="dim")
    console.print(line, soft_wrap=True)
    console.print(Text(f"{indent}  {one.code}: ", style="dim") + Text(printable(one.text)), soft_wrap=True)
    for text, is_command in _lines_of_advice(one.what_to_do):
        console.print(
            Text(f"{indent}  {'  ' if is_command else ''}{text}", style="" if is_command else "dim"), soft_wrap=True
        )


def _lines_of_advice(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of an advice, each with whether it is a command: those stand alone, so that they can be copied."""
    parts = printable(text).split("`")
    for number, part in enumerate(parts):
        if number % 2 == 1:
            yield part, True
        elif words := part.strip(" ,;:"):
            yield f"{words}:" if number + 1 < len(parts) else words, False


@recovery.command("abort", short_help="Give a run up, and undo what can be undone.")
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@_REASON
@_BY
@click.option(
    "--tools", metavar="MODULE", multiple=True, help="Import MODULE and run the compensations of its tools. Repeatable."
)
@click.option(
    "--partial", is_flag=True, help="Abort even if no MODULE has the tools of some steps, which then are not undone."
)
@click.option("--accept-lost-tail", is_flag=True, help="Cut off what a power loss left unreadable; it is kept.")
@STORE
@JSON
def abort(
    run: str,
    reason: str,
    by: str | None,
    tools: tuple[str, ...],
    partial: bool,
    accept_lost_tail: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Give RUN up: its log gets an end, and it can no longer be resumed.

    With --tools, its reversible steps are undone first, in reverse order, each once; without it, the output lists what was not
    undone. Exit code: 0 aborted, 4 refused (it has ended, another process runs it, a MODULE runs a program when it is imported, or
    no MODULE has the tool of a step to undo), 1 its log is damaged.

    \b
    Examples:
      tracekit recovery abort last --reason "paid by hand"
      tracekit recovery abort last --reason "wrong order" --tools shop.tools
    """
    from ..recovery import abort as give_up

    with output.reported():
        if not reason.strip():
            raise click.BadParameter("say why", param_hint="--reason")
        if tools:
            sys.path.insert(0, "")  # like `python -m`
        done = give_up(
            located(run, output.local(store, run)), reason=reason, by=by, tools=tools, partial=partial, accept_lost_tail=accept_lost_tail
        )  # fmt: skip
        if as_json:
            output.emit(done.as_dict())
            return
        console = output.console()
        console.print(f"aborted {printable(done.run_id)}", soft_wrap=True)
        for what, steps in (
            ("in doubt", done.in_doubt),
            ("undone", done.compensated),
            ("not undone", done.uncompensated),
        ):
            if steps:
                label = "step" if len(steps) == 1 else "steps"
                console.print(f"  {what}: {label} {', '.join(map(str, steps))}", soft_wrap=True)


class _Output(click.File):
    """A file with what a step returned, as JSON; who gives the value itself learns how."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value != "-" and not os.path.lexists(value):
            how = "name a file with what the step returned, as JSON, or `-` to read that from stdin: echo null | tracekit … --done -"
            self.fail(f"there is no file {value!r}: {how}", param, ctx)
        return super().convert(value, param, ctx)


@recovery.command("settle", short_help="Record whether a step in doubt was done.")
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@click.argument("step", metavar="STEP", type=click.IntRange(1), shell_complete=output.complete_in_run("step"))
@click.option("--done", metavar="OUTPUT.json", type=_Output("rb"), help='It was done, with this output ("-": stdin).')
@click.option("--not-done", is_flag=True, help="It was not done; a resumed run makes it again.")
@_REASON
@_BY
@STORE
@JSON
def settle(
    run: str,
    step: int,
    done: BinaryIO | None,
    not_done: bool,
    reason: str,
    by: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """State what became of STEP, which is in doubt: an entry's number, as `scan` prints it.

    Whatever is in doubt inside STEP is settled with it: settle a tool, not the request that it was making. OUTPUT.json contains
    what STEP returned: numbers, texts, lists and objects as JSON ("paid", {"id": 7}, null), other values in the form of the trace
    (`tracekit show RUN --json --expand` has those of earlier calls); for an HTTP request {"status", "headers", "body", "format"},
    as `in-doubt` shows. The log keeps who settled it and why; if the run has ended, a file beside it does. Exit code: 0 settled, 4
    refused (nothing is in doubt, or another process runs it), 1 its log is damaged.

    \b
    Examples:
      tracekit recovery settle last 6 --not-done --reason "bank says no"
      tracekit recovery settle last 6 --done paid.json --reason "bank says yes"
    """
    from .._runs.operator import settle_as

    with output.reported():
        if (done is None) == (not not_done):
            raise click.UsageError("say --done OUTPUT.json or --not-done")
        if not reason.strip():
            raise click.BadParameter("say why", param_hint="--reason")
        path = located(run, output.local(store, run))
        tree = None if done is None else _tree(done)
        try:
            seq, along, corrects = settle_as(path, step, tree, done=done is not None, reason=reason, by=by)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--done") from None
        if as_json:
            inside = [one.seq for one in along]
            output.emit({"path": path, "step": step, "done": done is not None, "seq": seq or None, "inside": inside})
        else:
            where = f"entry {seq}" if seq else "outside the log, since the run has ended"
            console = output.console()
            what = "not done" if done is None else "done"
            console.print(f"step {step} is settled as {what} ({where})")
            if corrects is not None:
                before = "done" if corrects else "not done"
                console.print(f"  it was settled as {before} before, which no longer counts")
            for one in along:
                line = f"  with it, as {what}: step {one.seq}, {one.family} {one.name!r}, inside it"
                console.print(printable(line), soft_wrap=True)


def _tree(file: BinaryIO) -> Any:
    """Return the output in a JSON file in the trace's form, checked: no references, no unknown tags."""
    from .._values import not_serialisable

    try:
        tree = orjson.loads(file.read())
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="--done") from None
    if not_serialisable(tree) is not None:
        raise click.BadParameter("it contains a value that was not recorded", param_hint="--done")
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict) and ("$ref" in node or "$extend" in node):
            raise click.BadParameter("it refers to another entry: use `tracekit show --expand`", param_hint="--done")
        stack.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return tree


recovery.add_command(resume)
