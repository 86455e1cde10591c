"""One attempt at a call, live or answered from the log, and the pause before the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._engine.callsite import caller
from .._engine.effects import Begun, Below, OpenCall, innermost, outside_run
from .._engine.scope import Scope, current
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    LogWriteError,
    RecoveryRefusedError,
    RunEndedError,
    RunStateError,
    StepTimeoutError,
)
from .compensation import Completed, acting
from .deadlines import Overdue, Work, in_time, in_time_async
from .driving import drive
from .items import failed
from .ledger import UnderWay, ledger
from .wrapper import LAZY, Captured, answered

if TYPE_CHECKING:
    from .._engine.step import Request
    from ..failures import StructuredFailure
    from .terms import Terms

__all__ = ["REFUSALS", "Attempt", "Done", "Invocation", "Pause"]

#: Calls that must not be made: nothing is tried again after them, and nobody stands in.
REFUSALS: Final = (
    ContractViolationError,
    BudgetExceededError,
    LogWriteError,
    RunEndedError,
    RunStateError,
    RecoveryRefusedError,
)
_NONE: Final[Mapping[str, Any]] = {}
_WHETHER: Final = "find out whether it happened before it is called again"


class Invocation:
    """One call of a tool, bound. ``info`` is recorded with each of its attempts."""

    __slots__ = (
        "args",
        "bound",
        "captured",
        "followed",
        "function",
        "info",
        "instance",
        "kwargs",
        "scope",
        "under_way",
    )

    def __init__(
        self,
        captured: Captured,
        function: Any,
        instance: Any,
        bound: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope | None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self.captured: Final = captured
        self.function: Final = function
        self.instance: Final = instance
        self.bound: Final = bound
        self.args: Final = args
        self.kwargs: Final = kwargs
        self.scope: Final = scope
        self.info: Final = info
        #: Whether somebody may stand in for it whom its terms do not name: it is undone before, where it failed.
        self.followed = False
        #: Where it can be undone: what an abort of the run waits for.
        self.under_way: UnderWay | None = None

    @property
    def undoes(self) -> bool:
        """Whether it undoes another."""
        return self.info is not None and "compensates" in self.info

    @property
    def terms(self) -> Terms | None:
        return self.captured.terms


class Done:
    """What an attempt came to. ``about`` is what the log says of a failure beside the error itself."""

    __slots__ = ("about", "error", "irreversible", "output", "recorded", "seq", "side_effect", "stuck")

    def __init__(
        self,
        call: Invocation,
        seq: int,
        output: Any = None,
        error: BaseException | None = None,
        about: Mapping[str, Any] = _NONE,
        recorded: Any = None,
    ) -> None:
        self.seq: Final = seq
        self.output: Final = output
        self.error: Final = error
        self.about: Final = about
        self.recorded: Final = recorded
        self.side_effect: Final = call.captured.spec.side_effect
        #: Whether something that can't be undone has begun.
        self.irreversible = self.side_effect == "irreversible" or bool(about.get("irreversible"))
        #: Whether it was to be undone, and that failed.
        self.stuck = False

    @property
    def final(self) -> bool:
        """Whether neither another attempt nor another tool may follow."""
        error = self.error
        return (
            not isinstance(error, Exception)
            or isinstance(error, REFUSALS)
            or "final" in self.about
            or self.irreversible
            or self.stuck
        )

    @property
    def failure(self) -> StructuredFailure:
        """As it was recorded, in a replay: the type of the exception may not be there."""
        from ..failures import StructuredFailure, classify

        assert self.error is not None
        if isinstance(self.recorded, Mapping):
            try:
                return StructuredFailure.from_dict(self.recorded)
            except ValueError:
                pass
        return classify(self.error, side_effect=self.side_effect)


class _Unrecorded:
    """The step of a call outside every run."""

    __slots__ = ("_begun",)

    live: Final = True
    deferred: Final = False
    seq: Final = 0

    def __init__(self, begun: Begun | None) -> None:
        self._begun: Final = begun

    def body(self) -> None:
        return None

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        if self._begun is not None:
            self._begun.end()

    def failed(self, error: BaseException, *, info: Mapping[str, Any] | None = None) -> None:
        if self._begun is not None:
            self._begun.end(failed=True)


class Attempt:
    """One attempt at a call, live or answered from the log: ``take`` it."""

    __slots__ = ("_open", "_request", "_working", "call")

    def __init__(self, call: Invocation, request: Request) -> None:
        self.call: Final = call
        self._request: Final = request
        #: What happens below it is counted, where that decides on what follows.
        self._open: OpenCall | None = None
        #: Of a function with a limit: whether its thread goes on.
        self._working: Callable[[], bool] | None = None

    @property
    def _told(self) -> dict[str, Any] | None:
        """What goes into an outcome's ``meta`` in any case: a tool with patterns of its own takes no short way."""
        return None if self.call.captured.spec.redactor is None else {}

    def take(self) -> Done:
        call = self.call
        step = self._begin()
        if step.deferred:
            token = acting.set(call.instance)
            try:
                step = step.go()
            finally:
                acting.reset(token)
        if not step.live:
            if self._lazily and step.lazy() is not None:
                return Done(call, step.seq, answered(step))
            self._at(step)
            return self._answered(step, step.answer())
        body = self._enter(step)
        token_ = current.set(body)
        try:
            result = self._called(step, body)
        except BaseException as error:
            current.reset(token_)
            return self._failed(step, error, False)
        current.reset(token_)
        if type(result) in LAZY:
            return self._unfinished(step, result)
        return self._returned(step, result, self._told)

    async def take_async(self) -> Done:
        call = self.call
        if call.captured.shape != "coroutine":
            return self.take()
        step = self._begin()
        if step.deferred:
            token = acting.set(call.instance)
            try:
                step = await step.go_async()
            finally:
                acting.reset(token)
        if not step.live:
            self._at(step)
            return self._answered(step, await step.answer_async())
        body = self._enter(step)
        token_ = current.set(body)
        driven = None
        try:
            driven = drive(call.function(*call.args, **call.kwargs))
            limit = self._limit
            result = await (driven if limit is None else in_time_async(driven, limit))
        except BaseException as error:
            current.reset(token_)
            return self._failed(step, error, driven is not None and driven.suspended)
        current.reset(token_)
        told = {**(self._told or {}), "suspended": True} if driven.suspended else self._told
        return self._returned(step, result, told)

    # -- beginning -------------------------------------------------------------------------------------------------------

    def _begin(self) -> Any:
        call = self.call
        scope = call.scope
        if scope is None:
            spec = call.captured.spec
            return _Unrecorded(outside_run(spec.name, spec.side_effect, undoes=call.undoes))
        return scope.session.begin(scope, self._request)

    def _at(self, step: Any) -> None:
        """An abort may ask which step is under way."""
        if self.call.under_way is not None:
            self.call.under_way.seq = step.seq

    def _enter(self, step: Any) -> Scope | None:
        """The scope of the body; what happens in it is counted, where it matters for what follows."""
        call, terms = self.call, self.call.terms
        body: Scope | None = step.body()
        self._at(step)
        if call.scope is not None and (call.under_way is not None or call.undoes):
            ledger(call.scope.session).open.add(step.seq)
        if call.undoes or call.followed or (terms is not None and not terms.checks_only):
            outer, run_id = (innermost(), None) if body is None else (body.call, body.session.run_id)
            self._open = OpenCall(outer, run_id=run_id, seq=step.seq, undoes=call.undoes)
            body = self._open.body(body)
        return body

    @property
    def _limit(self) -> float | None:
        terms = self.call.terms
        return None if terms is None or terms.contract.timeout_ms is None else terms.contract.timeout_ms / 1000

    @property
    def _lazily(self) -> bool:
        """Whether what it returns may come to its end later."""
        return self.call.terms is None or self.call.terms.checks_only

    def _called(self, step: Any, body: Scope | None) -> Any:
        call, limit = self.call, self._limit
        if limit is None:
            return call.function(*call.args, **call.kwargs)
        one = self._open
        book = None if call.under_way is None or call.scope is None else ledger(call.scope.session)
        work = Work(call.function, call.args, call.kwargs, body)

        def over() -> None:
            if one is not None:
                one.over()
            if book is not None:
                book.changed()

        self._working = lambda: not work.ended
        try:
            return in_time(work, limit, over)
        except Overdue:
            if one is not None:
                one.given_up(self._working)
            raise

    # -- what came of it -------------------------------------------------------------------------------------------------

    def _answered(self, step: Any, outcome: Any) -> Done:
        call, meta = self.call, outcome.meta
        about = meta.get("info") or _NONE
        if about.get("reason") != "exactly_once":  # that was an earlier step's doing
            self._keep(step, outcome.output)
        if outcome.error is not None:
            return Done(call, step.seq, None, outcome.error, about, meta.get("failure"))
        return Done(call, step.seq, outcome.output)

    def _returned(self, step: Any, result: Any, told: Mapping[str, Any] | None) -> Done:
        _, within = self._left(step)
        if told is None:
            step.done(result)
        else:
            step.done(result, info=told)
        self._keep(step, result, within)
        return Done(self.call, step.seq, result)

    def _left(self, step: Any, *, failed: bool = False) -> tuple[Below, list[int]]:
        """Its body is over: what happened in it, and the steps around it that can be undone or made again as a whole."""
        scope, one = self.call.scope, self._open
        if scope is not None and (self.call.under_way is not None or self.call.undoes):
            ledger(scope.session).open.discard(step.seq)
        if one is None:
            return Below(), []
        around = [] if one.outer is None or one.run_id is None else one.outer.steps(one.run_id)
        return one.end(failed=failed), around

    def _keep(self, step: Any, output: Any, within: list[int] | None = None) -> None:
        """It may have to be undone: what it did, or what it may have done before it failed."""
        call = self.call
        compensation = call.captured.spec.compensation
        if compensation is not None and call.scope is not None and not call.undoes:
            one = Completed(compensation, step.seq, call.bound, output, call.instance, within or [], self._working)
            ledger(call.scope.session).add(one)

    def _failed(self, step: Any, error: BaseException, suspended: bool) -> Done:
        about: dict[str, Any] = {}
        goes_on = isinstance(error, Overdue) and error.goes_on
        if isinstance(error, Overdue):
            in_doubt = self._in_doubt(goes_on)
            error = self._overdue(step, error, in_doubt)
            about["timeout"] = True
            if in_doubt:
                about["in_doubt"] = True
            if in_doubt and goes_on:
                about["final"] = True  # undone or repeated now, what its thread does later would stay
        below, within = self._left(step, failed=True)
        if below.irreversible is not None:
            about["irreversible"] = below.irreversible
        if below.in_doubt is not None:
            about["final"] = True
        if about.get("in_doubt") and goes_on and self._open is not None:
            self._open.doubt(self.call.captured.spec.name)
        if not isinstance(error, Exception):
            about["final"] = True
        told = self._told
        if about:
            told = {**(told or {}), "info": about}
        failed(step, error, suspended, told)
        self._keep(step, None, within)
        return Done(self.call, step.seq, None, error, about)

    def _in_doubt(self, goes_on: bool) -> bool:
        """Whether it may take effect yet, or has taken one that can't be undone."""
        side_effect = self.call.captured.spec.side_effect
        return side_effect == "irreversible" or (goes_on and side_effect == "reversible")

    def _overdue(self, step: Any, overdue: Overdue, in_doubt: bool) -> StepTimeoutError:
        spec, terms, scope = self.call.captured.spec, self.call.terms, self.call.scope
        assert terms is not None
        limit = terms.contract.timeout_ms
        goes_on = overdue.goes_on
        error = StepTimeoutError(
            f"{spec.name!r} took longer than its {limit} ms, and "
            + ("is no longer waited for (its thread goes on)" if goes_on else "was interrupted")
            + ("; whether it took effect is not known" if in_doubt else ""),
            run_id=None if scope is None else scope.session.run_id,
            step=step.seq or None,
            location=caller(),
            next_action=_WHETHER if in_doubt else "give it more time, or find out what it waits for",
            tool=spec.name,
            timeout_ms=limit,
            side_effect=spec.side_effect,
            in_doubt=in_doubt,
        )
        error.__cause__ = overdue.__cause__
        return error

    def _unfinished(self, step: Any, result: Any) -> Done:
        """A plain function returned a coroutine or generator, which nobody has begun: its contract could not be kept."""
        if self._lazily:
            self._left(step)
        if self._lazily and self.call.scope is not None:
            return Done(self.call, step.seq, LAZY[type(result)](step, result))
        if self._lazily:
            return Done(self.call, step.seq, result)
        close = getattr(result, "close", None)
        if close is not None:
            close()
        name, kind = self.call.captured.spec.name, type(result).__name__.replace("_", " ")
        error = ContractViolationError(
            f"{name!r} returned a {kind}, for which its contract can't be kept; it was not begun",
            tool=name,
            contract="shape",
            actual=kind,
            next_action="declare the tool with `async def`, or let it return a value",
        )
        return self._failed(step, error, False)


class Pause:
    """The wait between two attempts: an event of the run, at once in a replay."""

    __slots__ = ("_scope", "_seconds")

    def __init__(self, scope: Scope | None, seconds: float) -> None:
        self._scope: Final = scope
        self._seconds: Final = seconds

    def _timer(self) -> Any:
        scope = self._scope
        if scope is None or scope.live or getattr(scope.session, "ended", False):
            return None
        return scope.session.arm(scope, "tracekit.backoff", self._seconds)

    def take(self) -> None:
        timer = self._timer()
        if timer is not None and not timer.live:
            timer.wait()
        if timer is None or timer.live:
            _reality.sleep(self._seconds)
            if timer is not None:
                timer.fired()

    async def take_async(self) -> None:
        timer = self._timer()
        if timer is not None and not timer.live:
            await timer.wait_async()
        if timer is None or timer.live:
            token = current.set(None)  # the sleep itself is none of the run's own
            try:
                await asyncio.sleep(self._seconds)
            finally:
                current.reset(token)
            if timer is not None:
                timer.fired()
