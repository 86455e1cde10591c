"""Responders: functions that look at an event and say what is to happen next. They decide, and do nothing.

::

    @responder("llm.response")
    def note_down(event, world):
        return patch(event.object, {"text": event.text, "status": "done"})

A responder runs in a replay, too, and must come to the same intentions there: what it reads is the event and the world (clock and dice
are captured as anywhere). A captured call inside one is refused before it happens, and so is whatever else reaches out of the process:
a connection, a look-up of a name, listening, another process.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from .._capture import callers
from .._capture.guard_attempts import Attempt
from .._engine.step import Spec
from ..errors import ContractViolationError, IntentionError
from .forbidding import forbidding
from .intentions import EVENTS, Event, Intention
from .ledger import deciding
from .world import World

__all__ = ["Responder", "responder"]

R = TypeVar("R", bound="Intention | Iterable[Intention] | None")


class Responder(Generic[R]):
    """A function that responds to events of some ``kinds``; with ``of``, only to those about this model, tool or object.

    It is called with the event, or with the event and the world.
    """

    def __init__(
        self, function: Callable[..., R], kinds: Iterable[str], *, of: str | None = None, name: str | None = None
    ) -> None:
        self.function: Final = function
        self.kinds: Final = tuple(kinds)
        self.of: Final = of
        self.name: Final = name or getattr(function, "__qualname__", type(function).__name__).split(".<locals>.")[-1]
        unknown = [kind for kind in self.kinds if kind not in EVENTS]
        if unknown or not self.kinds:
            raise IntentionError(
                f"responder {self.name!r} responds to {unknown[0]!r}, which is no kind of event"
                if unknown
                else f"responder {self.name!r} responds to nothing",
                next_action=f"name one of {', '.join(sorted(EVENTS))}",
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise IntentionError(
                f"responder {self.name!r} is a coroutine function: it would wait for something that happens",
                next_action="let it return an intention; an executor does it and may be async",
            )
        self._wants_world: Final = _wants_world(self.name, function)
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:  # what reads the clock in there is the program's own code
            callers.include(code.co_filename)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The plain function, for tests of it: nothing of what it returns is done."""
        return self.function(*args, **kwargs)

    def responds_to(self, event: Event) -> bool:
        if event.kind not in self.kinds:
            return False
        about = event.object if event.request is None else event.request.name
        return self.of is None or self.of == about

    def decide(self, event: Event, world: World) -> list[Intention]:
        """What it intends on this event. ``IntentionError`` for what is no intention."""
        token = deciding.set(self.name)
        try:
            with forbidding(self._forbidden, reach=self._reached):
                said: Any = self.function(event, world) if self._wants_world else self.function(event)
                found = [said] if isinstance(said, Intention) else [] if said is None else self._all(said)
        finally:
            deciding.reset(token)
        return found

    def _all(self, said: Any) -> list[Intention]:
        found = list(said) if isinstance(said, Iterable) and not isinstance(said, str | bytes | dict) else [said]
        for one in found:
            if not isinstance(one, Intention):
                raise IntentionError(
                    f"responder {self.name!r} returned {one!r:.80}, which is no intention",
                    next_action="return what `ask`, `call`, `create` and `patch` make: one, several, or None",
                )
        return found

    def _forbidden(self, spec: Spec) -> ContractViolationError | None:
        if spec.structural:
            return None
        return ContractViolationError(
            f"responder {self.name!r} called {spec.family} {spec.name!r} by itself; it was not executed",
            next_action="let it return `call(…)` or `ask(…)`, and an executor do it",
        )

    def _reached(self, attempt: Attempt, location: str | None) -> ContractViolationError:
        return ContractViolationError(
            f"responder {self.name!r} reached out of the process by itself ({attempt.operation} {attempt.text}); it was not done",
            location=location,
            next_action="let it return `call(…)` or `ask(…)`, and an executor do it",
        )

    @property
    def reads(self) -> str:
        """What it responds to, in words."""
        return ", ".join(self.kinds) + ("" if self.of is None else f" of {self.of!r}")

    def __repr__(self) -> str:
        return f"<responder {self.name} to {self.reads}>"


def responder(
    *kinds: str, of: str | None = None, name: str | None = None
) -> Callable[[Callable[..., R]], Responder[R]]:
    """Make a function respond to events: ``"llm.response"``, ``"llm.error"``, ``"tool.return"``, ``"tool.error"``, ``"object.created"``,
    ``"object.patched"``. ``of`` narrows it to one model, tool or object.

    The function takes the event, or event and world, and returns an intention, several, or ``None``; a generator yields them. It is no
    coroutine function.
    """

    def decorate(function: Callable[..., R]) -> Responder[R]:
        return Responder(function, kinds, of=of, name=name)

    return decorate


def _wants_world(name: str, function: Callable[..., Any]) -> bool:
    """Whether it is called with the world, too: it can't do without a second argument, or has one of that name."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [one for one in signature.parameters.values() if one.kind in places]
    for wants in (len(taken) > 1 and taken[1].name == "world", False, True):
        try:
            signature.bind(*range(1 + wants))
        except TypeError:
            continue
        return wants
    raise IntentionError(
        f"responder {name!r} takes {signature}, and is called with the event, or with the event and the world",
        next_action="write it as `def respond(event, world): …`",
    )
