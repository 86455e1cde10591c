"""What ``record`` and ``replay`` share: a block, an async block, or a decorator."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, Generic, TypeVar

from .._capture.binding import binder, loose, tells
from .._engine.effects import innermost
from .._engine.gate import Session, owner
from .._engine.lanes import Lane
from .._engine.recording import ROOT
from .._engine.scope import Scope, current, enter
from .._engine.spending import Spending
from ..errors import RunStateError
from .served import ServerStopped

__all__ = ["Block", "called_from"]

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E")

#: Told of each block that begins (``record``, ``replay`` …) while none may, for it to raise; else ``None``.
forbidden: Callable[[str], None] | None = None


class Block(Generic[E]):
    """What ``record`` and ``replay`` share: a block, an async block, or a decorator; each is entered once."""

    _token: Token[Scope | None] | None = None
    _entered = False

    def _enter(self) -> E:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> None:
        raise NotImplementedError

    def _called_with(self, bound: Mapping[str, Any]) -> None:
        """A decorated function is about to run with these arguments."""

    def _returned(self, value: Any) -> None:
        """A decorated function has returned."""

    def _again(self) -> Block[E]:
        raise NotImplementedError

    def __enter__(self) -> E:
        return self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = isinstance(error, ServerStopped)
        self._end(None if stopped else error)
        return stopped or None  # type: ignore[return-value]  # a program's own exceptions are never swallowed

    async def __aenter__(self) -> E:
        return self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._settle()
        stopped = isinstance(error, ServerStopped)
        self._end(None if stopped else error)
        return stopped or None  # type: ignore[return-value]  # as above

    async def _settle(self) -> None:
        """Let open lanes of this loop come to their end."""

    def _start(self) -> E:
        if self._entered:
            raise RunStateError(
                f"this {type(self).__name__.lower()}() block was entered before",
                next_action="call record() or replay() anew for each block",
            )
        if forbidden is not None:
            forbidden({"Replaying": "replay", "Resuming": "resume"}.get(type(self).__name__, "record"))
        self._entered = True
        return self._enter()

    def _end(self, error: BaseException | None) -> None:
        self._exit(error)

    def _scope_in(self, session: Session, agent: str | None, spending: Spending | None = None) -> Lane:
        lane = Lane("", 1, None, id=0, owner=owner())
        self._token = enter(Scope(session, lane, ROOT, agent, spending=spending, call=innermost()))
        return lane

    def _scope_out(self) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        try:
            current.reset(token)
        except ValueError:  # left in another context than it was entered in (fixtures, generators)
            current.set(None)

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: its run would end before it begins; put the block inside, or around its caller"
            )
        given = _arguments(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                block = self._again()
                block._called_with(given(args, kwargs))
                value: Any = None  # where a server in it was stopped
                async with block:
                    value = await function(*args, **kwargs)
                    block._returned(value)
                return value

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            block = self._again()
            block._called_with(given(args, kwargs))
            value: Any = None  # as above
            with block:
                value = function(*args, **kwargs)
                block._returned(value)
            return value

        return run  # type: ignore[return-value]


def _arguments(function: Callable[..., Any]) -> Callable[[Any, Any], dict[str, Any]]:
    """The arguments of a call of ``function`` by name; a wrong call raises Python's own ``TypeError``."""
    bind, sure = binder(function), tells(function)

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return bind(*args, **kwargs)
        except TypeError:
            if sure:
                function(*args, **kwargs)
            return loose(*args, **kwargs)

    return arguments


def called_from() -> str | None:
    """The file of whoever called ``record`` or ``replay``: the user's code, even where it is installed as a package."""
    return sys._getframe(2).f_code.co_filename
