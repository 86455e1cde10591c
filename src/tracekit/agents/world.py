"""A world of objects that is what the log says of them.

::

    world = World()
    world.create("page-1", {"url": url, "status": "new"})
    world.patch("page-1", {"status": "done"})          # a JSON merge patch (RFC 7396)
    World.of(run).hash == world.hash                   # the same, from the trace alone

An object changes by events only: each is checked, then written down, then applied. What is refused is not on the log.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from .._canonical import dumps, from_json, to_json
from .._engine.gate import here
from ..errors import IntentionError, RunStateError, UnknownObjectError
from .intentions import Event, Ref, copied, json_object
from .ledger import Ledger

__all__ = ["World", "merge_patch"]


def merge_patch(target: Any, patch: Any) -> Any:
    """``target`` changed by a JSON merge patch (RFC 7396). Nothing that is given is changed; the result may share parts of it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


class World:
    """Objects by id, each a JSON object. Reading one gives a copy. ``name`` tells several worlds of one run apart: a second one of
    a name is a ``RunStateError`` when something is written of it.

    Change a world in one line of execution, that of its :class:`~tracekit.agents.Loop`: the order of the log is the order of events.
    A second loop in it at the same time is refused.
    """

    def __init__(self, name: str = "world") -> None:
        self.name: Final = name
        self.ledger: Final = Ledger(name)
        #: How many events made it what it is.
        self.changes = 0
        self._objects: Final[dict[str, Any]] = {}
        #: The same as the log has it, without secrets: the very same object where it had none.
        self._stored: Final[dict[str, Any]] = {}
        self._lock: Final = threading.RLock()
        self._in_a_loop = False

    # -- reading -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, id: str) -> dict[str, Any]:
        """A copy of an object; ``KeyError`` where there is none."""
        made: dict[str, Any] = copied(self._objects[id])
        return made

    def get(self, id: str) -> dict[str, Any] | None:
        """A copy of an object, or ``None``."""
        try:
            return self[id]
        except KeyError:
            return None

    def __contains__(self, id: object) -> bool:
        return id in self._objects

    def __iter__(self) -> Iterator[str]:
        """The ids, in the order in which the objects were created."""
        return iter(list(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def as_dict(self) -> dict[str, Any]:
        """A copy of all objects by id."""
        made: dict[str, Any] = copied(self._objects)
        return made

    @property
    def hash(self) -> str:
        """``sha256:`` and the hash of all objects in canonical form, as the log has them (without secrets)."""
        return "sha256:" + hashlib.sha256(dumps(to_json(self._stored))).hexdigest()

    def __repr__(self) -> str:
        return f"<World {self.name}: {len(self)} objects, {self.changes} events>"

    # -- events ------------------------------------------------------------------------------------------------------------

    def create(self, id: str, value: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Event:
        """Write down and make a new object. ``IntentionError`` where there is one of this id."""
        value = json_object(value, f"object {id!r}")
        if id in self._objects:
            raise IntentionError(
                f"object {id!r} is there already; it was not made again",
                next_action="patch it, or give the new one another id",
            )
        return self._change("object.created", id, {"value": value}, cause)

    def patch(self, id: str, patch: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Event:
        """Write down and apply a JSON merge patch. ``UnknownObjectError`` where there is no such object: nothing is written then."""
        patch = json_object(patch, f"the patch of {id!r}")
        self.needs(id, "a patch")
        return self._change("object.patched", id, {"patch": patch}, cause)

    def needs(self, id: str, what: str) -> None:
        """``UnknownObjectError`` unless the object is there."""
        if id not in self._objects:
            raise UnknownObjectError(
                f"{what} is for object {id!r}, and the world has no such object",
                object=id,
                next_action=f"create it first, or correct the id; there are {', '.join(map(repr, list(self)[:5])) or 'none'}",
            )

    def end(self) -> str:
        """Write down the hash of the world as it is now, and return it. A replay in which it is another one is a divergence."""
        digest = self.hash
        told = {"objects": len(self), "events": self.changes}
        self.ledger.write("data", self.name, "world.hash", input=told, output=digest)
        return digest

    @contextmanager
    def looping(self) -> Iterator[None]:
        """A block in which a loop changes this world. ``RunStateError`` while another does: the order of their events would be chance."""
        with self._lock:
            if self._in_a_loop:
                raise RunStateError(
                    f"another loop is running in the world {self.name!r}: in which order the two change it would be chance",
                    next_action="run them one after the other, give both sets of responders to one loop, or each loop a world",
                )
            self._in_a_loop = True
        try:
            yield
        finally:
            self._in_a_loop = False

    def _change(self, kind: str, id: str, body: dict[str, Any], cause: Ref | Event | None) -> Event:
        ref = cause.ref if isinstance(cause, Event) else cause
        with self._lock:
            about = {"world": self.name}
            itself = self.ledger.write("object.patched", id, kind, input=body, cause=ref, about=about)
            self.apply(id, body, _as_stored(body))
        return Event(kind, itself, ref, copied(body), id)

    def apply(self, id: str, body: dict[str, Any], stored: dict[str, Any] | None = None) -> None:
        """Let an event that is on the log have happened; ``stored`` is its body as the log has it, where that is another."""
        stored = body if stored is None else stored
        before, told = self._objects.get(id), self._stored.get(id)
        self._objects[id] = _after(before, body)
        same = stored is body and before is told
        self._stored[id] = self._objects[id] if same else _after(told, stored)
        self.changes += 1

    @classmethod
    def of(cls, run: Any, *, store: Any = None, name: str | None = None) -> World:
        """The world that a recorded run came to, from its trace alone: an id, a path or a ``Run``.

        Without a ``name`` it is the only one (an empty one where there is none). Raises ``RunStateError`` where there are several, or
        none of this name; ``RunNotFoundError``; ``TraceIntegrityError`` where the trace is damaged, or its world
        is not the one whose hash it says; ``DanglingCauseError`` where an event names a cause that is none.
        """
        from .projection import project

        return project(cls, getattr(run, "path", run), store, name)


def _after(before: Any, body: Mapping[str, Any]) -> Any:
    return merge_patch(before, body["patch"]) if "patch" in body else body["value"]


def _as_stored(body: dict[str, Any]) -> dict[str, Any]:
    """What the log keeps of an event's body; ``body`` itself where there is no secret in it."""
    scope = here()
    if scope is None:
        return body
    tree = to_json(body)
    if not scope.session.redactor.suspicious(dumps(tree)):
        return body
    told, redacted = scope.session.redactor.redact(tree)
    stored: dict[str, Any] = from_json(told) if redacted else body
    return stored
