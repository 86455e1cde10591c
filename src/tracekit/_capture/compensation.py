"""How what a reversible tool did is undone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MethodType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from .._engine.contract import impossible
from .._engine.scope import Scope
from .._engine.step import Spec
from .taking import called, is_method, names_of
from .wrapper import Captured, captured_of

if TYPE_CHECKING:
    from .attempts import Invocation

__all__ = ["Compensation", "Completed", "acting"]

#: The object whose method is being called: a compensation that is a method too belongs to it.
acting: Final[ContextVar[Any]] = ContextVar("tracekit.acting", default=None)


_known: Final[WeakSet[Compensation]] = WeakSet()


class Compensation:
    """A call that undoes another: a traced tool with its own class, or a function, which is then an irreversible step."""

    __slots__ = ("__weakref__", "_every", "_names", "_needs_object", "_tool", "asynchronous", "captured", "undoes")

    def __init__(
        self, undoes: str, tool: Any, captured: Captured, names: Sequence[str], *, every: bool, needs_object: bool
    ) -> None:
        #: The name of the tool whose calls it undoes.
        self.undoes: Final = undoes
        self._tool: Final = tool
        self.captured: Final = captured
        self._names: Final = names
        self._every: Final = every
        self._needs_object: Final = needs_object
        self.asynchronous: Final = captured.shape == "coroutine"
        _known.add(self)

    @property
    def needs_object(self) -> bool:
        """Whether it is a method of the object whose method it undoes."""
        return self._needs_object

    @staticmethod
    def named(tool: str) -> list[Compensation]:
        """How calls of tools of this name are undone, by all that are there now."""
        return [one for one in list(_known) if one.undoes == tool]

    @classmethod
    def of(cls, tool: str, given: Any, names: Sequence[str], *, asynchronous: bool, method: bool) -> Compensation:
        """For ``tool``, whose arguments have these ``names``. ``ContractViolationError`` where it can't undo that."""
        captured = captured_of(given) or _plain(tool, given)
        if captured.spec.side_effect is None or "generator" in captured.shape:
            raise impossible(tool, "compensate", f"{given!r} is neither a function nor a traced tool")
        if captured.shape == "coroutine" and not asynchronous:
            raise impossible(
                tool, "compensate", f"{captured.spec.name!r} is a coroutine function, and the tool is none"
            )
        bound = isinstance(captured.wrapped_as, staticmethod | classmethod) or _object_of(given) is not None
        needs_object = not bound and is_method(captured.inner)
        if needs_object and not method:
            raise impossible(tool, "compensate", f"{captured.spec.name!r} is a method, and the tool is none")
        taken, every = names_of(tool, "compensate", captured.inner if needs_object else given, [*names, "output"])
        if "output" in names and "output" in taken:
            raise impossible(
                tool, "compensate", "both it and the tool have a parameter `output`: which one is meant can't be told"
            )
        return cls(tool, given, captured, taken, every=every, needs_object=needs_object)

    def invocation(
        self, scope: Scope | None, of: int, input: Mapping[str, Any], output: Any, instance: Any
    ) -> Invocation:
        """The call that undoes step ``of``."""
        from .attempts import Invocation

        kwargs: dict[str, Any] = dict(input) if self._every else {n: input[n] for n in self._names if n in input}
        if "output" in self._names:
            kwargs["output"] = output
        function, owner = self._function(instance)
        bound = self.captured.arguments(owner, (), kwargs) or dict(kwargs)
        return Invocation(self.captured, function, owner, bound, (), kwargs, scope, {"compensates": of})

    def _function(self, instance: Any) -> tuple[Callable[..., Any], Any]:
        traced = captured_of(self._tool) is not None
        if not self._needs_object:
            return (self._tool.__wrapped__, _object_of(self._tool)) if traced else (self.captured.wrapped, None)
        if traced:
            return self._tool.__get__(instance, type(instance)).__wrapped__, instance
        return MethodType(self.captured.wrapped, instance), instance

    # -- for a resumed run: what was cut off is undone before it is made again, inside it --------------------------------

    def run(self, scope: Scope, of: int, input: Mapping[str, Any], output: Any) -> None:
        """Undo step ``of``, which was given up; raises what the compensation raises."""
        from .contracted import perform

        perform(self.invocation(scope.inside(of, live=True), of, input, output, acting.get()))

    async def run_async(self, scope: Scope, of: int, input: Mapping[str, Any], output: Any) -> None:
        from .contracted import perform_async

        await perform_async(self.invocation(scope.inside(of, live=True), of, input, output, acting.get()))


def _plain(tool: str, given: Any) -> Captured:
    function = given.__func__ if isinstance(given, classmethod | staticmethod) else given
    if inspect.isclass(function) or not callable(function):
        raise impossible(tool, "compensate", f"{given!r} is neither a function nor a traced tool")
    captured = Captured(function, Spec("tool", called(function), side_effect="irreversible"))
    captured.wrapped_as = given
    return captured


def _object_of(given: Any) -> Any:
    """The object of a bound method, decorated or not."""
    if captured_of(given) is not None:
        return getattr(given, "_self_instance", None)
    return getattr(given, "__self__", None)


class Completed:
    """A step that can be undone: completed, or failed and perhaps done.

    ``within``: the steps around it that can be undone as a whole. ``working``: whether its function goes on though it was given up.
    """

    __slots__ = ("_working", "bound", "compensation", "instance", "output", "seq", "within")

    def __init__(
        self,
        compensation: Compensation,
        seq: int,
        bound: Mapping[str, Any],
        output: Any,
        instance: Any,
        within: list[int],
        working: Callable[[], bool] | None = None,
    ) -> None:
        self.compensation: Final = compensation
        self.seq: Final = seq
        self.bound: Final = bound
        self.output: Final = output
        self.instance: Final = instance
        self.within: Final = within
        self._working: Final = working

    @property
    def goes_on(self) -> bool:
        return self._working is not None and self._working()

    def invocation(self, scope: Scope) -> Invocation:
        return self.compensation.invocation(scope, self.seq, self.bound, self.output, self.instance)
