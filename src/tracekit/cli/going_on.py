"""The process in which a run goes on after a crash; see ``launch``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .._capture import guard, stdin
from .._capture.instrumentation import instrument
from .._engine import gate
from .._engine.scope import current
from .._journal.runs import Store
from .._session import Resuming, served, takeover
from .._session.recorded import DEFAULTS
from ..errors import RunStateError, TracekitError
from . import course
from .course import Body, Ended
from .entries import Entry
from .output import WRONG_USE, exit_code
from .players import Watchdog, spelled
from .resumers import Resumers
from .siblings import first_meta

__all__ = ["resumed"]


def resumed(body: Body | None, told: Mapping[str, Any]) -> int:
    """Run the program again and go on with its run; returns the exit status."""
    guard.warm()
    instrument()
    stdin.capture()
    path = told["path"]
    store = Store(told["store"])
    meta = first_meta(path)
    closed = guard.Guard("process", (), False, resumes=True)

    def opened() -> None:
        closed.release()
        gate.allow_outside(resumers.outside)

    replay_options = {
        "store": store, "on_divergence": "raise", "strict": (), "guard": "process", "allow_hosts": (), "dry_run": False,
        "redact": (), "live": (),
    }  # fmt: skip
    resumption = {
        "supply": {int(step): value for step, value in told["supply"].items()},
        "accept_lost_tail": told["accept_lost_tail"],
        "opened": opened,
    }
    resumers = Resumers(store, path, replay_options, resumption)
    closed.failed = resumers.blocked
    closed.engage()
    gate.refuse_outside(resumers.outside)
    if isinstance(meta.get("program"), str):
        takeover.go_on_as(meta["program"])
    takeover.set_controller(resumers.find, resumers.input_of, resumers.is_input)
    served.serve_the_log()
    whole: Resuming | None = None
    if told.get("entry") is not None:
        body = _called(resumers, Entry(told["entry"], in_task=not meta.get("whole_program")))
    elif meta.get("whole_program"):
        takeover.next_ordinal()
        whole = resumers.resume(dict(DEFAULTS))
        whole.__enter__()
    watchdog = Watchdog(resumers, told["grace"])
    assert body is not None
    codes: list[int] = []

    def end(ended: Ended) -> None:
        error = ended.error
        try:
            if whole is not None:
                if error is None:
                    whole.run.set_result({"status": ended.status})
                whole.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as failure:
            error = failure
        codes.append(_conclude(resumers, ended._replace(error=error)))

    def leaving(status: int) -> int:
        """The program ends by ``os._exit``: in the middle of an effect that stays in doubt, else in order."""
        scope = current.get()
        if not codes and not (scope is not None and scope.live):
            watchdog.stop()
            if resumers.resumed is not None and resumers.resumed.begun:
                resumers.resumed.leave()
            codes.append(status)
        return status

    course.on_hard_exit(leaving)
    ended = course.go(body, end, silent=lambda error: isinstance(error, TracekitError))
    watchdog.stop()
    course.die_of(ended.error)
    return codes[0]


def _called(resumers: Resumers, entry: Entry) -> Body:
    """``module:function``, called with the run's recorded input in the resumed run."""

    def body() -> None:
        block = resumers.resume(dict(DEFAULTS))
        entry.call(block, lambda: block.run, lambda: block.input, lambda value: block.run.set_result(value))

    return body


def _conclude(resumers: Resumers, ended: Ended) -> int:
    """Say how it went; returns the exit status."""
    failure = resumers.failure
    error = ended.error
    if failure is not None:
        print(spelled(failure), file=sys.stderr)
        return 1
    block = resumers.resumed
    if isinstance(error, TracekitError):
        print(str(error), file=sys.stderr)
        if exit_code(error) != WRONG_USE or isinstance(error, RunStateError):
            return exit_code(error)
    if block is None or not block.begun:
        print("tracekit: the program never opened the run: nothing was resumed", file=sys.stderr)
        return ended.status or 1
    if not block.session.followed:
        print("tracekit: the program ended before its log had; the run is as it was", file=sys.stderr)
        return ended.status or 1
    print(f"tracekit: resumed run {block.run.id}", file=sys.stderr)
    for sentence in block.run.warnings:
        print(f"tracekit:   {sentence}", file=sys.stderr)
    return ended.status
