"""Model and tool clients to pass to an agent: one pair records, one pair replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final, Literal

from ..errors import RunStateError
from ..integration import Spec, capture
from .index import replaying
from .writer import Line

__all__ = ["ReplayLLMClient", "ReplayToolClient", "TracedLLMClient", "TracedToolClient"]

_CLASSES: Final = ("read_only", "reversible", "irreversible")


class _Client:
    """Base of all clients: a spec, a lane (``None``: the run that is active around the call), captured functions."""

    def __init__(self, line: Line | None, spec: Spec) -> None:
        self._line: Final = line
        self._spec: Final = spec

    def _entered(self) -> Any:
        return nullcontext() if self._line is None else self._line.entered()

    def _captured(self, function: Callable[..., Any]) -> Any:
        return capture(function, self._spec)


class TracedLLMClient(_Client):
    """Records each call of a model client. ``llm`` is a callable that takes the prompt, or has ``generate`` (and, if
    used, ``stream``).

    ``line`` is a ``TraceWriter``, one of its lanes, or ``None`` for the run that is active around the call (outside of
    any run the call is made and nothing is recorded). ``model_id``, ``parameters`` (decoding parameters, safety
    settings) and ``version`` (of the weights) are the signature of every call, compared in a replay; ``parameters`` are
    passed to the model by keyword, unless a call overrides them. ``returns`` is the type as which a recorded answer is
    rebuilt.
    """

    def __init__(
        self,
        llm: Any,
        line: Line | None = None,
        *,
        model_id: str,
        parameters: Mapping[str, Any] | None = None,
        version: str | None = None,
        returns: Any = None,
    ) -> None:
        signature: dict[str, Any] = {"model": model_id, **(parameters or {})}
        if version is not None:
            signature["version"] = version
        super().__init__(
            line, Spec("llm", model_id, side_effect="read_only", signature=signature, returns=returns, lists=True)
        )
        self.model_id: Final = model_id
        self._llm: Final = llm
        self._parameters: Final = dict(parameters or {})
        self._shapes()

    def _shapes(self) -> None:
        def generate(prompt: Any, parameters: dict[str, Any]) -> Any:
            return _method(self._llm, "generate")(prompt, **{**self._parameters, **parameters})

        async def agenerate(prompt: Any, parameters: dict[str, Any]) -> Any:
            return await _method(self._llm, "agenerate", "generate")(prompt, **{**self._parameters, **parameters})

        def stream(prompt: Any, parameters: dict[str, Any]) -> Iterator[Any]:
            yield from _method(self._llm, "stream")(prompt, **{**self._parameters, **parameters})

        async def astream(prompt: Any, parameters: dict[str, Any]) -> AsyncIterator[Any]:
            async for piece in _method(self._llm, "astream", "stream")(prompt, **{**self._parameters, **parameters}):
                yield piece

        self._generate = self._captured(generate)
        self._agenerate = self._captured(agenerate)
        self._stream = self._captured(stream)
        self._astream = self._captured(astream)

    def generate(self, prompt: Any, /, **parameters: Any) -> Any:
        """Call the model and return its answer. ``prompt`` is a text or a list of messages; ``parameters`` are passed
        to the model, and are part of the input."""
        with self._entered():
            return self._generate(prompt, parameters)

    async def agenerate(self, prompt: Any, /, **parameters: Any) -> Any:
        """Call a model whose ``agenerate`` (or ``generate``) is a coroutine function, and return its answer."""
        with self._entered():
            return await self._agenerate(prompt, parameters)

    def stream(self, prompt: Any, /, **parameters: Any) -> Iterator[Any]:
        """Call the model and return an iterator over the stream; each piece is in the trace before the caller gets it."""
        pieces = self._stream(prompt, parameters)
        with self._entered():
            first = next(pieces, _END)
        if first is not _END:
            try:
                yield first
            except GeneratorExit:
                pieces.close()
                raise
            yield from pieces

    async def astream(self, prompt: Any, /, **parameters: Any) -> AsyncIterator[Any]:
        """Call a model whose ``astream`` (or ``stream``) is an async generator function, and return an iterator over
        the stream."""
        pieces = self._astream(prompt, parameters)
        try:
            with self._entered():
                piece = await anext(pieces, _END)
            while piece is not _END:
                yield piece
                piece = await anext(pieces, _END)
        finally:
            await pieces.aclose()


class TracedToolClient(_Client):
    """Records each call of a tool. ``tool`` is a callable, or has ``execute``.

    ``side_effect`` must be declared, as for ``tracekit.traced_tool``: the intent record of a reversible or irreversible
    call is synced before the call starts, and without it the call is not made (``LogWriteError``). ``tool_id``,
    ``version`` and ``config`` are its signature, compared in a replay. ``line`` and ``returns`` as for
    ``TracedLLMClient``.
    """

    def __init__(
        self,
        tool: Any,
        line: Line | None = None,
        *,
        tool_id: str,
        side_effect: Literal["read_only", "reversible", "irreversible"],
        version: str | None = None,
        config: Mapping[str, Any] | None = None,
        returns: Any = None,
    ) -> None:
        if side_effect not in _CLASSES:
            raise ValueError(f"side_effect must be one of {', '.join(_CLASSES)}, not {side_effect!r}")
        signature: dict[str, Any] = {}
        if version is not None:
            signature["version"] = version
        if config is not None:
            signature["config"] = dict(config)
        super().__init__(line, Spec("tool", tool_id, side_effect=side_effect, signature=signature, returns=returns))
        self.tool_id: Final = tool_id
        self._tool: Final = tool

        def execute(plan: Any, arguments: dict[str, Any]) -> Any:
            return _method(self._tool, "execute")(*_if_given(plan), **arguments)

        async def aexecute(plan: Any, arguments: dict[str, Any]) -> Any:
            return await _method(self._tool, "aexecute", "execute")(*_if_given(plan), **arguments)

        self._execute = self._captured(execute)
        self._aexecute = self._captured(aexecute)

    def execute(self, plan: Any = None, /, **arguments: Any) -> Any:
        """Call the tool with ``plan`` (omitted if ``None``) and ``arguments``, and return its result; both are the
        input that a replay compares."""
        with self._entered():
            return self._execute(plan, arguments)

    async def aexecute(self, plan: Any = None, /, **arguments: Any) -> Any:
        """Call a tool whose ``aexecute`` (or ``execute``) is a coroutine function, and return its result."""
        with self._entered():
            return await self._aexecute(plan, arguments)


class ReplayLLMClient(TracedLLMClient):
    """Answers like the recorded model, without a live model. ``line`` is a ``TraceIndex`` or one of its lanes.

    The prompt, ``model_id``, ``parameters`` and ``version`` must be those of the recording: otherwise
    ``DivergenceError`` is raised, and ``TraceExhaustedError`` for an additional call; a recorded error is raised, a
    recorded stream comes piece by piece.
    """

    def __init__(
        self,
        line: Line,
        *,
        model_id: str,
        parameters: Mapping[str, Any] | None = None,
        version: str | None = None,
        returns: Any = None,
    ) -> None:
        super().__init__(
            None, replaying(line), model_id=model_id, parameters=parameters, version=version, returns=returns
        )


class ReplayToolClient(TracedToolClient):
    """Answers like the recorded tool; nothing is executed. ``line`` is a ``TraceIndex`` or one of its lanes.

    Input, ``tool_id``, ``side_effect``, ``version`` and ``config`` must be those of the recording; errors are those of
    ``ReplayLLMClient``.
    """

    def __init__(
        self,
        line: Line,
        *,
        tool_id: str,
        side_effect: Literal["read_only", "reversible", "irreversible"],
        version: str | None = None,
        config: Mapping[str, Any] | None = None,
        returns: Any = None,
    ) -> None:
        super().__init__(
            None,
            replaying(line),
            tool_id=tool_id,
            side_effect=side_effect,
            version=version,
            config=config,
            returns=returns,
        )


_END: Final[Any] = object()


def _if_given(plan: Any) -> tuple[Any, ...]:
    return () if plan is None else (plan,)


def _method(client: Any, *names: str) -> Callable[..., Any]:
    """Return the first of these methods that ``client`` has; else the client itself, if it is callable."""
    for name in names:
        method = getattr(client, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    if not callable(client):
        raise RunStateError(
            f"{client!r} has no {names[0]}() and can't be called",
            next_action=f"give it a method {names[0]}, or pass a function",
        )
    return client  # type: ignore[no-any-return]
