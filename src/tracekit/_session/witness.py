"""What a program does while it is replayed, written down step by step, so that two replays can be compared byte by byte.

A line is an object in canonical JSON, a tab, and the place in the user's code (which is not compared). It is in the file before the
program goes on: a process that dies leaves what it had done.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from threading import Lock
from typing import Any, Final

from .._canonical import dumps, exception_to_json, fingerprint, to_json
from .._engine.callsite import caller
from .._engine.divergence import OPAQUE, steady
from .._engine.lanes import Lane
from .._engine.redaction import Redactor
from .._engine.replay import Replay
from .._engine.replayed import ReplayedStep
from .._engine.scope import Scope
from .._engine.step import Request
from .._journal.reader import Trace
from ..agents.ids import segment_of_path
from ..errors import BudgetExceededError, ContractViolationError, LiveCallBlockedError, ReplayError
from .replayed import Replaying

__all__ = ["Out", "Witness", "WitnessedReplaying", "name_of", "unsettle", "witnessed"]

_write: Final = os.write
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")
_REFUSALS: Final = (ContractViolationError, BudgetExceededError)
#: An input of more canonical bytes than this is written down as their hash.
_MOST: Final = 1 << 20
#: What is kept alive to its end by this process.
_kept: Final[list[object]] = []


class Witness:
    """The file in which one replaying process says what its program does."""

    def __init__(self, path: str) -> None:
        self._file: Final = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid: Final = os.getpid()
        self._lock: Final = Lock()
        self._counts: Final[dict[int, int]] = {}
        self._lanes: Final[list[Lane]] = []

    def tell(self, about: Mapping[str, Any], place: str | None = None) -> None:
        """Write a line; a forked child writes none."""
        if os.getpid() != self._pid:
            return
        data = dumps(about) + b"\t" + (place or "").encode("utf-8", "replace") + b"\n"
        with self._lock:
            while data:
                data = data[_write(self._file, data) :]

    def step(self, run: str, scope: Scope, seq: int, **about: Any) -> None:
        """The program came to a step, which is the recorded one ``seq``."""
        lane = scope.lane
        with self._lock:
            n = self._counts.get(id(lane), 0) + 1
            if n == 1:
                self._lanes.append(lane)  # so that no other lane gets its id
            self._counts[id(lane)] = n
        agent = {} if scope.agent is None else {"agent_id": scope.agent}
        self.tell({"run": run, "lane": lane.path, "n": n, "seq": seq, **agent, **about}, caller())

    def failed(self, run: str | None, error: BaseException) -> None:
        """The replay of a run has failed."""
        about = {
            "kind": "failure",
            "run": run,
            "child": getattr(error, "child", None),
            "type": type(error).__name__,
            "code": getattr(error, "code", None),
            "step": getattr(error, "step", None),
            "blocked": getattr(error, "kind", None) if isinstance(error, LiveCallBlockedError) else None,
            "text": str(error),
            "actual": to_json(getattr(error, "actual", None)),
        }
        self.tell(about, getattr(error, "location", None))

    def ended(
        self, code: int, status: int, error: BaseException | None, players: list[Replaying], out: Out | None
    ) -> None:
        """The program has ended, with ``status`` and the exception that nobody caught; ``code`` is the replay's own verdict."""
        for player in players:
            report = player.report
            about = {
                "unconsumed": len(report.unconsumed),
                "reordered": len(report.reordered),
                "drift": report.clock_drift,
            }
            self.tell({"kind": "report", "run": player.run_id, **to_json(about)})
        if out is not None:
            self.tell({"kind": "places", "places": out.places, "lines": out.lines})
        self.tell({"kind": "end", "code": code, "status": status, "error": None if error is None else _told(error)})


def _told(error: BaseException) -> dict[str, Any]:
    tree = Redactor.of_process([]).redact(exception_to_json(error, []))[0]
    text = tree.get("text")
    return {"type": tree["type"], "text": _ADDRESS.sub("0x", text) if isinstance(text, str) else text}


class WitnessedReplaying(Replaying):
    """A replay whose steps, result and failure a witness writes down."""

    def __init__(self, path: str, options: dict[str, Any], witness: Witness) -> None:
        super().__init__(path, options, None)
        self._witness: Final = witness

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        return witnessed(self._witness, trace, redactor, options)

    def _hint(self, session: Replay) -> str | None:
        return None  # that the hash seed is another one is the point; whether it matters is tried out

    def compare_result(self, value: Any) -> None:
        tree = steady(self.session.redactor.redact(to_json(value))[0])
        self._witness.tell({"kind": "result", "run": self.run_id, "result": tree}, caller())
        super().compare_result(value)


def witnessed(witness: Witness, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
    """A replay of this trace that ``witness`` writes down."""
    how = {"on_divergence": options["on_divergence"], "strict": frozenset(options["strict"])}
    session = _Witnessed(witness, trace, redactor, **how)
    session.report._recorded = {}  # what the run took is not asked here, and costs another reading of the file
    witness.tell({"kind": "run", "run": session.file, "path": os.path.abspath(trace.path)})
    return session


def name_of(path: str, run_id: str) -> str:
    """What a trace file is called in a witness: by its run, and its segment where it is one."""
    segment = segment_of_path(path, run_id)
    return run_id if segment is None else f"{run_id}.{segment}"


class _Witnessed(Replay):
    """A replay that writes down each step as the program asks for it."""

    def __init__(self, witness: Witness, trace: Trace, redactor: Redactor, **how: Any) -> None:
        super().__init__(trace, redactor, **how)
        self._witness: Final = witness
        self.file: Final = name_of(trace.path, self.run_id)

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        about = self._asked(request)
        try:
            step = super().begin(scope, request)
        except _REFUSALS:
            self._witness.step(self.file, scope, scope.lane.last, **about)
            raise
        self._witness.step(self.file, scope, step.seq, **about)
        return step

    def _asked(self, request: Request) -> dict[str, Any]:
        told, key = request.spec.tell(self.redactor), request.key
        about: dict[str, Any] = {"kind": request.spec.family, "name": told.name, "meta": told.meta}
        if key is not None:
            return {**about, "input_hash": fingerprint(told.name, self._encode(key)[0])}
        return {**about, "input": kept(*self._encode_input(request))}

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> int:
        meta = dict(signature or {})
        meta.pop("info", None)
        tree, data = self._encode({"input": input, "output": output})
        if OPAQUE in data:
            tree = steady(tree)
        about = {"kind": type, "name": self.redactor.redact_text(name)[0], "meta": self._encode(meta)[0], **tree}
        seq = super().note(scope, type, name, input=input, output=output, signature=signature, info=info)
        self._witness.step(self.file, scope, seq, **about)
        return seq

    def fail(self, error: ReplayError) -> ReplayError:
        with self._lock:
            if self.failure is None:
                self._witness.failed(self.file, error)
            return super().fail(error)


def kept(tree: Any, data: bytes) -> Any:
    """An input as it is written down: whole, or its hash where it is very large; what differs from process to process left out."""
    if OPAQUE in data:
        tree = steady(tree)
    return tree if len(data) <= _MOST else {"bytes": len(data), "sha256": fingerprint("", tree)}


# -- the process ---------------------------------------------------------------------------------------------------------


class Out(TextIOWrapper):
    """Standard output that knows where in the user's code each line of it was written."""

    def __init__(self, under: TextIOWrapper) -> None:
        super().__init__(
            under.buffer,
            encoding=under.encoding,
            errors=under.errors,
            newline="\n" if os.linesep == "\n" else None,
            line_buffering=under.line_buffering,
            write_through=under.write_through,
        )
        #: Number of a line, counted from 0, and the place that its first character and those after it come from.
        self.places: Final[list[tuple[int, str]]] = []
        self.lines = 0

    def write(self, text: str, /) -> int:
        place = caller() or ""
        if text and (not self.places or self.places[-1][1] != place):
            self.places.append((self.lines, place))
        self.lines += text.count("\n")
        return super().write(text)

    @classmethod
    def take(cls) -> Out | None:
        """Put one in the place of ``sys.stdout``."""
        under = sys.stdout
        if type(under) is not TextIOWrapper:
            return None
        _kept.append(under)  # which would close the file at its end
        out = sys.stdout = sys.__stdout__ = cls(under)  # type: ignore[misc]
        return out


def unsettle(number: int) -> None:
    """Make what a program should not depend on another one in each of several replays: thread switches, places in memory."""
    sys.setswitchinterval((0.02, 0.0002)[number % 2])
    _kept.append([object() for _ in range(1 + 20_011 * number)])
