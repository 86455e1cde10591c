"""``record()``: records a run, from its first entry to its last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from .. import _reality
from .._capture import callers, clock, guard, instrumentation, plugins, randomness, stdio, world
from .._capture.guard import Attempt
from .._journal.store import Store, entries_of, segment_state, writer
from .._journal.writer import Durability
from .._lazy import imported
from .._policy.policies import under_policies
from .._runtime import verdict
from .._runtime.boundary import OBSERVED
from .._runtime.callsite import caller, warn
from .._runtime.process import ProcessRole, Replacement, process
from .._runtime.recorder import Recording, encode_reads
from .._runtime.redaction import Redactor, patterns_of
from .._runtime.session import Scope, Session, Unfinished, current
from .._runtime.signals import undivided
from ..errors import NotReplayableError
from . import block as arguments
from . import children, ending, segments
from .block import Block, called_from
from .ending import drain, drain_async, leave_threads
from .environment import begin_log, this_program
from .program import Program
from .run import UNSET, Run, identify, register, unregister

if TYPE_CHECKING:
    from .._runtime.spending import Budget

__all__ = ["DEFAULTS", "RecordBlock", "RecordedProgram", "begin", "enclose", "end", "lend", "record"]

# -- what is not captured ----------------------------------------------------------------------------------------------
#
# What a run could not capture is noted while it runs and reported at its end. Each warning is kept in the trace and in
# ``run.warnings`` and issued as a Python warning; a *quiet* one is not issued.


def begin(session: Recording) -> None:
    """Start noting what ``session`` can't capture."""
    session.report.outside_before = process.count_outside()
    instrumentation.run_started(session)


def end(session: Recording, *, other_context: bool = False) -> None:
    """Report what ``session`` could not capture.

    ``other_context``: its block was left in another one than it was entered in.
    """
    instrumentation.run_ended(session)
    why = (
        "the block was left in another context than it was entered in, as in a generator that a framework resumes in threads of a pool; "
        "make that function async, or decorate what does the work with record()"
        if other_context
        else "a thread or callback may have lost it"
    )
    for name in process.called_outside_since(session.report.outside_before)[:10]:
        session.report.warn(
            f"{name!r} was called outside every run while this one was recorded: {why}",
            uncaptured=True,
            quiet=not other_context,  # otherwise it may be a request that is not recorded
        )
    for lane in session.state.collisions:
        session.report.warn(
            f"two threads met in lane {lane.path or 'of the run itself'}: their steps are in the order they came",
            uncaptured=True,
        )
    for say in session.state.extras.of(Unfinished).says:
        left = say()
        if left is not None:
            session.report.warn(left)
    for sentence in (*clock.hooks.degraded, *randomness.hooks.degraded):
        session.report.warn(sentence)
    for sentence in guard.held_by_name():
        session.report.warn(sentence, quiet=True)


# -- record() ----------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])


#: The parameters of ``record`` and their defaults.
DEFAULTS: Final[dict[str, Any]] = {
    "run_id": None,
    "store": None,
    "path": None,
    "durability": "effects",
    "agent": None,
    "identity": None,
    "input": UNSET,
    "redact": (),
    "user_modules": (),
    "metadata": None,
    "nested": None,
    "budget": None,
}


class RecordedProgram(ProcessRole):
    """The role of a program recorded as a whole by ``session``. The first run that the program opens before any step
    replaces that session."""

    session: Recording | None = None
    #: Packages that count as the program's own code.
    user_modules: tuple[str, ...] = ()

    def is_whole_program(self, session: Session) -> bool:
        return self.session is not None and session.state is self.session.state

    def is_replaced_by_run(self, session: Session) -> bool:
        with self.ordinaling:  # several threads may open the program's first runs at once
            whole = self.session
            if whole is None or session.state is not whole.state or whole.steps:
                return super().is_replaced_by_run(session)
            self.session = None
            whole.discard()
            self.not_opened()
            return True


class _Enclosing:
    """The block that stands in for the first ``record()`` inside a session."""

    block: Replacement | None = None


def enclose(session: Session, block: Replacement) -> None:
    """Make ``block`` stand in for the first ``record()`` inside ``session``."""
    session.state.extras.of(_Enclosing).block = block


class _Lent:
    """An open run that stands in for each ``record()`` inside it."""

    def __init__(self, run: Run) -> None:
        self._run: Final = run

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        enclose(self._run._session, self)
        return self._run

    async def drain_for(self, run: Run) -> None:
        """Do nothing: the run continues."""

    def end_for(self, run: Run, error: BaseException | None) -> None:
        pass


def lend(run: Run) -> None:
    """Make each ``record()`` inside the open ``run`` return that run; for code that runs others' programs, which may
    record themselves."""
    enclose(run._session, _Lent(run))


def _enclosing(session: Session) -> Replacement | None:
    """Return the block that ``enclose`` set for a ``record()`` inside ``session``, once."""
    left = session.state.extras.of(_Enclosing)
    found, left.block = left.block, None
    return found


class RecordBlock(Block[Run]):
    """The block, async block or decorator that ``record`` returns."""

    def __init__(self, options: dict[str, Any], called_from: str | None) -> None:
        self.options: Final = options
        self.called_from: Final = called_from
        self._input = options["input"]
        self._instead: Replacement | None = None
        self._run: Run | None = None
        self._program: Program | None = None
        self._role: RecordedProgram | None = None
        #: The run's number among those of the process, once the block has begun.
        self.ordinal = 0

    @classmethod
    def of_program(cls, name: str, program: Program, role: RecordedProgram) -> RecordBlock:
        """Create the run of a whole program. It is discarded if the program turns out to record itself."""
        block = cls({**DEFAULTS, "name": name, "input": {"arguments": list(program.arguments)}}, None)
        block._program, block._role = program, role
        return block

    @property
    def kept(self) -> bool:
        """Whether this run was recorded, and not replaced by one of the program's own."""
        return self._instead is None and not self._session.state.discarded

    @property
    def captured(self) -> bool:
        """Whether the run, or its child processes, contain a model call, tool call or HTTP call."""
        own = self._session
        return any(verdict.captured(entries_of(path)) for path in (own.log.path, *self._store.segments(own.run_id)))

    @property
    def input(self) -> Any:
        """The run's input: ``input=``, or the arguments of a decorated function."""
        return None if self._input is UNSET else self._input

    @property
    def run(self) -> Run:
        """The run, once the block has begun."""
        assert self._run is not None
        return self._run

    def _again(self) -> RecordBlock:
        return RecordBlock(self.options, self.called_from)

    def _called_with(self, bound: Mapping[str, Any]) -> None:
        if self._input is UNSET:
            self._input = dict(bound)

    def _returned(self, value: Any) -> None:
        if self._run is not None and self._run.result is UNSET:
            self._run.set_result(value)

    def _enter(self) -> Run:
        outer = current.get()
        options = self.options
        reach = None if outer is None else outer.session.reach
        if reach is not None:  # code that may not reach outside may not do so in a run of its own either
            raise reach(Attempt("act", "record", "a run of its own"), caller())
        role = process.role
        self._instead = role.part(self) or (None if outer is None else _enclosing(outer.session))
        if self._instead is not None:
            self._run = self._instead.begin_for(options)
            return self._run
        if outer is not None and role.is_replaced_by_run(outer.session):
            outer = None
        self.ordinal = role.next_ordinal()
        if outer is not None and options["nested"] != "link" and not role.is_whole_program(outer.session):
            raise self._inside(
                outer,
                'end the outer block first, or say record(nested="link") for a run of its own that names the outer one',
            )
        self._instead = role.replacement(self)
        if self._instead is not None:
            self._run = self._instead.begin_for(options)
            return self._run
        if outer is not None and not outer.session.recording:
            raise outer.session.fail(
                NotReplayableError(
                    'record(nested="link") inside a replay: its steps are in another file, and none of them may be live',
                    run_id=outer.session.run_id,
                    location=caller(),
                    reason="a linked run has its own file",
                    next_action="replay the linked run on its own, or the whole program with `tracekit replay`",
                )
            )
        return self._record(options, outer)

    def _record(self, options: dict[str, Any], outer: Scope | None) -> Run:
        store = (
            options["store"] if isinstance(options["store"], Store) else Store(options["store"], file=options["path"])
        )
        spending = None if options["budget"] is None else options["budget"].opened("run", None)
        if self.called_from is not None:
            callers.include(self.called_from)
        for module in options["user_modules"]:
            callers.include(module)
        self._store = store
        journal = store.create(options["run_id"], durability=options["durability"], encode_read=encode_reads)
        session = Recording(journal, Redactor.of_process(options["redact"], store.root, create=True))
        self._session, session.state.spending = session, spending
        session.state.children = children.RecordedChildren(session)
        try:
            self._first_entries(session, options, outer)
            world.enter()
        except BaseException:
            journal.close()
            raise
        self._run = Run(session, journal.path, options["name"])
        register(session, self._run)
        if self._role is not None:
            self._role.session = session
        begin(session)
        segments.follow(session, store)
        session.state.root = self._scope_in(under_policies(session), options["agent"], spending)
        return self._run

    def _first_entries(self, session: Recording, options: dict[str, Any], outer: Scope | None) -> None:
        journal = session.log.journal
        own: dict[str, Any] = {
            "program": process.role.program,
            "ordinal": self.ordinal,
            "durability": options["durability"],
            "clocks": _reality.clocks(),
            "writer": writer(journal.path),
            "ordered": True,
            "boundary": list(OBSERVED),
        }
        if self._program is not None:
            own["whole_program"] = True
        about = plugins.facts_to_record()
        user_modules = process.role.user_modules if isinstance(process.role, RecordedProgram) else ()
        if user_modules or options["user_modules"]:
            about["user_modules"] = list(dict.fromkeys((*user_modules, *options["user_modules"])))
        numpy = randomness.numpy_state()
        if numpy is not None:
            own["snapshots"] = {randomness.NUMPY: numpy}
            randomness.watch_numpy(session)
        if options["budget"] is not None:
            about["budget"] = options["budget"].as_dict()
        if options["metadata"]:
            about["metadata"] = dict(options["metadata"])
        if self._program is None:
            program, input = this_program(), self.input
        else:  # the input is the command line, which may hold secrets recognisable only by their option
            program, input = self._program, {"arguments": session.redactor.redact_argv(self._program.arguments)}
        begin_log(
            session,
            options["name"] or "run",
            input,
            about,
            own,
            program=program,
            agent=options["agent"],
            cause=None if outer is None else {"run_id": outer.session.run_id, "seq": outer.parent},
            recognisable=self._program is None,
        )
        identify(session, options)

    async def _drain(self) -> None:
        if self._instead is None:
            await drain_async(self._session)
        else:
            await self._instead.drain_for(self.run)

    def _exit(self, error: BaseException | None) -> None:
        if self._instead is not None:
            self._instead.end_for(self.run, error)
            return
        session = self._session
        try:
            child = segments.successor(session)
            if child is not None:
                pass
            elif self._program is not None:
                leave_threads(session)
            elif error is None or isinstance(error, Exception):
                drain(session)
        except BaseException as left:  # Ctrl-C, for example: the program leaves the block with that
            self._end_run(left)
            raise
        if child is None:
            self._end_run(error)
        else:  # the block ends in a forked child, which owns only its own segment
            self._scope_out()
            unregister(session)
            segments.end_part(child)

    def leave(self) -> None:
        """End the run now, in the middle of its block: the process is about to exit without reaching the block's end."""
        self._end_run(None)

    def _end_run(self, error: BaseException | None) -> None:
        try:
            self._scope_out()
            unregister(self._session)
        finally:
            self._end_log(error)

    def _end_log(self, error: BaseException | None) -> None:
        """Write how the run ended; ``error`` is the exception with which the program leaves the block."""
        self._close(self._session, error)

    def _close(self, session: Recording, error: BaseException | None) -> None:
        if session.state.discarded:
            world.leave()
            return
        undivided(lambda: self._close_log(session, error))  # Ctrl-C would leave the run without an end
        if session.report.noted:
            warn(f"run {session.run_id}: {'; '.join(session.report.noted)}. {_advice(session)}")
        for sentence in session.report.warnings:
            warn(f"run {session.run_id}: {sentence}", error=error)

    def _close_log(self, session: Recording, error: BaseException | None) -> None:
        try:
            try:
                if self._role is not None:
                    self._role.session = None
                process.closed(session)
                end(session, other_context=self._left_in_another_context)
            finally:
                ending.end_log(session, self._store, lambda: self._how_it_ends(session, error), error)
        finally:
            world.leave()

    def _how_it_ends(self, session: Recording, error: BaseException | None) -> ending.End:
        result = None if self._run is None or self._run.result is UNSET else self._run.result
        # A run in one process has none; looking for them takes longer the more runs the store has.
        several = session.state.shared or session.log.trace is not None
        segments = self._store.segments(session.run_id) if several else ()
        # each with its entry count and tip hash, or marked as open
        meta: dict[str, Any] = {"steps": session.steps, "segments": [segment_state(path) for path in segments]}
        if session.state.children is not None:
            session.state.children.conclude()
            meta.update(session.state.children.as_dict())
        meta["credentials"] = plugins.facts_to_record().get("credentials", [])
        ending.warn(session, error)
        spending = session.state.spending
        if spending is not None:
            meta["budget"] = ending.account(spending)
            if error is None and spending.refused is not None:
                # Whoever caught it went on without the result that it had requested: the run is not complete.
                error = ending.keep_as_failure(spending.refused, meta["budget"])
        undoing = None if self._run is None else self._run.undoing
        if undoing is not None:
            meta.update(undoing.as_dict())
        if session.report.uncaptured:
            meta["uncaptured"] = session.report.uncaptured
        if imported(stdio) and stdio.observed():
            printed = session.state.extras.of(stdio.PrintedLines)
            meta["printed"] = printed.as_dict(session.redactor.redact_text)
            if order := printed.order():
                meta["printed_order"] = order
        return ending.End(meta, error, result, undoing is not None, segments)


#: The consequence of what was not captured.
_LACKS: Final = "Nobody knows whether it is safe to run this again"
_PUT_INTO_A_TOOL: Final = "Put it into a @traced_tool"
_IN_ORDER: Final = (
    "Give each process a queue of its own, or use a pool; wait for a process instead of asking for its files"
)


def _advice(session: Recording) -> str:
    """Return what is not known about a run that lacks something, and what to do."""
    if session.report.only_chance:
        return _IN_ORDER
    cure = instrumentation.cure() if session.report.reached_out else None
    return f"{_LACKS}. " + (
        _PUT_INTO_A_TOOL if cure is None else f"{cure}; what that does not capture, put into a @traced_tool"
    )


def _budget_or_none(budget: object) -> Budget | None:
    """Check the ``budget`` argument. The module of budgets is imported only if there is one."""
    if budget is None:
        return None
    from .._runtime.spending import budget_or_none

    return budget_or_none(budget)


@overload
def record(name: F, /) -> F: ...
@overload
def record(
    name: str | None = None,
    *,
    run_id: str | None = None,
    store: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    durability: Durability = "effects",
    agent: str | None = None,
    identity: Mapping[str, Any] | None = None,
    input: Any = UNSET,
    redact: Iterable[Any] = (),
    user_modules: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    nested: Literal["link"] | None = None,
    budget: Budget | None = None,
) -> RecordBlock: ...
def record(
    name: str | Callable[..., Any] | None = None,
    *,
    run_id: str | None = None,
    store: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    durability: Durability = "effects",
    agent: str | None = None,
    identity: Mapping[str, Any] | None = None,
    input: Any = UNSET,
    redact: Iterable[Any] = (),
    user_modules: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    nested: Literal["link"] | None = None,
    budget: Budget | None = None,
) -> Any:
    """Record a run: ``with record("billing") as run:``, ``async with``, or ``@record("billing")`` on a function.

    Everything nondeterministic that happens inside is written to one file of the store (``store``, ``TRACEKIT_DIR``, or
    ``.tracekit``), or to the new file ``path`` (``….jsonl``). Files of child processes lie beside it, as ``<stem>.<16
    hexadecimal digits>.jsonl``.

    - ``input``: the run's input; for a decorated function, its arguments by default.
    - ``durability``: ``"effects"`` syncs the file around effects, ``"always"`` after every entry, ``"none"`` never.
    - ``redact``: regular expressions for secrets, in addition to the built-in ones.
    - ``budget``: what the run may spend; a call that would exceed it is not made and raises ``BudgetExceededError``.
    - ``agent``, ``identity`` (SPIFFE id, attestation, configuration): who acts.
    - ``nested="link"``: allow this run inside another one; it then names the outer run.

    Raises ``RunStateError`` inside an open run, ``LogWriteError`` if the store can't be written, and ``TypeError`` or
    ``ValueError`` for invalid arguments.

    Examples:
        >>> from tracekit import record, traced_tool
        >>> @traced_tool(side_effect="irreversible")
        ... def charge(order, cents):
        ...     return f"{cents} cents for {order}"
        >>> with record("orders") as run:
        ...     charge("o-17", 4200)
        '4200 cents for o-17'
        >>> run.path.endswith(f".tracekit/runs/{run.id}.jsonl")
        True
    """
    if durability not in ("none", "effects", "always"):
        raise ValueError(f'durability is "none", "effects" or "always", not {durability!r}')
    if nested not in (None, "link"):
        raise ValueError(f'nested is "link" or None, not {nested!r}')
    bare = name if callable(name) else None
    if bare is None:
        arguments.taken_as("name", name, str, "a string")
    arguments.run_id(run_id)
    arguments.taken_as("store", store, (str, os.PathLike, Store), "a directory")
    arguments.taken_as("path", path, (str, os.PathLike), "the path of a file")
    if path is not None and isinstance(store, Store):
        raise TypeError("record() takes a Store or a path, not both")
    arguments.taken_as("agent", agent, str, "a string")
    arguments.taken_as("identity", identity, Mapping, "a mapping")
    arguments.taken_as("metadata", metadata, Mapping, "a mapping")
    options = {
        **DEFAULTS,
        "name": getattr(name, "__qualname__", None) if bare is not None else name,
        "run_id": run_id,
        "store": store,
        "path": path,
        "durability": durability,
        "agent": agent,
        "identity": identity,
        "input": input,
        "redact": patterns_of(redact),
        "user_modules": arguments.strings("user_modules", user_modules),
        "metadata": metadata,
        "nested": nested,
        "budget": _budget_or_none(budget),
    }
    block = RecordBlock(options, called_from())
    return block if bare is None else block(bare)
