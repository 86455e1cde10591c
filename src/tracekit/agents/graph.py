"""The graph of causes of a run's events, and whether two recordings have the same graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import (
    DuplicateEventError,
    EventCycleError,
    InvalidEventError,
    MissingParentError,
    UndecidedComparisonError,
)
from ..integration import canonical_json
from .view import Event, check_links, dump

__all__ = ["Difference", "Labelled", "Undecided", "alike", "compare", "ordered", "serialize"]

# -- graph matching ----------------------------------------------------------------------------------------------------------
#
# Whether two labelled graphs are isomorphic.
#
# Each node has a colour, a hash of its label; colours are refined by those of the neighbours until that distinguishes
# no more nodes (the Weisfeiler-Leman method). Nodes with equal colours are decided by search: the graphs are split into
# independent parts, in each part one node is paired with each possible node of the other graph, and refinement
# continues from there. *Equal* means that a pairing was found and checked edge by edge, *different* that every pairing
# was tried. The search is bounded; beyond that, the result is undecided.

#: The most nodes coloured in the search: some seconds.
MOST: Final = 1_000_000
#: The most colourings per node that the first refinement may take.
_FREE: Final = 100

Colours: TypeAlias = dict[int, bytes]


class Undecided(Exception):
    """The search for a pairing was given up: too many were possible."""


class Labelled:
    """A labelled graph: nodes in an order in which parents come first, each with a label, parents, and other links."""

    def __init__(
        self, labels: Sequence[bytes], parents: Sequence[Iterable[int]], links: Sequence[Iterable[tuple[int, int]]]
    ) -> None:
        self.labels: Final = labels
        self.parents: Final = [frozenset(found) for found in parents]
        self.links: Final = [frozenset(found) for found in links]
        self.children: Final[list[list[int]]] = [[] for _ in labels]
        self.linked: Final[list[list[tuple[int, int]]]] = [[] for _ in labels]
        for node, found in enumerate(self.parents):
            for parent in found:
                self.children[parent].append(node)
        for node, linked in enumerate(self.links):
            for kind, other in linked:
                self.linked[other].append((kind, node))

    def edges(self, nodes: Iterable[int]) -> Iterable[tuple[int, int, int]]:
        """Yield the edges from ``nodes``, as (from, kind, to)."""
        for node in nodes:
            for parent in self.parents[node]:
                yield node, -1, parent
            for kind, other in self.links[node]:
                yield node, kind, other


class _Work:
    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, nodes: int) -> None:
        self.left -= nodes
        if self.left < 0:
            raise Undecided


def alike(one: Labelled, other: Labelled, most: int = MOST) -> bool:
    """Return whether there is a pairing of nodes that preserves labels and edges.

    Raises ``Undecided`` after colouring ``most`` nodes in the search.
    """
    if len(one.labels) != len(other.labels):
        return False
    mine, theirs = (dict(enumerate(graph.labels)) for graph in (one, other))
    pairing = _paired(one, other, mine, theirs, _Work(most + _FREE * len(one.labels)))
    return pairing is not None and _holds(one, other, pairing)


def _holds(one: Labelled, other: Labelled, pairing: dict[int, int]) -> bool:
    return all(
        one.labels[node] == other.labels[there]
        and {pairing[parent] for parent in one.parents[node]} == other.parents[there]
        and {(kind, pairing[to]) for kind, to in one.links[node]} == other.links[there]
        for node, there in pairing.items()
    )


def _paired(one: Labelled, other: Labelled, mine: Colours, theirs: Colours, work: _Work) -> dict[int, int] | None:
    """Return a pairing of the nodes of ``mine`` with those of ``theirs`` that preserves colours and the edges between
    them."""
    mine, theirs = _refined(one, mine, work), _refined(other, theirs, work)
    if Counter(mine.values()) != Counter(theirs.values()):
        return None
    left = defaultdict(list)
    for part in _parts(other, theirs):
        left[_kind(part)].append(part)
    pairing: dict[int, int] = {}
    for part in _parts(one, mine):
        candidates = left[_kind(part)]
        for place, candidate in enumerate(candidates):
            found = _tried(one, other, part, candidate, work)
            if found is not None:
                # Isomorphism is an equivalence: pairing these parts can't rule out a later pair.
                del candidates[place]
                pairing.update(found)
                break
        else:
            return None
    return pairing


def _tried(one: Labelled, other: Labelled, mine: Colours, theirs: Colours, work: _Work) -> dict[int, int] | None:
    """Return a pairing of two parts, found by pairing one node of the rarest colour with each possible one."""
    counts = Counter(mine.values())
    if len(counts) == len(mine):
        there = {found: node for node, found in theirs.items()}
        return {node: there[found] for node, found in mine.items()}
    colour = min((found for found in counts if counts[found] > 1), key=lambda found: (counts[found], found))
    chosen = sha256(b"chosen" + colour).digest()
    node = next(node for node, found in mine.items() if found == colour)
    for candidate in [node for node, found in theirs.items() if found == colour]:
        found = _paired(one, other, {**mine, node: chosen}, {**theirs, candidate: chosen}, work)
        if found is not None:
            return found
    return None


def _kind(part: Colours) -> tuple[bytes, ...]:
    return tuple(sorted(part.values()))


def _refined(graph: Labelled, colours: Colours, work: _Work) -> Colours:
    """Return stable colours of the nodes in ``colours``: nodes with the same colour have neighbours of the same
    colours, within that set."""
    order = sorted(colours)
    classes = 0
    while (now := len(set(colours.values()))) > classes:
        classes = now
        work.spend(len(order))
        links = {
            node: [
                *(b"%d>" % kind + colours[to] for kind, to in graph.links[node] if to in colours),
                *(b"%d<" % kind + colours[to] for kind, to in graph.linked[node] if to in colours),
            ]
            for node in order
            if graph.links[node] or graph.linked[node]
        }
        down: Colours = {}
        for node in reversed(order):
            below = [down[child] for child in graph.children[node] if child in down]
            down[node] = mixed(colours[node], below, links.get(node, ()))
        up: Colours = {}
        for node in order:
            up[node] = mixed(down[node], [up[parent] for parent in graph.parents[node] if parent in up])
        colours = up
    return colours


def mixed(own: bytes, *others: Iterable[bytes]) -> bytes:
    """Return a colour from a node's own and groups of others, whose order does not count."""
    return sha256(own + b"|".join(b"".join(sorted(group)) for group in others)).digest()


def _parts(graph: Labelled, colours: Colours) -> list[Colours]:
    """Return the parts of a stably coloured graph that can be paired independently.

    Edges that join all nodes of one colour with all of another add no information to the colours, and connect nothing.
    """
    sizes = Counter(colours.values())
    inner = [(node, kind, to) for node, kind, to in graph.edges(colours) if to in colours]
    between = Counter((colours[node], kind, colours[to]) for node, kind, to in inner)
    head = {node: node for node in colours}

    def top(node: int) -> int:
        while head[node] != node:
            head[node] = node = head[head[node]]
        return node

    for node, kind, to in inner:
        if between[colours[node], kind, colours[to]] < sizes[colours[node]] * sizes[colours[to]]:
            head[top(node)] = top(to)
    parts: dict[int, Colours] = {}
    for node, colour in colours.items():
        parts.setdefault(top(node), {})[node] = colour
    return list(parts.values())


# -- graph -------------------------------------------------------------------------------------------------------------
#
# The graph of what caused what among events: its order, and whether two recordings of one workflow are the same.
#
# **Order.** An event comes after all its parents; if several could be next, the one with the lowest id is. Neither time
# stamps nor the order of lines matter: the same events give the same bytes.
#
# **Comparison.** Ids, times and places differ between recordings, so ``compare`` compares labels, causes, and the
# events that a payload mentions, as graphs (see above): both *equal* and *different* are proven, and if that would take
# too long it is an error. The order in which an event names its parents is not compared: a join that takes answers as
# they arrive is the same workflow.

#: The fields that differ between recordings of one workflow.
_INCIDENTAL: Final = frozenset(
    {"event_id", "timestamp_ns", "parent_event_id", "parent_event_ids", "payload_ref", "call_event_id", "payload"}
)
#: The most ids named in a message.
_NAMED: Final = 5


class _Graph:
    """The graph of events: parents and children by position; checked, except for cycles."""

    def __init__(self, found: Iterable[Event]) -> None:
        self.events: Final = list(found)
        for number, event in enumerate(self.events, 1):
            problem = check_links(event)
            if problem is not None:
                raise _invalid(number, problem)
        self.ids: Final[list[str]] = [event["event_id"] for event in self.events]
        self.places: Final = {event: place for place, event in enumerate(self.ids)}
        places = self.places
        if len(places) != len(self.ids):
            raise _duplicates(self.ids)
        missing: dict[str, str] = {}
        self.parents: Final[list[list[int]]] = []
        self.children: Final[list[list[int]]] = [[] for _ in self.ids]
        for place, event in enumerate(self.events):
            known = []
            for parent in dict.fromkeys(event["parent_event_ids"]):
                if parent in places:
                    known.append(places[parent])
                    self.children[places[parent]].append(place)
                else:
                    missing.setdefault(parent, self.ids[place])
            self.parents.append(known)
        if missing:
            raise _missing(missing)

    def order(self, keys: Sequence[Any]) -> list[int]:
        """Return positions in topological order; of those that could be next, the one with the lowest key."""
        waiting = list(map(len, self.parents))
        ready = [(keys[place], place) for place, count in enumerate(waiting) if not count]
        heapify(ready)
        found: list[int] = []
        while ready:
            place = heappop(ready)[1]
            found.append(place)
            for child in self.children[place]:
                waiting[child] -= 1
                if not waiting[child]:
                    heappush(ready, (keys[child], child))
        if len(found) != len(self.ids):
            raise self._circle(waiting)
        return found

    def _circle(self, waiting: list[int]) -> EventCycleError:
        """Return the error for a cycle among ``waiting``, found by following parents from any of them until one
        repeats."""
        place = next(place for place, count in enumerate(waiting) if count)
        seen: dict[int, int] = {}
        path: list[int] = []
        while place not in seen:
            seen[place] = len(path)
            path.append(place)
            place = next(parent for parent in self.parents[place] if waiting[parent])
        circle = [self.ids[one] for one in reversed(path[seen[place] :])]
        start = circle.index(min(circle))
        circle = circle[start:] + circle[:start]
        return EventCycleError(
            f"events are each other's causes: {_listed(circle)} and back again",
            ids=tuple(circle),
            next_action="export the runs again: nothing that happened can be so",
        )


def ordered(found: Iterable[Event]) -> list[Event]:
    """Return events in the order of their graph, ties broken by id.

    Raises ``DuplicateEventError``, ``MissingParentError`` or ``EventCycleError``, each with the ids, if there is no
    such order; ``InvalidEventError`` for anything that is not an event.
    """
    graph = _Graph(found)
    return [graph.events[place] for place in graph.order(graph.ids)]


def serialize(found: Iterable[Event]) -> bytes:
    """Return events as a file in the order of their graph: the same bytes for any input order. Raises like ``ordered``."""
    return dump(ordered(found))


# -- two recordings ------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """The first difference of two recordings: the first event of each, in order, that the other lacks.

    ``None`` if a recording has no such event. ``text`` describes it.
    """

    first: Event | None
    second: Event | None
    text: str

    def __str__(self) -> str:
        return self.text


def compare(first: Iterable[Event], second: Iterable[Event]) -> Difference | None:
    """Return ``None`` if two recordings are of the same workflow, else the first difference.

    Raises like ``ordered``, and ``UndecidedComparisonError`` if so many events look alike that the search was given up.
    """
    one, other = _Shape(_Graph(first)), _Shape(_Graph(second))
    try:
        if Counter(one.pasts) == Counter(other.pasts) and alike(one.labelled(), other.labelled()):
            return None
    except Undecided:
        raise UndecidedComparisonError(
            "whether the two recordings are of one workflow is undecided: they have the same events, most of which look alike, and too many"
            " pairings of them are possible",
            ids=(),
            next_action="let payloads or tasks distinguish equal events, or compare smaller parts",
        ) from None
    mine, theirs = one.beyond(other), other.beyond(one)
    return Difference(mine, theirs, _described(mine, theirs))


class _Shape:
    """The part of a graph that is the same in each recording of one workflow."""

    def __init__(self, graph: _Graph) -> None:
        self.graph: Final = graph
        self.labels: Final = [_label(event, graph.places) for event in graph.events]
        self.topological: Final = graph.order(graph.ids)
        #: For each event, the hash of its label and of all its ancestors.
        self.pasts: Final = [b""] * len(self.labels)
        for place in self.topological:
            self.pasts[place] = mixed(self.labels[place], [self.pasts[parent] for parent in graph.parents[place]])

    def labelled(self) -> Labelled:
        """Return the graph in topological order, with a node for each agent that has its run's name."""
        events, there = self.graph.events, {place: node for node, place in enumerate(self.topological)}
        nameless: dict[str, int] = {}
        links: list[list[tuple[int, int]]] = []
        for place in self.topological:
            event = events[place]
            mentioned = enumerate(event.get("mentions", ()), 1)
            linked = [(kind, there[self.graph.places[id]]) for kind, id in mentioned if id in self.graph.places]
            if event.get("agent_is_run"):
                linked.append((0, len(events) + nameless.setdefault(event["agent_id"], len(nameless))))
            links.append(linked)
        labels = [self.labels[place] for place in self.topological]
        parents = [[there[parent] for parent in self.graph.parents[place]] for place in self.topological]
        more = len(nameless)
        return Labelled([*labels, *[b"agent"] * more], [*parents, *[[]] * more], [*links, *[[]] * more])

    def beyond(self, other: _Shape) -> Event | None:
        """Return the first event, in graph order, that has no counterpart with the same past in the other recording."""
        left = Counter(other.pasts)
        for place in self.topological:
            if not left[self.pasts[place]]:
                return self.graph.events[place]
            left[self.pasts[place]] -= 1
        return None


def _label(event: Mapping[str, Any], places: Mapping[str, int]) -> bytes:
    compared = {key: value for key, value in event.items() if key not in _INCIDENTAL}
    if event.get("agent_is_run"):
        del compared["agent_id"]
    if "comparison_sha256" in event:
        del compared["payload_hash"], compared["payload_sha256"]
        # A mention of an event in this recording is a link; any other event is known only by its id.
        compared["mentions"] = [None if id in places else id for id in event.get("mentions", ())]
    return sha256(canonical_json(compared)).digest()


# -- texts ------------------------------------------------------------------------------------------------------------


def _described(first: Event | None, second: Event | None) -> str:
    if first is None and second is None:
        return "the same events, hanging together in another way: what two events share as a cause in one, they have apart in the other"
    return f"first:  {_event_text(first)}\nsecond: {_event_text(second)}"


def _event_text(event: Event | None) -> str:
    if event is None:
        return "nothing that the other does not have"
    about = {
        key: value
        for key, value in sorted(event.items())
        if key not in _INCIDENTAL and key not in ("event_type", "agent_id", "payload_sha256") and value is not None
    }
    facts = " ".join(f"{key}={value}" for key, value in about.items())
    return f"{event['event_type']} of {event['agent_id']} ({facts}), event {event['event_id']}"


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def _invalid(number: int, problem: str) -> InvalidEventError:
    return InvalidEventError(
        f"event {number} of those given is not an inter-agent event: {problem}",
        line=number,
        problem=problem,
        ids=(),
        next_action="give what events() or parse() returned; `tracekit schema inter-agent` prints what an event has to be",
    )


def _duplicates(ids: Sequence[str]) -> DuplicateEventError:
    twice = sorted(event for event, count in Counter(ids).items() if count > 1)
    return DuplicateEventError(
        f"there are several events with one id: {_listed(twice)}",
        ids=tuple(twice),
        next_action="remove the second copy of what was added twice",
    )


def _missing(missing: Mapping[str, str]) -> MissingParentError:
    ids = sorted(missing)
    shown = [f"{parent} (a parent of {missing[parent]})" for parent in ids]
    return MissingParentError(
        f"parents are not there: {_listed(shown)}",
        ids=tuple(ids),
        children=tuple(sorted(set(missing.values()))),
        next_action="put the events of all runs that exchanged messages together",
    )
