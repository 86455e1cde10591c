"""A plain callable that asks a model, as a captured model call: what it says of usage and cost is counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from .._capture import callers
from .._capture.driving import drive
from .._capture.items import failed, given
from .._engine import gate
from .._engine.gate import here
from .._engine.step import Request, Spec
from ..errors import ContractViolationError
from .forbidding import forbidding
from .replies import reply_of

__all__ = ["ModelCall"]


class ModelCall:
    """``function``, each call of it a model call of the log. It is called with the messages, and the rest by keyword."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function: Final = function
        self.name: Final = name
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            callers.include(code.co_filename)

    def make(self, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, or be answered from the log."""
        messages, rest = _parts(request)
        scope = here()
        if scope is None:
            self._outside(model)
            return reply_of(self.function(messages, **rest), self.name)
        step: Any = scope.session.begin(scope, _asked(model, messages, rest))
        if step.deferred:
            step = step.go()
        if not step.live:
            return _given(step.answer())
        try:
            with forbidding(self._forbidden, step.body()):
                reply = reply_of(self.function(messages, **rest), self.name)
        except BaseException as error:
            failed(step, error)
            raise
        step.done(reply, info=_told(reply))
        return reply

    async def make_async(self, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a coroutine function."""
        messages, rest = _parts(request)
        scope = here()
        if scope is None:
            self._outside(model)
            return reply_of(await self.function(messages, **rest), self.name)
        step: Any = scope.session.begin(scope, _asked(model, messages, rest))
        if step.deferred:
            step = await step.go_async()
        if not step.live:
            return _given(await step.answer_async())
        driven = drive(self.function(messages, **rest))
        try:
            with forbidding(self._forbidden, step.body()):
                reply = reply_of(await driven, self.name)
        except BaseException as error:
            failed(step, error, driven.suspended)
            raise
        step.done(reply, info={**_told(reply), **({"suspended": True} if driven.suspended else {})})
        return reply

    def _outside(self, model: str) -> None:
        if gate.outside is not None:
            gate.outside("llm", model)

    def _forbidden(self, spec: Spec) -> ContractViolationError | None:
        if spec.family != "llm":
            return None
        return ContractViolationError(
            f"{self.name!r} is recorded as a model call itself and makes another one ({spec.name!r}), which would count twice; "
            "it was not executed",
            next_action="say LLMExecutor(…, captured=True): what it calls is captured already",
        )


def _parts(request: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    rest = dict(request)
    return rest.pop("messages"), rest


def _asked(model: str, messages: Any, rest: Mapping[str, Any]) -> Request:
    parameters = {key: value for key, value in rest.items() if type(value) in (str, int, float, bool)}
    spec = Spec("llm", model, side_effect="read_only", signature={**parameters, "model": model}, lists=True)
    return Request(spec, {"messages": messages, **rest})


def _told(reply: Mapping[str, Any]) -> dict[str, Any]:
    """What the outcome says beside the answer: it is what budgets and metrics read."""
    return {key: reply[key] for key in ("usage", "model", "cost_usd") if reply[key] is not None}


def _given(outcome: Any) -> dict[str, Any]:
    found: dict[str, Any] = given(outcome)
    return found
