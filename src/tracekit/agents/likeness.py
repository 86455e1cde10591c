"""Whether two labelled graphs are the same but for the names of their nodes.

Each node has a colour, a hash of its label; colours are refined by those of its neighbours until that tells no more of them apart
(Weisfeiler and Leman's method). What then still looks alike is settled by trying: the graphs fall into parts that no longer
influence each other, and in each part one node is paired with each of the other graph's that it could be, and refinement goes on from
there. *Equal* is a pairing that was checked edge by edge, *different* that every one was tried. The tries are bounded: beyond, it is
undecided.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

__all__ = ["Labelled", "Undecided", "alike"]

#: How many nodes may be coloured while trying: some seconds.
MOST: Final = 1_000_000
#: For each node, what the first refinement may take.
_FREE: Final = 100

Colours: TypeAlias = dict[int, bytes]


class Undecided(Exception):
    """Too many pairings were possible."""


class Labelled:
    """Nodes in an order in which parents come first; each has a label, parents, and links of other kinds to any nodes."""

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
        """From, kind, to."""
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
    """Whether there is a pairing of nodes that keeps labels and edges. :class:`Undecided` beyond ``most`` nodes coloured in trying."""
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
    """A pairing of the nodes of ``mine`` with those of ``theirs`` that keeps colours and the edges among them."""
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
                # Likeness is an equivalence: no later part is wronged by taking this one.
                del candidates[place]
                pairing.update(found)
                break
        else:
            return None
    return pairing


def _tried(one: Labelled, other: Labelled, mine: Colours, theirs: Colours, work: _Work) -> dict[int, int] | None:
    """A pairing of two parts, by pairing one node of the rarest colour with each that it could be."""
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
    """Stable colours of the nodes in ``colours``: two of one colour have neighbours of the same colours, as far as those are among them."""
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
    """A colour from a node's own and groups of others, whose order does not count."""
    return sha256(own + b"|".join(b"".join(sorted(group)) for group in others)).digest()


def _parts(graph: Labelled, colours: Colours) -> list[Colours]:
    """The parts of a stably coloured graph that can be paired one by one: edges that join all of one colour with all of another say no more
    than the colours do, and hold nothing together."""
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
