"""The decorators and blocks by which a program names its own steps."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import Token
from functools import partial
from typing import Any, Final, Literal, TypeVar, overload

from .._engine import gate
from .._engine.gate import here
from .._engine.scope import Scope, current
from .._engine.step import Spec
from ..errors import RunStateError
from . import callers
from .wrapper import Captured, wrap

__all__ = ["Effect", "SideEffect", "effect", "traced", "traced_model", "traced_tool"]

F = TypeVar("F", bound=Callable[..., Any])

SideEffect = Literal["read_only", "reversible", "irreversible"]

_CLASSES: Final = ("read_only", "reversible", "irreversible")


def traced_tool(
    *,
    side_effect: SideEffect,
    name: str | None = None,
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
    require_run: bool = False,
) -> Callable[[F], F]:
    """Make a function, method, coroutine, generator or async generator a captured tool.

    ``side_effect`` must be declared: ``"read_only"`` (safe to repeat), ``"reversible"`` (can be undone) or ``"irreversible"`` (never
    repeated by tracekit; its intention is on the device before it starts). ``name`` defaults to the function's qualified name;
    ``version`` and ``config`` are recorded and compared in a replay. With ``require_run`` (or ``TRACEKIT_REQUIRE_RUN=1``) a tool with
    effects refuses to run outside ``record()``.

    The decorated callable keeps its signature, its type and its identity as a method. Outside a run it is called straight.
    Raises ``ValueError`` or ``TypeError`` where the decorator is written wrongly.
    """
    _check_class(side_effect)
    if name is not None and not name:
        raise ValueError("a tool's name can't be empty")
    signature: dict[str, Any] = {}
    if version is not None:
        signature["version"] = str(version)
    if config is not None:
        signature["config"] = dict(config)

    def decorate(function: F) -> F:
        captured: F = _captured("tool", function, name, side_effect, signature, require_run)
        return captured

    return decorate


def traced_model(
    *, model: str, parameters: Mapping[str, Any] | None = None, version: str | None = None
) -> Callable[[F], F]:
    """Make a plain callable that asks a local model a captured model call.

    ``model``, ``parameters`` (decoding parameters, safety settings) and ``version`` (of the weights) are its signature, compared in a
    replay. The bound arguments are the request, the returned value the response; a generator is a stream.
    """
    signature: dict[str, Any] = {"model": model, **(parameters or {})}
    if version is not None:
        signature["version"] = version

    def decorate(function: F) -> F:
        captured: F = _captured("llm", function, model, "read_only", signature, False)
        return captured

    return decorate


@overload
def traced(name: F, /) -> F: ...
@overload
def traced(name: str | None = None) -> Callable[[F], F]: ...
def traced(name: Any = None) -> Any:
    """Make a function a structural span: a phase or an agent whose body runs in a replay too, its inner steps answered.

    ``@traced`` or ``@traced("plan")``.
    """
    if callable(name):
        return _captured("span", name, None, None, {}, False)

    def decorate(function: F) -> F:
        captured: F = _captured("span", function, name, None, {}, False)
        return captured

    return decorate


def _captured(
    family: Any,
    function: Any,
    name: str | None,
    side_effect: str | None,
    signature: Mapping[str, Any],
    require_run: bool,
) -> Any:
    inner = function.__func__ if isinstance(function, classmethod | staticmethod) else function
    if inspect.isclass(inner) or not callable(inner):
        raise TypeError(f"a tool is a function, a method or another callable, not {function!r}")
    called = name or _called(inner)
    spec = Spec(family, called, side_effect=side_effect, signature=signature, resolve=lambda: _returned(inner))
    code = getattr(inspect.unwrap(inner), "__code__", None)
    if code is not None:
        callers.include(code.co_filename)
    return wrap(Captured(inner, spec, require_run=_required(require_run)), function)


def _called(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace("<locals>.", "")


def _returned(function: Any) -> Any:
    """The declared return type of a function; of a generator, the type of its items."""
    function = inspect.unwrap(function)
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return")
    except Exception:  # a name that only the type checker knows: the value is rebuilt without a hint
        return None
    return _item(hint) if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) else hint


def _item(hint: Any) -> Any:
    arguments = typing.get_args(hint)
    return arguments[0] if arguments else None


def _required(require_run: bool) -> bool:
    import os

    return require_run or os.environ.get("TRACEKIT_REQUIRE_RUN", "") not in ("", "0")


def _check_class(side_effect: object) -> None:
    if side_effect not in _CLASSES:
        raise ValueError(
            f"side_effect is {side_effect!r}; say 'read_only' (safe to repeat), 'reversible' (can be undone) "
            "or 'irreversible' (never repeat)"
        )


class Effect:
    """A block around something that is no function; see ``effect``."""

    def __init__(self, spec: Spec, input: Mapping[str, Any]) -> None:
        self._spec = spec
        self._input = input
        self._step: Any = None
        self._token: Token[Scope | None] | None = None
        #: What the effect came to: set by the block when ``live``, given by the recording in a replay.
        self.output: Any = None
        #: Whether the block is to do it: true outside a run and while recording, false in a replay.
        self.live = True

    def perform(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` if the effect is live and keep what it returns as ``output``; else return the recorded output."""
        if self.live:
            self.output = function(*args, **kwargs)
        return self.output

    def __enter__(self) -> Effect:
        scope = here()
        if scope is None:
            if gate.outside is not None:
                gate.outside(self._spec.family, self._spec.name)
            return self
        step = scope.session.begin(scope, self._spec, dict(self._input))
        if step.deferred:
            step = step.go()
        self._step = step
        self.live = step.live
        if step.live:
            self._token = current.set(step.body())
        else:
            self._answer(step.answer())
        return self

    def _answer(self, outcome: Any) -> None:
        if outcome.error is not None:
            raise outcome.error
        self.output = outcome.output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._token is None:
            return
        current.reset(self._token)
        self._token = None
        if error is None:
            self._step.done(self.output)
        else:
            self._step.failed(error)

    async def __aenter__(self) -> Effect:
        scope = here()
        if scope is None:
            if gate.outside is not None:
                gate.outside(self._spec.family, self._spec.name)
            return self
        step = scope.session.begin(scope, self._spec, dict(self._input))
        if step.deferred:
            step = await step.go_async()
        self._step = step
        self.live = step.live
        if step.live:
            self._token = current.set(step.body())
        else:
            self._answer(await step.answer_async())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def effect(name: str, *, side_effect: SideEffect, version: str | None = None, **input: Any) -> Effect:
    """A captured step around what is no function: ``with effect("mail.send", side_effect="irreversible", to=to) as e:``.

    Python can't skip the body of a ``with`` block, so the block asks: ``e.perform(send, message)`` calls ``send`` when the effect is
    live and returns the recorded output in a replay; or test ``e.live`` and set ``e.output``. Keyword arguments are the step's input.
    A recorded exception is raised when the block is entered.
    """
    _check_class(side_effect)
    if not name:
        raise RunStateError("an effect needs a name")
    signature = {} if version is None else {"version": version}
    return Effect(Spec("tool", name, side_effect=side_effect, signature=signature), input)
