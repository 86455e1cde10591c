"""Makes the tables of the compiled quick look for secrets: the expressions of ``tracekit._runtime.secrets``, taken apart.

``hatch_build.py`` runs it when it compiles ``secrets.c``, which includes what this writes. Each expression is a graph of nodes, which
``secrets.c`` walks through from each place where one may begin. The nodes say what the expression says, so that both find the same. What
makes them quick is added here: of alternatives only those are tried that can begin with the next two characters, and an expression only
where its first three can stand.

It needs nothing but Python and the sources beside it: ``python -I tools/secret_tables.py FILE``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from tracekit._runtime import secrets

#: Bytes, and what four control characters are in a text: blanks there, and none in bytes.
_SYMBOLS: Final = 260
_IN_TEXTS: Final = {0x1C: 256, 0x1D: 257, 0x1E: 258, 0x1F: 259}
#: What stands behind the last character.
_END: Final = _SYMBOLS

#: How often, where there is no most.
_WITHOUT_END: Final = 0xFFFF

#: A set of symbols, a bit each.
Symbols = int
Node = tuple[Any, ...]


def _set(several: Iterable[int]) -> Symbols:
    return sum(1 << one for one in set(several))


_ALL: Final = _set(range(_SYMBOLS))
_EVERYTHING: Final = _ALL | 1 << _END
_BLANKS: Final = _set([*b" \t\n\r\f\v", *_IN_TEXTS.values()])


def _literal(code: int) -> Symbols:
    return _set([code, _IN_TEXTS[code]] if code in _IN_TEXTS else [code])


def _members(items: Sequence[tuple[Any, Any]]) -> Symbols:
    """What a set of characters has in it."""
    found: Symbols = 0
    negated = False
    for op, value in items:
        if op is sre.NEGATE:
            negated = True
        elif op is sre.LITERAL:
            found |= _literal(value)
        elif op is sre.RANGE:
            for code in range(value[0], value[1] + 1):
                found |= _literal(code)
        elif op is sre.CATEGORY and value is sre.CATEGORY_SPACE:
            found |= _BLANKS
        elif op is sre.CATEGORY and value is sre.CATEGORY_NOT_SPACE:
            found |= _ALL & ~_BLANKS
        else:
            raise NotImplementedError(f"{op} {value} in a set")
    return _ALL & ~found if negated else found


def _single(op: Any, value: Any) -> Symbols | None:
    """The characters that one element of an expression stands for, where it is for a single one."""
    if op is sre.LITERAL:
        return _literal(value)
    if op is sre.NOT_LITERAL:
        return _ALL & ~_literal(value)
    if op is sre.ANY:
        return _ALL & ~_literal(ord("\n"))
    return _members(value) if op is sre.IN else None


def _need(holds: bool, what: str) -> None:
    """Whatever the tables can't say is not compiled: ``NotImplementedError``."""
    if not holds:
        raise NotImplementedError(what)


class Graph:
    """Nodes of all expressions, each once: what has to match at a place, and which node goes on.

    Nodes are numbers. ``FAIL`` matches nothing; the first of the others ends a match.
    """

    FAIL: Final = 0

    def __init__(self) -> None:
        self.nodes: Final[list[Node]] = [("fail",)]
        self._numbers: Final[dict[Node, int]] = {}
        self._at: Final[dict[tuple[int, int], Symbols]] = {}
        self._behind: Final[dict[tuple[int, int], Symbols]] = {}
        self._known: Final[dict[tuple[int, int], tuple[int, Symbols]]] = {}

    def node(self, *node: Any) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    # -- what an expression says

    def expression(self, pattern: str) -> int:
        tree = _parser.parse(pattern.encode())
        self._groups = {number: name for name, number in tree.state.groupdict.items()}
        return self._all(list(tree), self.node("match", 0))

    def _all(self, items: Sequence[tuple[Any, Any]], after: int) -> int:
        for op, value in reversed(items):
            after = self._one(op, value, after)
        return after

    def _one(self, op: Any, value: Any, after: int) -> int:
        symbols = _single(op, value)
        if symbols is not None:
            return self.node("set", symbols, after)
        if op is sre.SUBPATTERN:
            number, added, taken, items = value
            _need(not added and not taken, "flags inside an expression")
            if number is None:
                return self._all(items, after)
            # Which of its empty groups is the last one to match says what is left to decide.
            _need(not len(items) and self.nodes[after] == ("match", 0), "a group with something in it, or behind it")
            return self.node("match", 1 if self._groups[number].startswith("field_") else 2)
        if op is sre.BRANCH:
            return self._alternatives([self._all(list(items), after) for items in value[1]])
        if op in (sre.MAX_REPEAT, sre.POSSESSIVE_REPEAT):
            return self._repeated(op, value, after)
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            return self._assertion(op is sre.ASSERT_NOT, value, after)
        if op is sre.ATOMIC_GROUP:
            return self.node("atomic", self._all(list(value), self.node("match", 0)), after)
        if op is sre.AT and value is sre.AT_END_STRING:
            return self.node("end", after)
        raise NotImplementedError(f"{op} {value}")

    def _repeated(self, op: Any, value: Any, after: int) -> int:
        least, most, items = value
        symbols = _single(*items[0]) if len(items) == 1 else None
        if most is sre.MAXREPEAT:
            _need(symbols is not None, "an endless repetition of more than a character")
            most = _WITHOUT_END
        if symbols is not None:
            # Where what follows can't begin with one of them, none of them is ever given back.
            greedy = op is sre.POSSESSIVE_REPEAT or least == most or not symbols & self.at(after, 0)
            kind = "most" if greedy else "repeat"
            return self.node(kind, symbols, least, most, after)
        _need(op is sre.MAX_REPEAT and (most == 1 or items.getwidth()[0] > 0), "a repetition of nothing")
        found = after
        for number in range(most, 0, -1):
            once = self._all(list(items), found)
            found = once if number <= least else self._alternatives([once, after])
        return found

    def _assertion(self, negated: bool, value: Any, after: int) -> int:
        direction, items = value
        ends = self.node("match", 0)
        if direction > 0:
            inner = self._all(list(items), ends)
            if self.nodes[inner][0] == "set" and self.nodes[inner][2] == ends:
                symbols = self.nodes[inner][1]
                return self.node("is", _EVERYTHING & ~symbols if negated else symbols, after)
            return self._alternatives([self.node("ahead", negated, inner, after)])
        return self.node("behind", negated, self._backwards(list(items), ends), after)

    def _backwards(self, items: Sequence[tuple[Any, Any]], after: int) -> int:
        """What stands before a place, from the last character to the first."""
        for op, value in items:
            symbols = _single(op, value)
            if symbols is not None:
                after = self.node("before_is", symbols, after)
            elif op is sre.MAX_REPEAT and value[0] == value[1]:
                for _ in range(value[0]):
                    after = self._backwards(list(value[2]), after)
            elif op is sre.BRANCH:
                after = self._of_trie([self._backwards(list(one), after) for one in value[1]])
            elif op is sre.SUBPATTERN and value[0] is None:
                after = self._backwards(list(value[3]), after)
            else:
                raise NotImplementedError(f"{op} {value} before a place")
        return after

    # -- what makes it quick

    def _alternatives(self, several: Sequence[int]) -> int:
        """The first of ``several`` that matches: only those are tried that can begin with the next character."""
        several = self._together(several)
        if len(several) == 1 and self.nodes[several[0]][0] != "ahead":
            return several[0]
        targets = []
        for symbol in range(_SYMBOLS + 1):
            way, second = self._any_given(several, symbol)
            targets.append(way if second == _EVERYTHING else self.node("second", second, way))
        return self.node("switch", tuple(targets))

    def _any_given(self, several: Iterable[int], first: int) -> tuple[int, Symbols]:
        """Which node is left of ``several`` where the next character is known, and what can stand behind that."""
        ways = [way for number in several if (way := self._given(number, first))[0] != self.FAIL]
        second = 0
        for _, symbols in ways:
            second |= symbols
        return self._chain(
            [way if symbols == second else self.node("second", symbols, way) for way, symbols in ways]
        ), second

    def _given(self, number: int, first: int) -> tuple[int, Symbols]:
        """A node without what is decided where the next character is known, and what can stand behind that."""
        found = self._known.get((number, first))
        if found is None:
            found = self._known[number, first] = self._without(number, first)
        return found

    def _without(self, number: int, first: int) -> tuple[int, Symbols]:
        node = self.nodes[number]
        kind = node[0]
        if not self.at(number, 0) >> first & 1:
            return self.FAIL, 0
        if kind == "switch":
            return self._given(node[1][first], first)
        if kind == "is":
            return self._given(node[2], first)
        if kind in ("repeat", "most") and node[2] == 0 and not node[1] >> first & 1:
            return self._given(node[4], first)
        if kind == "second":
            after, second = self._given(node[2], first)
            return after, second & node[1]
        if kind == "either":
            return self._any_given(node[1:], first)
        if kind == "ahead":
            _, negated, inner, after = node
            after, second = self._given(after, first)
            if not negated:
                return self.node("ahead", False, inner, after), second & self.behind(inner, first)
            if not self.at(inner, 0) >> first & 1:
                return after, second
            refused = self._both(inner)
            if refused is not None:
                return after, second & ~refused
            return self.node("ahead", True, inner, after), second
        if kind == "behind":
            after, second = self._given(node[3], first)
            return self.node("behind", node[1], node[2], after), second
        return number, self.behind(number, first)

    def _both(self, number: int) -> Symbols | None:
        """The second of two characters that are all that a node asks for."""
        nodes = self.nodes
        node = nodes[number]
        if node[0] == "set" and nodes[node[2]][0] == "set" and nodes[nodes[node[2]][2]][0] == "match":
            return int(nodes[node[2]][1])
        return None

    def _chain(self, several: Sequence[int]) -> int:
        found = self.FAIL
        for number in reversed(several):
            found = number if found == self.FAIL else self.node("either", number, found)
        return found

    def _together(self, several: Sequence[int]) -> list[int]:
        """Neighbours that ask for what stands before the place, and go on alike, as one."""
        found: list[int] = []
        for number in several:
            last, this = self.nodes[found[-1]] if found else ("",), self.nodes[number]
            if last[0] == this[0] == "behind" and not last[1] and not this[1] and last[3] == this[3]:
                found[-1] = self.node("behind", False, self._of_trie([last[2], this[2]]), this[3])
            else:
                found.append(number)
        return found

    def _of_trie(self, several: Sequence[int]) -> int:
        """Any of ``several``, read backwards, by one character after the other."""
        nodes = {number: self.nodes[number] for number in dict.fromkeys(several)}
        if len(nodes) == 1:
            return several[0]
        if any(node[0] == "match" for node in nodes.values()):
            return self.node("match", 0)
        targets = []
        for symbol in range(_SYMBOLS):
            following = dict.fromkeys(
                node[1][symbol] if node[0] == "trie" else node[2]
                for node in nodes.values()
                if node[0] == "trie" or node[1] >> symbol & 1
            )
            way = [number for number in following if number != self.FAIL]
            targets.append(self._of_trie(way) if way else self.FAIL)
        return self.node("trie", (*targets, self.FAIL))

    def at(self, number: int, place: int) -> Symbols:
        """What can stand at a place behind the beginning of a match; all that can, and perhaps more."""
        found = self._at.get((number, place))
        if found is None:
            found = self._at[number, place] = self._stands(self.nodes[number], place)
        return found

    def _stands(self, node: Node, place: int) -> Symbols:
        kind = node[0]
        if kind == "fail":
            return 0
        if kind == "match":
            return _EVERYTHING
        if kind == "set":
            return node[1] if place == 0 else self.at(node[2], place - 1)
        found: Symbols = 0
        if kind in ("repeat", "most"):
            _, symbols, least, most, after = node
            found = symbols if most > place else 0
            for count in range(least, min(most, place) + 1):
                found |= self.at(after, place - count)
            return found
        if kind == "switch":
            for symbol, target in enumerate(node[1]):
                if self.at(target, 0) >> symbol & 1:
                    found |= 1 << symbol if place == 0 else self.at(target, place)
            return found
        if kind == "second":
            return self.at(node[2], place) & (node[1] if place == 1 else _EVERYTHING)
        if kind == "either":
            return self.at(node[1], place) | self.at(node[2], place)
        if kind == "is":
            return self.at(node[2], place) & (node[1] if place == 0 else _EVERYTHING)
        if kind == "ahead":
            found = self.at(node[3], place)
            return found if node[1] else found & self.at(node[2], place)
        if kind == "behind":
            return self.at(node[3], place)
        if kind == "atomic":
            return self.at(node[1], place)
        assert kind == "end"
        return 1 << _END if place == 0 else 0

    def behind(self, number: int, first: int) -> Symbols:
        """What can stand behind a character with which a match begins; all that can, and perhaps more."""
        found = self._behind.get((number, first))
        if found is None:
            found = self._behind[number, first] = self._goes_on(self.nodes[number], first)
        return found

    def _goes_on(self, node: Node, first: int) -> Symbols:
        kind = node[0]
        if kind == "fail" or not self.at(self.node(*node), 0) >> first & 1:
            return 0
        if kind in ("match", "end") or first == _END:
            return _EVERYTHING
        if kind == "set":
            return self.at(node[2], 0)
        if kind in ("repeat", "most"):
            _, symbols, least, most, after = node
            found: Symbols = 0
            if symbols >> first & 1:
                found = (symbols if most > 1 else 0) | (self.at(after, 0) if least <= 1 else 0)
            return found | (self.behind(after, first) if least == 0 else 0)
        if kind == "switch":
            return self.behind(node[1][first], first)
        if kind == "second":
            found = node[1]
            return found & self.behind(node[2], first)
        if kind == "either":
            return self.behind(node[1], first) | self.behind(node[2], first)
        if kind == "is":
            return self.behind(node[2], first)
        if kind == "ahead":
            found = self.behind(node[3], first)
            return found if node[1] else found & self.behind(node[2], first)
        if kind == "behind":
            return self.behind(node[3], first)
        assert kind == "atomic"
        return self.behind(node[1], first)


class Plainness:
    """What every match of an expression has near its beginning: one of these ``signs``, unless it is a parameter's.

    So no match can begin at a place that is followed by none of them, in a piece without parameters.
    """

    def __init__(self, graph: Graph, signs: bytes) -> None:
        self._graph: Final = graph
        self.signs: Final = signs
        self._set: Final = _set(signs)
        self._possible: Final[dict[int, bool]] = {}
        self._far: Final[dict[int, int]] = {}

    def seconds(self, root: int) -> Symbols:
        """The second characters of which that is true, of an expression that begins with one character."""
        kind, _, after = self._node(root)
        _need(kind == "set", "an expression that begins otherwise")
        return _set(
            symbol
            for symbol in range(_SYMBOLS)
            if self._graph.at(after, 0) >> symbol & 1 and not self.possible(self._graph._given(after, symbol)[0])
        )

    def _node(self, number: int) -> Node:
        return self._graph.nodes[number]

    def possible(self, number: int) -> bool:
        """Whether a node may lead to a match without a sign."""
        found = self._possible.get(number)
        if found is None:
            found = self._possible[number] = self._is_possible(self._node(number))
        return found

    def _is_possible(self, node: Node) -> bool:
        kind, others = node[0], _EVERYTHING & ~self._set
        if kind in ("match", "fail"):
            return bool(kind == "match" and node[1] != 2)
        if kind in ("set", "is", "second"):
            return bool(node[1] & others) and self.possible(node[2])
        if kind in ("repeat", "most"):
            return bool(node[2] == 0 or node[1] & others) and self.possible(node[4])
        if kind == "switch":
            return any(self.possible(node[1][symbol]) for symbol in range(_SYMBOLS + 1) if others >> symbol & 1)
        if kind == "either":
            return any(map(self.possible, node[1:]))
        if kind == "atomic":
            return all(map(self.possible, node[1:]))
        if kind == "ahead":
            return bool(node[1] or self.possible(node[2])) and self.possible(node[3])
        if kind == "behind":
            return bool(node[1] or self._stands_behind(node[2])) and self.possible(node[3])
        return self.possible(node[-1])

    def _stands_behind(self, number: int) -> bool:
        """Whether the two characters before a place may be none of the signs. (A match has had more than that by then.)"""
        for _ in range(2):
            node = self._node(number)
            if node[0] != "before_is":
                break
            if not node[1] & ~self._set:
                return False
            number = node[2]
        return True

    def far(self, number: int) -> int:
        """How many characters a match may look at before it comes to a sign."""
        found = self._far.get(number)
        if found is None:
            found = self._far[number] = self._goes(number)
        return found

    def _goes(self, number: int) -> int:
        node, others = self._node(number), _EVERYTHING & ~self._set
        kind = node[0]
        if kind in ("match", "fail") or not Plainness(self._graph, b"").possible(number):
            return 0
        if kind == "set":
            return 1 + (self.far(node[2]) if node[1] & others else 0)
        if kind in ("repeat", "most"):
            _need(node[3] != _WITHOUT_END or not node[1] & others, "an endless repetition of what is no sign")
            return (node[3] if node[1] & others else 1) + self.far(node[4])
        if kind == "switch":
            return max(1, *map(self.far, dict.fromkeys(node[1])))
        if kind in ("is", "second"):
            return max(2, self.far(node[2]))
        if kind == "atomic":
            return self.far(node[1]) + self.far(node[2])
        if kind == "behind":
            return self.far(node[3])
        return max(map(self.far, node[2:] if kind == "ahead" else node[1:]))


#: The signs of which one stands near every value: for the anchors that look for names of secrets.
_SIGNS: Final = b"\"'\\[{>0123456789!@#^*~+"
_SIGNS_OF: Final = {"p": _SIGNS, "c": _SIGNS, "j": _SIGNS, "k": _SIGNS + b"="}


class Tables:
    """The header: the nodes of all expressions, the sets of characters in them as numbers."""

    KINDS: Final = (
        "fail", "match", "set", "is", "repeat", "most", "run", "switch", "second", "either", "ahead", "not_ahead", "behind", "not_behind",
        "before_is", "run_before", "trie", "atomic", "end",
    )  # fmt: skip

    def __init__(self) -> None:
        self.graph = Graph()
        self.anchors = [
            (one.first or "auth", self.graph.expression(one.pattern), one.lowered) for one in secrets._ANCHORS
        ]
        self.field = self.graph.expression(secrets.VALUE_FIELD)
        self.parameter = self.graph.expression(secrets.PARAMETER)
        self.word = _set(secrets.WORD_CHARACTERS.encode())
        self._sets: dict[Symbols, int] = {}
        self._runs: list[int] = []
        self._tables: dict[tuple[int, ...], int] = {}
        self._class: list[int] = []

    def made(self) -> str:
        used = self._numbered()
        wanted: list[Symbols] = [self.word]
        for number in used:
            node = self._node(number)
            if node[0] in ("set", "is", "second", "repeat", "most", "before_is"):
                wanted.append(node[1])
            if node[0] in ("run", "run_before"):
                wanted += node[1]
            if node[0] == "repeat":
                wanted.append(self.graph.at(node[4], 0))
            if node[0] == "ahead":
                wanted.append(self.graph.at(node[2], 0))
        self.plain = [Plainness(self.graph, signs) for signs in dict.fromkeys(_SIGNS_OF.values())]
        seconds = []
        for name, root, _ in self.anchors:
            plain = [number for number, one in enumerate(self.plain) if one.signs == _SIGNS_OF.get(name)]
            seconds.append((plain[0] + 1, self.plain[plain[0]].seconds(root)) if plain else (0, 0))
        wanted += [symbols for _, symbols in seconds]
        starts = [[self.graph.at(root, place) for place in range(3)] for _, root, _ in self.anchors]
        _need(all(not places[1] >> _END & 1 for places in starts), "an anchor of one character")
        tables = [self.graph.nodes[number][1] for number in used if self.graph.nodes[number][0] in ("switch", "trie")]
        self._classes(wanted, tables)
        for symbols in wanted:
            self._sets.setdefault(symbols, len(self._sets))
        rows = [self._row(self._node(number), used) for number in used]
        return self._written(rows, starts, used, seconds)

    def _numbered(self) -> dict[int, int]:
        """The nodes that are in use, by their number in the graph; in the order in which they are met."""
        found: dict[int, int] = {Graph.FAIL: 0}
        for root in (*(root for _, root, _ in self.anchors), self.field, self.parameter):
            waiting = [root]
            while waiting:
                number = waiting.pop()
                if number not in found:
                    found[number] = len(found)
                    waiting += reversed(list(self._following(self._node(number))))
        return found

    def _node(self, number: int) -> Node:
        """A node, and those single characters that follow one another as one."""
        node, nodes = self.graph.nodes[number], self.graph.nodes
        kind = node[0]
        if kind not in ("set", "before_is") or nodes[node[2]][0] != kind:
            return node
        symbols = []
        while node[0] == kind:
            symbols.append(node[1])
            number = node[2]
            node = nodes[number]
        return ("run" if kind == "set" else "run_before", tuple(symbols), number)

    @staticmethod
    def _following(node: Node) -> Iterable[int]:
        kind = node[0]
        if kind in ("switch", "trie"):
            return dict.fromkeys(node[1])
        if kind in ("either", "atomic"):
            return node[1:]
        if kind in ("ahead", "behind"):
            return node[2:]
        return () if kind in ("match", "fail") else node[-1:]

    def _classes(self, wanted: Iterable[Symbols], tables: Iterable[tuple[int, ...]]) -> None:
        """Characters that no expression tells apart are one."""
        sets, several = list(dict.fromkeys(wanted)), list(dict.fromkeys(tables))
        numbers: dict[tuple[Any, ...], int] = {}
        for symbol in range(_SYMBOLS + 1):
            apart = (
                *(symbols >> symbol & 1 for symbols in sets),
                *(table[symbol] for table in several),
                symbol == _END,
            )
            self._class.append(numbers.setdefault(apart, len(numbers)))
        self.count = len(numbers)
        _need(
            self.count < 256 and len(self.anchors) <= 32,
            "more classes of characters, or anchors, than there is room for",
        )

    def _row(self, node: Node, used: dict[int, int]) -> tuple[str, int, int, int, int, int]:
        """Kind, set or table, least, most, inner node, next node."""
        kind = node[0]
        if kind in ("match", "fail"):
            return (kind, 0, node[1] if kind == "match" else 0, 0, 0, 0)
        if kind in ("set", "is", "second", "before_is"):
            return (kind, self._sets[node[1]], 0, 0, 0, used[node[2]])
        if kind in ("run", "run_before"):
            self._runs += [self._sets[symbols] for symbols in node[1]]
            return (kind, len(self._runs) - len(node[1]), len(node[1]), 0, 0, used[node[2]])
        if kind in ("repeat", "most"):
            following = self._sets[self.graph.at(node[4], 0)] if kind == "repeat" else 0
            return (kind, self._sets[node[1]], node[2], node[3], following, used[node[4]])
        if kind in ("switch", "trie"):
            by_class = [0] * self.count
            for symbol, target in enumerate(node[1]):
                by_class[self._class[symbol]] = used[target]
            return (kind, self._tables.setdefault(tuple(by_class), len(self._tables)), 0, 0, 0, 0)
        if kind in ("ahead", "behind"):
            begins = self._sets[self.graph.at(node[2], 0)] if kind == "ahead" else 0
            return (("not_" if node[1] else "") + kind, begins, 0, 0, used[node[2]], used[node[3]])
        if kind in ("either", "atomic"):
            return (kind, 0, 0, 0, used[node[1]], used[node[2]])
        assert kind == "end"
        return (kind, 0, 0, 0, 0, used[node[1]])

    def _written(
        self,
        rows: list[Any],
        starts: list[list[Symbols]],
        used: dict[int, int],
        seconds: list[tuple[int, Symbols]],
    ) -> str:
        by_number = sorted(self._sets, key=self._sets.__getitem__)
        members = [[0] * self.count for _ in by_number]
        for row, symbols in zip(members, by_number, strict=True):
            for symbol in range(_SYMBOLS + 1):
                row[self._class[symbol]] |= symbols >> symbol & 1

        possible = [
            [
                [
                    sum(
                        (places[place] >> symbol & 1) << number
                        for number, (places, (_, _, lowered)) in enumerate(zip(starts, self.anchors, strict=True))
                        for symbol in [_symbol(byte, lowered=lowered, texts=texts)]
                    )
                    for byte in range(256)
                ]
                for place in range(3)
            ]
            for texts in (False, True)
        ]
        nibbles = [_nibbles(by_place) for by_place in possible]
        far = (
            plain.far(root)
            for plain in self.plain
            for name, root, _ in self.anchors
            if _SIGNS_OF.get(name) == plain.signs
        )
        lines = [
            "/* Written by tools/secret_tables.py from the expressions of tracekit/_runtime/secrets.py. Not to be edited. */",
            "",
            f'#define SECRETS_MADE_FROM "{secrets.made_from()}"',
            f"#define SHORTEST {secrets.SHORTEST}",
            f"#define PIECE {secrets.PIECE}",
            f"#define OVERLAP {secrets.OVERLAP}",
            f"#define BEFORE {secrets.BEFORE}",
            f"#define CLASSES {self.count}",
            f"#define END_CLASS {self._class[_END]}",
            f"#define WORD_SET {self._sets[self.word]}",
            f"#define VALUE_FIELD {used[self.field]}",
            f"#define PARAMETER {used[self.parameter]}",
            f"#define ANCHORS {len(self.anchors)}",
            f"#define SIGNS {len(self.plain)}",
            f"#define REACH {max(far)}",
            "",
            "enum { " + ", ".join(kind.upper() for kind in self.KINDS) + " };",
            "",
            "/* By what is looked at (bytes, a text), by whether small and capital letters are one: the class of each byte. */",
            "static const uint8_t class_of[2][2][256] = {",
            *(
                "  {\n"
                + "".join(
                    f"    {{{_numbers(self._class[_symbol(byte, lowered=lowered, texts=texts)] for byte in range(256))}}},\n"
                    for lowered in (False, True)
                )
                + "  },"
                for texts in (False, True)
            ),
            "};",
            "",
            f"static const uint8_t member[{len(members)}][CLASSES] = {{",
            *(f"  {{{_numbers(row)}}}," for row in members),
            "};",
            "",
            f"static const uint16_t following[{len(self._tables)}][CLASSES] = {{",
            *(f"  {{{_numbers(row)}}}," for row in self._tables),
            "};",
            "",
            "/* Sets of characters that follow one another. */",
            f"static const uint16_t runs[{len(self._runs)}] = {{",
            *(f"  {_numbers(self._runs[at : at + 30])}," for at in range(0, len(self._runs), 30)),
            "};",
            "",
            f"static const struct node nodes[{len(rows)}] = {{",
            *(f"  {{{kind.upper()}, {_numbers(row)}}}," for kind, *row in rows),
            "};",
            "",
            "/* The first node, whether small and capital letters are one, what else there must be, and which signs near a place",
            "   where this character is the second one. */",
            "static const struct anchor anchors[ANCHORS] = {",
            *(
                f"  {{{used[root]}, {int(lowered)}, {_BESIDE.get(name, 'NOTHING')}, {signs}, {self._sets[second]}}}, /* {_shown(name)} */"
                for (name, root, lowered), (signs, second) in zip(self.anchors, seconds, strict=True)
            ),
            "};",
            "",
            "/* Signs, by the low and the high half of a byte: a bit in both. */",
            "static const uint8_t sign_halves[SIGNS][2][16] = {",
            *(f"  {{{{{_numbers(low)}}}, {{{_numbers(high)}}}}}," for low, high in map(_halves, self.plain)),
            "};",
            "",
            "/* By what is looked at, by place in the beginning of an expression, by byte: which anchors can be there, a bit each. */",
            "static const uint32_t possible[2][3][256] = {",
            *("  {\n" + "".join(f"    {{{_numbers(row)}}},\n" for row in rows) + "  }," for rows in possible),
            "};",
            "",
            "/* The same of two places, by the low and the high half of a byte, and perhaps more: groups of anchors, a bit each. */",
            "static const uint8_t nibbles[2][2][2][16] = {",
            *(
                "  {" + ", ".join(f"{{{{{_numbers(low)}}}, {{{_numbers(high)}}}}}" for low, high in places) + "},"
                for places in nibbles
            ),
            "};",
        ]
        return "\n".join(lines) + "\n"


#: Anchors that are looked for together: those that common letters begin are by themselves.
_GROUPS: Final[tuple[str | tuple[str, ...], ...]] = (
    "k",
    "p",
    "c",
    ("j", "auth"),
    ("=", ":", "/"),
    ("_", "-"),
    (".", "~"),
    ("A", "Z", "K", "J", "B"),
)


def _nibbles(by_place: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """In which groups are anchors that can have a byte with such a half at their first place, and at their second."""
    names = [one.first or "auth" for one in secrets._ANCHORS]
    grouped = [name for group in _GROUPS for name in ([group] if isinstance(group, str) else group)]
    _need(sorted(grouped) == sorted(names), "each anchor is in one of the groups")
    found = []
    for bits in by_place[:2]:
        low, high = [0] * 16, [0] * 16
        for number, group in enumerate(_GROUPS):
            wanted = sum(1 << names.index(name) for name in ([group] if isinstance(group, str) else group))
            for byte, some in enumerate(bits):
                if some & wanted:
                    low[byte & 15] |= 1 << number
                    high[byte >> 4] |= 1 << number
        found.append((low, high))
    return found


def _halves(plain: Plainness) -> tuple[list[int], list[int]]:
    low = [sum(1 << half for half in range(8) if half * 16 + other in plain.signs) for other in range(16)]
    return low, [1 << half if half < 8 else 0 for half in range(16)]


_BESIDE: Final = {"=": "A_PARAMETER", ":": "AN_AT_SIGN"}


def _symbol(byte: int, *, lowered: bool, texts: bool) -> int:
    """What a byte is for an expression that looks at small letters alone, or at any; in a text, or in bytes."""
    code = byte + 32 if lowered and 65 <= byte <= 90 else byte
    return _IN_TEXTS.get(code, code) if texts else code


def _shown(name: str) -> str:
    return "slash" if name == "/" else name


def _numbers(several: Iterable[int]) -> str:
    return ", ".join(map(str, several))


def header() -> str:
    """The header as the expressions want it."""
    return Tables().made()


def main() -> None:
    Path(sys.argv[1]).write_text(header())


if __name__ == "__main__":
    main()
