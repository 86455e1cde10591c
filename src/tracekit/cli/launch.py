"""The process in which a program is recorded or replayed: set up before the program's first line, then ``runpy``.

Run as ``python -m tracekit.cli.launch`` with a JSON object of instructions in ``TRACEKIT_LAUNCH``; not meant to be typed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from .._capture import credentials, guard, isolation, stdin
from .._capture.instrumentation import instrument
from .._engine import gate
from .._engine.program import Program
from .._journal.reader import Trace
from .._journal.runs import Store
from .._session import Record, Replaying, takeover
from ..errors import LiveCallBlockedError, ReplayError, RunStateError, TracekitError

__all__ = ["main"]


def main() -> None:
    """Follow the instructions and end with the program's status, or 1 where a replay failed."""
    told = json.loads(os.environ.pop("TRACEKIT_LAUNCH"))
    program = Program(told.get("script"), told.get("module"), tuple(told["arguments"]), told["cwd"])
    try:
        status = _record(program, told) if told["mode"] == "record" else _replay(program, told)
    except TracekitError as error:
        print(error, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.exit(status)


# -- the program ---------------------------------------------------------------------------------------------------------


def _run(program: Program) -> int:
    """Run the program as Python would; returns its exit status. Errors come out as they are."""
    try:
        if program.module is not None:
            sys.argv = [program.module, *program.arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            assert program.script is not None
            sys.argv = [program.script, *program.arguments]
            sys.path.insert(0, os.path.dirname(os.path.abspath(program.script)))
            runpy.run_path(program.script, run_name="__main__")
    except SystemExit as end:
        return _status(end)
    return 0


def _call(player: Replaying, entry: str, in_task: bool) -> None:
    """Replay ``module:function``, called with the recorded input of the run; ``in_task``: a coroutine function had the run in its task."""
    import asyncio
    import importlib
    import inspect

    module, _, name = entry.partition(":")
    sys.path.insert(0, os.getcwd())
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    function = inspect.unwrap(function)

    def arguments() -> Mapping[str, Any]:
        return player.input if isinstance(player.input, Mapping) else {}

    async def in_its_task() -> None:
        async with player:
            player.compare_result(await function(**arguments()))

    if in_task and inspect.iscoroutinefunction(function):
        asyncio.run(in_its_task())
        return
    with player:
        value = function(**arguments())
        player.compare_result(asyncio.run(value) if inspect.iscoroutine(value) else value)


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


# -- recording -----------------------------------------------------------------------------------------------------------


def _record(program: Program, told: Mapping[str, Any]) -> int:
    instrument()
    stdin.capture()
    block = Record.of_program(told.get("name") or program.module or program.script or "run", program)
    status = 1
    with block as run:
        status = _run(program)
        run.set_result({"status": status})
    if block.kept:
        print(f"tracekit: recorded run {run.id}", file=sys.stderr)
    return status


# -- replaying -----------------------------------------------------------------------------------------------------------


def _replay(program: Program, told: Mapping[str, Any]) -> int:
    warnings.filterwarnings("ignore", "tracekit: replay of", RuntimeWarning)  # the summary says it
    isolated = _isolate(told["isolate"], told["options"]["allow_hosts"])
    credentials.supply()
    guard.warm()
    instrument()
    stdin.capture()
    store, path = Store(told["store"]), told["path"]
    options = dict(told["options"], store=store)
    whole = _ran_under_run(path) or told.get("entry") is not None
    players = Players(store, path, options, told.get("break"))
    closed = guard.Guard(options["guard"], options["allow_hosts"], options["dry_run"], failed=players.blocked)
    closed.engage()
    gate.refuse_outside(players.outside)
    takeover.set_controller(players.find)
    error: BaseException | None = None
    status = 0
    threading.excepthook = _quiet(threading.excepthook)
    watchdog = _Watchdog(players, told["grace"])
    try:
        if whole:
            player = players.of(path)
            if told.get("entry") is not None:
                _call(player, told["entry"], in_task=not _ran_under_run(path))
            else:
                with player:
                    status = _run(program)
                    player.compare_result({"status": status})
        else:
            status = _run(program)
    except BaseException as failure:
        error = failure
    watchdog.stop()
    closed.release()
    return _conclude(players, error, status, isolated, told)


def _conclude(
    players: Players, error: BaseException | None, status: int, isolated: str, told: Mapping[str, Any]
) -> int:
    failure = players.failure or (error if isinstance(error, TracekitError) else None)
    reports = []
    for player in filter(lambda player: player.started, players.played):
        report = player.report
        report.isolation = isolated
        reports.append(report.as_dict())
    exact = all(report["exact"] for report in reports) if told["strict_exit"] else True
    if failure is not None:
        print(failure, file=sys.stderr)
    elif type(error).__name__ == "BdbQuit":
        print("tracekit: the replay was left in the debugger", file=sys.stderr)
    elif error is not None and not players.expected(error):
        import traceback

        traceback.print_exception(error)
        print("tracekit: the program failed, and the recorded one did not", file=sys.stderr)
    elif not reports:
        print(f"tracekit: the program never opened the run {told['run']}: nothing was replayed", file=sys.stderr)
        return 1
    else:
        _summary(reports, status)
        return 0 if exact else 1
    return 1


def _summary(reports: list[dict[str, Any]], status: int) -> None:
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
        for sentence in report["warnings"]:
            print(f"tracekit:   {sentence}", file=sys.stderr)
    print(f"tracekit: network: {reports[0]['isolation']}; the program's status is {status}", file=sys.stderr)


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


class Players:
    """The runs of one program, each replayed from its own file when the program opens it."""

    def __init__(self, store: Store, path: str, options: dict[str, Any], break_at: int | None) -> None:
        self.played: list[Replaying] = []
        self._store = store
        self._options = options
        self._break_at = break_at
        self._path = path
        with Trace(path) as trace:
            meta = trace.entry(1).get("meta", {})
        self._program = meta.get("program")
        self._target = meta.get("ordinal")
        self._siblings = self._by_ordinal()
        self._blocked: LiveCallBlockedError | None = None

    def _by_ordinal(self) -> dict[int, str]:
        found = {self._target: self._path}
        for path in (run.path for run in self._store.list()):
            with Trace(path) as trace:
                try:
                    meta = trace.entry(1).get("meta", {})
                except (TracekitError, IndexError):
                    continue
            if meta.get("program") == self._program:
                found.setdefault(meta.get("ordinal"), path)
        return found

    def of(self, path: str) -> Replaying:
        player = Replaying(path, self._options, None)
        player.break_at = self._break_at if path == self._path else None
        self.played.append(player)
        return player

    def find(self, block: Record) -> Replaying:
        """The replay that stands in for this ``record()`` of the program: its ``n``-th."""
        ordinal = takeover.ordinal()
        path = self._siblings.get(ordinal)
        if path is None:
            raise RunStateError(
                f"the program opens its record() number {ordinal}, and the store has no run of it",
                next_action="replay in the store where the program was recorded, or name one run with --entry",
            )
        return self.of(path)

    def outside(self, family: str, name: str) -> None:
        """A captured call outside every replayed run would be live."""
        error = LiveCallBlockedError(
            f"{family} {name!r} was called outside the replayed run",
            operation=f"{family} {name}",
            next_action="move the call inside the record() block; under a replay nothing is called live",
        )
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        open_ones = [player for player in self.played if player.active]
        for player in open_ones:
            player.session.fail(error)
        if not open_ones and self._blocked is None:
            self._blocked = error

    @property
    def failure(self) -> BaseException | None:
        for player in self.played:
            if player.started and player.session.failure is not None:
                return player.session.failure
        return self._blocked

    def expected(self, error: BaseException) -> bool:
        """Whether the recorded run ended with this error too."""
        return any(player.started and player.recorded_failure(error) for player in self.played)


class _Watchdog:
    """Ends a program that has not ended ``grace`` seconds after the replay's first failure, stacks on stderr."""

    def __init__(self, players: Players, grace: float) -> None:
        self._players = players
        self._grace = grace
        self._over = threading.Lock()
        self._over.acquire()
        threading.Thread(target=self._watch, name="tracekit-watchdog", daemon=True).start()

    def _watch(self) -> None:
        waited = 0.0
        while not self._over.acquire(timeout=0.25):
            failure = self._players.failure
            waited = waited + 0.25 if failure is not None else 0.0
            if waited >= self._grace:
                print(failure, file=sys.stderr)
                print(f"tracekit: the program has not ended {self._grace:g} s after that; it is ended", file=sys.stderr)
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                sys.stderr.flush()
                os._exit(1)

    def stop(self) -> None:
        self._over.release()


if __name__ == "__main__":
    main()
