"""What a trace says of a world, and of the requests in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from .._canonical import from_json
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import TraceIntegrityError
from .intentions import ANSWERS, EVENTS, FAILURES, Ref
from .ledger import check_cause

if TYPE_CHECKING:
    from .world import World

__all__ = ["Delivery", "deliveries", "pending_requests", "project"]

_ANSWERS: Final = frozenset((*ANSWERS.values(), *FAILURES.values()))
#: Every kind of event that a trace may have.
_KINDS: Final = EVENTS | {*ANSWERS, "world.hash"}


class Delivery(NamedTuple):
    """When a recorded answer was given to the responders (the ``seq`` of that), and what was said of it."""

    seq: int
    info: Mapping[str, Any]


def project(world: World, run: Any, store: Any) -> None:
    """Let everything in the trace of ``run`` that is about ``world`` happen in it."""
    where = store if isinstance(store, Store) else Store(store)
    with Trace(where.find(run)) as trace:
        where.check(trace)
        for entry, kind in _events(trace):
            seq = entry["seq"]
            if entry["type"] == "object.patched" and entry["meta"].get("world") == world.name:
                body = from_json(trace.expand(entry["input"], before=seq))
                if kind == "object.patched":
                    world.needs(entry["name"], f"the patch in entry {seq}")
                world.apply(entry["name"], body)
            elif kind == "world.hash" and entry["name"] == world.name and entry["output"] != world.hash:
                raise TraceIntegrityError(
                    f"the world {world.name!r} of {trace.path} is not the one whose hash entry {seq} has: {world.hash}",
                    step=seq,
                    recorded=entry["output"],
                    next_action="the trace was made by another program, or changed with its hashes; don't rely on it",
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


_known: WeakKeyDictionary[Trace, dict[int, Delivery]] = WeakKeyDictionary()


def deliveries(trace: Trace) -> dict[int, Delivery]:
    """When the log gave which request's answer to the responders, by the request's ``seq``."""
    found = _known.get(trace)
    if found is None:
        found = _known[trace] = {}
        for entry in islice(trace.entries(), len(trace)):  # a resumed run may have added some by now
            meta = entry.get("meta") or {}
            if entry["type"] == "decision" and meta.get("event") in _ANSWERS:
                found[meta["on"]["seq"]] = Delivery(entry["seq"], meta.get("info") or {})
    return found
