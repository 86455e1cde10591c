"""The process in which a program is recorded or replayed: set up before the program's first line.

Run as ``python -m tracekit.cli.launch`` with a JSON object of instructions in ``TRACEKIT_LAUNCH``; not meant to be typed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._capture import credentials, guard, isolation, stdin
from .._capture.instrumentation import instrument
from .._engine import gate
from .._engine.program import Program, set_program
from .._engine.scope import current
from .._journal.reader import Trace
from .._journal.runs import Store
from .._session import Record, Replaying, overspending, served, takeover
from ..errors import BudgetExceededError, ReplayError, RunStateError, TracekitError
from . import course
from .course import Body, Ended
from .entries import Entry
from .going_on import resumed
from .output import REFUSED, exit_code
from .players import Players, Watchdog, spelled

__all__ = ["main"]


def main() -> None:
    """Follow the instructions and end with the program's status, or 1 where a replay failed."""
    told = json.loads(os.environ.pop("TRACEKIT_LAUNCH"))
    program = Program(told.get("script"), told.get("module"), tuple(told["arguments"]), told["cwd"])
    entry = told.get("entry")
    body: Body | None = None
    if entry is None:
        set_program(program)
        body = course.prepared(program)
        if body is None:
            sys.exit(1)
    try:
        if told["mode"] == "record":
            status = _record(program, body, told)
        else:
            status = _replay(body, told) if told["mode"] == "replay" else _paid(resumed(body, told))
    except TracekitError as error:
        print(spelled(error), file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.exit(status)


# -- recording -----------------------------------------------------------------------------------------------------------


def _record(program: Program, body: Body | None, told: Mapping[str, Any]) -> int:
    assert body is not None
    instrument()
    stdin.capture()
    block = Record.of_program(told.get("name") or program.module or program.script or "run", program)
    run = block.__enter__()
    pid = os.getpid()
    over: list[bool] = []

    def end(ended: Ended) -> None:
        over.append(True)
        if ended.error is None:
            run.set_result({"status": ended.status})
        error = ended.error
        with _untold():
            block.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if os.getpid() == pid:
            _say_recorded(block)

    def leaving(status: int) -> int:
        scope = current.get()
        if not over and not (scope is not None and scope.live):  # inside a tool its effect stays in doubt
            over.append(True)
            run.set_result({"status": status})
            with _untold():
                block.leave()
            _say_recorded(block)
        return _paid(status)

    course.on_hard_exit(leaving)
    ended = course.go(body, end)
    course.die_of(ended.error)
    return _paid(ended.status, ended.error)


def _paid(status: int, error: BaseException | None = None) -> int:
    """The exit status of a program: one that went over a run's budget has not done right, whatever it says."""
    over = isinstance(error, BudgetExceededError) or (status in (0, 1) and overspending.refused_runs() > 0)
    return REFUSED if over else status


@contextmanager
def _untold() -> Iterator[None]:
    """What a run warns of at its end is told by us, not as a warning with a place in our code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tracekit: run ", RuntimeWarning)
        yield


def _say_recorded(block: Record) -> None:
    if block.kept:
        run = block.run
        print(f"tracekit: recorded run {run.id}", file=sys.stderr)
        for sentence in run.warnings:
            print(f"tracekit:   {sentence}", file=sys.stderr)
        if not block.captured:
            print(
                "tracekit: nothing was captured in it: decorate the program's tools with @traced_tool; "
                "of SDKs, tracekit captures those that are built on httpx",
                file=sys.stderr,
            )


# -- replaying -----------------------------------------------------------------------------------------------------------


def _replay(body: Body | None, told: Mapping[str, Any]) -> int:
    warnings.filterwarnings("ignore", "tracekit: replay of", RuntimeWarning)  # the summary says it
    isolated = _isolate(told["isolate"], told["options"]["allow_hosts"])
    credentials.supply()
    guard.warm()
    instrument()
    stdin.capture()
    store, path = Store(told["store"]), told["path"]
    options = dict(told["options"], store=store, witness=told.get("witness", {}).get("path"))
    witnessed = _Witnessed(told["witness"]) if "witness" in told else None
    players = Players(store, path, options, told.get("break"), None if witnessed is None else witnessed.player)
    closed = guard.Guard(options["guard"], options["allow_hosts"], options["dry_run"], failed=players.blocked)
    closed.engage()
    gate.refuse_outside(players.outside)
    takeover.set_controller(players.find, players.input_of)
    served.serve_the_log()
    threading.excepthook = _quiet(threading.excepthook)
    watchdog = Watchdog(players, told["grace"])
    player: Replaying | None = None
    if told.get("entry") is not None:
        player = players.of(path)
        body = _called(player, Entry(told["entry"], in_task=not _ran_under_run(path)))
    elif _ran_under_run(path):
        player = players.of(path)
        player.__enter__()
    assert body is not None
    codes: list[int] = []

    def end(ended: Ended) -> None:
        error = ended.error
        try:
            if told.get("entry") is None:
                _end_player(player, ended)
        except BaseException as failure:
            error = failure
        codes.append(_conclude(players, ended._replace(error=error), isolated, told))
        if witnessed is not None:
            witnessed.ended(codes[0], players, ended._replace(error=error))

    def leaving(status: int) -> int:
        if codes:
            return status
        watchdog.stop()
        for open_one in players.started:
            if open_one.active and open_one is not player:
                _finished(open_one)
        end(Ended(status))
        return codes[0]

    course.on_hard_exit(leaving)
    course.go(body, end, silent=lambda error: isinstance(error, TracekitError) or type(error).__name__ == "BdbQuit")
    watchdog.stop()
    closed.release()
    return codes[0]


class _Witnessed:
    """What the program does in this replay is written down, for a comparison with another one."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        from .._session.witness import Out, Witness, WitnessedReplaying, unsettle

        unsettle(told["number"])
        self._out = Out.take() if told["stdout"] else None
        self._witness = witness = Witness(told["path"])
        self.player: Callable[[str, dict[str, Any]], Replaying] = lambda path, options: WitnessedReplaying(
            path, options, witness
        )

    def ended(self, code: int, players: Players, ended: Ended) -> None:
        failure = players.failure
        if failure is None and isinstance(ended.error, TracekitError) and not players.expected(ended.error):
            failure = ended.error
        if failure is not None:
            self._witness.failed(getattr(failure, "run_id", None), failure)
        self._witness.ended(code, ended.status, ended.error, players.started, self._out)


def _end_player(player: Replaying | None, ended: Ended) -> None:
    """End the replay of the whole program; raises its failure, or the program's own error."""
    if player is None:
        return
    error = ended.error
    if error is None:
        player.ended_as = f"exit status {ended.status}"
        player.set_result({"status": ended.status})
    player.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _finished(player: Replaying) -> None:
    """The program leaves inside this run: whatever was recorded and not asked for is its failure."""
    try:
        player.session.finish()
    except ReplayError:
        pass  # it is kept by the session


def _called(player: Replaying, entry: Entry) -> Body:
    """A replay of ``module:function``, called with the run's recorded input."""

    def body() -> None:
        entry.call(player, player.as_run, lambda: player.input, player.compare_result)

    return body


def _conclude(players: Players, ended: Ended, isolated: str, told: Mapping[str, Any]) -> int:
    """Say how the replay went; returns the exit code."""
    error = ended.error
    failure = players.failure
    if failure is None and isinstance(error, TracekitError) and not players.expected(error):
        failure = error
    reports = []
    for player in players.started:
        player.report.isolation = isolated
        reports.append(player.report.as_dict())
    step = told.get("break")
    for player in players.started:
        if step is not None and player.break_at == step and not player.came_to(step):
            print(f"tracekit: --break {step}: the program did not come to that step by itself", file=sys.stderr)
    exact = all(report["exact"] for report in reports) if told["strict_exit"] else True
    if failure is not None:
        print(spelled(failure), file=sys.stderr)
    elif type(error).__name__ == "BdbQuit":
        print("tracekit: the replay was left in the debugger", file=sys.stderr)
    elif error is not None and not players.expected(error):
        print("tracekit: the program failed, and the recorded one did not", file=sys.stderr)
    elif not reports:
        print(f"tracekit: the program never opened the run {told['run']}: nothing was replayed", file=sys.stderr)
    else:
        _summary(reports, ended)
        return 0 if exact else 1
    return exit_code(error) if isinstance(error, RunStateError) else 1


def _summary(reports: list[dict[str, Any]], ended: Ended) -> None:
    for report in reports:
        line = f"tracekit: replayed {report['run_id']}: {report['consumed']} steps matched"
        if report["skipped"]:
            line += f", {report['skipped']} inside them"
        notes = [
            f"{len(report[key])} {label}"
            for key, label in (
                ("clock_drift", "clock reads too many or too few"),
                ("reordered", "delivered out of order"),
                ("differences", "differences passed over"),
            )
            if report[key]
        ]
        print(line + ("; " + ", ".join(notes) if notes else ""), file=sys.stderr)
        taken = _taken(report["recorded"])
        if taken:
            print(f"tracekit:   this replay cost nothing; the recorded run took {taken}", file=sys.stderr)
        for sentence in report["warnings"]:
            print(f"tracekit:   {sentence}", file=sys.stderr)
    network = f"tracekit: network: {reports[0]['isolation']}; "
    if ended.error is None:
        print(f"{network}the program's status is {ended.status}", file=sys.stderr)
    else:
        how = f"{type(ended.error).__name__}, status {ended.status}"
        print(f"{network}the recorded program ended with {how}; so did this one", file=sys.stderr)


def _taken(recorded: Mapping[str, Any]) -> str:
    """What a recorded run took of models; nothing where it asked none."""
    if not recorded.get("llm_calls"):
        return ""
    counts = [
        f"{recorded[name]:,} {name.replace('_', ' ')}"
        for name in ("llm_calls", "input_tokens", "output_tokens")
        if recorded[name] is not None
    ]
    if recorded.get("unreported"):
        counts.append(f"{recorded['unreported']} of them without saying how many tokens")
    if recorded["cost_usd"] is not None:
        counts.append(f"${recorded['cost_usd']:.6f}")
    elif recorded["unpriced"]:
        counts.append(f"no price known for {', '.join(recorded['unpriced'])}")
    return ", ".join(counts).replace("llm calls", "model calls")


def _isolate(mode: str, allowed: list[str]) -> str:
    # In a network namespace of its own the program reaches no host at all, the allowed ones included.
    if mode == "off" or (mode == "auto" and (allowed or not isolation.available())):
        return "guarded in Python"
    in_force = isolation.enter()
    if mode == "on" and in_force.startswith("not isolated"):
        raise RunStateError(
            f"--isolate=on can't be had here: {in_force}",
            next_action="replay with --isolate=auto, behind the guard in Python alone",
        )
    return in_force


def _ran_under_run(path: str) -> bool:
    with Trace(path) as trace:
        return bool(trace.entry(1).get("meta", {}).get("whole_program"))


def _quiet(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """Threads that end with the replay's failure say nothing of their own: it is told once, at the end."""

    def hook(args: Any) -> object:
        return None if isinstance(args.exc_value, ReplayError) else before(args)

    return hook


if __name__ == "__main__":
    main()
