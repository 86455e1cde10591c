"""``tracekit verify-determinism``: replays one recording twice and compares the replays with it and with each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count, repeat
from typing import Any, Final, NamedTuple, NoReturn

import click

from .._capture.isolation import ScratchLayer
from .._capture.plugins import Form, forms
from .._journal.reader import Trace
from .._journal.store import Store, first_entry, segment_of, shown_as
from .._runs.determinism import Recorded, Transcript, TranscriptDifference, first_difference
from .._runs.environment import cores_here
from .._runs.program import Program
from ..errors import RunStateError, TraceError, TracekitError
from . import output
from .launch import siblings
from .options import COMMAND, JSON, STORE
from .output import located
from .replay import ALLOW_HOST, ISOLATE, program_of, replay_instructions
from .run import follow

__all__ = ["difference", "form_of", "replayed", "served", "verify_determinism"]

# -- serving -----------------------------------------------------------------------------------------------------------
#
# Files that name no program are read and served in their own form, by a fresh process:
# ``python -m tracekit.cli.verify_determinism FILE FORM``.


def form_of(path: str) -> Form | None:
    """Return the form of a file that names no program; ``None`` for anything else (taken for a trace)."""
    return next((form for form in forms().values() if form.recognises(path)), None)


def _is_trace(path: str) -> bool:
    try:
        first = first_entry(path)
    except OSError:
        return False
    return "run_id" in first and "seq" in first


# -- processes -----------------------------------------------------------------------------------------------------------


def served(path: str, form: str, hash_seed: int) -> list[bytes]:
    """Return the lines that a fresh process serves from the file. Raises ``TraceError`` if it fails."""
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", "tracekit.cli.verify_determinism", os.path.abspath(path), form]
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise TraceError(
            f"{path} could not be served: {done.stderr.decode('utf-8', 'replace').strip()}",
            path=path,
            next_action=f"read its message; `tracekit verify {shown_as(path)}` checks the trace",
        )
    return done.stdout.splitlines(keepends=True)


def difference(one: tuple[str, list[bytes]], other: tuple[str, list[bytes]]) -> str | None:
    """Return a description of the first line in which two named streams differ, or ``None``."""
    for number in range(max(len(one[1]), len(other[1]))):
        sides = [(name, found[number] if number < len(found) else b"(nothing)") for name, found in (one, other)]
        if sides[0][1] != sides[1][1]:
            both = "\n".join(f"  {name}:\n    {data.decode('utf-8', 'replace').strip():.400}" for name, data in sides)
            return f"line {number + 1} is different in {other[0]} than in {one[0]}\n{both}"
    return None


def main() -> None:
    path, form = sys.argv[1:]
    try:
        sys.stdout.buffer.write(b"".join(forms()[form].served(path)))
    except TracekitError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


# -- replaying ---------------------------------------------------------------------------------------------------------
#
# Replaying a recorded program in a process of its own.


def replayed(
    number: int, hash_seed: int, instructions: Mapping[str, Any], directory: str, cwd: str | None, *, stdout: bool
) -> Transcript:
    """Replay once in a fresh process with this hash seed; ``instructions`` are those for ``tracekit.cli.launch``."""
    files = {name: os.path.join(directory, f"{number}.{name}") for name in ("transcript", "out", "err")}
    transcript = {"path": files["transcript"], "number": number, "stdout": stdout}
    environment = {"PYTHONHASHSEED": str(hash_seed)}
    with open(files["out"], "wb") as out, open(files["err"], "wb") as err:
        status = follow({**instructions, "transcript": transcript}, environment, cwd, out, err)
    with open(files["out"], "rb") as out, open(files["err"], "rb") as err:
        return Transcript.read(files["transcript"], f"replay {number}", hash_seed, status, out.read(), err.read())


# -- verify determinism ------------------------------------------------------------------------------------------------
#
# ``tracekit verify-determinism``: two independent replays of a recording, compared byte by byte.

#: The errors with which a replay fails after the end of a log without an end.
_AFTER_THE_END: Final = ("TraceExhaustedError", "LiveCallBlockedError")


@click.command("verify-determinism", context_settings={"allow_interspersed_args": True})
@click.argument("run")
@COMMAND
@STORE
@click.option(
    "--entry",
    metavar="MODULE:FUNCTION",
    callback=output.function_name,
    help="Call this function with the recorded input instead of the program.",
)
@click.option("--replays", type=click.IntRange(2, 100), default=2, show_default=True, help="How many replays.")
@click.option("--no-stdout", is_flag=True, help="Don't compare what the program prints.")
@click.option("--no-writes", is_flag=True, help="Block file writes and deletions of the replayed program too.")
@click.option(
    "--strict", multiple=True, type=click.Choice(["clock", "output", "redacted"]), help="Make this remark a divergence."
)
@ALLOW_HOST
@ISOLATE
@click.option(
    "--grace", type=float, default=10.0, show_default=True, help="Seconds that a failed replay has to end by itself."
)
@JSON
def verify_determinism(run: str, command: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Replay RUN (an id, the beginning of one, "last", or a path) twice, each time in a fresh process with another hash
    seed, and compare everything that the program did: with the recording, and with each other.

    RUN may also be a recording of agentloom or a file of inter-agent events: they are ordered and served twice. The program is
    taken from the trace only if the run is in your own store; otherwise name it: tracekit verify-determinism PATH -- SCRIPT
    [ARGS…]. Exit codes: 0 identical, 1 a divergence (on stderr, with your line), 2 unusable input, 3 identical as far as a run
    without an end goes.

    \b
    Examples:
      tracekit verify-determinism last
      tracekit verify-determinism sent.jsonl -- agent.py
    """
    try:
        store = output.local(options.pop("store"))
        form = None if _is_trace(run) else form_of(run)
        if form is not None:
            _serve(run, run, form, options["replays"], as_json)
        path = str(located(run, store))
        with Trace(path, indexed=True) as trace:
            store.check_replayable(trace)
            form = None if command or options["entry"] else form_of(path)
            if form is not None:
                _serve(run, path, form, options["replays"], as_json)
            program, cwd = program_of(trace, store, path, command, options["entry"], "verify-determinism")
            first = trace.entry(1)
        _replay(run, path, store, first, (program, cwd), options, as_json)
    except TracekitError as error:
        output.message(str(error))
        sys.exit(output.USAGE_ERROR)


# -- judging ------------------------------------------------------------------------------------------------------------


def _replay(
    run: str,
    path: str,
    store: Store,
    first: dict[str, Any],
    how: tuple[Program, str],
    options: dict[str, Any],
    as_json: bool,
) -> NoReturn:
    program, cwd = how
    seed = (first.get("meta", {}).get("environment") or {}).get("hash_seed")
    expected = {first["run_id"]}
    if not options["entry"]:
        expected |= {one.about.run_id for one in siblings(store, path).values() if one.path != path}
    output.message(f"tracekit: replaying {run} {options['replays']} times: {options['entry'] or program}")
    judged = _judge(run, path, store, program, cwd, seed, expected, options)
    replays, recordings, difference = judged.replays, judged.recordings, judged.difference
    _usable(replays, run)
    open_ones = [run_id for run_id, recording in recordings.items() if recording.incomplete]
    own_end = not any(run_id == recordings[run_id].run_id for run_id in open_ones)
    if difference is not None and not own_end and _only_the_end(replays, recordings):
        difference = None
    facts = {
        "run_id": first["run_id"],
        "identical": difference is None,
        "incomplete": open_ones,
        "replays": [
            {
                "hash_seed": transcript.hash_seed,
                "steps": transcript.count(),
                "sha256": transcript.digest(),
                "status": transcript.status,
            }
            for transcript in replays
        ],
        "forms_sha256": _forms(replays[0], recordings) if difference is None else {},
        "difference": None
        if difference is None
        else {**difference._asdict(), "with_recorded_hash_seed": judged.seeded},
    }
    hint = _seed_hint(seed, recordings) if judged.seeded else None
    _print_result(facts, difference, hint, own_end, as_json)


class _Judgement(NamedTuple):
    """The replays, the recordings, their first difference, and whether the hash seed alone causes it (``None``: not
    tried)."""

    replays: list[Transcript]
    recordings: dict[str, Recorded]
    difference: TranscriptDifference | None
    seeded: bool | None


def _judge(
    run: str,
    path: str,
    store: Store,
    program: Program,
    cwd: str,
    seed: Any,
    expected: set[str],
    options: dict[str, Any],
) -> _Judgement:
    instructions = replay_instructions(run, path, store, program, options)
    stdout = not options["no_stdout"]
    with tempfile.TemporaryDirectory(prefix="tracekit-") as directory:

        def once(number: int, hash_seed: int, into: str = directory) -> Transcript:
            return replayed(number, hash_seed, instructions, into, cwd, stdout=stdout)

        def each(many: int) -> list[Transcript]:
            """Return a replay under each hash seed, ``many`` of them concurrently."""
            into, seeds = tempfile.mkdtemp(dir=directory), _seeds(seed, options["replays"])
            with ThreadPoolExecutor(many) as pool:
                return [*pool.map(once, range(1, len(seeds) + 1), seeds, repeat(into))]

        def differ(found: list[Transcript]) -> TranscriptDifference | None:
            for transcript in found:
                for run_id, file in transcript.runs.items():
                    if run_id not in recordings:
                        recordings[run_id] = Recorded(file)
            return first_difference(found, recordings, expected=expected, stdout=stdout)

        recordings: dict[str, Recorded] = {}
        many = _at_once(options)
        replays = each(many)
        difference = differ(replays)
        if difference is not None and many > 1:
            # They may have been in each other's way: at a temporary file, a lock, a port.
            replays = each(1)
            difference = differ(replays)
        if difference is None or not isinstance(seed, int) or _nothing_opened(replays):
            return _Judgement(replays, recordings, difference, None)
        numbers = count(len(replays) + 1)
        seeded = differ([once(next(numbers), seed) for _ in range(2)]) is None
        # Two equal replays may be a coincidence: each seed must give the same result again.
        seeded = seeded and all(
            once(next(numbers), transcript.hash_seed).outcome() == transcript.outcome() for transcript in replays[:2]
        )
        seeded = seeded and differ([once(next(numbers), seed) for _ in range(2)]) is None
        return _Judgement(replays, recordings, difference, seeded)


def _at_once(options: Mapping[str, Any]) -> int:
    """Return how many replays may run concurrently: one, if they would write the same files."""
    alone = not options["no_writes"] and not ScratchLayer.possible()
    return 1 if alone else min(options["replays"], cores_here())


def _seeds(recorded: Any, count: int) -> list[int]:
    """Return ``count`` hash seeds, all different from the recorded one and from each other."""
    return [seed for seed in range(1, count + 2) if seed != recorded][:count]


def _nothing_opened(replays: Sequence[Transcript]) -> bool:
    return not any(transcript.runs for transcript in replays)


def _usable(replays: Sequence[Transcript], run: str) -> None:
    """Raise ``RunStateError`` if nothing of the run was replayed: there is nothing to compare."""
    kinds = {transcript.failure[0]["type"] if transcript.failure else None for transcript in replays}
    if kinds == {"NotReplayableError"}:
        raise RunStateError(
            str(replays[0].failure[0]["text"]) if replays[0].failure else "",
            next_action="a recording that can't be replayed can't be verified",
        )
    if all(transcript.failure is not None and transcript.failure[0]["blocked"] == "listen" for transcript in replays):
        text = str(replays[0].failure[0]["text"]) if replays[0].failure else ""
        raise RunStateError(
            text, next_action="a program that waits for work from a network can't be verified without it"
        )
    if _nothing_opened(replays):
        printed = replays[0].stderr.decode("utf-8", "replace").strip()
        raise RunStateError(
            f"the program never opened the run {run}; it says:\n{printed[-2000:]}",
            next_action=f"name the program that made it: tracekit verify-determinism {run} -- SCRIPT [ARGS…]",
        )


def _only_the_end(replays: Sequence[Transcript], recordings: dict[str, Recorded]) -> bool:
    """Return whether all replays made every recorded step, byte for byte, and failed only by going on after the log's
    end."""
    first = replays[0]
    if any(transcript.stream() != first.stream() or transcript.stdout != first.stdout for transcript in replays):
        return False
    if not all(_after_the_end(transcript, recordings) for transcript in replays):
        return False
    if first.end is None:
        left = any(recordings[run].expected_steps() - first.steps.get(run, {}).keys() for run in first.runs)
        return first.status < 0 and not left  # it killed itself, as in the recording
    left = any(report["unconsumed"] for report in first.reports.values())
    # A refusal (of a process, a connection) then also came after the log's end: every recorded step has been made.
    return not left and first.failure is not None


def _after_the_end(transcript: Transcript, recordings: dict[str, Recorded]) -> bool:
    """Return whether all failures of this replay were in logs without an end."""
    return all(
        about["type"] in _AFTER_THE_END and all(_has_no_end(file, recordings) for file in _files(about))
        for about, _ in transcript.failures
    )


def _files(about: dict[str, Any]) -> list[str | None]:
    """Return the id of the run that failed, and of its segment if the failure was in a child process."""
    child = about["child"]
    return [about["run"]] if child is None else [about["run"], f"{about['run']}.{segment_of(child)}"]


def _has_no_end(file: str | None, recordings: dict[str, Recorded]) -> bool:
    return file in recordings and recordings[file].incomplete


def _forms(transcript: Transcript, recordings: dict[str, Recorded]) -> dict[str, str]:
    """Return the SHA-256 of what a replay did in each form that applies to it, by the form's name."""
    found = {}
    for form in forms().values():
        runs = [(recordings[run], transcript.steps.get(run, {})) for run in transcript.runs]
        transcribed = [form.compared(recording.trace, recording.as_replayed(steps)) for recording, steps in runs]
        if any(transcribed):
            found[form.name] = sha256(b"".join(one or b"" for one in transcribed)).hexdigest()
    return found


def _seed_hint(seed: Any, recordings: dict[str, Recorded]) -> str:
    """Return the hint if the hash seed causes the difference; it states only what was observed."""
    order = (
        "the order of its threads or tasks, or from " if any(one.is_concurrent for one in recordings.values()) else ""
    )
    return (
        f"with the recording's own hash seed ({seed}) all is identical, four times, and with another seed it differs in the same way "
        f"each time: what differs may come from {order}the order of a set (sort it), or from hash()"
    )


def _print_result(
    facts: dict[str, Any], difference: TranscriptDifference | None, hint: str | None, own_end: bool, as_json: bool
) -> NoReturn:
    first = facts["replays"][0]
    if as_json:
        output.emit(facts)
    elif difference is None:
        others = "".join(f", {name} {digest[:16]}" for name, digest in facts["forms_sha256"].items())
        click.echo(
            f"identical: {len(facts['replays'])} replays, {first['steps']} steps each, sha256 {first['sha256'][:16]}{others}"
        )
    if difference is not None:
        output.message(f"tracekit: DIVERGENCE: {difference.text}")
        if hint is not None:
            output.message(f"tracekit: {hint}")
        sys.exit(output.DIFFERENT)
    named = ", ".join(facts["incomplete"])
    if not own_end:
        output.message(f"tracekit: the run has no end: it was compared up to the end of its log ({named})")
        sys.exit(output.INCOMPLETE)
    if named:
        output.message(
            f"tracekit: a process of the run was killed, or outlived it: it was compared up to the end of its log ({named})"
        )
    sys.exit(output.RIGHT)


# -- files without a program ---------------------------------------------------------------------------------------------


def _serve(run: str, path: str, form: Form, count: int, as_json: bool) -> NoReturn:
    recorded = form.recorded(path)
    streams = [(f"process {n} (hash seed {n})", served(path, form.name, n)) for n in range(1, count + 1)]
    pairs = [(("the recording", recorded), one) for one in streams] + [(streams[0], one) for one in streams[1:]]
    found = next((text for text in (difference(*pair) for pair in pairs) if text is not None), None)
    digest = sha256(b"".join(streams[0][1])).hexdigest()
    if as_json:
        facts = None if found is None else TranscriptDifference("served", found)._asdict()
        output.emit(
            {
                "path": path,
                "form": form.name,
                "identical": found is None,
                "lines": len(recorded),
                "sha256": digest,
                "difference": facts,
            }
        )
    elif found is None:
        click.echo(f"identical: {len(recorded)} lines, served {count} times, sha256 {digest[:16]}")
    if found is not None:
        output.message(f"tracekit: DIVERGENCE: {found}")
        sys.exit(output.DIFFERENT)
    output.message(f"tracekit: {run} names no program: it was ordered and served, and no code was run")
    sys.exit(output.RIGHT)


if __name__ == "__main__":
    main()
