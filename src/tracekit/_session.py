"""The composition root: runs that are recorded, and runs that are replayed."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

from . import _reality
from ._canonical import canonical, exception_to_json, from_json, to_json
from ._capture import callers, credentials, guard, instrumentation, world
from ._capture.binding import binder
from ._engine.callsite import caller
from ._engine.divergence import describe, differences
from ._engine.environment import drift, environment
from ._engine.gate import owner
from ._engine.lanes import Lane
from ._engine.program import Program, this_program
from ._engine.recording import ROOT, Recording, encode_reads
from ._engine.redaction import Redactor
from ._engine.replay import Replay
from ._engine.report import Report
from ._engine.scope import Scope, current
from ._journal.reader import Trace
from ._journal.runs import Store
from ._journal.writer import Durability, Journal
from .errors import DivergenceError, LiveCallBlockedError, ReplayError, RunStateError

__all__ = ["Record", "Replaying", "Run", "controller", "current_run", "record", "replay"]

F = TypeVar("F", bound=Callable[..., Any])

_UNSET: Final[Any] = object()

#: An id of this process start, and how many runs it has opened: how a program that records itself is found again.
_program: Final = [os.urandom(8).hex(), 0]

#: The recording of the whole program under the command line, while there is one.
_whole_program: Final[list[Any]] = [None]

#: Set by the command line where the whole program is replayed: asked by each ``record()`` for the run to replay instead.
controller: Callable[[Record], Replaying | None] | None = None


class Run:
    """A run that is being recorded. ``id`` names it, ``path`` is its file."""

    def __init__(self, session: Recording | Replay, path: str, name: str | None) -> None:
        self._session: Final = session
        self.id: Final = session.run_id
        self.path: Final = path
        self.name: Final = name
        self._result: Any = _UNSET

    @property
    def warnings(self) -> list[str]:
        """What the run has to say of gaps and of values that could not be kept."""
        session = self._session
        return list(session.warnings if isinstance(session, Recording) else session.report.warnings)

    def set_result(self, value: Any) -> None:
        """Set what the run came to. It is recorded at the end of the block, and compared in a replay."""
        self._result = value

    def __repr__(self) -> str:
        return f"<Run {self.id}>"


def current_run() -> Run | None:
    """The run of the calling context, or ``None`` outside every run."""
    scope = current.get()
    return None if scope is None else _runs.get(id(scope.session))


_runs: Final[dict[int, Run]] = {}


class _Block:
    """What ``record`` and ``replay`` share: a block, an async block, or a decorator; entered once."""

    _token: Token[Scope | None] | None = None
    _entered = False

    def _enter(self) -> Any:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> None:
        raise NotImplementedError

    def _called_with(self, bound: Mapping[str, Any]) -> None:
        """A decorated function is about to run with these arguments."""

    def _returned(self, value: Any) -> None:
        """A decorated function has returned."""

    def _again(self) -> _Block:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    async def __aenter__(self) -> Any:
        return self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._settle()
        self._end(error)

    async def _settle(self) -> None:
        """Let open lanes of this loop come to their end."""

    def _start(self) -> Any:
        if self._entered:
            raise RunStateError(
                f"this {type(self).__name__.lower()}() block was entered before",
                next_action="call record() or replay() anew for each block",
            )
        self._entered = True
        return self._enter()

    def _end(self, error: BaseException | None) -> None:
        self._exit(error)

    def _scope_in(self, session: Recording | Replay, agent: str | None) -> None:
        lane = Lane("", 1, None, id=0, owner=owner())
        self._token = current.set(Scope(session, lane, ROOT, agent))

    def _scope_out(self) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        try:
            current.reset(token)
        except ValueError:  # left in another context than it was entered in (fixtures, generators)
            current.set(None)

    def __call__(self, function: F) -> F:
        bind = binder(function)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                block = self._again()
                block._called_with(bind(*args, **kwargs))
                async with block:
                    value = await function(*args, **kwargs)
                    block._returned(value)
                return value

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            block = self._again()
            block._called_with(bind(*args, **kwargs))
            with block:
                value = function(*args, **kwargs)
                block._returned(value)
            return value

        return run  # type: ignore[return-value]


class Record(_Block):
    """See ``record``."""

    def __init__(self, options: dict[str, Any], called_from: str | None) -> None:
        self.options: Final = options
        self.called_from: Final = called_from
        self._input = options["input"]
        self._instead: Replaying | None = None
        self._run: Run | None = None
        self._program: Program | None = None

    @classmethod
    def of_program(cls, name: str, program: Program) -> Record:
        """The run of a whole program that may turn out to record itself: then this one gives way."""
        block = cls({**_DEFAULTS, "name": name, "input": {"arguments": list(program.arguments)}}, None)
        block._program = program
        return block

    @property
    def kept(self) -> bool:
        """Whether this is the run that was recorded, and none of the program's own took its place."""
        return self._instead is None and not self._session.discarded

    def _again(self) -> Record:
        return Record(self.options, self.called_from)

    def _called_with(self, bound: Mapping[str, Any]) -> None:
        if self._input is _UNSET:
            self._input = dict(bound)

    def _returned(self, value: Any) -> None:
        if self._run is not None and self._run._result is _UNSET:
            self._run.set_result(value)

    def _enter(self) -> Run:
        outer = current.get()
        options = self.options
        if outer is not None and _gives_way(outer.session):
            outer = None
        _program[1] += 1
        if outer is not None and options["nested"] != "link" and outer.session is not _whole_program[0]:
            raise RunStateError(
                f"record() inside the open run {outer.session.run_id}",
                run_id=outer.session.run_id,
                location=caller(),
                next_action='end the outer block first, or say record(nested="link") for a run of its own that names the outer one',
            )
        if controller is not None:
            self._instead = controller(self)
        if self._instead is not None:
            self._instead._start()
            self._run = Run(self._instead.session, self._instead.session.trace.path, options["name"])
            _runs[id(self._instead.session)] = self._run
            return self._run
        return self._record(options, outer)

    def _record(self, options: dict[str, Any], outer: Scope | None) -> Run:
        store = options["store"] if isinstance(options["store"], Store) else Store(options["store"])
        if self.called_from is not None:
            callers.include(self.called_from)
        for module in options["user_modules"]:
            callers.include(module)
        self._store = store
        journal = store.create(options["run_id"], durability=options["durability"], encode_read=encode_reads)
        session = Recording(journal, Redactor(options["redact"]))
        self._session = session
        try:
            self._first_entries(session, options, outer)
            world.enter()
        except BaseException:
            journal.close()
            raise
        self._run = Run(session, journal.path, options["name"])
        _runs[id(session)] = self._run
        if self._program is not None:
            _whole_program[0] = session
        instrumentation.run_started(session)
        self._scope_in(session, options["agent"])
        return self._run

    def _first_entries(self, session: Recording, options: dict[str, Any], outer: Scope | None) -> None:
        about: dict[str, Any] = {
            "program": _program[0],
            "ordinal": _program[1],
            "environment": environment(instrumentation.packages()),
            "durability": options["durability"],
            "clocks": _clocks(),
        }
        program = self._program or this_program()
        if program is not None:
            about["program_command"] = program.as_dict()
        if self._program is not None:
            about["whole_program"] = True
        if options["metadata"]:
            about["metadata"] = dict(options["metadata"])
            about["program_command"]["arguments"] = session.redactor.redact_argv(list(program.arguments))
        about["environment"]["argv"] = session.redactor.redact_argv(about["environment"]["argv"])
        tail = b',"name":%b' % canonical(options["name"] or "run")
        if outer is not None:
            cause = [{"run_id": outer.session.run_id, "seq": outer.parent}]
            tail = b',"cause":%b' % canonical(cause) + tail
        given = None if self._input is _UNSET else self._input
        encoded = session.encoder.encode_whole(given)
        tail += b',"input":%b' % encoded.data
        session.journal.append("run.started", 0, 0, tail + session.meta(about))
        if options["agent"] is not None or options["identity"] is not None:
            name = options["agent"] or "agent"
            session.identify(name, options["identity"])

    async def _settle(self) -> None:
        if self._instead is None:
            await world.settle_async(self._session)

    def _exit(self, error: BaseException | None) -> None:
        if self._instead is not None:
            run = self._run
            if run is not None:
                _runs.pop(id(self._instead.session), None)
                if error is None and run._result is not _UNSET:
                    self._instead.compare_result(run._result)
            self._instead._end(error)
            return
        session = self._session
        try:
            if error is None or isinstance(error, Exception):
                world.settle(session)
        finally:
            self._scope_out()
            _runs.pop(id(session), None)
            self._seal(session, error)

    def _seal(self, session: Recording, error: BaseException | None) -> None:
        if session.discarded:
            world.leave()
            return
        if self._program is not None:
            _whole_program[0] = None
        instrumentation.run_ended(session)
        journal = session.journal
        try:
            journal.flush()
            with journal.held():
                session.ended = True
                self._last_entry(session, error)
            journal.close()
            self._store.sealed(journal.run_id, journal.seq, journal.head.decode(), durable=journal.durability != "none")
        finally:
            session.ended = True
            journal.close()
            world.leave()
        for sentence in session.warnings:
            warnings.warn(f"tracekit: run {session.run_id}: {sentence}", RuntimeWarning, stacklevel=5)

    def _last_entry(self, session: Recording, error: BaseException | None) -> None:
        journal = session.journal
        result = None if self._run is None or self._run._result is _UNSET else self._run._result
        meta: dict[str, Any] = {"steps": session.steps, "segments": session.segments()}
        fields = b""
        if error is None:
            kind = "run.completed"
            fields = session.result(result, meta)
        else:
            kind = "run.failed"
            fields = session.error(error, meta)
        if session.warnings:
            meta["warnings"] = session.warnings
        if journal.lost:
            meta["lost"] = journal.lost
        meta["count"] = journal.seq + 1
        journal.append(kind, 0, ROOT, fields + session.meta(meta))


def _gives_way(session: Any) -> bool:
    """Whether ``session`` is the run of a whole program that has done nothing yet: it makes room for the program's own."""
    if session is not _whole_program[0] or session.steps:
        return bool(session.recording and session.discarded)
    _whole_program[0] = None
    _program[1] -= 1
    session.discard()
    return True


class Replaying(_Block):
    """See ``replay``. ``report`` is complete when the block has ended; ``result`` is what the recorded run came to."""

    def __init__(self, run: str | os.PathLike[str] | Run, options: dict[str, Any], called_from: str | None) -> None:
        self._which = run
        self.options: Final = options
        self.called_from: Final = called_from
        self._restore_credentials: Callable[[], None] | None = None
        self._guard: guard.Guard | None = None
        self._session: Replay | None = None
        #: The step at which to stop in the debugger.
        self.break_at: int | None = None

    @property
    def started(self) -> bool:
        return self._session is not None

    @property
    def active(self) -> bool:
        """Whether the block is open."""
        return self._session is not None and not self._session.ended

    def _again(self) -> Replaying:
        return Replaying(self._which, self.options, self.called_from)

    @property
    def session(self) -> Replay:
        if self._session is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        return self._session

    @property
    def report(self) -> Report:
        """What there is to say of the replay."""
        return self.session.report

    @property
    def run_id(self) -> str:
        return self.session.run_id

    @property
    def result(self) -> Any:
        """What the recorded run came to; ``None`` where it has no end or set nothing."""
        trace = self.session.trace
        last = trace.entry(len(trace))
        if last["type"] != "run.completed" or "output" not in last:
            return None
        return from_json(trace.expand(last["output"]))

    @property
    def input(self) -> Any:
        """What the recorded run was given."""
        trace = self.session.trace
        return from_json(trace.expand(trace.entry(1).get("input")))

    def _enter(self) -> Replaying:
        outer = current.get()
        if outer is not None:
            raise RunStateError(
                f"replay() inside the open run {outer.session.run_id}",
                run_id=outer.session.run_id,
                location=caller(),
                next_action="end that block first",
            )
        options = self.options
        if self.called_from is not None:
            callers.include(self.called_from)
        self._session = session = self._open(options)
        session.break_at = self.break_at
        self._check_environment(session, options)
        self._restore_credentials = credentials.supply()
        guard.warm()
        self._guard = guard.Guard(
            options["guard"], options["allow_hosts"], options["dry_run"], failed=lambda error: _blocked(session, error)
        )
        world.enter()
        self._guard.engage()
        self._scope_in(session, session.trace.entry(1).get("agent_id"))
        return self

    def _open(self, options: dict[str, Any]) -> Replay:
        which = self._which
        store = options["store"] if isinstance(options["store"], Store) else Store(options["store"])
        path = which.path if isinstance(which, Run) else store.find(which)
        trace = Trace(path)
        verdict = store.check(trace)
        if verdict.count == 0:
            raise RunStateError(f"{path} holds no entry: there is nothing to replay")
        session = Replay(
            trace,
            Redactor(options["redact"]),
            on_divergence=options["on_divergence"],
            strict=frozenset(options["strict"]),
        )
        if verdict.state == "unsealed":
            session.report.warnings.append(f"the run is unsealed: {verdict.problem}; the replay ends where the log ends")
        return session

    def _check_environment(self, session: Replay, options: dict[str, Any]) -> None:
        recorded = session.trace.entry(1).get("meta", {}).get("environment", {})
        found = drift(recorded, environment(instrumentation.packages()))
        session.report.warnings += found
        if found and "environment" in options["strict"]:
            raise DivergenceError(
                "the environment is not that of the recording: " + "; ".join(found),
                run_id=session.run_id,
                next_action='replay where it was recorded, or leave "environment" out of strict',
                differences=found,
            )

    def compare_result(self, value: Any) -> None:
        """The program's result against the recorded one; a difference is a failure of the replay."""
        session = self.session
        trace = session.trace
        last = trace.entry(len(trace))
        if last["type"] != "run.completed" or "output" not in last:
            return
        recorded = trace.expand(last["output"])
        actual = session.redactor.redact(to_json(value))[0]
        found = differences(recorded, actual)
        if found:
            raise session.fail(
                DivergenceError(
                    "the program came to another result\n" + describe(found),
                    run_id=session.run_id,
                    step=last["seq"],
                    recorded=recorded,
                    actual=actual,
                    differences=found,
                    next_action="every step matched and the result differs: look for what is not captured (docs/not-captured.md)",
                )
            )

    def _exit(self, error: BaseException | None) -> None:
        session = self.session
        try:
            if error is None or isinstance(error, Exception):
                world.settle(session)
        finally:
            self._scope_out()
            session.ended = True
            assert self._guard is not None
            self._guard.release()
            world.leave()
            if self._restore_credentials is not None:
                self._restore_credentials()
        self._conclude(session, error)

    async def _settle(self) -> None:
        await world.settle_async(self.session)

    def _conclude(self, session: Replay, error: BaseException | None) -> None:
        """The first failure itself ends the block, whatever else is in flight; else leftovers do."""
        try:
            if session.failure is not None:
                self._refuse(session, error)
            if error is None or self.recorded_failure(error):
                session.finish()
        finally:
            session.account()

    def _refuse(self, session: Replay, error: BaseException | None) -> None:
        session.account()
        failure = session.failure
        assert failure is not None
        if error is failure:
            return
        raise failure from (None if isinstance(error, ReplayError) else error)

    def recorded_failure(self, error: BaseException) -> bool:
        """Whether the recorded run ended with this error as well: then the replay is judged as any other."""
        trace = self.session.trace
        last = trace.entry(len(trace))
        if last["type"] != "run.failed":
            return False
        return bool(last["error"]["type"] == exception_to_json(error, [])["type"])


def _blocked(session: Replay, error: LiveCallBlockedError) -> None:
    session.fail(error)


def ordinal() -> int:
    """How many runs this process has opened: the number of the latest."""
    return int(_program[1])


def _clocks() -> dict[str, float | int]:
    """What the clocks say when a run starts: a replay's answer where one was never read in the recording."""
    return {
        "time.time": _reality.time(),
        "time.time_ns": _reality.time_ns(),
        "time.monotonic": _reality.monotonic(),
        "time.monotonic_ns": _reality.monotonic_ns(),
        "time.perf_counter": _reality.perf_counter(),
        "time.perf_counter_ns": _reality.perf_counter_ns(),
    }


# -- the public functions ------------------------------------------------------------------------------------------------


_DEFAULTS: Final[dict[str, Any]] = {
    "run_id": None,
    "store": None,
    "durability": "effects",
    "agent": None,
    "identity": None,
    "input": _UNSET,
    "redact": (),
    "user_modules": (),
    "metadata": None,
    "nested": None,
}


def record(
    name: str | Callable[..., Any] | None = None,
    *,
    run_id: str | None = None,
    store: str | os.PathLike[str] | None = None,
    durability: Durability = "effects",
    agent: str | None = None,
    identity: Mapping[str, Any] | None = None,
    input: Any = _UNSET,
    redact: Iterable[Any] = (),
    user_modules: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    nested: Literal["link"] | None = None,
) -> Any:
    """Record a run: ``with record("billing") as run:``, ``async with``, or ``@record("billing")`` on a function.

    Everything nondeterministic that happens inside goes into one file of the store (``.tracekit``, or ``TRACEKIT_DIR``, or ``store``).
    ``input`` is what the run was given (a decorated function's arguments by themselves). ``durability``: ``"effects"`` syncs around
    effects, ``"always"`` every entry, ``"none"`` never. ``redact`` adds patterns (regular expressions) to the built-in ones.
    ``agent`` and ``identity`` (SPIFFE id, attestation, configuration) say who acts. ``nested="link"`` allows a run inside another
    one, which it then names. Raises ``RunStateError`` inside an open run, ``LogWriteError`` if the store can't be written.
    """
    if durability not in ("none", "effects", "always"):
        raise ValueError(f'durability is "none", "effects" or "always", not {durability!r}')
    if nested not in (None, "link"):
        raise ValueError(f'nested is "link" or None, not {nested!r}')
    bare = name if callable(name) else None
    options = {
        **_DEFAULTS,
        "name": getattr(name, "__qualname__", None) if bare is not None else name,
        "run_id": run_id,
        "store": store,
        "durability": durability,
        "agent": agent,
        "identity": identity,
        "input": input,
        "redact": tuple(redact),
        "user_modules": tuple(user_modules),
        "metadata": metadata,
        "nested": nested,
    }
    block = Record(options, _called_from())
    return block if bare is None else block(bare)


def replay(
    run: str | os.PathLike[str] | Run,
    *,
    store: str | os.PathLike[str] | None = None,
    on_divergence: Literal["raise", "warn"] = "raise",
    strict: Iterable[Literal["environment", "clock", "order"]] = (),
    guard: Literal["process", "context", "off"] = "process",
    allow_hosts: Iterable[str] = (),
    dry_run: bool = False,
    redact: Iterable[Any] = (),
) -> Replaying:
    """Replay a recorded run: ``with replay(run.id) as session:`` around the same code.

    ``run`` is an id, a path or a ``Run``. Inside, every captured step is answered from the file; nothing reaches the live world
    (``guard``), and the first difference raises ``DivergenceError``, ``TraceExhaustedError`` or ``LiveCallBlockedError``, none of which an
    ``except Exception`` catches. Steps that nobody asked for raise ``UnconsumedStepsError`` at the end. ``on_divergence="warn"`` goes on
    where that can do no harm and says so in ``session.report``. ``strict`` makes drift of ``"environment"``, ``"clock"`` or ``"order"`` a
    failure. ``dry_run`` blocks file writes too. ``redact`` repeats the patterns of the recording. Raises ``RunNotFoundError``,
    ``TraceIntegrityError``, ``TraceVersionError``.
    """
    wrong = set(strict) - {"environment", "clock", "order"}
    if wrong:
        raise ValueError(f'strict takes "environment", "clock" and "order", not {sorted(wrong)!r}')
    if on_divergence not in ("raise", "warn"):
        raise ValueError(f'on_divergence is "raise" or "warn", not {on_divergence!r}')
    options = {
        "store": store,
        "on_divergence": on_divergence,
        "strict": tuple(strict),
        "guard": guard,
        "allow_hosts": tuple(allow_hosts),
        "dry_run": dry_run,
        "redact": tuple(redact),
    }
    return Replaying(run, options, _called_from())


def _called_from() -> str | None:
    """The file of whoever called ``record`` or ``replay``: the user's code, even where it is installed as a package."""
    return sys._getframe(2).f_code.co_filename
