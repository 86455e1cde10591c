"""Converts Python values to the bytes in the log: encodes, redacts and interns them, in this order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from .._journal.entry import DEFAULT, too_costly
from .._journal.intern import WORTH_A_LIST, WORTH_A_LOOK, Interner, KnownList, Places
from .._values import (
    Structure,
    dumps,
    dumps_in_order,
    noted,
    snapshot,
    to_json,
    with_structure,
)
from .._values.codec import Unnamed, classes_in, hinted
from .bodies import Continuation
from .redaction import Mark, Redactor, below
from .session import current
from .step import Patterns

__all__ = ["Encoded", "Encoder", "oversized", "stand_in"]

#: The default limits of a reader, less space for the rest of an entry: bytes of one text, and of what is in one line
#: (texts of ``_APART`` and more get lines of their own).
_TEXT: Final = DEFAULT.line - (4 << 20)
_LINE: Final = DEFAULT.line // 2 - (2 << 20)
_APART: Final = 1 << 18
_EXPANDED: Final = DEFAULT.expanded - (16 << 20)
#: A shorter encoding is within every limit.
_CERTAIN: Final = _EXPANDED // 48


def oversized(tree: Any, data: bytes) -> bool:
    """Return whether a reader would refuse, by its default limits, a tree encoded as ``data``, judging by the value
    alone."""
    size = len(data)
    if size <= _CERTAIN:
        return False
    if size > _LINE:
        texts = _long_texts(tree)
        if size - sum(texts) > _LINE or max(texts, default=0) > _TEXT:
            return True
    return size > _EXPANDED or too_costly(data, _EXPANDED)


def _long_texts(tree: Any) -> list[int]:
    """Return the encoded sizes of the texts that get lines of their own."""
    found, pending = [], [tree]
    while pending:
        node = pending.pop()
        if type(node) is str:
            if len(node) >= _APART // 4 and len(node.encode()) >= _APART:
                found.append(len(orjson.dumps(node)))
        elif type(node) is dict:
            pending.extend(node.values())
        elif type(node) is list:
            pending.extend(node)
    return found


def _without_classes(notes: list[str], returns: Callable[[], Any] | None) -> list[str]:
    """Return the notes that matter. Those about unnamed classes matter only if a replay rebuilds the value and its type
    is not declared."""
    if all(type(note) is not Unnamed for note in notes):
        return notes
    classes = {} if returns is None else classes_in(returns())
    return [
        str(note)
        for note in notes
        if not isinstance(note, Unnamed) or (returns is not None and hinted(note.name, classes) is None)
    ]


def stand_in(value: object, data: bytes, notes: list[str] | None = None) -> Any:
    """Return the opaque tree that replaces a value that is too large, and add a note about it."""
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    size = f"{len(data) >> 20} MiB"
    if notes is not None:
        notes.append(f"A value of type {name} can't be recorded: it is too large, {size}. It is opaque in the trace.")
    return to_json({"type": name[:200], "repr": f"<too large: {size}>"}) | {"$t": "opaque"}


class Encoded:
    """One value as it goes into the log.

    ``data`` is its JSON, ``tree`` the value before interning. ``notes`` says what could not be encoded, ``redacted``
    where in the entry placeholders are, ``structure`` what a replay needs besides the tree.
    """

    # No __slots__: most values have nothing but the class's defaults.

    notes: Sequence[str] = ()
    redacted: Sequence[Mark] = ()
    structure: Structure | None = None

    def __init__(self, data: bytes, tree: Any) -> None:
        self.data = data
        self.tree = tree


def _too_large(value: object, made: Encoded) -> Encoded:
    """Return what replaces a value that is too large for the log."""
    notes = [*made.notes]
    tree = stand_in(value, made.data, notes)
    found = Encoded(dumps_in_order(tree), tree)
    found.notes = notes
    return found


class _Worked:
    """The encoder's results for a body that may be continued: for its elements, and for the rest of the input.

    ``known`` describes the redacted elements; ``marks`` says, by number, where placeholders are in them. ``rest`` is
    the JSON around them, which has none, and ``others`` are the lists in it. All of this is valid for ``version`` of
    the known secrets.
    """

    __slots__ = ("encoder", "known", "marks", "others", "rest", "version")

    def __init__(
        self,
        encoder: Encoder,
        version: object,
        rest: bytes,
        known: KnownList,
        others: dict[str, KnownList],
        marks: dict[int, list[Mark]],
    ) -> None:
        self.encoder: Final = encoder
        self.version: Final = version
        self.rest: Final = rest
        self.known: Final = known
        self.others: Final = others
        self.marks: Final = marks


class Encoder:
    """Encodes the values of one run. ``write_blob`` appends an interned value and returns its ``seq``."""

    def __init__(self, redactor: Redactor, write_blob: Callable[[bytes], int]) -> None:
        self.redactor: Final = redactor
        self._interner = Interner(write_blob)
        #: Remembers the strings at places of an entry, which has been written, for references: ``remember(places, seq)``.
        self.remember: Final = self._interner.remember

    def plain(self, value: Any, seen: list[Any]) -> bytes | None:
        """Return the encoding of a small value that needs nothing special, or ``None``: the hot path.

        The containers in it are appended to ``seen``.
        """
        data = noted(value, seen)
        if data is None or len(data) >= WORTH_A_LOOK or self.redactor.look(data):
            return None
        return data

    def encode(
        self,
        value: Any,
        *,
        lists: bool = False,
        places: Places | None = None,
        at: str = "input",
        data: bytes | None = None,
        own: Patterns | None = None,
        returns: Callable[[], Any] | None = None,
        replayed: bool = False,
        whole: bool = False,
    ) -> Encoded:
        """Encode any value, for the key ``at`` of its entry. Never raises, whatever the value is.

        ``replayed``: a replay makes the value again, so find what its tree does not say. ``whole``: refer to no other
        entry, since this is the first.

        ``returns`` returns the declared type of a value that a replay rebuilds: its classes are found through that, or
        by name. ``data`` is the JSON of a ``value`` that nobody else holds, if available. ``own`` are additional
        patterns of secrets.
        """
        digests: dict[int, Any] = {}
        if data is not None and places is not None and own is None and len(data) <= _CERTAIN:
            interned = self._interner.at_once(value, data, self.redactor.look, lists, places, at, digests)
            if interned is value:
                return Encoded(data, value)
            if interned is not None:
                return Encoded(dumps_in_order(interned), value)
        made = Encoded(data, value) if data is not None else self._encoded(value, replayed, returns)
        size = len(made.data)
        if size > _CERTAIN and (oversized(made.tree, made.data) or (whole and size > _LINE)):
            return _too_large(value, made)
        suspicious = own is not None or self.redactor.suspicious(made.data)
        large = not whole and (size >= WORTH_A_LOOK or (lists and size >= WORTH_A_LIST))
        if not (suspicious or large):
            return made
        if data is None and made.tree is value and type(value) is not str:
            # From here on a copy of our own: the tree may contain the program's objects, which another thread can
            # change.
            made.tree = orjson.loads(made.data)
        if suspicious:
            made.tree, marks = self.redactor.also(own).redact(made.tree)
            if marks:
                made.redacted = below(marks, f"/{at}")
                made.data = dumps_in_order(made.tree)
        if large:
            tree = made.tree
            interned = self._interner.intern(tree, lists, places, at, digests=digests)
            if interned is not tree:
                made.data = dumps_in_order(interned)
        return made

    def encode_continued(
        self, value: Any, data: bytes, continued: Continuation, places: Places | None
    ) -> Encoded | None:
        """Like ``encode`` with ``lists``, for an input that ends in a body which continues another one (``data`` is its
        JSON): processes only what is new.

        Returns ``None`` if all of it has to be processed.
        """
        if len(data) > _CERTAIN:
            return None
        body, count = continued.body, continued.count
        redactor, version = self.redactor, self.redactor.version
        worked = continued.base.worked
        if worked is None or worked.encoder is not self or worked.version != version:
            worked, count = None, 0
        start = len(data) - 1 - body.size
        first, last = start + body.head, start + body.ends[-1]
        rest = data[:first] + data[last:]
        field = next(reversed(value))
        tree = {**value, field: {**value[field], body.key: []}}
        if (worked is None or worked.rest != rest) and redactor.suspicious(rest) and redactor.redact(tree)[1]:
            return None
        items, marks = body.items, {}
        new = items[count:]
        if worked is not None:
            items = [*worked.known.items[:count], *new]
            marks = {number: found for number, found in worked.marks.items() if number < count}
        if new and redactor.suspicious(b"[%b]" % data[first if not count else start + body.ends[count - 1] + 1 : last]):
            done = [redactor.redact(item) for item in new]
            items = [*items[:count], *(item for item, _ in done)]
            marks.update((count + number, found) for number, (_, found) in enumerate(done) if found)
        tree[field][body.key] = items
        pointer = f"/input/{field}/{body.key}"
        redacted = [mark for number, found in marks.items() for mark in below(found, f"{pointer}/{number}")]
        known = KnownList(items, None if worked is None else worked.known, count)
        others = {}
        for name, item in body.value.items():
            if type(item) is list and name != body.key:
                former = None if worked is None else worked.others.get(name)
                others[name] = KnownList(
                    item, former if former is not None and former.items is item else None, len(item)
                )
        if redacted:
            data = dumps_in_order(tree)
        interned = self._interner.intern(tree, lists=True, places=places, known=[known, *others.values()])
        body.worked = _Worked(self, version, rest, known, others, marks)
        made = Encoded(data if interned is tree else dumps_in_order(interned), tree)
        made.redacted = redacted
        return made

    def _encoded(self, value: Any, replayed: bool, returns: Callable[[], Any] | None) -> Encoded:
        # ``__repr__`` is the program's own code: what it does is not part of the run.
        token = current.set(None)
        notes: list[str] = []
        try:
            tree, found = with_structure(value, notes) if replayed else (to_json(value, notes), None)
            try:
                made = Encoded(dumps_in_order(tree), tree)
                made.structure = found
            except (TypeError, RuntimeError):  # another thread has changed the value meanwhile
                tree = snapshot(value, notes)
                made = Encoded(dumps_in_order(tree), tree)
        finally:
            current.reset(token)
        if notes:
            made.notes = _without_classes(notes, returns)
        return made

    def canonical(self, tree: Any, own: Patterns | None = None) -> bytes:
        """Return the canonical bytes of a tree without its secrets."""
        return dumps(self.redactor.also(own).redact(tree)[0])
