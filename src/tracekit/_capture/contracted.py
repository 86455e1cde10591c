"""Calls of tools that are declared with more than a side-effect class: checked, limited, tried again, stood in for.

What is decided between attempts is written once (:func:`course`), and from what is on the log: a replay takes the same course.
The shells below it await or not.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .._engine.gate import here
from .._engine.step import Request
from ..errors import ReplayError
from .attempts import REFUSALS, Attempt, Done, Invocation, Pause
from .ledger import ledger
from .wrapper import Captured, tool

if TYPE_CHECKING:
    from .stand_ins import StandIn
    from .terms import Terms

__all__ = ["Done", "Invocation", "came_to", "perform", "perform_async", "settle", "settle_async", "wrap_contracted"]

#: The first wait before another attempt, the longest (each is twice the one before), and the longest that is asked for (s).
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 30.0
_PATIENCE: Final = 300.0
#: Types of failure that another attempt with the same arguments can't mend, where the strategy is to give up.
_HOPELESS: Final = frozenset(
    ("invalid_input", "schema_validation", "contract_violation", "budget_exceeded", "side_effect_violation")
)


# -- the course of a call ----------------------------------------------------------------------------------------------------

Course: TypeAlias = "Generator[Attempt | Pause, Done | None, Done]"


def course(call: Invocation) -> Course:
    """All that is done for one call; returns what it came to, and raises where a call must not be made."""
    if call.captured.spec.compensation is None or call.scope is None or call.undoes:
        return (yield from _course(call))
    book = ledger(call.scope.session)
    call.under_way = (
        book.begin()
    )  # before its first step begins: an abort either waits for it or keeps it from beginning
    try:
        return (yield from _course(call))
    finally:
        book.end(call.under_way)


def _course(call: Invocation) -> Course:
    terms = call.terms
    if call.scope is None:
        call.captured.checked_outside()
    request = _checked(call)
    number = 0
    while True:
        number += 1
        done = yield Attempt(call, request if number == 1 else request.saying({"attempt": number}))
        assert done is not None
        if done.error is None or terms is None or done.final:
            return done
        wait = _wait(terms, done, number)
        if wait is None and not (terms.fallback or call.followed):
            return done
        if not (yield from _undone(call, done)):
            done.stuck = True
            return done
        if wait is None:
            return (yield from _stood_in(call, done)) if terms.fallback else done
        yield Pause(call.scope, wait)


def _checked(call: Invocation) -> Request:
    """The request of its first attempt. Raises if it must not be made."""
    if call.terms is None:
        return Request(call.captured.spec, call.bound, call.info)
    request = call.terms.opening(call.scope, call.captured.spec, call.bound)
    return request.saying(call.info) if call.info else request


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
    book = None if call.scope is None else ledger(call.scope.session)
    if book is not None:
        book.forget_inside(done.seq)
    try:
        undone = yield from course(compensation.invocation(call.scope, done.seq, call.bound, None, call.instance))
    except BaseException:
        if book is not None:
            book.undone(done.seq, failed=True)
        raise
    if book is not None:
        book.undone(done.seq, failed=undone.error is not None)
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
        except REFUSALS as refusal:
            raise refusal from done.error
        if last.error is None:
            return last
        if not isinstance(last.error, Exception) or isinstance(last.error, REFUSALS):
            return last
        done.error.add_note(f"fallback {before.spec.name!r} failed too: {_said(last.error)}")
        done.irreversible = done.irreversible or last.irreversible
        if last.irreversible:
            break
    _note(
        call,
        "fallback.exhausted",
        {"from": call.captured.spec.name, "tried": tried, "reason": str(last.failure.type)},
        last,
    )
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


# -- the shells --------------------------------------------------------------------------------------------------------------


def settle(call: Invocation) -> Done:
    """Take the course of ``call``."""
    plan = course(call)
    came: Done | None = None
    try:
        while True:
            try:
                action = plan.send(came)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            came = action.take()
    finally:
        plan.close()


async def settle_async(call: Invocation) -> Done:
    plan = course(call)
    came: Done | None = None
    try:
        while True:
            try:
                action = plan.send(came)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            came = await action.take_async()
    finally:
        plan.close()


def perform(call: Invocation) -> Any:
    """The same, returned or raised."""
    return came_to(settle(call))


async def perform_async(call: Invocation) -> Any:
    return came_to(await settle_async(call))


def came_to(done: Done) -> Any:
    """What a call came to, returned or raised."""
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
        made: Any = run(function, instance, bound, args, kwargs)
        if name is not None:
            made.__name__, made.__qualname__ = name, getattr(captured.wrapped, "__qualname__", name)
        return made

    return wrapper
