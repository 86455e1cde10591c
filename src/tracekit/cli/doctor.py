"""``tracekit doctor``: what a replay of a program could not control, each with its line and what to change there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any, Final, NamedTuple

import click

from .. import _reality
from .._capture.plugins import discover
from .._journal.reader import Trace
from .._journal.store import Store
from .._runs.determinism import Recorded, Transcript, first_difference
from .._runs.program import Program
from .._runs.reading import RunView, StepView, read_run
from .._runs.wording import plural
from .._runtime.boundary import BY_CHANCE, Crossing, uncaptured
from .._runtime.verdict import FOLLOWS
from ..errors import RunNotFoundError, RunStateError
from . import output
from .launch import first_meta, siblings
from .options import COMMAND, JSON, STORE
from .output import both_sides, located, printable
from .replay import program_of, replay_instructions
from .run import LikePython, launcher, record_instructions
from .verify_determinism import replayed

__all__ = ["doctor"]

# -- findings ----------------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """Something that a replay could not control: a stable ``code``, a sentence, the line of the program
    (``FILE:LINE``), and the fix; how often it is in a recording, and in which lines besides ``where``."""

    code: str
    text: str
    where: str | None
    mend: str
    run: str
    step: int | str | None = None
    #: What one fix is for, wherever it is in the program: a process by its name. Without it the fix is for one line.
    subject: str | None = None
    times: int = 1
    also: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        """Equal for what one fix is for."""
        return self.code, self.subject or self.where or self.text

    @property
    def anywhere(self) -> Finding:
        """The finding without its place in the program, unless its fix is for one line, and in the recordings."""
        return self._replace(where=None if self.subject else self.where, run="", step=None)

    def as_dict(self) -> dict[str, Any]:
        file, line = _split(self.where)
        about = self._asdict()
        del about["where"], about["subject"]
        also = [dict(zip(("file", "line"), _split(one), strict=True)) for one in self.also]
        return {**about, "file": file, "line": line, "also": also}


def _together(found: Sequence[Finding], counts: Mapping[Finding, int]) -> Finding:
    """Return findings with one fix as one: the first one, with how often that is in a recording, and the other lines."""
    lines = sorted({one.where for one in found if one.where is not None}, key=_in_order)
    first = next((one for one in found if lines and one.where == lines[0]), found[0])
    return first._replace(times=counts[first.anywhere], also=tuple(lines[1:]))


def _in_order(where: str | None) -> tuple[bool, str, int]:
    file, line = _split(where)
    return where is None, file or "", line or 0


def _split(where: str | None) -> tuple[str | None, int | None]:
    file, _, line = (where or "").rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (where or None, None)


_IN_A_TOOL: Final = (
    "in a function with @traced_tool(side_effect=…): its result is then in the trace, and a replay takes it from there"
)

_SERVER: Final = "open the server outside the run, and record each request that it serves with a record() of its own"

#: How to fix what crossed the boundary of the process, by its kind.
_CROSSED: Final = {
    "accept": _SERVER,
    "connect": f"use a client that is captured ({{clients}}), or make the call {_IN_A_TOOL}",
    "fork": "start the work with subprocess, or with multiprocessing inside the run, so that its processes are recorded with it",
    "listen": _SERVER,
    "look": f"wait for the process or for its output, instead of asking for its files; or start it {_IN_A_TOOL}",
    "lookup": f"look it up {_IN_A_TOOL}",
    "native": f"call it {_IN_A_TOOL}",
    "queue": "give each process a queue of its own, or use a pool: which process gets which item is a matter of chance",
    "process": f"start it with subprocess while the run is open, or {_IN_A_TOOL}",
    "send": f"open the connection inside the run, with a client that is captured, or send {_IN_A_TOOL}",
    "wait": "wait for one after the other, or use a pool: which comes first is a matter of chance",
    "stdin": f"read it with input() or through sys.stdin, which are captured, or {_IN_A_TOOL}",
}
_OTHERWISE: Final = f"do it {_IN_A_TOOL}"
_WAIT: Final = "wait until its program has ended, and examine it again"
_ENDED: Final = "find what ends its process: native code that fails or sends a signal, or a lack of memory"
_KEEP: Final = (
    "put the file below the working directory and have its content kept (`tracekit run --keep-files SIZE`), or read it with "
    "tracekit.tools.read_file"
)
#: How to fix what differs in a replay, by what it differs with.
_DIFFERS: Final = {
    "order": "it differs with the hash seed: sort the set before it reaches a step (sorted(…)), and don't depend on hash()",
    "chance": "it differs from one process to the next: pass results between threads by a queue or a future, or give each thread a list of "
    f"its own, and keep id(), addresses and process ids out of steps; or read it {_IN_A_TOOL}",
    "threads": "threads of the program ran at the same time, and what they share without a lock, a future or a queue (a list, a flag) is "
    "not recorded: pass results between them by a queue or a future, or give each a list of its own. If it has nothing to do with "
    f"threads, the program reads it live: read it {_IN_A_TOOL}",
    "waits": "threads or tasks wait for one another, or for something that the body of a tool does, which a replay does not run: pass what "
    "they share by a queue or a future, and return from the tool what the program waits for",
    "today": f"every replay has the same value, and the recording has another: the program reads it live, so read it {_IN_A_TOOL}",
}
_AGAIN: Final = "record again: this version of tracekit observes more than the one that recorded it"
#: How to fix what keeps a run from being replayed, by the code of the reason. ``None``: it is right nevertheless, or is found with
#: its line in another way.
_REASONS: Final[Mapping[str, str | None]] = {
    "boundary_not_observed": _AGAIN,
    "damaged": "record again; `tracekit verify` says what is damaged",
    "environment": None,
    "imported": "record the program with tracekit: the other tool's recording has HTTP and nothing else",
    "incomplete": "let the program and its child processes run to their end: what has ended this one (kill -9, a lack of memory, the "
    "machine) is not in its trace. `tracekit recovery scan` says how to go on with it",
    "inputs_not_observed": _AGAIN,
    "iterator": "give the call a list, or let the program take the items and pass them on",
    "lost_entries": "see why the log could not be written (a full disk?), and record again",
    "no_entries": "record again: its process ended before it had begun",
    "not_kept": None,
    "not_serialisable": "let it return data (numbers, texts, lists, dataclasses), not a connection, a lock, a file or a local class",
    "nothing_captured": "decorate what the program asks the world for with @traced_tool, or use a client that is captured",
    "nothing_lacking": None,
    "redacted": None,
    "refused": None,
    "unasked": "let the block of effect() ask whether to do it: e.perform(function, …), or `if e.live:`",
    "unattributed": None,
    "uncaptured": _OTHERWISE,
}

Places = Mapping[int | str, str]


def _of_process(step: StepView) -> str:
    """Return how to fix an undeclared process: a shell does more than its first word says, so it is not declared by it."""
    if isinstance(step.input["command"], str) or step.name in ("bash", "dash", "fish", "ksh", "sh", "zsh"):
        return f"start it {_IN_A_TOOL}"
    declared = f'tracekit.instrument(processes={{"{step.name} *": "read_only"}})'
    return f"if it only reads, whatever its arguments, say so ({declared}); otherwise start it {_IN_A_TOOL}"


def _of_crossing(kind: str) -> str:
    """Return how to fix a crossing of this kind; the clients are those of the installed transports."""
    clients = {name for one in discover().values() if one.patches for name in one.modules}
    return _CROSSED.get(kind, _OTHERWISE).replace("{clients}", ", ".join(sorted(clients)))


def _of_run(view: RunView, places: Places) -> Iterator[Finding]:
    """Yield what the trace of a run itself shows: its boundary, its files, its processes, its verdict."""
    for file in view.files:
        for one in uncaptured(file.crossings.values()):
            place = file.place(one.entry)
            yield Finding(one.kind, _crossed(one), one.where, _of_crossing(one.kind), view.run_id, place)
        for entry in file.entries_of("input"):
            yield from _of_files(view, file.place(entry["seq"]), entry)
    for step in view.steps(kinds=("process",)):
        if step.facts.get("undeclared") is True:
            text = f"the process {step.name} has no declared side effect: a replay answers it, but it counts as irreversible"
            where, mend = places.get(step.place), _of_process(step)
            yield Finding("undeclared", text, where, mend, view.run_id, step.place, f"{step.name}: {mend}")
    for reason in view.verdict.can_be_replayed.reasons:
        kind = reason.facts.get("kind")
        if kind in BY_CHANCE:  # known only from all processes together
            yield Finding(kind, reason.text, reason.facts["where"], _of_crossing(kind), view.run_id)
            continue
        advice = _REASONS.get(reason.code, _OTHERWISE)
        if advice is None or "kind" in reason.facts:
            continue
        if reason.code == "incomplete":  # by no step: its last one is only the last that is known
            running = view.state == "running"
            text = "it is still being recorded: a replay goes as far as its log does now" if running else reason.text
            yield Finding(reason.code, text, None, _WAIT if running else advice, view.run_id)
            continue
        for entry in [*reason.facts.get("entries", ())] or [None]:
            found = None if entry is None else _step_at(view, entry)
            about = f"{found.kind} {found.name}: " if found is not None and found.calls else ""
            place = entry if found is None else found.place
            where = None if place is None else places.get(place)
            yield Finding(reason.code, f"{about}{reason.text}", where, advice, view.run_id, place)


def _crossed(one: Crossing) -> str:
    text = one._replace(where=None).text
    if one.status == "refused":
        return f"{text} was refused, and is by a replay"
    return f"{text} is not captured{', and may be none of the run' if one.unattributed else ''}: a replay refuses it"


def _of_files(view: RunView, place: int | str, entry: Mapping[str, Any]) -> Iterator[Finding]:
    found, about = entry.get("output"), entry.get("input")
    where = about.get("where") if isinstance(about, Mapping) else None
    if entry.get("name") == "file" and isinstance(found, Mapping):
        for name, value in found.items():
            if isinstance(value, Mapping) and "content" not in value:
                text = f"only the hash of {name} is in the trace, not its content, so a replay needs the unchanged file"
                yield Finding("file", text, where if isinstance(where, str) else None, _KEEP, view.run_id, place)


def _step_at(view: RunView, place: int | str) -> StepView | None:
    try:
        return view.step(place)
    except RunNotFoundError:
        return None


def _against_another_one(view: RunView) -> list[str]:
    """Return why the program is not run again without being asked to: what it would repeat, or cost."""
    safe = view.verdict.safe_to_run_again
    reasons = [] if safe.answer is True else [one.text for one in safe.reasons]
    asked = view.taken.calls
    return reasons + ([f"{plural(asked, 'model call')} would be paid again"] if asked else [])


# -- replays -----------------------------------------------------------------------------------------------------------
#
# A difference from the recording is skipped if that is harmless, so that more than the first one is found.


class _Difference(NamedTuple):
    """One difference of a replay from the recording; ``blocked`` if it could not go on."""

    run: str
    step: int | None
    where: str | None
    text: str
    blocked: bool = False
    #: Whether nothing could go on there: the program did nothing else than in the recording.
    waits: bool = False
    #: Whether the order of threads may be the cause.
    threads: bool = False

    @property
    def key(self) -> object:
        return self.where or (self.run, self.step)


class _Replays(NamedTuple):
    """What replays of one recording found: how many there were, where each step is in the code, and where they could
    not go on."""

    made: int
    found: list[Finding]
    places: Places
    stopped: str | None


def _replay(run: str, path: str, store: Store, command: tuple[str, ...]) -> _Replays:
    with Trace(path) as trace:
        store.check_replayable(trace)
        program, cwd = program_of(trace, store, path, command, None, "doctor")
        first, ended = trace.entry(1), trace.ended
    seed = (first.get("meta", {}).get("environment") or {}).get("hash_seed")
    instructions = replay_instructions(run, path, store, program, {"on_divergence": "warn"})
    numbers = count(1)
    with tempfile.TemporaryDirectory(prefix="tracekit-") as directory:

        def once(hash_seed: int) -> Transcript:
            return replayed(next(numbers), hash_seed, instructions, directory, cwd, stdout=True)

        others = [once(one) for one in (1, 2, 3) if one != seed][:2]
        seen = [_differences(execution, first["run_id"]) for execution in others]
        killed = next((one for one in others if one.end is None and one.failure is None), None)
        if killed is not None:  # an end by chance, or that of the recording: nothing that follows from a hash seed
            text = f"a replay ended with status {killed.status}, before its program had"
            ended_early = [Finding("ended", text, None, _ENDED, first["run_id"])] if ended else []
            return _Replays(len(others), ended_early, _places(others), None)
        if not any(seen):
            recordings = {name: Recorded(file) for execution in others for name, file in execution.runs.items()}
            expected = {one.about.run_id for one in siblings(store, path).values()} | {first["run_id"]}
            left = first_difference(others, recordings, expected=expected)
            if left is None:
                return _Replays(len(others), [], _places(others), None)
            seen[1].append(_Difference(first["run_id"], left.step, left.where, left.text.partition("\n")[0]))
        same = [once(seed), once(seed)] if isinstance(seed, int) else []
    by_chance = {one.key for execution in same for one in _differences(execution, first["run_id"])}
    replays = [*others, *same]
    found = {one.key: one for one in (*seen[1], *seen[0])}
    texts = {key: {one.text for differences in seen for one in differences if one.key == key} for key in found}
    findings = []
    for key, one in found.items():
        if one.blocked:
            continue
        if one.waits:
            findings.append(Finding("waits", one.text, one.where, _DIFFERS["waits"], one.run, one.step))
            continue
        code = "order" if same and key not in by_chance else "chance" if len(texts[key]) > 1 or not same else "today"
        if code == "today" and one.threads:  # all replays alike are no proof against chance
            code = "threads"
        findings.append(Finding(code, one.text, one.where, _DIFFERS[code], one.run, one.step))
    stopped = next((one for differences in seen for one in differences if one.blocked), None)
    at = None if stopped is None else f"{stopped.text} ({stopped.where})" if stopped.where else stopped.text
    return _Replays(len(replays), findings, _places(replays), at)


def _differences(transcript: Transcript, run: str) -> list[_Difference]:
    """Return where a replay differed: what it skipped and how it failed; if there is nothing, the consequences."""
    found: list[_Difference] = []
    follow: list[_Difference] = []
    for name, about in transcript.reports.items():
        for reason in about["verdict"]["reasons"]:
            step = reason.get("step") if type(reason.get("step")) is int else None
            where = (
                reason.get("where")
                or (None if step is None else transcript.steps.get(name, {}).get(step, (b"", ""))[1])
                or None
            )
            one = _Difference(
                name,
                step,
                where,
                _text(reason),
                waits=reason["code"] == "everything_waits",
                threads=reason.get("threads") is True,
            )
            (follow if reason["code"] in FOLLOWS else found).append(one)
    if transcript.failure is not None and not transcript.failure[0]["at_log_end"]:
        about, where = transcript.failure
        # What was refused, and what the trace lacks, is found in the trace itself: the replay only could not go on
        # there.
        blocked = about["blocked"] is not None or about["type"] == "NotReplayableError"
        if blocked or not found:
            text = str(about["text"]).partition("\n")[0]
            step = about["step"] if type(about["step"]) is int else None
            found.append(_Difference(str(about["run"] or run), step, where or None, text, blocked))
    return found or follow


def _text(reason: Mapping[str, Any]) -> str:
    """Return a reason with the differing fields, in one line."""
    fields = [
        f"{one['path']}: {' → '.join(both_sides(one, 60))}"
        for one in (reason.get("differences") or ())[:3]
        if isinstance(one, Mapping) and "path" in one
    ]
    text = str(reason["text"]).replace(", and was answered nevertheless", "")
    return f"{text}: {'; '.join(fields)}" if fields else text


def _places(replays: Sequence[Transcript]) -> Places:
    """Return where each step is in the code, by its place in the run."""
    found: dict[int | str, str] = {}
    for execution in replays:
        for name, steps in execution.steps.items():
            segment = name.partition(".")[2]
            for seq, (_, where) in steps.items():
                if where:
                    found[f"{segment}:{seq}" if segment else seq] = where
    return found


# -- the command -------------------------------------------------------------------------------------------------------


@click.command(cls=LikePython, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", help="Examine a module, started as python -m does.")
@click.option("--run", "recorded", metavar="RUN", help="Examine this existing run: nothing is done for real.")
@click.option("--again", is_flag=True, help="Record the program a second time, whatever its effects and costs.")
@STORE
@JSON
@COMMAND
def doctor(
    module: str | None, recorded: str | None, again: bool, store: str | None, as_json: bool, command: tuple[str, ...]
) -> None:
    """Find what a replay of SCRIPT [ARGS…] or -m MODULE [ARGS…] could not control, with the line and what to change there.

    The program is recorded: it RUNS, and its effects are real. The recording is then replayed with other hash seeds, which has no
    effects. If everything it did only reads and asks no model, it is recorded a second time with another hash seed, to find what
    one recording does not show; otherwise only with --again. --run examines an existing run, and runs nothing but replays.

    It finds calls that are in no step (connections, native clients, processes), processes without a declared side effect, files
    whose content was not kept, values that cannot be recorded, the order of sets, and differences by chance: threads that share a
    list, ids, addresses. The runs stay in the store. Exit code: 0 if nothing is found, 1 if something is, 2 if the program cannot
    be examined.

    \b
    Examples:
      tracekit doctor agent.py "Where is A-1042?"  # records it, so it runs
      tracekit doctor --run last                   # runs nothing but replays
    """
    with output.reported():
        where = output.local(store)
        if recorded is not None:
            if again or module:
                raise click.UsageError("--run examines a run that is there: without -m and --again")
            found = _Examination([_Execution([str(located(recorded, where))], None)], None)
            findings = found.examine(where, command)
        else:
            found = _recorded(where, module, command, again)
            findings = found.examine(where, ())
        if as_json:
            output.emit(found.as_dict(findings))
        else:
            _print(found, findings)
        sys.exit(output.DIFFERENT if findings else output.RIGHT)


class _Execution(NamedTuple):
    """One execution of the program: the files of its runs, in order, and its exit status (``None``: it was recorded
    before)."""

    paths: list[str]
    status: int | None


class _Examination:
    """Everything known about a program: its executions, why there is only one (``once``), and how the replays went."""

    def __init__(self, executions: list[_Execution], once: str | None) -> None:
        self.executions: Final = executions
        self.once: Final = once
        self.replays = 0
        self.stopped: list[str] = []
        self.runs: list[str] = []

    def examine(self, store: Store, command: tuple[str, ...]) -> list[Finding]:
        """Replay the executions, and read their runs; return the findings by line, those with one fix as one."""
        found: dict[object, list[Finding]] = {}
        counts: Counter[Finding] = Counter()
        for execution in self.executions:
            replays = _replay(
                os.path.basename(execution.paths[0]).partition(".jsonl")[0], execution.paths[0], store, command
            )
            self.replays += replays.made
            self.stopped += [replays.stopped] if replays.stopped is not None else []
            every = list(replays.found)
            for path in execution.paths:
                with read_run(path, store) as view:
                    self.runs.append(view.run_id)
                    every += _of_run(view, replays.places)
            for one in every:
                found.setdefault(one.key, []).append(one)
            counts |= Counter(one.anywhere for one in every)  # the larger number of the two recordings
        if self.stopped and not found:
            return [Finding("blocked", self.stopped[0], None, _OTHERWISE, self.runs[0])]
        together = (_together(some, counts) for some in found.values())
        return sorted(together, key=lambda one: _in_order(one.where))

    def as_dict(self, findings: Sequence[Finding]) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "recordings": len(self.executions),
            "status": [one.status for one in self.executions],
            "recorded_once": self.once,
            "replays": self.replays,
            "stopped": self.stopped,
            "findings": [one.as_dict() for one in findings],
        }


def _recorded(store: Store, module: str | None, command: tuple[str, ...], again: bool) -> _Examination:
    """Record the program, and once more if that does no harm, or was requested."""
    instructions = record_instructions(module, command)
    output.message(
        f"tracekit doctor: recording {printable(str(Program.of(instructions)))}: it runs, and its effects are real"
    )
    executions = [_execute(store, instructions, 0)]
    reasons: list[str] = []
    if not again:
        with ExitStack() as stack:
            views = [stack.enter_context(read_run(path, store)) for path in executions[0].paths]
            reasons = [text for view in views for text in _against_another_one(view)]
    if not reasons:
        output.message("tracekit doctor: recording it a second time, with another hash seed")
        executions.append(_execute(store, instructions, 1))
    return _Examination(executions, "; ".join(dict.fromkeys(reasons)) or None)


def _execute(store: Store, instructions: Mapping[str, Any], hash_seed: int) -> _Execution:
    started = _reality.urandom(8).hex()
    variables = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "TRACEKIT_DIR": os.path.abspath(store.root),
        "TRACEKIT_LAUNCH": json.dumps({**instructions, "program": started}),
    }
    sys.stderr.flush()
    status = subprocess.run(launcher(), env=variables, stdout=2, check=False).returncode
    found = sorted(
        (meta["ordinal"], run.path) for run in store.list() if (meta := first_meta(run.path)).get("program") == started
    )
    if not found:
        raise RunStateError(
            f"the program ended with status {status}, and no run was recorded",
            next_action="run it without tracekit first: python SCRIPT",
        )
    return _Execution([path for _, path in found], status)


# -- for people --------------------------------------------------------------------------------------------------------


def _print(found: _Examination, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    with output.paged() as console:
        for one in findings:
            file, line = _split(one.where)
            place = f"{_shown(file)}:{line}" if line is not None else file or f"run {one.run}"
            console.print(Text(printable(place), style="bold") + Text(f"  {one.code}", style="red"), soft_wrap=True)
            console.print(Text(f"    {printable(one.text)}") + Text(_often(one), style="dim"), soft_wrap=True)
            console.print(Text("    → ", style="dim") + Text(printable(one.mend), style="green"), soft_wrap=True)
        failed = [one.status for one in found.executions if one.status]
        if failed:
            console.print(Text(f"the program ended with status {failed[0]}", style="yellow"))
        for text in dict.fromkeys(found.stopped):
            console.print(
                Text(
                    f"the replays could not continue after this; fix it and run the command again: {printable(text)}",
                    style="yellow",
                ),
                soft_wrap=True,
            )
        if found.once is not None:
            console.print(
                Text(f"recorded once (--again records it twice): {printable(found.once)}", style="dim"), soft_wrap=True
            )
        summary = f"{plural(len(found.executions), 'recording')}, {plural(found.replays, 'replay')}"
        if findings:
            console.print(
                Text(f"{plural(len(findings), 'thing')} that a replay does not control ({summary})", style="bold red")
            )
        else:
            console.print(Text(f"nothing found: {summary} under other hash seeds, all the same", style="green"))


#: The most further lines of a finding that are named; ``--json`` has all.
_LINES: Final = 5


def _often(one: Finding) -> str:
    """Return how often something was found, and in which further lines; nothing for a single time."""
    if one.times == 1:
        return ""
    lines = [f"{_shown(file)}:{line}" for file, line in map(_split, one.also[:_LINES])]
    more = [f"{len(one.also) - _LINES} more lines"] if len(one.also) > _LINES else []
    also = f", also at {', '.join([*map(printable, lines), *more])}" if lines else ""
    return f"  ({one.times} times{also})"


def _shown(file: str | None) -> str:
    """Return a file's name relative to the current directory."""
    here = os.getcwd() + os.sep
    return (file or "").removeprefix(here)
