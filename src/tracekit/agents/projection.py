"""What a trace says of a world, and of the requests in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from .._canonical import from_json
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import RunStateError, TraceIntegrityError
from .intentions import ANSWERS, EVENTS, FAILURES, Ref
from .ledger import check_cause

if TYPE_CHECKING:
    from .world import World

__all__ = ["Delivery", "Past", "past_of", "pending_requests", "project"]

_ANSWERS: Final = frozenset((*ANSWERS.values(), *FAILURES.values()))
#: Every kind of event that a trace may have.
_KINDS: Final = EVENTS | {*ANSWERS, "world.hash"}


class Delivery(NamedTuple):
    """When a recorded answer was given to the responders (the ``seq`` of that), and what was said of it."""

    seq: int
    info: Mapping[str, Any]


class Past(NamedTuple):
    """What a log says of requests, by the ``seq`` of each: its delivery, and whether anything was done for it at all."""

    deliveries: Mapping[int, Delivery]
    begun: Set[int]


def project(make: Callable[[str], World], run: Any, store: Any, name: str | None) -> World:
    """The world of this name in the trace of ``run``, or the only one, with everything that happened in it."""
    where = store if isinstance(store, Store) else Store(store)
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
    """The name of the world that an entry is about; ``None`` for any other entry."""
    meta = entry.get("meta") or {}
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
    """The requests of a recorded run that have no answer, in order: ``{"seq", "kind", "name", "object", "by"}``.

    A run that was killed may have some; a run that ended in order has none, or says in its error which.
    """
    where = store if isinstance(store, Store) else Store(store)
    found: dict[int, dict[str, Any]] = {}
    with Trace(where.find(getattr(run, "path", run))) as trace:
        where.check(trace)
        for entry, kind in _events(trace):
            if kind in ANSWERS:
                told = trace.expand(entry["output"], before=entry["seq"])
                found[entry["seq"]] = {
                    "seq": entry["seq"],
                    "kind": kind,
                    "name": told["name"],
                    "object": told["object"],
                    "by": entry["name"],
                }
            elif kind in _ANSWERS:
                found.pop(entry["meta"]["on"]["seq"], None)
    return list(found.values())


def _events(trace: Trace) -> Iterator[tuple[dict[str, Any], str]]:
    """The entries that are events, and their kinds, their causes checked."""
    kinds: dict[int, str] = {}
    run_id = trace.status.run_id
    for entry in trace.entries():
        meta = entry.get("meta") or {}
        kind = meta.get("event")
        if kind not in _KINDS or entry["type"] not in ("decision", "object.patched", "data"):
            continue
        on = meta.get("on")
        causes = entry.get("cause") or [{}]
        if (
            on is None or causes[0].get("run_id") == run_id
        ):  # the new run of a what-if names causes of the one it comes from
            ref = None if on is None else Ref(on["type"], on["seq"], run_id)
            check_cause(kind, ref, None if ref is None else kinds.get(ref.seq))
        kinds[entry["seq"]] = kind
        yield entry, kind


_known: WeakKeyDictionary[Trace, Past] = WeakKeyDictionary()


def past_of(trace: Trace) -> Past:
    """What the log of a replay, or of a run that is resumed, says of requests."""
    found = _known.get(trace)
    if found is None:
        given: dict[int, Delivery] = {}
        asked, begun = set[int](), set[int]()
        for entry in islice(trace.entries(), len(trace)):  # a resumed run may have added some by now
            meta = entry.get("meta") or {}
            kind = meta.get("event")
            if entry["type"] == "decision" and kind in ANSWERS:
                asked.add(entry["seq"])
            elif entry["type"] == "decision" and kind in _ANSWERS:
                given[meta["on"]["seq"]] = Delivery(entry["seq"], meta.get("info") or {})
            elif entry.get("parent") in asked:
                begun.add(entry["parent"])
        found = _known[trace] = Past(given, begun)
    return found
