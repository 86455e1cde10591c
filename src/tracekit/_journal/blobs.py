"""Resolving references: from ``{"$ref": seq}`` to the value that an earlier ``blob`` entry holds.

A blob's ``output`` is a value, or ``{"$extend": seq, "n": …, "v": […]}``: the first ``n`` elements (all, if left out) of an earlier
list and more. ``{"$ref": seq, "at": k}`` is element ``k`` of what the blob itself holds, ``"at": [k, key …]`` a string inside it.
Of an entry that is no blob a string can be referred to: ``"at": ["output", key …]``, or ``["input", key …]``.
References point backwards only, so there are no cycles. Nothing here recurses, and what is expanded is shared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ..errors import TraceIntegrityError
from .limits import Limits

__all__ = ["Blobs"]

#: How much of resolved blobs is kept for reuse, in bytes of their lines, and how many assembled lists.
_KEEP: Final = 32 << 20
_KEEP_LISTS: Final = 16
_NODE: Final = 8


class _Slot(NamedTuple):
    """A place that holds a reference: ``container[key]`` at nesting ``depth``, in the element ``top`` of a list blob."""

    container: Any
    key: Any
    seq: int
    at: Any
    depth: int
    top: int


class _Opened(NamedTuple):
    """A blob as it was read: its own elements (or the value alone), and the list that it extends (0: none) up to ``cut``.

    Of an entry that is no blob, ``type`` says what it is; it holds one value, the entry's input and output.
    """

    held: list[Any]
    is_list: bool
    base: int
    cut: int
    cost: int
    slots: list[_Slot]
    sizes: list[tuple[int, int]]
    type: Any = "blob"


class _Unit:
    """What one blob holds itself, resolved. ``size`` and ``depth`` include the lists that it extends."""

    __slots__ = ("base", "cost", "cut", "depth", "depths", "is_list", "length", "seq", "size", "sizes", "type", "value")

    def __init__(self, seq: int, opened: _Opened, base: _Unit | None, cut: int) -> None:
        self.seq: Final = seq
        self.value: Any = opened.held
        self.type: Final = opened.type
        self.is_list: Final = opened.is_list
        self.base: Final = base
        self.cut: Final = cut
        self.cost: Final = opened.cost
        self.length: Final = cut + len(opened.held)
        self.sizes: Final = [size for size, _ in opened.sizes]
        self.depths: Final = [depth for _, depth in opened.sizes]
        self.size: int = base.size if base is not None else 0
        self.depth: int = base.depth if base is not None else 1


class Blobs:
    """The blobs of one trace. ``load`` reads an entry; ``path`` is for messages."""

    def __init__(self, load: Callable[[int], dict[str, Any]], path: str, limits: Limits) -> None:
        self._load: Final = load
        self._path: Final = path
        self._limits: Final = limits
        self._units: dict[int, _Unit] = {}
        self._kept = 0
        self._lists: dict[int, list[Any]] = {}
        self._lock: Final = threading.Lock()

    def expand(self, value: Any, before: int) -> Any:
        """``value`` of the entry ``before`` with its references resolved, in place."""
        if not isinstance(value, (dict, list)):
            return value
        with self._lock:
            return self._expand(value, before)

    def _expand(self, value: Any, before: int) -> Any:
        holder = [value]
        slots: list[_Slot] = []
        size, _ = self._survey(holder, 0, slots, before)
        if not slots:
            return value
        self._resolve({slot.seq for slot in slots})
        for slot in slots:
            size += self._fill(slot, before)[0]
            self._within(size, 0, before)
        return holder[0]

    # -- one value -------------------------------------------------------------------------------------------------------

    def _survey(self, container: Any, key: Any, slots: list[_Slot], before: int, depth: int = 0) -> tuple[int, int]:
        """Note every reference below ``container[key]``; the size of the rest and its depth."""
        size = deepest = 0
        pending = [(container, key, container[key], depth)]
        while pending:
            container, key, node, depth = pending.pop()
            size += _NODE
            if isinstance(node, str):
                size += len(node)
            elif isinstance(node, dict):
                if "$ref" in node:
                    slots.append(self._slot(container, key, node, depth, before))
                    continue
                deepest = max(deepest, depth + 1)
                pending.extend((node, name, child, depth + 1) for name, child in node.items())
                size += sum(map(len, node))
            elif isinstance(node, list):
                deepest = max(deepest, depth + 1)
                pending.extend((node, i, child, depth + 1) for i, child in enumerate(node))
        return size, deepest

    def _slot(self, container: Any, key: Any, node: dict[str, Any], depth: int, before: int) -> _Slot:
        seq, at = node["$ref"], node.get("at")
        if type(seq) is not int or len(node) != (1 if at is None else 2):
            raise self._bad(before, f"holds something that is no reference: {_short(node)}")
        if not 0 < seq < before:
            raise self._bad(before, f"refers to entry {seq}, which is no earlier one")
        return _Slot(container, key, seq, at, depth, key if isinstance(key, int) else 0)

    def _fill(self, slot: _Slot, line: int) -> tuple[int, int]:
        """Put the value in the place of its reference; its size, and how deep that place now is."""
        unit = self._units[slot.seq]
        if slot.at is None:
            if unit.type != "blob":
                raise self._bad(slot.seq, f"is referred to as a blob and is a {_short(unit.type)}")
            value, size, depth = self._whole(slot.seq, unit), unit.size, unit.depth
        else:
            value, size, depth = self._part(unit, slot.at, line)
        self._within(size, slot.depth + depth, line)
        slot.container[slot.key] = value
        return size, slot.depth + depth

    def _part(self, unit: _Unit, at: Any, line: int) -> tuple[Any, int, int]:
        try:
            if type(at) is int and at >= 0 and unit.is_list:
                return unit.value[at], unit.sizes[at], max(0, unit.depths[at] - 1)
            value: Any = unit.value if unit.type == "blob" else unit.value[0]
            for key in at:
                value = value[key]
            if isinstance(value, str):
                return value, len(value), 0
        except (LookupError, TypeError):
            pass
        raise self._bad(line, f"refers to a part {_short(at)} of a blob that does not have it")

    def _whole(self, seq: int, unit: _Unit) -> Any:
        """The value of a blob; a list that extends others is put together without recursion and without copies of copies."""
        if unit.base is None:
            return unit.value if unit.is_list else unit.value[0]
        found = self._lists.pop(seq, None)
        if found is None:
            found = self._assemble(unit)
        self._lists[seq] = found
        while len(self._lists) > _KEEP_LISTS:
            del self._lists[next(iter(self._lists))]
        return found

    def _assemble(self, unit: _Unit) -> list[Any]:
        chain: list[_Unit] = []
        whole: list[Any] = []
        at: _Unit | None = unit
        while at is not None:
            if at.seq in self._lists:
                whole = list(self._lists[at.seq])
                break
            chain.append(at)
            at = at.base
        for link in reversed(chain):
            del whole[link.cut :]
            whole += link.value
        return whole

    # -- many blobs ------------------------------------------------------------------------------------------------------

    def _resolve(self, wanted: Iterable[int]) -> None:
        """Bring the units of ``wanted``, and of all that they refer to, into memory, dependencies first."""
        pending = list(wanted)
        opened: dict[int, _Opened] = {}
        spent = 0
        self._trim()
        while pending:
            seq = pending[-1]
            if seq in self._units:
                # Used now: the last to be dropped.
                self._units[seq] = self._units.pop(seq)
                pending.pop()
                continue
            if seq not in opened:
                opened[seq] = found = self._open(seq)
                spent += found.cost
                self._within(spent, 0, seq)
                needs = {slot.seq for slot in found.slots} | ({found.base} if found.base else set())
                missing = [need for need in needs if need not in self._units]
                if missing:
                    pending.extend(missing)
                    continue
            self._close(seq, opened.pop(seq))
            pending.pop()

    def _open(self, seq: int) -> _Opened:
        entry = self._load(seq)
        if entry.get("type") != "blob":
            held = [{key: entry[key] for key in ("input", "output") if key in entry}]
            slots: list[_Slot] = []
            sizes = [self._survey(held, 0, slots, seq)]
            slots = [slot._replace(top=0) for slot in slots]
            return _Opened(held, False, 0, -1, sizes[0][0] + _NODE, slots, sizes, entry.get("type"))
        if "output" not in entry:
            raise self._bad(seq, "is referred to as a blob and holds nothing")
        value, base, cut = entry["output"], 0, -1
        if isinstance(value, dict) and "$extend" in value:
            base, cut, value = value["$extend"], value.get("n", -1), value.get("v")
            if type(base) is not int or type(cut) is not int or not isinstance(value, list):
                raise self._bad(seq, "extends a list in a way that is none")
            if not 0 < base < seq:
                raise self._bad(seq, f"extends entry {base}, which is no earlier one")
        slots, sizes = [], []
        is_list = isinstance(value, list)
        held = value if is_list else [value]
        for i in range(len(held)):
            start = len(slots)
            sizes.append(self._survey(held, i, slots, seq, 1 if is_list else 0))
            slots[start:] = [slot._replace(top=i) for slot in slots[start:]]
        return _Opened(held, is_list, base, cut, sum(size for size, _ in sizes) + _NODE, slots, sizes)

    def _close(self, seq: int, opened: _Opened) -> None:
        """Fill in a blob whose dependencies are there, and keep it."""
        below = self._units[opened.base] if opened.base else None
        cut = 0
        if below is not None:
            if not below.is_list or opened.cut > below.length:
                raise self._bad(seq, f"extends entry {opened.base}, which holds no list of that length")
            cut = below.length if opened.cut < 0 else opened.cut
        unit = _Unit(seq, opened, below, cut)
        for slot in opened.slots:
            size, depth = self._fill(slot, seq)
            unit.sizes[slot.top] += size
            unit.depths[slot.top] = max(unit.depths[slot.top], depth)
        unit.depth = max([unit.depth, *unit.depths])
        unit.size += sum(unit.sizes) + _NODE
        self._within(unit.size, unit.depth, seq)
        self._units[seq] = unit
        self._kept += opened.cost

    def _trim(self) -> None:
        while self._kept > _KEEP and self._units:
            seq = next(iter(self._units))
            self._kept -= self._units.pop(seq).cost
            self._lists.pop(seq, None)

    # -- limits ----------------------------------------------------------------------------------------------------------

    def _within(self, size: int, depth: int, line: int) -> None:
        if size > self._limits.expanded:
            raise self._bad(line, f"expands to more than {self._limits.expanded} bytes")
        if depth > self._limits.depth:
            raise self._bad(line, f"expands to more than {self._limits.depth} levels")

    def _bad(self, line: int, what: str) -> TraceIntegrityError:
        return TraceIntegrityError(
            f"{self._path}, line {line} {what}",
            path=self._path,
            line=line,
            step=line,
            problem=what,
            next_action="don't trust this trace; the reader's limits can be raised if you do",
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
