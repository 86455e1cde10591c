"""A capture point of its own for tests of what happens once: it asks the session as a decorator does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tracekit.integration import Request, Spec, current, here

__all__ = ["once", "once_async"]


def _spec(function: Any, side_effect: str, store: bool, limit_ms: int | None) -> Spec:
    contract: dict[str, Any] = {"exactly_once": "store" if store else True}
    if limit_ms is not None:
        contract["timeout_ms"] = limit_ms
    return Spec("tool", function.__qualname__, side_effect=side_effect, signature={"contract": contract})


def once(
    function: Callable[[Any], Any],
    *,
    side_effect: str = "irreversible",
    store: bool = False,
    limit_ms: int | None = None,
) -> Callable[..., Any]:
    """``function`` of one argument, whose key is that argument (or ``key``)."""
    spec = _spec(function, side_effect, store, limit_ms)

    def call(given: Any, key: bytes | None = None, **info: Any) -> Any:
        scope = here()
        assert scope is not None
        material = repr(given).encode() if key is None else key
        step = scope.session.begin(scope, Request(spec, {"given": given}, info or None, once_key=material))
        if step.deferred:
            step = step.go()
        if not step.live:
            outcome = step.answer()
            if outcome.error is not None:
                raise outcome.error
            return outcome.output
        token = current.set(step.body())
        try:
            result = function(given)
        except BaseException as error:
            current.reset(token)
            step.failed(error)
            raise
        current.reset(token)
        step.done(result)
        return result

    return call


def once_async(
    function: Callable[[Any], Awaitable[Any]],
    *,
    side_effect: str = "irreversible",
    store: bool = False,
    limit_ms: int | None = None,
) -> Callable[..., Awaitable[Any]]:
    """The same for a coroutine function that gives control away."""
    spec = _spec(function, side_effect, store, limit_ms)

    async def call(given: Any, key: bytes | None = None) -> Any:
        scope = here()
        assert scope is not None
        material = repr(given).encode() if key is None else key
        step = scope.session.begin(scope, Request(spec, {"given": given}, once_key=material))
        if step.deferred:
            step = await step.go_async()
        if not step.live:
            outcome = await step.answer_async()
            if outcome.error is not None:
                raise outcome.error
            return outcome.output
        token = current.set(step.body())
        try:
            result = await function(given)
        except BaseException as error:
            current.reset(token)
            step.failed(error, info={"suspended": True})
            raise
        current.reset(token)
        step.done(result, info={"suspended": True})
        return result

    return call
