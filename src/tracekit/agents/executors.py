"""Carries out the requests of agents that run in a loop: by model clients and tools."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, Literal

from tracekit import SideEffectClass, traced_tool

from ..errors import ContractViolationError, IntentionError
from ..integration import (
    Captured,
    Request,
    Spec,
    attach,
    captured_of,
    discover,
    forbidding,
    instrumented,
    own_code,
    perform,
    perform_async,
    register,
    signature_of,
)
from .intentions import Intention, deep_copy

__all__ = [
    "Executor",
    "LLMExecutor",
    "ModelFunction",
    "ToolExecutor",
    "captured_in",
    "check_named",
    "names_of",
    "reply_of",
    "tools_of",
]

#: A side-effect class, or its name.
SideEffect = SideEffectClass | Literal["read_only", "reversible", "irreversible"]
#: What a plain function may return without having run.
_UNFINISHED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)

# -- callables ---------------------------------------------------------------------------------------------------------
#
# The callables that an executor accepts: whether they are captured already, which tools they are, and their names.


def names_of(tool: Any, name: str) -> set[str]:
    """Return the names by which a tool may be called: its own, and its function's if it was given none."""
    tool = _function(tool)
    full = str(getattr(tool, "__qualname__", ""))
    if not full and name == f"{type(tool).__qualname__.replace('<locals>.', '')}.__call__":
        return {name, type(tool).__name__}
    return {name, full, full.rpartition(".")[2]} if full.replace(".<locals>", "") == name else {name}


def _function(tool: Any) -> Any:
    while isinstance(tool, partial):
        tool = tool.func
    return tool


def captured_in(tool: Any) -> Captured | None:
    """Return the capture data of a callable whose calls are captured already: a function, a ``partial``, or an object
    with ``__call__``."""
    tool = _function(tool)
    ways = (tool, getattr(tool, "__func__", None), getattr(type(tool), "__call__", None))  # noqa: B004 - the method itself
    return next((found for found in map(captured_of, ways) if found is not None), None)


def tools_of(declared: Any) -> Iterator[Any]:
    """Yield the tools in an object: itself if it is callable, else its traced methods."""
    if inspect.isclass(declared):
        raise IntentionError(
            f"{declared!r:.80} is a class", next_action="give an object of it, or the methods that are to be called"
        )
    if callable(declared):
        yield declared
        return
    found = [name for name in dir(type(declared)) if not name.startswith("_") and _is_tool(type(declared), name)]
    if not found:
        raise IntentionError(
            f"{declared!r:.80} is not a tool: it can't be called, and has no traced methods",
            next_action="give functions or methods",
        )
    for name in found:
        yield getattr(declared, name)


def _is_tool(owner: type, name: str) -> bool:
    """Return whether the class has a traced tool of this name; no property is evaluated."""
    found = inspect.getattr_static(owner, name)
    known = captured_of(found) or captured_of(getattr(found, "__func__", None))
    return known is not None and known.spec.family == "tool"


def check_named(tool: Any, known: Captured) -> None:
    """Raise ``IntentionError`` for a tool that can't be called with arguments by name."""
    try:
        parameters = list(signature_of(tool).parameters.values())
    except (TypeError, ValueError):  # it has no readable signature
        return
    if parameters and parameters[0].name in ("self", "cls") and known.lacks_object:
        raise IntentionError(
            f"{known.spec.name!r} is a method without its object", next_action="give the method of an object: desk.look"
        )
    for one in parameters:
        if one.kind is one.POSITIONAL_ONLY and one.default is one.empty:
            raise IntentionError(
                f"{known.spec.name!r} takes {one.name!r} by its place only, and a call names its arguments",
                next_action="wrap it in a function with named parameters",
            )


# -- replies -----------------------------------------------------------------------------------------------------------
#
# A model's answer, read from what a callable or a client returned.

#: The parts of a reply and their defaults.
_PARTS: Final[dict[str, Any]] = {
    "text": None,
    "model": None,
    "usage": None,
    "cost_usd": None,
    "tool_calls": [],
    "finish_reason": None,
    "message": None,
}


def reply_of(answered: Any, whose: str) -> dict[str, Any]:
    """Return ``text``, ``model``, ``usage``, ``cost_usd``, ``tool_calls``, ``finish_reason`` and ``message`` of an
    answer.

    The answer is a text; a mapping with some of these keys; or an answer of the OpenAI or Anthropic SDK. Raises
    ``IntentionError`` for anything else, and for no answer at all.
    """
    if isinstance(answered, str):
        return {**deep_copy(_PARTS), "text": answered}
    if isinstance(answered, Mapping):
        return _checked(answered, whose)
    if getattr(answered, "choices", None):
        return {**deep_copy(_PARTS), **_of_choices(answered)}
    if isinstance(getattr(answered, "content", None), list):
        return {**deep_copy(_PARTS), **_of_blocks(answered)}
    raise IntentionError(
        f"{whose} answered {answered!r:.80}, and a request to a model needs an answer",
        next_action='return a text, a mapping such as {"text": …, "usage": …, "cost_usd": …}, or the SDK\'s own answer',
    )


def _checked(answered: Mapping[str, Any], whose: str) -> dict[str, Any]:
    unknown = answered.keys() - _PARTS.keys()
    if unknown or ("text" not in answered and not answered.get("tool_calls")):
        what = f"{min(unknown)!r}, which is not a part of one" if unknown else "neither text nor tool calls"
        raise IntentionError(
            f"the answer of {whose} has {what}", next_action=f"an answer has some of {', '.join(_PARTS)}"
        )
    cost = answered.get("cost_usd")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf):
        raise IntentionError(
            f"{whose} says that its answer cost {cost!r}", next_action="cost_usd is a number, 0 or more"
        )
    return {**deep_copy(_PARTS), **deep_copy(dict(answered))}


def _of_choices(answered: Any) -> dict[str, Any]:
    choice = answered.choices[0]
    message, counted = choice.message, getattr(answered, "usage", None)
    calls = getattr(message, "tool_calls", None) or []
    return {
        "text": message.content,
        "model": answered.model,
        "usage": _numbers(
            input_tokens=_get(counted, "prompt_tokens"),
            output_tokens=_get(counted, "completion_tokens"),
            cache_read_input_tokens=_get(_get(counted, "prompt_tokens_details"), "cached_tokens"),
            reasoning_output_tokens=_get(_get(counted, "completion_tokens_details"), "reasoning_tokens"),
        ),
        "tool_calls": [
            {"id": one.id, "name": one.function.name, "arguments": _arguments(one.function.arguments)}
            for one in calls
            if getattr(one, "function", None) is not None
        ],
        "finish_reason": choice.finish_reason,
        "message": message.model_dump(exclude_none=True),
    }


def _of_blocks(answered: Any) -> dict[str, Any]:
    counted = getattr(answered, "usage", None)
    read, written = _get(counted, "cache_read_input_tokens"), _get(counted, "cache_creation_input_tokens")
    asked = _get(counted, "input_tokens")
    return {
        "text": "".join(block.text for block in answered.content if block.type == "text"),
        "model": answered.model,
        "usage": _numbers(
            input_tokens=None if asked is None else asked + (read or 0) + (written or 0),
            output_tokens=_get(counted, "output_tokens"),
            cache_read_input_tokens=read,
            cache_creation_input_tokens=written,
        ),
        "tool_calls": [
            {"id": block.id, "name": block.name, "arguments": deep_copy(block.input)}
            for block in answered.content
            if block.type == "tool_use"
        ],
        "finish_reason": answered.stop_reason,
        "message": {
            "role": "assistant",
            "content": [block.model_dump(exclude_none=True) for block in answered.content],
        },
    }


def _get(counted: Any, name: str) -> Any:
    return getattr(counted, name, None)


def _numbers(**counts: Any) -> dict[str, int] | None:
    """Return token counts under the names of the trace: ``input_tokens`` includes cached tokens."""
    return {name: count for name, count in counts.items() if isinstance(count, int)} or None


def _arguments(text: str) -> Any:
    """Return the arguments of a call; as text if the model wrote invalid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# -- model calls -------------------------------------------------------------------------------------------------------
#
# A plain callable that calls a model, as a captured model call; its usage and cost are counted.

#: The callable reports its cost: no price need be known in advance.
_OWN_PRICE: Final = {"own_price": True}


class ModelFunction:
    """A callable whose calls are recorded as model calls. It receives the messages, and the rest by keyword."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function: Final = function
        self.name: Final = name
        own_code(function)

    def make(self, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call the model, or answer from the log."""
        messages, rest = _parts(request)

        def ask() -> dict[str, Any]:
            with forbidding(self._forbidden):
                return reply_of(self.function(messages, **rest), self.name)

        return perform(_asked(model, messages, rest), ask, _usage_info)

    async def make_async(self, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call the model and await it if the callable is a coroutine function, or answer from the log."""
        messages, rest = _parts(request)

        async def ask() -> dict[str, Any]:
            with forbidding(self._forbidden):
                return reply_of(await self.function(messages, **rest), self.name)

        return await perform_async(_asked(model, messages, rest), ask, _usage_info)

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
    return Request(spec, {"messages": messages, **rest}, _OWN_PRICE)


def _usage_info(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage and cost that the outcome records besides the answer, for budgets and metrics."""
    return {key: reply[key] for key in ("usage", "model", "cost_usd") if reply[key] is not None}


# -- executors ---------------------------------------------------------------------------------------------------------
#
# The executors themselves. A request goes to the first one that accepts it.
#
# ::
#
#     LLMExecutor(OpenAI())                                  # a client; sync or async, OpenAI or Anthropic
#     LLMExecutor(lambda messages, **rest: "an answer")      # or any callable
#     ToolExecutor(fetch, search, side_effect="read_only")   # tools by their side-effect class
#
# Whatever an executor calls is a captured step inside the entry of the request, so that budgets, contracts and recovery
# apply to it, it is counted once, and a replay executes nothing.


class Executor:
    """Executes requests of one ``kind``. ``asynchronous`` executors are awaited, and run concurrently.

    Derive from it for an executor of your own: ``perform`` returns the event's data (or a coroutine of it). Its effects
    must be captured steps; otherwise a replay repeats them.
    """

    kind: str
    asynchronous: bool = False

    def takes(self, request: Intention) -> bool:
        """Return whether this executor executes ``request``."""
        return request.kind == self.kind

    def asynchronous_for(self, request: Intention) -> bool:
        """Return whether ``request`` is to be awaited."""
        return self.asynchronous

    def takings(self) -> str:
        """Return a text for messages: which requests it accepts."""
        return self.kind

    def name_of(self, request: Intention) -> str:
        """Return the name of the step that executes ``request``."""
        return request.name

    def perform(self, request: Intention) -> Any:
        """Execute ``request`` and return the event's data."""
        raise NotImplementedError(f"{type(self).__name__} has no `perform`")


class LLMExecutor(Executor):
    """Calls a model: a client of the OpenAI or Anthropic SDK (or its ``create``), or a callable, sync or async.

    A callable receives the messages, and by keyword the rest of the question (``model``, ``max_tokens`` …); it returns
    a text, a mapping (``text``, ``usage``, ``cost_usd``, ``model``, ``tool_calls`` …) or the SDK's own answer. Each
    call is recorded as a model call, unless it is one already (``traced_model``) or ``captured`` says that its inner
    calls are. ``model`` is called if the question names none; ``models`` are the only ones that it accepts.
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
        #: Whether its calls are captured already.
        self.captured: Final = captured or self._client or (known is not None and known.spec.family == "llm")
        self._function: Final = function
        self._call: Final = None if self.captured else ModelFunction(function, self.name)
        if self._client:
            _capture_client(client)

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
    """Calls tools. With ``side_effect`` it is the executor of that class: plain functions become tools of it
    (``options`` as for ``traced_tool``), and a traced tool of another class is refused. Without, every tool must be a
    traced one.

    A tool is a function, a method with its object (``desk.look``), a ``partial``, or any callable; an object that is
    not callable stands for its traced methods. It is called by its name; a tool without an explicit one (``Desk.look``,
    ``main.look``) by that of its function, too.
    """

    kind = "tool.call"

    def __init__(self, *tools: Any, side_effect: SideEffect | None = None, **options: Any) -> None:
        self.side_effect: Final = None if side_effect is None else SideEffectClass.of(side_effect).value
        self.tools: Final[dict[str, Any]] = {}
        self._known: Final[dict[str, Captured]] = {}
        self._names: Final[dict[str, str]] = {}
        for offered in tools:
            for tool in tools_of(offered):
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
                    f"{tool!r:.80} is not a traced tool, and its side effect is not declared",
                    next_action="decorate it with traced_tool, or say ToolExecutor(…, side_effect=…)",
                )
            tool = traced_tool(side_effect=SideEffectClass.of(self.side_effect), **options)(tool)
            known = captured_of(tool)
            assert known is not None
        if known.spec.family != "tool" or "generator" in known.shape:
            raise IntentionError(
                f"{known.spec.name!r} is not a tool that returns once ({known.spec.family}, {known.shape})",
                next_action="give a function or coroutine function, which may return a list of what a generator would yield",
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
        if isinstance(made, _UNFINISHED):
            if inspect.iscoroutine(made):
                made.close()
            raise IntentionError(
                f"{self.name_of(request)!r} returned a {type(made).__name__}, which nothing would run to its end",
                next_action="give the coroutine function itself; or let the tool return its result, a list for a generator",
            )
        return {"output": made}


async def _output(made: Any) -> dict[str, Any]:
    return {"output": await made}


# -- clients -----------------------------------------------------------------------------------------------------------------


def _client_call(bound: Any) -> tuple[Any, Any]:
    """Return the method that calls a client, and the client, from either of them. ``(None, None)`` for anything else."""
    for path in (("chat", "completions", "create"), ("messages", "create")):
        found = bound
        for name in path:
            found = getattr(found, name, None)
        if callable(found):
            return found, bound
    client = getattr(getattr(bound, "__self__", None), "_client", None)
    if client is not None and callable(bound) and _client_call(client)[0] == bound:
        return bound, client
    return None, None


def _awaited(function: Any) -> bool:
    known = captured_in(function)
    if known is not None:
        return known.shape == "coroutine"
    inner = inspect.unwrap(getattr(function, "__func__", function))
    call = getattr(type(inner), "__call__", None)  # noqa: B004 - it may be a coroutine function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def _capture_client(client: Any) -> None:
    """Capture the calls of this client, like ``wrap``, unless all clients are captured already."""
    package = type(client).__module__.partition(".")[0]
    for integration in discover().values():
        if package in integration.modules:
            register(integration)
    transport = getattr(client, "_client", None)
    if transport is not None and not instrumented():
        attach(transport)
