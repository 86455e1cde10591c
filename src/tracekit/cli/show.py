"""``tracekit show``: a run as a tree of its steps, one step in full, or why it can or can't be replayed and resumed."""

from __future__ import annotations

import json
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from .. import _reality
from .._journal.entry import REFUSALS
from .._journal.reader import Follower, Trace
from .._journal.store import Store, beside, segment_in, shown_as
from .._runs.reading import (
    GROUPS,
    Edit,
    FileView,
    ModelCall,
    PromptMessage,
    RunView,
    StepView,
    class_of,
    error_text,
    plain,
)
from .._runs.wording import (
    FRAME,
    arguments_text,
    asked_text,
    facts_of,
    plural,
    raised_lines,
    related_text,
    request_text,
    result_text,
    usage_text,
)
from .._runtime.verdict import Judgement
from . import output
from .options import READ_STORE
from .output import Line, age, brief, dollars, duration, local_time, located, printable, short, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["explain", "line_of", "print_text", "print_turn", "show", "unified", "whole"]

# -- show --------------------------------------------------------------------------------------------------------------
#
# ``tracekit show RUN``: a tree of what matters, or the entries as JSON lines.

_EXIT: Final = {"complete": output.RIGHT, "incomplete": output.INCOMPLETE, "broken": output.DIFFERENT}
_CLASS: Final = {"irreversible": "bold red", "reversible": "yellow", "read_only": "dim"}
_STATES: Final = {
    "complete": "green",
    "running": "cyan",
    "failed": "red",
    "aborted": "yellow",
    "died": "bold yellow",
    "broken": "bold red",
}


class Choice:
    """Which steps to show: of these kinds, lanes and agents; those that failed or are in doubt; from an entry on."""

    def __init__(
        self,
        *,
        every: bool = False,
        kinds: Sequence[str] = (),
        lanes: Sequence[str] = (),
        agents: Sequence[str] = (),
        failed: bool = False,
        first: int = 1,
    ) -> None:
        self.every: Final = every
        self.kinds: Final = tuple(kinds)
        self.lanes: Final = tuple(lanes)
        self.agents: Final = tuple(agents)
        self.failed: Final = failed
        self.first: Final = first

    @property
    def narrows(self) -> bool:
        """Whether a filter was given."""
        return bool(self.kinds or self.lanes or self.agents or self.failed)

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return self.every and not self.narrows and self.first == 1

    def has(self, step: StepView) -> bool:
        """Return whether to show this step."""
        if not self.reaches(step.file, step.seq):
            return False
        return self.has_alike(step) is not False and self.has_alone(step)

    def reaches(self, file: FileView, seq: int) -> bool:
        """Return whether the step is late enough to be shown."""
        return seq >= self.first or file.segment is not None

    def among(self, file: FileView) -> Iterator[int]:
        """Yield the numbers of the steps of a file to show."""

        def alike(step: StepView) -> bool | None:
            return step.type not in FRAME and self.has_alike(step)

        def alone(step: StepView) -> bool:
            return self.reaches(file, step.seq) and self.has_alone(step)

        return (seq for seq in file.steps.chosen(alike, alone) if self.reaches(file, seq))

    def has_alike(self, step: StepView) -> bool | None:
        """Return whether to show the steps of this type, kind, agent and lane, once they are reached; ``None`` if that
        depends on each."""
        if self.lanes and not any(_is_lane(step, lane) for lane in self.lanes):
            return False
        if self.agents and step.agent not in self.agents:
            return False
        if self.kinds and not any(step.is_named(kind) for kind in self.kinds):
            return None if "error" in self.kinds else False
        if not self.kinds and not self.every:
            if step.kind == "boundary":
                return None
            if step.bookkeeping:
                return False
        return None if self.failed else True

    def has_alone(self, step: StepView) -> bool:
        """Return whether to show this step, where ``has_alike`` does not say."""
        if self.kinds:
            if not any(step.is_a(kind) for kind in self.kinds):
                return False
        elif not self.every and step.bookkeeping:
            return False
        return not self.failed or step.failed or step.state in ("in doubt", "cut off")


def _is_lane(step: StepView, wanted: str) -> bool:
    lane = step.lane
    own = lane.path.rpartition("/")[2]
    names = {own, own.rpartition("<locals>.")[2]}
    labels = {lane.path, lane.label, step.file.process or str(lane.number), *(names - step.file.labels)}
    return wanted in labels or wanted in {name.rpartition("#")[0] for name in labels | names if name}


@click.command()
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@click.argument("step", metavar="[STEP]", required=False, shell_complete=output.complete_in_run("step"))
@READ_STORE
@click.option("--all", "every", is_flag=True, help="Include clock and random reads, lanes and other bookkeeping.")
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    multiple=True,
    shell_complete=output.complete_in_run("kind"),
    help="Only this kind: llm, tool, http, process, span, decision, message, error, clock … Repeatable.",
)
@click.option(
    "--lane",
    "lanes",
    metavar="LANE",
    multiple=True,
    shell_complete=output.complete_in_run("lane"),
    help="Only this task or thread (worker#2, or worker for all of that name). Repeatable.",
)
@click.option(
    "--agent",
    "agents",
    metavar="NAME",
    multiple=True,
    shell_complete=output.complete_in_run("agent"),
    help="Only what this agent did. Repeatable.",
)
@click.option("--failed", is_flag=True, help="Only what failed, was cut off, or is in doubt.")
@click.option("--follow", is_flag=True, help="Follow a live run until it ends.")
@click.option(
    "--why", "as_why", is_flag=True, help="Say what happened and why, and whether it may be repeated and replayed."
)
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON lines.")
@click.option("--expand", is_flag=True, help="In JSON, replace references by their values.")
@click.option("--from", "first", metavar="SEQ", type=click.IntRange(1), default=1, help="Begin at this entry.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(0), default=0, help="Print at most this many steps; 0 for all (0)."
)
def show(
    run: str,
    step: str | None,
    store: str | None,
    every: bool,
    kinds: tuple[str, ...],
    lanes: tuple[str, ...],
    agents: tuple[str, ...],
    failed: bool,
    follow: bool,
    as_why: bool,
    as_json: bool,
    expand: bool,
    first: int,
    limit: int,
) -> None:
    """Show a run: its id, the beginning of its id, "last", or the path of its file; or one STEP of it in full.

    The tree has model calls, tools, requests, decisions and errors: each line begins with the number to give as STEP. Output longer
    than the terminal is paged; NO_COLOR is respected. Child processes follow, in JSON with the key "segment"; RUN.SEGMENT shows
    only one of them. Exit code: 0 for a complete run, 1 for a broken one, 3 for one without an end; whatever verifies is shown in
    any case.

    \b
    Examples:
      tracekit show last
      tracekit show last 9      # the step with number 9, whole
      tracekit show last --failed
      tracekit show last --kind llm --agent buyer
      tracekit show last --why  # may it be run again?
    """
    choice = Choice(every=every, kinds=kinds, lanes=lanes, agents=agents, failed=failed, first=first)
    with output.reported():
        where = output.readable(store, run)
        path = located(run, where)
        if follow:
            _follow(path, choice, as_json)
        if as_json and step is None and not as_why and not choice.narrows and not limit:
            _print_entries(path, where, first, expand)
        with output.read(path, where) as view:
            found = view.found
            if as_why:
                answers = explain(view)
                output.emit(answers) if as_json else print_answers(answers)
            elif as_json:
                chosen = (one for one in view.steps(all=True) if choice.has(one))
                steps = [view.step(step)] if step is not None else islice(chosen, limit or None)
                output.emit(_chosen(view, steps, expand))
            elif step is not None:
                _print_step(view, view.step(step))
            else:
                _print_tree(view, choice, limit)
            if as_json or as_why or step is not None:  # the tree ends with it
                _report(found.state, found.problem, found.line)
            sys.exit(_EXIT[found.state])


def _report(state: str, problem: str | None, line: int | None) -> None:
    if problem:
        output.message(f"{state}: {printable(problem)}" + (f" (line {line})" if line else ""))


def _print_entries(path: str, where: Store, first: int, expand: bool) -> None:
    """Print every entry as it is in the file."""
    with Trace(path) as trace:
        verdict = where.judge_run(trace)
        output.emit(whole(trace, first, expand))
        _report(verdict.state, verdict.problem, verdict.line)
    sys.exit(_EXIT[verdict.state])


def whole(trace: Trace, first: int, expand: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries of a run from ``first`` on, then those of its child processes with the names of their segments."""
    for entry in trace.entries(first=first, damaged=True):
        yield _expanded(trace, entry) if expand else entry
    for path in beside(trace.path):
        with Trace(path) as file:
            for entry in file.entries(damaged=True):
                yield {"segment": segment_in(path), **(_expanded(file, entry) if expand else entry)}


def _expanded(trace: Trace, entry: dict[str, Any]) -> dict[str, Any]:
    if entry["type"] != "blob":
        for key in ("input", "output"):
            if key in entry:
                entry[key] = trace.expand(entry[key], before=entry["seq"])
    return entry


def _chosen(view: RunView, steps: Iterable[StepView], expand: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries of these steps: the begin of each, its pieces, its end."""
    for step in steps:
        trace = step.file.trace
        segment = {} if step.file.segment is None else {"segment": step.file.segment}
        for seq in (step.seq, *step.chunks, *([step.answer] if step.answer else ())):
            yield {**segment, **(_expanded(trace, trace.entry(seq)) if expand else trace.entry(seq))}


# -- the tree ----------------------------------------------------------------------------------------------------------


def _print_tree(view: RunView, choice: Choice, limit: int) -> None:
    output.page(lambda console: _tree(view, choice, limit, console))


def _tree(view: RunView, choice: Choice, limit: int, console: Console) -> Iterator[Line | Text]:
    """Yield the lines of the tree."""
    yield from _heading(view, console.width)
    left, hidden, found = limit or sys.maxsize, 0, False
    for file in view.files:
        steps = file.steps
        inner = sum(1 for _ in steps.chosen(lambda step: step.type not in FRAME))
        shown = array("I", choice.among(file))
        hidden += inner - len(shown)
        found = found or bool(shown)
        if choice.narrows and not shown:
            continue
        if file.segment is not None:
            yield styled((f"process {file.process}", "bold"), (f"  segment {file.segment}", "dim"))
        yield from _step_lines(file, shown[:left], console.width)
        if len(shown) > left:
            name = shown_as(file.trace.path)
            yield styled((f"… {len(shown) - left} more: tracekit show {name} --from {shown[left]}", "dim"))
        left = max(0, left - len(shown))
        if file.segment is not None and file.found.state != "complete":
            yield from _ending(file)
    if not found and choice.narrows:
        yield styled((_nothing_found(view, choice), "dim"))
    if hidden and not choice.narrows and choice.first == 1:
        yield styled((f"not shown: {_entries(hidden)} of bookkeeping (--all)", "dim"))
    yield from _ending(view.own)
    if (text := _next(view)) is not None:
        yield styled((f"  next:  {text}", ""))


def _next(view: RunView) -> str | None:
    """Return what to do about a run that is damaged, died or left something in doubt, with the command."""
    name = shown_as(view.own.trace.path)
    if view.state == "broken":
        if not view.own.first:
            return "take a copy that verifies, or name the file of a trace: `tracekit list` lists the runs of the store"
        return f"don't trust what is not shown; take a copy that verifies (`tracekit verify {name}`)"
    if view.state == "died" and not view.own.first:
        return "the program had not begun yet: start it again, and delete the file"
    if view.state == "died" and view.imported_from is None:
        return f"`tracekit recovery resume {name} --check` says whether the run may go on, and what to find out before"
    in_doubt = [
        str(one.place) for file in view.files for seq in file.doubts if (one := file.steps[seq]).state == "in doubt"
    ]
    if in_doubt and view.state != "running":
        is_one = len(in_doubt) == 1
        return f"`tracekit in-doubt` says how to settle {'step' if is_one else 'steps'} {', '.join(in_doubt)}"
    return None


def _nothing_found(view: RunView, choice: Choice) -> str:
    """Return the message that no step matches the filters, and which values they could have in this run."""
    text = "no step failed, was cut off or is in doubt" if choice.failed else "no step matches"
    if choice.failed and not (choice.kinds or choice.lanes or choice.agents):
        return text
    there = output.values_in(view)
    kinds = [f"{kind} ({many.partition(' ')[0]})" for kind, many in there["kind"].items()]
    parts = [f"kinds of this run: {', '.join(kinds[:_MAX_ENTRIES])}"] if choice.kinds else []
    parts += [f"lanes: {', '.join([*there['lane']][:_MAX_ENTRIES])}"] if choice.lanes else []
    parts += [f"agents: {', '.join([*there['agent']][:_MAX_ENTRIES]) or 'none'}"] if choice.agents else []
    return f"{text}; {'; '.join(parts)}"


def _heading(view: RunView, width: int) -> Iterator[Text]:
    """Yield the first line; where it is too long for a terminal, its figures are on a second one."""
    taken = view.taken
    counted = sum(1 for _ in view.steps(kinds=("tool",)))
    parts = [plural(taken.calls, "model call")] if taken.calls else []
    parts += [plural(counted, "tool call")] if counted else []
    if taken.input_tokens or taken.output_tokens:
        parts.append(f"{taken.input_tokens:,} + {taken.output_tokens:,} tokens")
        parts += [] if taken.cost_usd is None else [dollars(taken.cost_usd)]
    # A file without an entry has no begin.
    began = f"  {local_time(view.started_ns)} ({age(view.started_ns)} ago), {duration(view.took)}"
    about: Line = [
        (view.name, "bold"),
        (f"  {view.run_id}", "cyan"),
        (f"  {view.state}", _STATES[view.state]),
        ("" if view.imported_from is None else f"  imported from {printable(view.imported_from)}", "yellow"),
        ("" if view.branched_from is None else f"  {printable(view.branched_from)}", "yellow"),
    ]
    figures: Line = [(began if view.started_ns else "", "dim"), ("".join(f"  {part}" for part in parts), "dim")]
    if _length(about) + _length(figures) <= width:
        yield styled(*about, *figures)
    else:
        yield from (styled(*about), styled(*figures))


def _step_lines(file: FileView, shown: array[int], width: int) -> Iterator[Line]:
    """Yield a line for each of these steps, below the nearest step around it that is shown."""
    if not shown and file.first:
        yield [("(nothing to show)", "dim")]
    below: dict[int, array[int]] = {}
    for seq in shown:
        below.setdefault(_around(file, seq, shown), array("I")).append(seq)
    #: For each level: the remaining steps, each with the prefixes of its own line and of the lines below it.
    levels: list[Iterator[tuple[int, str, str]]] = [((seq, "", "") for seq in below.get(0, ()))]
    while levels:
        if (found := next(levels[-1], None)) is None:
            levels.pop()
            continue
        seq, before, guide = found
        yield [(before, "dim"), *parts_of(file.steps[seq], width - len(before))]
        if seq in below:
            levels.append(_guided(below[seq], guide))


def _guided(steps: array[int], guide: str) -> Iterator[tuple[int, str, str]]:
    for seq in steps:
        last = seq == steps[-1]
        yield seq, guide + ("└── " if last else "├── "), guide + ("    " if last else "│   ")


def _around(file: FileView, seq: int, shown: array[int]) -> int:
    """Return the nearest step around this one that is shown; 0 if there is none."""
    around = file.step_at(file.steps[seq].parent)
    while around is not None:
        at = bisect_left(shown, around.seq)
        if at < len(shown) and shown[at] == around.seq:
            return around.seq
        around = None if around.seq == around.parent else file.step_at(around.parent)
    return 0


def line_of(step: StepView, width: int) -> Text:
    """Return a step in one line: what was requested, by whom, and the result."""
    return styled(*parts_of(step, width))


def parts_of(step: StepView, width: int) -> Line:
    """Return a step in one line, in pieces, each with its style, of about ``width`` characters together."""
    kind = "policy" if step.kind == "policy.check" else step.kind
    head: Line = [(f"{step.place} ", "dim"), (f"{kind} ", "blue")]
    end = _details(step)
    room = max(40, width - _length(head) - _length(end))
    outcome = _outcome(step, room)
    wide = _length(outcome)
    if wide > room // 2:  # half of the line for the request, if it needs that
        asked = _request(step, room // 2)
        if wide > room - _length(asked):
            outcome = _outcome(step, room - _length(asked) - 4)
    else:
        asked = _request(step, room - wide)
    return [*head, *asked, *outcome, *end]


def _length(parts: Line) -> int:
    return sum(len(text) for text, _ in parts)


def _request(step: StepView, room: int) -> Line:
    if step.kind == "boundary":
        return [(short(step.file.crossings[step.seq].text, room), "bold")]
    name = step.name if step.name != step.kind else ""
    parts: Line = [(name, "bold")]
    asked = asked_text(step, max(16, room - len(name) - 3))
    return [*parts, (asked if step.kind == "tool" else f" {asked}", "")] if asked else parts


def _outcome(step: StepView, room: int) -> Line:
    if step.kind == "boundary":
        one = step.file.crossings[step.seq]
        advice = f": {one.advice}" if one.advice else ""
        unattributed = ", unattributed" if one.unattributed else ""
        status = one.final_status
        return [(f"  {status}{unattributed}{advice}", "bold red" if status in ("noted", "refused") else "dim")]
    if step.kind in ("clock", "random") and (values := step.values):
        return [(f" = {brief(values[0], 40)}" if len(values) == 1 else f" × {len(values)}", "")]
    state = step.state
    if state == "failed":
        return [(f"  ✗ {short(step.error, room)}", "red")]
    if state in ("in doubt", "cut off"):
        effect = "no outcome: in doubt" if step.outcome is None and state == "in doubt" else state
        return [(f"  {effect}" + (f": {short(step.error, room)}" if step.error else ""), "bold red")]
    if state == "running":
        return [("  running", "cyan")]
    if state == "given up":
        return [("  given up", "yellow")]
    if step.kind == "span" or not (step.has_output or step.chunks):
        return []
    return [("  → ", "dim"), (result_text(step, max(24, room - 4)), "green")]


def _details(step: StepView) -> Line:
    """Return the end of a line: class, attempt, settlement, lane, agent, tokens, duration."""
    parts: Line = []
    if step.side_effect and step.kind in ("tool", "http", "process"):
        parts.append((f"  {step.side_effect}", _CLASS.get(step.side_effect, "")))
    if related := related_text(step):
        parts.append((f"  {related}", "dim"))
    if (settlement := step.settled) is not None:
        done = "done" if settlement.get("done") else "not done"
        parts.append(
            (
                f"  settled by {short(settlement.get('by'), 24)} as {done}: {short(settlement.get('reason'), 48)}",
                "yellow",
            )
        )
    if (call := step.call) is not None and call.usage:
        cost = "" if call.cost_usd is None else f" {dollars(call.cost_usd)}"
        tokens = f"{call.usage.get('input_tokens', 0):,} + {call.usage.get('output_tokens', 0):,} tokens"
        parts.append((f"  {tokens}{cost}", "dim"))
    if step.calls and step.took:
        parts.append((f"  {duration(step.took)}", "dim"))
    if label := step.lane.label:
        parts.append((f"  [{short(label, 40)}]", "magenta"))
    if step.agent:
        parts.append((f"  @{short(step.agent, 24)}", "cyan"))
    return parts


def _ending(file: FileView) -> Iterator[Text]:
    """Yield how a run, or a process, ended, and the result of verifying it."""
    found = file.found
    failed = file.last.get("error") if file.ended is not None else None
    if failed is not None:
        yield styled((f"{file.ended}: {short(error_text(failed), 300)}", "red"))
    if found.state == "complete":
        yield styled((f"complete, {_entries(found.count)}, tip hash {found.head[:16]}…", "green"))
    elif found.state == "incomplete" and file.live:
        yield styled((f"running: {_entries(found.count)} so far (--follow follows it)", "cyan"))
    else:
        where = f"line {found.line}: " if found.line else ""
        style = "bold red" if found.state == "broken" else "bold yellow"
        yield styled((f"{found.state}: {where}{found.problem or ''}", style))


# -- a live run --------------------------------------------------------------------------------------------------------

#: How often a live run is polled, in seconds.
_POLL_S: Final = 0.1


class _Following:
    """A run that is followed: the entries of its file, as they come."""

    def __init__(self, path: str, take: Callable[[dict[str, Any]], None]) -> None:
        self.path: Final = path
        self.follower: Final = Follower(path, take)

    def entry(self, seq: int) -> dict[str, Any]:
        return self.follower.entry(seq)

    def expand(self, value: Any, *, before: int | None = None) -> Any:
        return self.follower.expand(value, before or sys.maxsize)


def _follow(path: str, choice: Choice, as_json: bool) -> None:
    """Print each step as it ends, until the run does; exit with the code for how it ended."""
    pending: list[dict[str, Any]] = []
    source = _Following(path, pending.append)
    with Trace(path) as trace:
        view = FileView(trace, trace.status, source=source)
        console = output.console()
        while True:
            alive = FileView(
                trace, trace.status
            ).live  # before the last look, so that nothing that it wrote at the end is missed
            source.follower.poll()
            for entry in pending:
                step = view.feed(entry)
                if (
                    step is None
                    or (step.calls and step.kind != "span" and step.outcome is None)
                    or not choice.has(step)
                ):
                    continue
                if step.type in FRAME or (step.kind == "span" and step.outcome is not None):
                    continue
                if as_json:
                    output.emit(_chosen_live(source, step))
                else:
                    line = line_of(step, console.width)
                    console.print(line, no_wrap=True, overflow="ellipsis")
            pending.clear()
            if view.ended is not None or not alive:
                break
            sys.stdout.flush()
            _reality.sleep(_POLL_S)
    if view.ended is None:
        output.message("the process that ran it is gone, and the run has no end")
        sys.exit(output.INCOMPLETE)
    if not as_json:
        last = view.last.get("error")
        console.print(f"{view.ended}{': ' + short(error_text(last), 300) if last is not None else ''}")
    sys.exit(output.RIGHT)


def _chosen_live(source: _Following, step: StepView) -> Iterator[dict[str, Any]]:
    for seq in (step.seq, *step.chunks, *([step.answer] if step.answer else ())):
        yield source.entry(seq)


# -- one step ----------------------------------------------------------------------------------------------------------


def _print_step(view: RunView, step: StepView) -> None:
    """Print one step in full: its input, its result, and, for a model call, what changed since the previous turn."""
    with output.paged() as console:
        console.print(line_of(step, console.width), no_wrap=True, overflow="ellipsis")
        for name, value in facts_of(view, step):
            console.print(f"  {name:<12}{printable(value)}", soft_wrap=True)
        print_input(console, step)
        print_answer(console, step)


def print_input(console: Console, step: StepView) -> None:
    """Print the input of a step: for a model call the prompt, with what changed since the previous turn."""
    if step.call is not None:
        _print_prompt(console, step.call)
    elif step.input is not None:
        _print_value(console, "input", step.input)


def print_answer(console: Console, step: StepView) -> None:
    """Print the result of a step."""
    if step.call is not None:
        _print_completion(console, step.call)
    else:
        for number, piece in enumerate(step.pieces(), 1):
            _print_value(console, f"piece {number}", piece)
        if step.has_output:
            _print_value(console, "output", step.output)
        if step.values:
            _print_value(console, "values", step.values)
    if step.failed:
        _print_error(console, step)


def _print_prompt(console: Console, call: ModelCall) -> None:
    from rich.text import Text

    prompt, changes = call.prompt, call.changes
    console.print(
        Text(f"\nprompt to {printable(call.model)}", style="bold") + Text(f"  {_since(call)}", style="dim"),
        soft_wrap=True,
    )
    for edit in changes.messages:
        print_turn(console, edit if changes.previous is not None else edit._replace(op="same"))
    for name, value in (("tools", ", ".join(prompt.tools)), ("parameters", arguments_text(prompt.parameters))):
        if value:
            console.print(f"{name}: {printable(value)}", soft_wrap=True)


def _print_completion(console: Console, call: ModelCall) -> None:
    from rich.text import Text

    if call.step.failed or not (call.step.outcome or call.step.chunks):
        return
    answer = call.answer
    console.print(Text(f"\nanswer  {usage_text(call)}".rstrip(), style="bold"), soft_wrap=True)
    if answer.reasoning:
        console.print(Text("  (thinking)", style="dim"))
        print_text(console, answer.reasoning)
    if answer.text:
        print_text(console, answer.text)
    for request in call.requested:
        console.print(
            Text("  asks for ", style="dim") + Text(printable(request_text(request)), style="bold"), soft_wrap=True
        )
    if answer.refusal:
        console.print(Text(f"  refuses: {printable(answer.refusal)}", style="red"), soft_wrap=True)


_MARKS: Final = {"same": ("  ", ""), "added": ("+ ", "green"), "removed": ("- ", "red"), "changed": ("~ ", "yellow")}


def print_turn(console: Console, edit: Edit) -> None:
    """Print one message of a prompt next to that of another prompt; a changed one as a unified diff."""
    from rich.text import Text

    mark, style = _MARKS[edit.op]
    message = edit.now or edit.before
    if message is None:
        return
    console.print(
        Text(f"{mark}{printable(message.role)}", style=f"bold {style}".strip()) + Text(_answers(message), style="dim")
    )
    if edit.op == "changed" and edit.before is not None and edit.now is not None:
        print_text(console, unified(_message_text(edit.before), _message_text(edit.now)))
    else:
        print_text(console, _message_text(message))


def _since(call: ModelCall) -> str:
    """Return what changed since the previous turn, in one line."""
    changes, count = call.changes, plural(len(call.prompt.messages), "message")
    if changes.previous is None:
        return f"({count}; no turn before it in its lane)"
    found = [f"{changes.count(op)} {op}" for op in ("added", "changed", "removed") if changes.count(op)]
    found += [f"tools {', '.join(changes.tools)}"] if changes.tools else []
    found += [f"{name} {brief(old, 40)} -> {brief(new, 40)}" for name, (old, new) in changes.parameters.items()]
    return f"({count}; since step {changes.previous.place}: {'; '.join(map(printable, found)) or 'nothing changed'})"


def _answers(message: PromptMessage) -> str:
    return f"  (result of {printable(message.answers)})" if message.answers else ""


def _message_text(message: PromptMessage) -> str:
    requests = [f"asks for {request_text(one)}" for one in message.requests]
    return "\n".join(filter(None, (message.text, *requests, *(f"[{other}]" for other in message.others))))


def unified(old: str, new: str) -> str:
    """Return the lines in which two texts differ, with two lines of context; of long lines, the part that differs."""
    from .._runtime.divergence import changed_lines

    return "\n".join(changed_lines(old, new, 2))


def print_text(console: Console, text: str) -> None:
    """Print a text line by line, indented."""
    for line in text.splitlines():
        console.print(f"    {printable(line)}", soft_wrap=True)


def _print_value(console: Console, what: str, value: Any) -> None:
    from rich.text import Text

    kind = class_of(value)
    console.print(Text(f"\n{what}", style="bold") + Text(f"  {kind}" if kind else "", style="dim"))
    found = plain(value)
    print_text(
        console, found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False, default=repr)
    )


def _print_error(console: Console, step: StepView) -> None:
    from rich.text import Text

    console.print(Text("\nerror", style="bold") + Text(f"  {printable(step.error or '')}", style="red"), soft_wrap=True)
    for number, line in enumerate(raised_lines(step)):
        console.print(Text("        " if number else "    at  ", style="dim") + Text(line), soft_wrap=True)
    failure = step.ended_with.get("failure")
    if isinstance(failure, Mapping):
        facts = [
            f"{name} {brief(failure[name], 300)}"
            for name in ("type", "recoverable", "recovery_strategy")
            if name in failure
        ]
        console.print(f"    {printable(', '.join(facts))}", soft_wrap=True)


# -- why ---------------------------------------------------------------------------------------------------------------
#
# ``tracekit show RUN --why``: questions (``_QUESTIONS``), each answered in a line with the entries that support the answer.

_CHOICES: Final = GROUPS["decision"] - {"detection"}  # which finds something, and chooses nothing
_FALLBACKS: Final = GROUPS["fallback"] | {"breaker"}
#: The most entries that are named in one answer.
_MAX_ENTRIES: Final = 12

Answer = tuple[str, list[int | str]]


def explain(view: RunView) -> dict[str, Any]:
    """Return the answers to the ``_QUESTIONS`` about a run, by question, after its ``run_id``.

    Each answer is ``{"text", "entries"}``; those of the verdict also have an ``"answer"``, ``true``, ``false``, or ``null`` if
    unknown, and coded ``"reasons"``. An entry of a child process is ``"SEGMENT:SEQ"``.
    """
    return {"run_id": view.run_id} | {question: _shape(answer(view)) for question, answer in _QUESTIONS.items()}


def print_answers(answers: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, answer in answers.items():
        if isinstance(answer, dict):
            entries = Text("  " + _numbers(answer["entries"]), style="dim") if answer["entries"] else Text("")
            table.add_row(key.replace("_", " "), Text(printable(answer["text"])) + entries)
    console = output.console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line if console.is_terminal else line.rstrip(), color=console.is_terminal)


def _numbers(seqs: list[int | str]) -> str:
    shown = ", ".join(map(str, seqs[:_MAX_ENTRIES]))
    return f"[{shown}{f' and {len(seqs) - _MAX_ENTRIES} more' if len(seqs) > _MAX_ENTRIES else ''}]"


def _shape(answer: Answer | Judgement) -> dict[str, Any]:
    if isinstance(answer, Judgement):
        return answer.as_dict()
    return {"text": answer[0], "entries": answer[1]}


# -- what happened ------------------------------------------------------------------------------------


def _what_happened(view: RunView) -> Answer:
    counted = Counter(step.kind for step in _calls(view))
    words = {"llm": "model call", "tool": "tool call", "http": "HTTP request", "process": "process", "span": "span"}
    parts = [
        plural(counted[kind], word, "es" if kind == "process" else "s") for kind, word in words.items() if counted[kind]
    ]
    made = ", ".join(parts) or "no step"
    if not view.own.first:
        return "Unknown: the file is empty.", []
    head = f"Run {view.name!r} "
    first, last = view.own.first.get("seq", 0), view.own.last.get("seq", 0)
    open_ = [step for step in view.own.steps.values() if step.calls and step.outcome is None]
    match view.own.ended:
        case "run.completed":
            head += f"completed after {duration(view.took)}: {made}."
        case "run.failed":
            head += (
                f"failed after {duration(view.took)} with {short(error_text(view.own.last.get('error')), 160)}: {made}."
            )
        case "run.aborted":
            head += f"was aborted after {duration(view.took)}: {made}."
        case _:
            where = f" inside {_name(open_[-1])}" if open_ else ""
            head += f"has no end; its last entry is {last}{where}: {made}."
    failed = [step for step in _calls(view) if step.failed]
    if failed:
        head += f" {plural(len(failed), 'step')} failed, the last one {_name(failed[-1])}: {short(failed[-1].error)}."
    refused, places = _found(view, REFUSALS)
    if refused:
        by = short(refused[-1].get("name") or "", 40)
        head += f" {plural(len(refused), 'call')} refused, the last one {refused[-1]['type']} {by}".rstrip() + "."
    texts, cut_off = _processes(view)
    shown = [step.place for step in (*open_[-1:], *failed[-1:])] + places[-1:]
    named: list[int | str] = [first, last, *shown, *cut_off]
    return head + texts, _in_order(named)


def _processes(view: RunView) -> Answer:
    """Return a sentence on the child processes of a run and on those without an end, and their entries."""
    if len(view.files) == 1:
        return "", []
    texts, entries = f" It had {plural(len(view.files) - 1, 'child process', 'es')} that joined it.", []
    for process in view.files[1:]:
        if process.ended is None:
            steps = [step for step in process.steps.values() if step.calls and step.outcome is None]
            last = process.last.get("seq", 0)
            where = f" inside {_name(steps[-1])}" if steps else ""
            texts += (
                f" The process {printable(process.process)} has no end; its last entry is {process.place(last)}{where}."
            )
            entries += [process.place(last), *(step.place for step in steps[-1:])]
    return texts, entries


# -- why this path ------------------------------------------------------------------------------------


def _why_this_path(view: RunView) -> Answer:
    chosen, places = _found(view, _CHOICES)
    if chosen:
        texts = [f"{entry.get('name', entry['type'])} → {short(entry.get('output'), 40)}" for entry in chosen[:4]]
        more = f" and {len(chosen) - 4} more" if len(chosen) > 4 else ""
        return f"It decided {'; '.join(texts)}{more}.", places
    asked = _asked_for_tools(view)
    if asked:
        texts = [f"{seq} asked for {', '.join(_counted(tools))}" for seq, tools in list(asked.items())[:4]]
        more = ""
        if len(asked) > 4:
            every = _counted([name for tools in asked.values() for name in tools])
            more = f" and {len(asked) - 4} more did; in all {', '.join(every)}"
        return f"The model chose the tools: entry {'; '.join(texts)}{more}.", list(asked)
    if _calls(view):
        return "No decision is recorded, and no model requested a tool: the code alone chose the path.", []
    return "Nothing is recorded to have been done, so there was nothing to choose.", []


def _found(view: RunView, kinds: Iterable[str]) -> tuple[list[dict[str, Any]], list[int | str]]:
    """Return the entries of these types in the whole run, and their places."""
    found = [(one, entry) for one in view.files for entry in one.entries_of(*kinds)]
    return [entry for _, entry in found], [one.place(entry["seq"]) for one, entry in found]


def _asked_for_tools(view: RunView) -> dict[int | str, list[str]]:
    """Return the names of the tools that each model call requested, whether they ran or not."""
    calls = [(step, step.call) for one in view.files for step in one.steps.values() if step.kind == "llm"]
    return {step.place: [one.name for one in call.requested] for step, call in calls if call and call.requested}


# -- which fallback -----------------------------------------------------------------------------------


def _which_fallback(view: RunView) -> Answer:
    found, places = _found(view, _FALLBACKS)
    retried = [step for step in _calls(view) if step.attempt > 1]
    texts = [_fallback_text(entry) for entry in found[:4]]
    if len(found) > 4:
        texts.append(f"{len(found) - 4} more")
    if retried:
        texts.append(
            f"{plural(len(retried), 'call')} repeated after a failed attempt ({', '.join(_counted(map(_name, retried)))})"
        )
    if not texts:
        return "None: nothing was retried, and no fallback was triggered.", []
    return f"{'; '.join(texts)}.", _in_order(places + [step.place for step in retried])


def _fallback_text(entry: Mapping[str, Any]) -> str:
    """Return a text for a fallback entry: which was called instead of which, and why; or that none was left."""
    about = entry.get("input")
    if not isinstance(about, Mapping) or not entry["type"].startswith("fallback."):
        return f"{entry['type']} {short(entry.get('name') or entry.get('output') or '', 40)}".strip()
    first, reason = short(about.get("from"), 40), short(about.get("reason"), 40)
    if entry["type"] == "fallback.exhausted":
        tried = about.get("tried")
        others = [short(one, 40) for one in tried] if isinstance(tried, list) else []
        return f"no one was left after {', '.join([first, *others])} ({reason})"
    texts = f"{first} failed ({reason}), and {short(about.get('to'), 40)} was called instead"
    if about.get("escalation") is True:
        texts += f", an escalation from {short(about.get('from_side_effect'), 40)} to {short(about.get('to_side_effect'), 40)}"
    return texts


# -- every question ------------------------------------------------------------------------------------

#: Each question by its name in JSON, in the order in which they are answered. The page of ``tracekit report`` asks the same.
_QUESTIONS: Final[Mapping[str, Callable[[RunView], Answer | Judgement]]] = {
    "what_happened": _what_happened,
    "why_this_path": _why_this_path,
    "which_fallback": _which_fallback,
    "safe_to_retry": lambda view: view.verdict.safe_to_run_again,
    "can_be_replayed": lambda view: view.verdict.can_be_replayed,
}


# -- text --------------------------------------------------------------------------------------------


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _calls(view: RunView) -> list[StepView]:
    return [step for step in view.steps(all=True) if step.calls]


def _name(step: StepView) -> str:
    return f"{step.kind} {step.name}"


def _counted(names: Any) -> list[str]:
    return [name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()]


def _in_order(places: list[int | str]) -> list[int | str]:
    """Return distinct places, those of the run's own file first."""
    own = sorted({place for place in places if isinstance(place, int)} - {0})
    return [*own, *dict.fromkeys(place for place in places if isinstance(place, str))]
