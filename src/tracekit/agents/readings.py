"""Who reads what happens in a loop, and what nobody read: an answer that goes unread is a name that is wrong, or a responder that is
missing, and the agent would wait for it without a word."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

from .._engine.gate import here
from ..errors import UnreadEventsError
from .intentions import Event
from .responders import Responder
from .world import World

__all__ = ["Readings"]

#: How many events are told by name.
_TOLD: Final = 10


class Readings:
    """What the ``responders`` of one run of a loop read."""

    def __init__(self, world: World, responders: Sequence[Responder[Any]]) -> None:
        self._world: Final = world
        self._responders: Final = responders
        self._unread: Final[list[Event]] = []

    def __bool__(self) -> bool:
        """Whether anybody reads at all."""
        return bool(self._responders)

    def of(self, event: Event) -> list[Responder[Any]]:
        """The responders that are to read an event, in order."""
        readers = [responder for responder in self._responders if responder.responds_to(event)]
        if not readers:
            self._unread.append(event)
        return readers

    def has(self, failure: Event) -> bool:
        """Whether a failure has a reader. Where some read failures of its kind, and not this one, its exception says so."""
        if any(responder.responds_to(failure) for responder in self._responders):
            return True
        if failure.error is not None and any(failure.kind in responder.kinds for responder in self._responders):
            note = f"no responder reads {failure}; the responders read: {self._told()}"
            if note not in getattr(failure.error, "__notes__", ()):
                failure.error.add_note(note)
        return False

    def check(self) -> None:
        """``UnreadEventsError`` where an answer has no reader, unless there are no responders at all: the program reads it then.

        Nobody has to read that an object was made or changed; a responder to that of an object which never was is warned of.
        """
        answers = [event for event in self._unread if event.request is not None]
        if answers and self._responders:
            more = f" and {len(answers) - _TOLD} more" if len(answers) > _TOLD else ""
            scope = here()
            raise UnreadEventsError(
                f"no responder reads {', '.join(map(str, answers[:_TOLD]))}{more}; the responders read: {self._told()}",
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
                    f"nobody read what happened to {', '.join(sorted(self._passed_by(responder))[:_TOLD])}"
                )

    def _passed_by(self, responder: Responder[Any]) -> set[str]:
        return {repr(event.object) for event in self._unread if event.kind in responder.kinds}

    def _told(self) -> str:
        return "; ".join(f"{one.name}: {one.reads}" for one in self._responders)


def _warn(sentence: str) -> None:
    """Tell it as a warning: of the run, where one is recorded. A replay has it in its recording."""
    scope = here()
    if scope is None:
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    elif hasattr(scope.session, "warn"):
        scope.session.warn(sentence)
