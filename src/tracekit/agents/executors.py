"""Executors: what does what was intended. A request goes to the first that takes it.

::

    LLMExecutor(OpenAI())                                  # a client; sync or async, OpenAI or Anthropic
    LLMExecutor(lambda messages, **rest: "an answer")      # or any callable
    ToolExecutor(fetch, search, side_effect="read_only")   # tools by their side-effect class

What an executor does is a captured step inside the entry of the intention, so that budgets, contracts and recovery hold for it, it is
counted once, and a replay does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from .._capture.decorators import SideEffect, traced_tool
from .._capture.instrumentation import instrumented
from .._capture.plugins import discover
from .._capture.routes import register
from .._capture.transports import attach
from .._capture.wrapper import LAZY, Captured, captured_of
from .._engine.contract import SideEffectClass, side_effect_class
from ..errors import IntentionError
from .callables import captured_in, check_named, names_of, tools_of
from .intentions import Intention
from .model_calls import ModelCall
from .replies import reply_of

__all__ = ["Executor", "LLMExecutor", "ToolExecutor"]


class Executor:
    """Does requests of one ``kind``. ``asynchronous`` ones are awaited, and run at once with others.

    Derive from it for another way to do things: ``perform`` returns the event's data (or a coroutine of it). What it does must be
    captured steps, else a replay does it again.
    """

    kind: str
    asynchronous: bool = False

    def takes(self, request: Intention) -> bool:
        """Whether this one does it."""
        return request.kind == self.kind

    def asynchronous_for(self, request: Intention) -> bool:
        """Whether this very request is to be awaited."""
        return self.asynchronous

    def takings(self) -> str:
        """What it takes, in words."""
        return self.kind

    def name_of(self, request: Intention) -> str:
        """The name of the step in which it is done."""
        return request.name

    def perform(self, request: Intention) -> Any:
        """Do it, and return what is to be said of it."""
        raise NotImplementedError(f"{type(self).__name__} has no `perform`")


class LLMExecutor(Executor):
    """Asks a model: a client of the OpenAI or Anthropic SDK (or its ``create``), or a callable, sync or async.

    A callable gets the messages, and by keyword what else the question says (``model``, ``max_tokens`` …); it returns a text, a mapping
    (``text``, ``usage``, ``cost_usd``, ``model``, ``tool_calls`` …) or the SDK's own answer. Each call is recorded as a model call,
    unless it is one already (``traced_model``) or ``captured`` says that what it calls is. ``model`` is asked where the question
    names none; ``models`` are the only ones that it takes.
    """

    kind = "llm.request"

    def __init__(
        self,
        model_call: Any,
        *,
        model: str | None = None,
        models: tuple[str, ...] | None = None,
        captured: bool = False,
        name: str | None = None,
    ) -> None:
        self.model: Final = model
        self.models: Final = models
        way, client = _client_call(model_call)
        if way is None and not callable(model_call):
            raise IntentionError(
                f"{model_call!r:.80} is neither a callable nor a client that is known",
                next_action="wrap it in a function that takes the messages and returns the answer",
            )
        function = model_call if way is None else way
        inner = inspect.unwrap(getattr(function, "__func__", function))
        self.name: Final[str] = name or str(getattr(inner, "__qualname__", type(model_call).__name__))
        self.asynchronous = _awaited(function)
        known = captured_in(function)
        self._client: Final = way is not None
        #: Whether what is called is on the log by itself.
        self.captured: Final = captured or self._client or (known is not None and known.spec.family == "llm")
        self._function: Final = function
        self._call: Final = None if self.captured else ModelCall(function, self.name)
        if self._client:
            _see_to(client)

    def takes(self, request: Intention) -> bool:
        if request.kind != self.kind:
            return False
        return self.models is None or (request.data.get("model") or self.model) in self.models

    def perform(self, request: Intention) -> Any:
        data = dict(request.data)
        if data.get("model") is None and self.model is not None:
            data["model"] = self.model
        if self._client and data.get("model") is None:
            raise IntentionError(
                "the question names no model, and the client needs one",
                next_action="say ask(…, model=…), or LLMExecutor(client, model=…)",
            )
        if self._call is not None:
            make = self._call.make_async if self.asynchronous else self._call.make
            return make(str(data.get("model") or self.name), data)
        return self._asked_async(data) if self.asynchronous else reply_of(self._asked(data), self.name)

    def _asked(self, data: dict[str, Any]) -> Any:
        if self._client:
            return self._function(**data)
        messages = data.pop("messages")
        return self._function(messages, **data)

    async def _asked_async(self, data: dict[str, Any]) -> dict[str, Any]:
        return reply_of(await self._asked(data), self.name)


class ToolExecutor(Executor):
    """Calls tools. With ``side_effect`` it is the executor of that class: plain functions become tools of it (``options`` as for
    ``traced_tool``), and a traced tool of another class is refused. Without, every tool must be a traced one.

    A tool is a function, a method with its object (``desk.look``), a ``partial``, any callable; an object that is none stands for its
    traced methods. It is called by its name; one that was given none (``Desk.look``, ``main.look``) by that of its function, too.
    """

    kind = "tool.call"

    def __init__(self, *tools: Any, side_effect: SideEffect | SideEffectClass | None = None, **options: Any) -> None:
        self.side_effect: Final = None if side_effect is None else side_effect_class(side_effect).value
        self.tools: Final[dict[str, Any]] = {}
        self._known: Final[dict[str, Captured]] = {}
        self._names: Final[dict[str, str]] = {}
        for given in tools:
            for tool in tools_of(given):
                self._take(*self._made(tool, options), tool)
        self.asynchronous = any(known.shape == "coroutine" for known in self._known.values())

    def _take(self, made: Any, known: Captured, tool: Any) -> None:
        called = known.spec.name
        if called in self.tools:
            raise IntentionError(f"two tools are called {called!r}", next_action="name one with name=")
        self.tools[called] = made
        self._known[called] = known
        for name in names_of(tool, called):
            other = self._names.setdefault(name, called)
            if other != called:
                raise IntentionError(
                    f"{name!r} may be {other!r} or {called!r}", next_action="name one with traced_tool(name=…)"
                )

    def _made(self, tool: Any, options: Mapping[str, Any]) -> tuple[Any, Captured]:
        known = captured_in(tool)
        if known is None:
            if self.side_effect is None:
                raise IntentionError(
                    f"{tool!r:.80} is no traced tool, and nobody says what it does",
                    next_action="decorate it with traced_tool, or say ToolExecutor(…, side_effect=…)",
                )
            tool = traced_tool(side_effect=side_effect_class(self.side_effect), **options)(tool)
            known = captured_of(tool)
            assert known is not None
        if known.spec.family != "tool" or "generator" in known.shape:
            raise IntentionError(
                f"{known.spec.name!r} is no tool that returns once ({known.spec.family}, {known.shape})"
            )
        if self.side_effect not in (None, known.spec.side_effect):
            raise IntentionError(
                f"{known.spec.name!r} is {known.spec.side_effect}, and this is the executor of {self.side_effect} tools",
                next_action="give it to an executor of its own class",
            )
        check_named(tool, known)
        return tool, known

    def takes(self, request: Intention) -> bool:
        return request.kind == self.kind and request.name in self._names

    def takings(self) -> str:
        return f"{self.kind} {', '.join(sorted(map(repr, self._names))) or 'of nothing'}"

    def name_of(self, request: Intention) -> str:
        return self._names[request.name]

    def asynchronous_for(self, request: Intention) -> bool:
        return self._known[self.name_of(request)].shape == "coroutine"

    def perform(self, request: Intention) -> Any:
        made = self.tools[self.name_of(request)](**request.data)
        if self.asynchronous_for(request):
            return _output(made)
        if type(made) in LAZY:
            if inspect.iscoroutine(made):
                made.close()
            raise IntentionError(
                f"{self.name_of(request)!r} returned a {type(made).__name__}, and nobody would see it through",
                next_action="give the coroutine function itself; or let the tool return what it came to, a list for a generator",
            )
        return {"output": made}


async def _output(made: Any) -> dict[str, Any]:
    return {"output": await made}


# -- clients -----------------------------------------------------------------------------------------------------------------


def _client_call(given: Any) -> tuple[Any, Any]:
    """The method by which a client is asked, and the client: it was given, or the method itself. ``(None, None)`` for anything else."""
    for path in (("chat", "completions", "create"), ("messages", "create")):
        found = given
        for name in path:
            found = getattr(found, name, None)
        if callable(found):
            return found, given
    client = getattr(getattr(given, "__self__", None), "_client", None)
    if client is not None and callable(given) and _client_call(client)[0] == given:
        return given, client
    return None, None


def _awaited(function: Any) -> bool:
    known = captured_in(function)
    if known is not None:
        return known.shape == "coroutine"
    inner = inspect.unwrap(getattr(function, "__func__", function))
    call = getattr(type(inner), "__call__", None)  # noqa: B004 - it may be a coroutine function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def _see_to(client: Any) -> None:
    """Capture the calls of this one client, as ``wrap`` does, where nothing captures all of them."""
    package = type(client).__module__.partition(".")[0]
    for integration in discover().values():
        if package in integration.modules:
            register(integration)
    transport = getattr(client, "_client", None)
    if transport is not None and not instrumented():
        attach(transport)
