"""The objects that agents change by patches, and their state at any point of a run."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

from ..errors import IntentionError, RunStateError, TraceIntegrityError, UnknownObjectError
from ..integration import Session, Store, Trace, canonical_json, from_json, here, meta_of, to_json
from .intentions import ANSWERS, EVENTS, FAILURES, Event, Ledger, Ref, check_cause, deep_copy, json_object

__all__ = ["Delivery", "Past", "World", "merge_patch", "past_of", "pending_requests", "project"]

# -- world -------------------------------------------------------------------------------------------------------------
#
# A set of objects whose state is determined by the log.
#
# ::
#
#     world = World()
#     world.create("page-1", {"url": url, "status": "new"})
#     world.patch("page-1", {"status": "done"})          # a JSON merge patch (RFC 7396)
#     World.of(run).hash == world.hash                   # the same, from the trace alone
#
# An object changes only by events: each is checked, then recorded, then applied. A refused one is not recorded.


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` changed by a JSON merge patch (RFC 7396). The arguments are not changed; the result may share
    parts with them."""
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
    """Objects by id, each a JSON object. Reading one returns a copy.

    ``name`` distinguishes several worlds of one run: writing to a second one with the same name raises
    ``RunStateError``. Change a world in one lane, that of its ``tracekit.agents.Loop``: the order of the log is the
    order of events. A second concurrent loop in it is refused.
    """

    def __init__(self, name: str = "world") -> None:
        self.name: Final = name
        self.ledger: Final = Ledger(name)
        #: The number of its events so far.
        self.changes = 0
        self._objects: Final[dict[str, Any]] = {}
        #: The objects as in the log, without secrets: the same object if it has none.
        self._stored: Final[dict[str, Any]] = {}
        self._lock: Final = threading.RLock()
        self._in_a_loop = False

    # -- reading -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, id: str) -> dict[str, Any]:
        """Return a copy of an object; raise ``KeyError`` if there is none."""
        made: dict[str, Any] = deep_copy(self._objects[id])
        return made

    def get(self, id: str) -> dict[str, Any] | None:
        """Return a copy of an object, or ``None``."""
        try:
            return self[id]
        except KeyError:
            return None

    def __contains__(self, id: object) -> bool:
        return id in self._objects

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids, in the order in which the objects were created."""
        return iter(list(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy of all objects by id."""
        made: dict[str, Any] = deep_copy(self._objects)
        return made

    @property
    def hash(self) -> str:
        """``sha256:`` and the hash of all objects in canonical form, as in the log (without secrets)."""
        return "sha256:" + hashlib.sha256(canonical_json(to_json(self._stored))).hexdigest()

    def __repr__(self) -> str:
        return f"<World {self.name}: {len(self)} objects, {self.changes} events>"

    # -- events ------------------------------------------------------------------------------------------------------------

    def create(self, id: str, value: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Event:
        """Record and create a new object. Raises ``IntentionError`` if the id exists."""
        value = json_object(value, f"object {id!r}")
        if id in self._objects:
            raise IntentionError(
                f"object {id!r} is there already; it was not made again",
                next_action="patch it, or give the new one another id",
            )
        return self._change("object.created", id, {"value": value}, cause)

    def patch(self, id: str, patch: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Event:
        """Record and apply a JSON merge patch. Raises ``UnknownObjectError`` if there is no such object: nothing is
        written then."""
        patch = json_object(patch, f"the patch of {id!r}")
        self.needs(id, "a patch")
        return self._change("object.patched", id, {"patch": patch}, cause)

    def needs(self, id: str, what: str) -> None:
        """Raise ``UnknownObjectError`` unless the object exists."""
        if id not in self._objects:
            raise UnknownObjectError(
                f"{what} is for object {id!r}, and the world has no such object",
                object=id,
                next_action=f"create it first, or correct the id; there are {', '.join(map(repr, list(self)[:5])) or 'none'}",
            )

    def end(self) -> str:
        """Record the hash of the present world, and return it. Another hash in a replay is a divergence."""
        digest = self.hash
        counts = {"objects": len(self), "events": self.changes}
        self.ledger.write("data", self.name, "world.hash", input=counts, output=digest)
        return digest

    @contextmanager
    def looping(self) -> Iterator[None]:
        """A block in which a loop changes this world. Raises ``RunStateError`` while another loop does: the order of
        their events would be random."""
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
        return Event(kind, itself, ref, deep_copy(body), id)

    def apply(self, id: str, body: dict[str, Any], stored: dict[str, Any] | None = None) -> None:
        """Apply a recorded event; ``stored`` is its recorded body, if that differs."""
        stored = body if stored is None else stored
        before, stored_before = self._objects.get(id), self._stored.get(id)
        self._objects[id] = _after(before, body)
        same = stored is body and before is stored_before
        self._stored[id] = self._objects[id] if same else _after(stored_before, stored)
        self.changes += 1

    @classmethod
    def of(cls, run: Any, *, store: Any = None, name: str | None = None) -> World:
        """Return the final world of a recorded run (an id, a path or a ``Run``), from its trace alone.

        Without a ``name`` it is the only one (an empty one if there is none). Raises ``RunStateError`` if there are
        several, or none of this name; ``RunNotFoundError``; ``TraceIntegrityError`` if the trace is damaged, or its
        world does not have the recorded hash; ``DanglingCauseError`` if an event names a cause that does not exist.
        """

        return project(cls, getattr(run, "path", run), store, name)


def _after(before: Any, body: Mapping[str, Any]) -> Any:
    return merge_patch(before, body["patch"]) if "patch" in body else body["value"]


def _as_stored(body: dict[str, Any]) -> dict[str, Any]:
    """Return what the log keeps of an event's body; ``body`` itself if there is no secret in it."""
    scope = here()
    if scope is None:
        return body
    stored: dict[str, Any] = scope.session.redactor.without_secrets(body)
    return stored


# -- projection --------------------------------------------------------------------------------------------------------
#
# A world and its requests, read from a trace.

_ANSWERS: Final = frozenset((*ANSWERS.values(), *FAILURES.values()))
#: All kinds of event.
_KINDS: Final = EVENTS | {*ANSWERS, "world.hash"}


class Delivery(NamedTuple):
    """The entry (``seq``) that passed a recorded answer to the responders, and its recorded facts."""

    seq: int
    info: Mapping[str, Any]


class Past(NamedTuple):
    """The recorded requests by ``seq``: their deliveries, and which of them were started."""

    deliveries: Mapping[int, Delivery]
    begun: Set[int]


def project(make: Callable[[str], World], run: Any, store: Any, name: str | None) -> World:
    """Return the world of this name in the trace of ``run``, or the only one, with all its events applied."""
    where = Store.at(store)
    with Trace(where.find(run)) as trace:
        where.check(trace)
        world = make(_name(trace, name))
        for entry, kind in _events(trace):
            seq = entry["seq"]
            if _world_of(entry) != world.name:
                continue
            if entry["type"] == "object.patched":
                body = from_json(trace.expand(entry["input"], before=seq))
                if kind == "object.patched":
                    world.needs(entry["name"], f"the patch in entry {seq}")
                world.apply(entry["name"], body)
            elif entry["output"] != world.hash:
                raise TraceIntegrityError(
                    f"the world {world.name!r} of {trace.path} is not the one whose hash entry {seq} has: {world.hash}",
                    step=seq,
                    recorded=entry["output"],
                    next_action="the trace was made by another program, or changed with its hashes; don't rely on it",
                )
    return world


def _world_of(entry: Mapping[str, Any]) -> str | None:
    """Return the name of the world that an entry is about; ``None`` for any other entry."""
    meta = meta_of(entry)
    if entry["type"] == "object.patched":
        return meta.get("world")
    return entry["name"] if entry["type"] == "data" and meta.get("event") == "world.hash" else None


def _name(trace: Trace, name: str | None) -> str:
    there = list(dict.fromkeys(found for found in map(_world_of, trace.entries()) if found is not None))
    if name is None and len(there) < 2:
        return there[0] if there else "world"
    if name is not None and name in there:
        return name
    names = ", ".join(map(repr, there)) or "none"
    raise RunStateError(
        f"the run has {len(there)} worlds" if name is None else f"the run has no world {name!r}",
        run_id=trace.status.run_id,
        next_action=f"name one of its worlds, World.of(run, name=…): {names}",
    )


def pending_requests(run: Any, *, store: Any = None) -> list[dict[str, Any]]:
    """Return the requests of a recorded run that have no answer, in order: ``{"seq", "kind", "name", "object", "by"}``.

    A run that was killed may have some; a run that ended cleanly has none, or names them in its error.
    """
    where = Store.at(store)
    found: dict[int, dict[str, Any]] = {}
    with Trace(where.find(getattr(run, "path", run))) as trace:
        where.check(trace)
        for entry, kind in _events(trace):
            if kind in ANSWERS:
                request = trace.expand(entry["output"], before=entry["seq"])
                found[entry["seq"]] = {
                    "seq": entry["seq"],
                    "kind": kind,
                    "name": request["name"],
                    "object": request["object"],
                    "by": entry["name"],
                }
            elif kind in _ANSWERS:
                found.pop(entry["meta"]["on"]["seq"], None)
    return list(found.values())


def _events(trace: Trace) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the entries that are events, and their kinds, with their causes checked."""
    kinds: dict[int, str] = {}
    run_id = trace.status.run_id
    for entry in trace.entries():
        meta = meta_of(entry)
        kind = meta.get("event")
        if kind not in _KINDS or entry["type"] not in ("decision", "object.patched", "data"):
            continue
        on = meta.get("on")
        causes = entry.get("cause") or [{}]
        if (
            on is None or causes[0].get("run_id") == run_id
        ):  # the new run of a partial replay names causes in its origin
            ref = None if on is None else Ref(on["type"], on["seq"], run_id)
            check_cause(kind, ref, None if ref is None else kinds.get(ref.seq))
        kinds[entry["seq"]] = kind
        yield entry, kind


class _Recorded:
    """What the log of a replay or of a resumed run says about its requests."""

    past: Past | None = None


def past_of(session: Session) -> Past:
    """Return the recorded requests in the log that answers this session; none if nothing does."""
    trace = session.log.trace
    if trace is None:
        return Past({}, frozenset())
    recorded = session.state.extras.of(_Recorded)
    if recorded.past is None:
        deliveries: dict[int, Delivery] = {}
        asked, begun = set[int](), set[int]()
        for entry in islice(trace.entries(), len(trace)):  # a resumed run may have added some in the meantime
            meta = meta_of(entry)
            kind = meta.get("event")
            if entry["type"] == "decision" and kind in ANSWERS:
                asked.add(entry["seq"])
            elif entry["type"] == "decision" and kind in _ANSWERS:
                deliveries[meta["on"]["seq"]] = Delivery(entry["seq"], meta.get("info") or {})
            elif entry.get("parent") in asked:
                begun.add(entry["parent"])
        recorded.past = Past(deliveries, begun)
    return recorded.past
