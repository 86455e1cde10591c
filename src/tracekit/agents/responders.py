"""Responders: functions that react to what happens in a loop, and must not act on the live world."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from ..errors import ContractViolationError, IntentionError, UnreadEventsError
from ..integration import Attempt, Spec, forbidding, here, own_code, signature_of
from .intentions import EVENTS, Event, Intention, deciding
from .world import World

__all__ = ["Readings", "Responder", "responder"]

# -- responders --------------------------------------------------------------------------------------------------------
#
# Functions that look at an event and return what is to happen next. They have no effects themselves.
#
# ::
#
#     @responder("llm.response")
#     def note_down(event, world):
#         return patch(event.object, {"text": event.text, "status": "done"})
#
# A responder also runs in a replay, and must return the same intentions there: it reads the event and the world (clock
# and random numbers are captured as everywhere). A captured call inside one is refused before it happens, and so is
# everything else that leaves the process: a connection, a name look-up, listening, another process.

R = TypeVar("R", bound="Intention | Iterable[Intention] | None")


class Responder(Generic[R]):
    """A function that responds to events of some ``kinds``; with ``of``, only to those about this model, tool or
    object.

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
                f"responder {self.name!r} responds to {unknown[0]!r}, which is not a kind of event"
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
        own_code(function)  # its clock reads belong to the program
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Call the plain function, for tests: the intentions that it returns are not executed."""
        return self.function(*args, **kwargs)

    def responds_to(self, event: Event) -> bool:
        if event.kind not in self.kinds:
            return False
        about = event.object if event.request is None else event.request.name
        return self.of is None or self.of == about

    def decide(self, event: Event, world: World) -> list[Intention]:
        """Return its intentions for an event. Raises ``IntentionError`` for anything else that it returns."""
        token = deciding.set(self.name)
        try:
            with forbidding(self._forbidden, reach=self._reached):
                returned: Any = self.function(event, world) if self._wants_world else self.function(event)
                found = (
                    [returned] if isinstance(returned, Intention) else [] if returned is None else self._all(returned)
                )
        finally:
            deciding.reset(token)
        return found

    def _all(self, returned: Any) -> list[Intention]:
        found = (
            list(returned)
            if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | dict)
            else [returned]
        )
        for one in found:
            if not isinstance(one, Intention):
                raise IntentionError(
                    f"responder {self.name!r} returned {one!r:.80}, which is not an intention",
                    next_action="return what `ask`, `call`, `create` and `patch` make: one, several, or None",
                )
        return found

    def _forbidden(self, spec: Spec) -> ContractViolationError | None:
        if spec.structural:
            return None
        return ContractViolationError(
            f"responder {self.name!r} called {spec.family} {spec.name!r} directly; it was not executed",
            next_action="let it return `call(…)` or `ask(…)`, and an executor do it",
        )

    def _reached(self, attempt: Attempt, location: str | None) -> ContractViolationError:
        return ContractViolationError(
            f"responder {self.name!r} reached outside of the process directly ({attempt.operation} {attempt.text}); it was not done",
            location=location,
            next_action="let it return `call(…)` or `ask(…)`, and an executor do it",
        )

    @property
    def reads(self) -> str:
        """Return a text for messages: the events that it responds to."""
        return ", ".join(self.kinds) + ("" if self.of is None else f" of {self.of!r}")

    def __repr__(self) -> str:
        return f"<responder {self.name} to {self.reads}>"


def responder(
    *kinds: str, of: str | None = None, name: str | None = None
) -> Callable[[Callable[..., R]], Responder[R]]:
    """Make a function respond to events.

    ``kinds`` are any of ``"llm.response"``, ``"llm.error"``, ``"tool.return"``, ``"tool.error"``, ``"object.created"``,
    ``"object.patched"``; ``of`` restricts them to one model, tool or object. The function takes the event, or event and
    world, and returns an intention, several, or ``None``; a generator yields them. It must not be a coroutine function.
    """

    def decorate(function: Callable[..., R]) -> Responder[R]:
        return Responder(function, kinds, of=of, name=name)

    return decorate


def _wants_world(name: str, function: Callable[..., Any]) -> bool:
    """Return whether it takes the world, too: it has a second required parameter, or one of that name."""
    try:
        signature = signature_of(function)
    except ValueError:  # a builtin without a readable signature
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


# -- unread events ----------------------------------------------------------------------------------------------------------
#
# Which responders read which events of a loop. An unread answer means a wrong name or a missing responder, and the
# agent would wait for it silently.

#: The most events named in a message.
_MAX_NAMED: Final = 10


class Readings:
    """The events of one run of a loop that its ``responders`` read."""

    def __init__(self, world: World, responders: Sequence[Responder[Any]]) -> None:
        self._world: Final = world
        self._responders: Final = responders
        self._unread: Final[list[Event]] = []

    def __bool__(self) -> bool:
        """Return whether there are any responders."""
        return bool(self._responders)

    def of(self, event: Event) -> list[Responder[Any]]:
        """Return the responders for an event, in order."""
        readers = [responder for responder in self._responders if responder.responds_to(event)]
        if not readers:
            self._unread.append(event)
        return readers

    def has(self, failure: Event) -> bool:
        """Return whether a responder reads a failure. If some read its kind, but not this one, add a note to its
        exception."""
        if any(responder.responds_to(failure) for responder in self._responders):
            return True
        if failure.error is not None and any(failure.kind in responder.kinds for responder in self._responders):
            note = f"no responder reads {failure}; the responders read: {self._read_kinds()}"
            if note not in getattr(failure.error, "__notes__", ()):
                failure.error.add_note(note)
        return False

    def check(self) -> None:
        """Raise ``UnreadEventsError`` if no responder reads an answer, unless there are no responders: then the program
        reads it.

        Events of objects need no reader; a responder for an object that never existed is a warning.
        """
        answers = [event for event in self._unread if event.request is not None]
        if answers and self._responders:
            more = f" and {len(answers) - _MAX_NAMED} more" if len(answers) > _MAX_NAMED else ""
            scope = here()
            raise UnreadEventsError(
                f"no responder reads {', '.join(map(str, answers[:_MAX_NAMED]))}{more}; the responders read: {self._read_kinds()}",
                run_id=None if scope is None else scope.session.run_id,
                unread=[event.about() for event in answers],
                next_action="correct `of=`, or add a responder (one that returns None reads it, too); where the program itself reads "
                "`outcome.answers`, say Loop(…, unread='ok')",
            )
        self._check_objects()

    def _check_objects(self) -> None:
        kinds = {event.kind for event in self._unread if event.request is None}
        for responder in self._responders:
            if responder.of is not None and responder.of not in self._world and kinds.intersection(responder.kinds):
                _warn(
                    f"responder {responder.name!r} reads {responder.reads}, and the world {self._world.name!r} has no such object; "
                    f"nothing read the changes of {', '.join(sorted(self._passed_by(responder))[:_MAX_NAMED])}"
                )

    def _passed_by(self, responder: Responder[Any]) -> set[str]:
        return {repr(event.object) for event in self._unread if event.kind in responder.kinds}

    def _read_kinds(self) -> str:
        return "; ".join(f"{one.name}: {one.reads}" for one in self._responders)


def _warn(sentence: str) -> None:
    """Warn: on the run if one is recorded, else with a Python warning. A replay has the warning in its recording."""
    scope = here()
    if scope is None:
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    elif scope.session.state.live:
        scope.session.report.warn(sentence)
