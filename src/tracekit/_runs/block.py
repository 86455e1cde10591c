"""The common part of ``record`` and ``replay``: a block, an async block or a decorator.

And the checks of their arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeVar

from .._capture.calls import binder, loose, shows_real_signature, signature_of
from .._capture.plugins import task_sources
from .._capture.threads import refuse_uncovered
from .._runtime.callsite import caller
from .._runtime.lane import ROOT, Lane
from .._runtime.process import process
from .._runtime.session import Scope, Session, current, enter, here, innermost, owner
from ..errors import RunStateError

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .._runtime.spending import Spending

__all__ = [
    "Block",
    "ServerStopped",
    "below_run",
    "call_with",
    "called_from",
    "hand_out_tasks",
    "outputs_by_step",
    "run_id",
    "run_to_replay",
    "serve_the_log",
    "strings",
    "taken_as",
]

# -- programs that listen for work -------------------------------------------------------------------------------------
#
# A program that is replayed or resumed does not listen for work: its handlers get the recorded tasks. Then it continues
# as if its server had been stopped: in the recorded way, or else by leaving the block of its run.

#: Exceptions with which a server is stopped.
_STOPS: Final[dict[str, type[BaseException]]] = {
    "builtins:KeyboardInterrupt": KeyboardInterrupt,
    "builtins:SystemExit": SystemExit,
}


class ServerStopped(SystemExit):
    """Raised to leave the server's call and the run's block around it, which treats it as the end of that call."""


def serve_the_log() -> None:
    """Hand the recorded tasks to the program's handlers when it would listen for work; then leave that call."""
    scope = here()
    trace = None if scope is None else scope.session.log.trace
    if scope is None or trace is None or not any(source.has_tasks(trace) for source in task_sources()):
        return  # its tasks are not in the log: the guard reports that
    hand_out_tasks(scope)
    _stop(trace, scope.session.state.live)


class _HandedOut:
    """Whether the recorded tasks of a run have been handed to the program."""

    done = False


def hand_out_tasks(scope: Scope) -> bool:
    """Hand the recorded tasks of the run of ``scope`` to the program, once. Return False if the program takes none."""
    sources, handed = task_sources(), scope.session.state.extras.of(_HandedOut)
    if sources and not handed.done:
        handed.done = True
        token = enter(scope)
        try:
            for source in sources:
                source.replay_tasks()
        finally:
            current.reset(token)
    return bool(sources)


def _stop(trace: Trace, resumed: bool) -> NoReturn:
    last: dict[str, Any] = {} if resumed else trace.last
    error = last.get("error") if last.get("type") == "run.failed" else None
    kind = _STOPS.get(str(error.get("type"))) if isinstance(error, dict) else None
    if threading.current_thread() is not threading.main_thread():
        os._exit(0)  # another thread that waits for the server is not notified; the replay has its verdict all the same
    if kind is not None and isinstance(error, dict):
        args = error.get("args")
        raise kind(*args) if isinstance(args, list) else kind()
    raise ServerStopped(0)


# -- blocks ------------------------------------------------------------------------------------------------------------
#
# The common part of ``record`` and ``replay``: a block, an async block, or a decorator.

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E")


class Block(ABC, Generic[E]):
    """The common part of ``record`` and ``replay``: a block, an async block, or a decorator; each is entered once."""

    #: The public name of the function that created it.
    verb: ClassVar[str] = "record"

    _token: Token[Scope | None] | None = None
    #: Whether it was left in another context than it was entered in, so that what came in between was outside of it.
    _left_in_another_context = False
    _entered = False

    @abstractmethod
    def _enter(self) -> E:
        """Begin the run, replay or resumption."""

    @abstractmethod
    def _exit(self, error: BaseException | None) -> None:
        """End it; ``error`` is the exception with which the program leaves the block."""

    def _called_with(self, bound: Mapping[str, Any]) -> None:
        """Handle the arguments with which a decorated function is about to run."""

    def _returned(self, value: Any) -> None:
        """Handle the value that a decorated function has returned."""

    @abstractmethod
    def _again(self) -> Block[E]:
        """Return a block like this one, for another call of a decorated function."""

    def __enter__(self) -> E:
        if self._entered:
            raise RunStateError(
                f"this {self.verb}() block was entered before",
                next_action="call record() or replay() again for each block",
            )
        if process.forbidden is not None:
            process.forbidden(self.verb)
        refuse_uncovered()
        self._entered = True
        return self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = isinstance(error, ServerStopped)
        self._exit(None if stopped else error)
        return stopped or None  # type: ignore[return-value]  # a program's own exceptions are never swallowed

    async def __aenter__(self) -> E:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._drain()
        except BaseException as left:  # the task is cancelled meanwhile, for example: the block ends all the same
            self._exit(left)
            raise
        stopped = isinstance(error, ServerStopped)
        self._exit(None if stopped else error)
        return stopped or None  # type: ignore[return-value]  # as above

    async def _drain(self) -> None:
        """Wait for open lanes of this loop to end. With what this raises, the program leaves the block."""

    def _inside(self, outer: Scope, next_action: str) -> RunStateError:
        """Return the error for a block inside the block of another run."""
        return RunStateError(
            f"{self.verb}() inside the open run {outer.session.run_id}",
            run_id=outer.session.run_id,
            location=caller(),
            next_action=next_action,
        )

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
        except ValueError:  # fixtures, generators
            self._left_in_another_context = True
            current.set(None)

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: its run would end before it begins; put the block inside, or around its caller"
            )
        arguments = _arguments(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                block = self._again()
                block._called_with(arguments(args, kwargs))
                value: Any = None  # if a server in it was stopped
                async with block:
                    value = await function(*args, **kwargs)
                    block._returned(value)
                return value

            vars(run_async)[_AROUND] = function
            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            block = self._again()
            block._called_with(arguments(args, kwargs))
            value: Any = None  # as above
            with block:
                value = function(*args, **kwargs)
                block._returned(value)
            return value

        vars(run)[_AROUND] = function
        return run  # type: ignore[return-value]


#: Attribute of a decorated function: the function inside its run; decorators above copy it with the rest
#: (``functools.wraps``).
_AROUND: Final = "__tracekit_around__"


def below_run(function: Any) -> Any:
    """Return what runs inside the run if ``record`` decorates ``function``: with all decorators below it, most
    importantly a tool's."""
    return getattr(function, _AROUND, function)


def _arguments(function: Callable[..., Any]) -> Callable[[Any, Any], dict[str, Any]]:
    """Return a function that maps the arguments of a call of ``function`` to their names; a wrong call raises Python's
    own ``TypeError``."""
    bind, sure = binder(function), shows_real_signature(function)

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return bind(*args, **kwargs)
        except TypeError:
            if sure:
                function(*args, **kwargs)
            return loose(*args, **kwargs)

    return arguments


def called_from() -> str | None:
    """Return the file of the code that called ``record`` or ``replay``: the user's code, even if installed as a
    package."""
    return sys._getframe(2).f_code.co_filename


# -- arguments ---------------------------------------------------------------------------------------------------------
#
# The arguments of ``record`` and ``replay``: wrong types are reported at the call, not where the value is used.


def taken_as(name: str, value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """Raise ``TypeError`` unless ``value`` is ``None`` or an instance of ``kinds``."""
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"{name} is {what}, not {value!r}")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """Return several strings as a tuple; a single string counts as one, not as its characters.

    Raises ``TypeError`` for anything else.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise TypeError(f"{name} must be a list of strings, not {value!r}")
    found = tuple(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be a list of strings; {one!r} in it is not one")
    return found


def outputs_by_step(value: Any) -> None:
    """Raise ``TypeError`` unless ``supply`` is ``None`` or a dictionary keyed by the numbers of steps."""
    taken_as("supply", value, Mapping, "a dictionary of outputs by step")
    for step in value or ():
        if type(step) is not int:
            raise TypeError(f"supply: a step must be the number of an entry, not {step!r}")


def run_id(value: Any) -> None:
    """Raise ``TypeError`` unless it is a string or ``None``, and ``RunStateError`` for ``"last"``, which names the
    newest run."""
    taken_as("run_id", value, str, "a string")
    if value == "last":
        raise RunStateError('a run_id can\'t be "last", which names the newest run', next_action="choose another id")


def run_to_replay(run: Any, kind: type, what: str = "replay") -> None:
    """Raise ``TypeError`` unless ``run`` is a ``kind`` (a ``Run``), an id or a path."""
    if not isinstance(run, (str, os.PathLike, kind)) or run == "":
        raise TypeError(f"{what}() takes the run: its id, its path, or what record() gave; not {run!r}")


# -- the input of a run ------------------------------------------------------------------------------------------------
#
# How to call a function again with the input of a run.


def call_with(function: Callable[..., Any], value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that pass the run's input ``value`` to ``function``; raise ``TypeError`` if it can't take
    it.

    A dictionary by the names of its parameters is its arguments (those of a decorated function are recorded like this,
    ``*args`` and ``**kwargs`` by their names). Anything else, including another dictionary, is passed as it is to the
    one parameter that takes it.
    """
    if value is None:
        return (), {}
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):  # a builtin without one: the call itself decides
        return ((), {**value}) if _names(value) else ((value,), {})
    parameters = signature.parameters
    others = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if _names(value) and (value.keys() & parameters.keys() if others else value.keys() <= parameters.keys()):
        args, kwargs = _by_name(parameters, value)
        signature.bind(*args, **kwargs)
        return args, kwargs
    places = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    if len(required) == 1 or (not required and len(places) == 1):
        signature.bind(value)
        return (value,), {}
    if _names(value):
        signature.bind(**value)
        return (), {**value}
    raise TypeError(f"it has {len(places)} parameters for one value")


def _names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _by_name(
    parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    several = next((name for name, p in parameters.items() if p.kind is p.VAR_POSITIONAL and values.get(name)), None)
    for name, p in parameters.items():
        if name not in values:
            continue
        if p.kind is p.VAR_KEYWORD and isinstance(values[name], Mapping):
            kwargs.update(values[name])
        elif p.kind is p.VAR_POSITIONAL and isinstance(values[name], list | tuple):
            args.extend(values[name])
        elif p.kind is p.POSITIONAL_ONLY or (several is not None and p.kind is p.POSITIONAL_OR_KEYWORD):
            args.append(values[name])
        else:
            kwargs[name] = values[name]
    kwargs.update((name, value) for name, value in values.items() if name not in parameters)
    return tuple(args), kwargs
