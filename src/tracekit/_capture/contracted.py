"""Calls of tools that are declared with more than a side-effect class: checked, limited, tried again, stood in for.

What is decided between attempts is written once (:func:`course`), and from what is on the log: a replay takes the same course.
The shells below it await or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .. import _reality
from .._engine.callsite import caller
from .._engine.gate import here
from .._engine.scope import Scope, current
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    LogWriteError,
    RecoveryRefusedError,
    ReplayError,
    RunEndedError,
    RunStateError,
    StepTimeoutError,
)
from .compensation import Completed, acting, completed, forget_inside
from .deadlines import Overdue, in_time, in_time_async
from .driving import drive
from .items import failed
from .wrapper import LAZY, Captured, answered, tool

if TYPE_CHECKING:
    from ..failures import StructuredFailure
    from .terms import StandIn, Terms

__all__ = ["Invocation", "perform", "perform_async", "settle", "settle_async", "wrap_contracted"]

#: The first wait before another attempt, the longest (each is twice the one before), and the longest that is asked for (s).
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 30.0
_PATIENCE: Final = 300.0
#: Calls that must not be made: nothing is tried again after them, and nobody stands in.
_REFUSALS: Final = (
    ContractViolationError,
    BudgetExceededError,
    LogWriteError,
    RunEndedError,
    RunStateError,
    RecoveryRefusedError,
)
#: Types of failure that another attempt with the same arguments can't mend, where the strategy is to give up.
_HOPELESS: Final = frozenset(
    ("invalid_input", "schema_validation", "contract_violation", "budget_exceeded", "side_effect_violation")
)
_NONE: Final[Mapping[str, Any]] = {}


class Invocation:
    """One call of a tool, bound. ``info`` is recorded with each of its attempts."""

    __slots__ = ("args", "bound", "captured", "function", "info", "instance", "kwargs", "scope")

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

    @property
    def terms(self) -> Terms | None:
        return self.captured.terms


class Done:
    """What an attempt came to. ``about`` is what the log says of a failure beside the error itself."""

    __slots__ = ("about", "error", "irreversible", "output", "recorded", "seq", "side_effect")

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

    @property
    def final(self) -> bool:
        """Whether neither another attempt nor another tool may follow."""
        error = self.error
        return not isinstance(error, Exception) or isinstance(error, _REFUSALS) or "final" in self.about or self.irreversible

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


# -- the course of a call ----------------------------------------------------------------------------------------------------

Course: TypeAlias = "Generator[Attempt | Pause, Done | None, Done]"


def course(call: Invocation) -> Course:
    """All that is done for one call; returns what it came to, and raises where a call must not be made."""
    terms = call.terms
    if call.scope is None:
        call.captured.outside()
    how = _checked(call)
    number = 0
    while True:
        number += 1
        done = yield Attempt(call, number, *how)
        assert done is not None
        if done.error is None or terms is None or done.final:
            return done
        wait = _wait(terms, done, number)
        if wait is None and not terms.fallback:
            return done
        if not (yield from _undone(call, done)):
            return done
        if wait is None:
            return (yield from _stood_in(call, done))
        yield Pause(call.scope, wait)


def _checked(call: Invocation) -> tuple[Mapping[str, Any] | None, bytes | None]:
    """What its attempts say beside their arguments, and the key of a call that happens once. Raises if it must not be made."""
    if call.terms is None:
        return call.info, None
    info, once = call.terms.opening(call.scope, call.captured.spec, call.bound)
    return ({**(info or {}), **call.info} if call.info else info), once


def _wait(terms: Terms, done: Done, number: int) -> float | None:
    """How long to wait before another attempt (s); ``None``: there is none."""
    if number > terms.contract.max_retries:
        return None
    failure = done.failure
    strategy = str(failure.recovery_strategy)
    if strategy == "manual_intervention" or (strategy == "abort" and str(failure.type) in _HOPELESS):
        return None
    wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(number - 1, 16))
    asked = failure.retry_after_s or 0.0
    return None if asked > _PATIENCE else max(wait, asked)


def _undone(call: Invocation, done: Done) -> Generator[Attempt | Pause, Done | None, bool]:
    """Undo what a failed attempt may have done, before it is made again; false if that failed."""
    compensation = call.captured.spec.compensation
    if compensation is None:
        return True
    if call.scope is not None:
        forget_inside(call.scope.session, done.seq)
    undone = yield from course(compensation.invocation(call.scope, done.seq, call.bound, None, call.instance))
    if undone.error is None:
        return True
    if not isinstance(undone.error, Exception):
        raise undone.error
    assert done.error is not None
    done.error.add_note(f"compensation {compensation.captured.spec.name!r} failed: {_said(undone.error)}")
    return False


def _stood_in(call: Invocation, done: Done) -> Course:
    """The tools that stand in for one that failed, one after the other; the first failure is the one that is told."""
    terms, last = call.terms, done
    assert terms is not None
    assert done.error is not None
    before = call.captured
    tried: list[str] = []
    for one in terms.fallback:
        _triggered(call, before, one, last)
        before = one.captured
        tried.append(before.spec.name)
        try:
            last = yield from course(_instead(call, terms, one))
        except _REFUSALS as refusal:
            raise refusal from done.error
        if last.error is None:
            return last
        if not isinstance(last.error, Exception) or isinstance(last.error, _REFUSALS):
            return last
        done.error.add_note(f"fallback {before.spec.name!r} failed too: {_said(last.error)}")
        done.irreversible = done.irreversible or last.irreversible
        if last.irreversible:
            break
    _note(call, "fallback.exhausted", {"from": call.captured.spec.name, "tried": tried, "reason": str(last.failure.type)}, last)
    return done


def _instead(call: Invocation, terms: Terms, one: StandIn) -> Invocation:
    function, instance = one.bound(call.instance)
    args, kwargs = terms.passing.arguments(call.bound)
    bound = one.captured.arguments(instance, args, kwargs) or dict(kwargs)
    return Invocation(one.captured, function, instance, bound, args, kwargs, call.scope)


def _triggered(call: Invocation, before: Captured, one: StandIn, last: Done) -> None:
    after = one.captured.spec
    about = {
        "from": before.spec.name,
        "to": after.name,
        "from_side_effect": str(before.spec.side_effect),
        "to_side_effect": str(after.side_effect),
        "reason": str(last.failure.type),
    }
    if before.spec.side_effect == "reversible" and after.side_effect == "irreversible":
        about["escalation"] = True  # type: ignore[assignment]
    _note(call, "fallback.triggered", about, last)


def _note(call: Invocation, kind: str, about: dict[str, Any], last: Done) -> None:
    if call.scope is not None:
        call.scope.session.note(call.scope, kind, call.captured.spec.name, input=about, info={"step": last.seq})


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# -- one attempt -------------------------------------------------------------------------------------------------------------


class _Unrecorded:
    """The step of a call outside every run."""

    live: Final = True
    deferred: Final = False
    seq: Final = 0

    def body(self) -> None:
        return None

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def failed(self, error: BaseException, *, info: Mapping[str, Any] | None = None) -> None:
        pass


class Attempt:
    """One attempt at a call, live or answered from the log: ``take`` it."""

    __slots__ = ("_info", "_nested", "_once", "call")

    def __init__(self, call: Invocation, number: int, info: Mapping[str, Any] | None, once: bytes | None) -> None:
        self.call: Final = call
        self._info: Final = info if number == 1 else {**(info or {}), "attempt": number}
        self._once: Final = once
        self._nested: Any = None

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
            return _Unrecorded()
        return scope.session.begin(scope, call.captured.spec, call.bound, info=self._info, once=self._once)

    def _enter(self, step: Any) -> Scope | None:
        """The scope of the body; what happens in it is watched, where it matters for what follows."""
        call, terms = self.call, self.call.terms
        body: Scope | None = step.body()
        if call.scope is not None and terms is not None and not terms.checks_only and step.seq != call.scope.parent:
            self._nested = step.session.nested
            self._nested.watch(step.seq)
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
        nested = self._nested
        return in_time(
            call.function, call.args, call.kwargs, limit, body, lambda: nested and nested.over(step.seq)
        )

    # -- what came of it -------------------------------------------------------------------------------------------------

    def _answered(self, step: Any, outcome: Any) -> Done:
        call, meta = self.call, outcome.meta
        about = meta.get("info") or _NONE
        if outcome.error is not None:
            return Done(call, step.seq, None, outcome.error, about, meta.get("failure"))
        if about.get("reason") != "exactly_once":  # that was an earlier step's doing
            self._keep(step, outcome.output)
        return Done(call, step.seq, outcome.output)

    def _returned(self, step: Any, result: Any, told: Mapping[str, Any] | None) -> Done:
        if self._nested is not None:
            within = self._nested.around(self.call.scope.live) if self.call.scope and self.call.scope.live else []
            self._nested.unwatch(step.seq)
        else:
            within = []
        if told is None:
            step.done(result)
        else:
            step.done(result, info=told)
        self._keep(step, result, within)
        return Done(self.call, step.seq, result)

    def _keep(self, step: Any, output: Any, within: list[int] | None = None) -> None:
        call = self.call
        compensation = call.captured.spec.compensation
        if compensation is not None and call.scope is not None:
            one = Completed(compensation, step.seq, call.bound, output, call.instance, within or [])
            completed(call.scope.session, one)

    def _failed(self, step: Any, error: BaseException, suspended: bool) -> Done:
        about: dict[str, Any] = {}
        late = isinstance(error, Overdue)
        if late:
            error = self._overdue(step, error)
            about["timeout"] = True
            if self.call.captured.spec.side_effect == "irreversible":
                about["in_doubt"] = True
        if self._nested is not None and self._nested.unwatch(step.seq, given_up=late and not suspended):
            about["irreversible"] = True
        if not isinstance(error, Exception):
            about["final"] = True
        told = self._told
        if about:
            told = {**(told or {}), "info": about}
        failed(step, error, suspended, told)
        return Done(self.call, step.seq, None, error, about)

    def _overdue(self, step: Any, overdue: BaseException) -> StepTimeoutError:
        spec, terms, scope = self.call.captured.spec, self.call.terms, self.call.scope
        assert terms is not None
        limit = terms.contract.timeout_ms
        irreversible = spec.side_effect == "irreversible"
        goes_on = isinstance(overdue, Overdue) and overdue.goes_on
        error = StepTimeoutError(
            f"{spec.name!r} took longer than its {limit} ms, and "
            + ("is no longer waited for (its thread goes on)" if goes_on else "was interrupted")
            + ("; whether it took effect is not known" if irreversible else ""),
            run_id=None if scope is None else scope.session.run_id,
            step=step.seq or None,
            location=caller(),
            next_action="find out whether it happened before it is called again" if irreversible else "give it more time, or find out what it waits for",
            tool=spec.name,
            timeout_ms=limit,
            side_effect=spec.side_effect,
            in_doubt=irreversible,
        )
        error.__cause__ = overdue.__cause__
        return error

    def _unfinished(self, step: Any, result: Any) -> Done:
        """A plain function returned a coroutine or generator, which nobody has begun: its contract could not be kept."""
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


# -- the shells --------------------------------------------------------------------------------------------------------------


def settle(call: Invocation) -> Done:
    """Take the course of ``call``."""
    plan = course(call)
    came: Done | None = None
    while True:
        try:
            action = plan.send(came)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        came = action.take()


async def settle_async(call: Invocation) -> Done:
    plan = course(call)
    came: Done | None = None
    while True:
        try:
            action = plan.send(came)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        came = await action.take_async()


def perform(call: Invocation) -> Any:
    """The same, returned or raised."""
    return _given(settle(call))


async def perform_async(call: Invocation) -> Any:
    return _given(await settle_async(call))


def _given(done: Done) -> Any:
    if done.error is None:
        return done.output
    if isinstance(done.error, ReplayError):
        raise done.error
    try:
        raise done.error
    finally:
        del done


def wrap_contracted(captured: Captured, wrapped: Any) -> Any:
    """``wrapped``, a function or coroutine function with terms, with each call taking its course."""
    captured.wrapped_as = wrapped
    wrapper = _coroutine(captured) if captured.shape == "coroutine" else _function(captured)
    return tool(wrapped, wrapper, captured)


def _function(captured: Captured) -> Any:
    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        return perform(Invocation(captured, function, instance, bound, args, kwargs, here()))

    return wrapper


def _coroutine(captured: Captured) -> Any:
    name = getattr(captured.wrapped, "__name__", None)

    async def run(function: Any, instance: Any, bound: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await perform_async(Invocation(captured, function, instance, bound, args, kwargs, here()))

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        made = run(function, instance, bound, args, kwargs)
        if name is not None:
            made.__name__, made.__qualname__ = name, getattr(captured.wrapped, "__qualname__", name)
        return made

    return wrapper
