"""Compares what a program does in a replay with the recording: steps, values, and the placeholders in them.

Recorded values may contain placeholders for secrets, addresses that differ between processes, hashes of values that
were too large, and fields that the caller excludes from the comparison.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final

from .._journal.entry import meta_of
from .._journal.reader import TAIL, EntryBlock, Trace
from .._lazy import expression
from .._reality import OwnLock
from .._values import dumps, fingerprint, quick, to_json
from .encoding import oversized, stand_in
from .redaction import STAND_IN, Redactor, marks_of
from .step import Circumstances, Note, Patterns, RenderedSpec, Request, Spec

__all__ = [
    "OPAQUE",
    "Bindings",
    "Comparison",
    "Ignored",
    "RecordedPlaceholders",
    "differences",
    "placeholders_of",
    "signature",
    "steady",
]

_NOTHING: Final[Mapping[str, Any]] = {}
_MISSING: Final = object()
_DIGITS: Final = b"0123456789"
#: The product of the lengths of the parts in which two lists differ, up to which they are aligned.
_ALIGNED: Final = 1_000_000

# -- trees -------------------------------------------------------------------------------------------------------------

#: Contained in the canonical bytes of every value with an opaque part.
OPAQUE: Final = b'"$t":"opaque"'
#: What differs between processes in the description of an object: addresses and ``id()``.
_IDENTITY: Final = expression(r"0x[0-9a-fA-F]{6,}|\b[0-9]{9,}\b|0x[0-9a-fA-F]*$|…$")


def steady(tree: Any) -> Any:
    """Return ``tree`` with opaque values reduced to what is the same in every process."""
    if type(tree) is dict:
        if tree.get("$t") == "opaque" and type(tree.get("repr")) is str:
            return {**tree, "repr": _IDENTITY.sub("", tree["repr"])}
        return {key: steady(item) for key, item in tree.items()}
    if type(tree) is list:
        return [steady(item) for item in tree]
    return tree


def differences(recorded: Any, actual: Any, path: str = "", *, by_place: bool = False) -> list[dict[str, Any]]:
    """Return the leaves in which two JSON trees differ: ``[{"path", "recorded", "actual"}]``; an absent side is left
    out.

    Lists are aligned: an element that was put in or left out is one difference, and those after it are none. A number
    in a path is a place in the recorded list, or in the actual one for an element that only it has. With ``by_place``,
    elements at the same place are compared.
    """
    found: list[dict[str, Any]] = []
    _compare(recorded, actual, path, found, _by_place if by_place else _aligned)
    return found


_Places = Iterable[tuple[int | None, int | None]]


def _compare(
    recorded: Any,
    actual: Any,
    path: str,
    found: list[dict[str, Any]],
    pairs: Callable[[list[Any], list[Any]], _Places],
) -> None:
    if isinstance(recorded, dict) and isinstance(actual, dict):
        for key in [*recorded, *(k for k in actual if k not in recorded)]:
            inner = f"{path}.{key}" if path else str(key)
            _compare(recorded.get(key, _MISSING), actual.get(key, _MISSING), inner, found, pairs)
    elif isinstance(recorded, list) and isinstance(actual, list):
        for i, j in pairs(recorded, actual):
            one = _MISSING if i is None else recorded[i]
            other = _MISSING if j is None else actual[j]
            _compare(one, other, f"{path}[{j if i is None else i}]", found, pairs)
    elif recorded is _MISSING:
        found.append({"path": path, "actual": actual})
    elif actual is _MISSING:
        found.append({"path": path, "recorded": recorded})
    elif type(recorded) is not type(actual) or repr(recorded) != repr(actual):
        found.append({"path": path, "recorded": recorded, "actual": actual})


def _by_place(recorded: list[Any], actual: list[Any]) -> _Places:
    return zip_longest(range(len(recorded)), range(len(actual)))


def _aligned(recorded: list[Any], actual: list[Any]) -> _Places:
    """Yield the places of the elements that are to be compared; ``None`` where one list has none. Of a run of equal
    elements none is yielded, and very long lists that differ in many places are compared by place."""
    import difflib

    ours, others = [dumps(one) for one in recorded], [dumps(one) for one in actual]
    short, start, end = min(len(ours), len(others)), 0, 0
    while start < short and ours[start] == others[start]:
        start += 1
    while end < short - start and ours[-1 - end] == others[-1 - end]:
        end += 1
    mine, theirs = range(start, len(ours) - end), range(start, len(others) - end)
    if not mine or not theirs or len(mine) * len(theirs) > _ALIGNED:
        yield from zip_longest(mine, theirs)
        return
    matcher = difflib.SequenceMatcher(
        None, ours[start : len(ours) - end], others[start : len(others) - end], autojunk=False
    )
    for tag, i, to_i, j, to_j in matcher.get_opcodes():
        if tag != "equal":
            yield from zip_longest(mine[i:to_i], theirs[j:to_j])


class Ignored:
    """Fields excluded from the comparison of a kind of step: ``{"llm": ["input.body.user"], "tool:search":
    ["input.trace_id"]}``.

    A field is named as a difference names it, ``*`` matches any one key or index; everything below it is excluded, too.
    """

    def __init__(self, fields: Mapping[str, Iterable[str]]) -> None:
        self._fields: Final = {kind: tuple(paths) for kind, paths in fields.items()}
        self._patterns: Final[dict[tuple[str, str], re.Pattern[str] | None]] = {}

    def as_dict(self) -> dict[str, list[str]]:
        return {kind: [*paths] for kind, paths in self._fields.items()}

    def fields(self, kind: str, name: object) -> re.Pattern[str] | None:
        """Return a pattern for the excluded paths of a step of this kind and name; ``None`` if there are none."""
        if not self._fields:
            return None
        key = (kind, str(name))
        if key not in self._patterns:
            paths = (*self._fields.get(kind, ()), *self._fields.get(f"{kind}:{name}", ()))
            found = "|".join(re.escape(path).replace(r"\*", r"[^.\[\]]+") for path in paths)
            self._patterns[key] = re.compile(rf"(?:{found})(?:[.\[].*)?", re.DOTALL) if paths else None
        return self._patterns[key]


def without(tree: Any, ignored: re.Pattern[str], path: str = "") -> Any:
    """Return ``tree`` without the fields whose paths match; in a list they become ``None``, so that the other indexes
    don't change."""
    if isinstance(tree, Mapping):
        found = {}
        for key, inner in tree.items():
            below = f"{path}.{key}" if path else str(key)
            if not ignored.fullmatch(below):
                found[key] = without(inner, ignored, below)
        return found
    if isinstance(tree, list):
        places = [f"{path}[{i}]" for i in range(len(tree))]
        return [
            None if ignored.fullmatch(at) else without(one, ignored, at) for at, one in zip(places, tree, strict=True)
        ]
    return tree


# -- placeholders ------------------------------------------------------------------------------------------------------


class Bindings:
    """What the placeholders of a trace stand for in this process.

    A placeholder that the replay gave to the program, or that occurred in the program's values before, stands for
    itself. Any other is bound to the program's value where they first meet; two placeholders never stand for one value.
    A placeholder among the ``originals`` stands for that value.
    """

    def __init__(
        self,
        redactor: Redactor,
        places: Mapping[str, Sequence[int]],
        used: Callable[[int], bool],
        originals: Mapping[str, str] | None = None,
    ) -> None:
        self._redactor: Final = redactor
        self._originals: Final = originals or {}
        #: By placeholder, the entries that may have given it to the program.
        self._places: Final = places
        self._used: Final = used
        self._bound: Final[dict[str, str]] = {}
        self._lock: Final = OwnLock()
        redactor.keep(places)

    def __bool__(self) -> bool:
        return bool(self._places)

    def equal(self, recorded: Any, actual: Any) -> bool:
        """Return whether two JSON trees are equal, with a placeholder in the recorded one standing for its value."""
        with self._lock:
            while True:
                met: dict[str, str] = {}
                known = len(self._bound)
                if not self._trees(recorded, actual, met):
                    return False
                if len(self._bound) == known:  # otherwise a finalizer has bound others meanwhile, in this thread
                    break
            self._bound.update(met)
        for placeholder, value in met.items():
            if value != placeholder:
                self._redactor.stand_for(value, placeholder)
        return True

    def _trees(self, one: Any, other: Any, met: dict[str, str]) -> bool:
        if type(one) is dict and type(other) is dict:
            data = _data(one), _data(other)
            if None not in data and one["$t"] == other["$t"]:
                return self._texts(*data, met)  # type: ignore[arg-type]
            return self._mappings(one, other, met)
        if type(one) is list and type(other) is list:
            return len(one) == len(other) and all(
                self._trees(item, thing, met) for item, thing in zip(one, other, strict=True)
            )
        if type(one) is str and type(other) is str:
            return self._texts(one, other, met)
        return type(one) is type(other) and repr(one) == repr(other)

    def _mappings(self, one: dict[str, Any], other: dict[str, Any], met: dict[str, str]) -> bool:
        if len(one) != len(other):
            return False
        if one.keys() == other.keys():
            return all(self._trees(item, other[key], met) for key, item in one.items())
        # A key was redacted: its position says which one it is.
        return all(
            self._texts(key, name, met) and self._trees(item, thing, met)
            for (key, item), (name, thing) in zip(one.items(), other.items(), strict=True)
        )

    def _texts(self, recorded: str, actual: str, met: dict[str, str]) -> bool:
        """Return whether ``actual`` is ``recorded`` with the values of its placeholders; each value ends where the text
        after the placeholder first occurs."""
        if recorded == actual:
            for _, text in self._redactor.placeholders.within(recorded):
                if not self._places.get(text, (text,)):
                    met.setdefault(text, self._bound.get(text, text))
            return True
        last = at = 0
        placeholder = ""
        for start, text in [*self._redactor.placeholders.within(recorded), (len(recorded), "")]:
            if text and text not in self._places:
                continue
            literal = recorded[last:start]
            if not placeholder:
                found = 0 if actual.startswith(literal) else -1
            elif not text:
                found = len(actual) - len(literal) if actual.endswith(literal) else -1
            else:
                found = self._end(placeholder, actual, at, literal, met)
            if found < at or (placeholder and (found == at or not self._stands(placeholder, actual[at:found], met))):
                return False
            last, at, placeholder = start + len(text), found + len(literal), text
        return last == len(recorded) and at == len(actual)

    def _end(self, placeholder: str, actual: str, at: int, literal: str, met: dict[str, str]) -> int:
        """Return where the value that begins at ``at`` ends, followed by ``literal``."""
        bound = self._bound.get(placeholder, met.get(placeholder))
        for known in (placeholder, bound, self._originals.get(placeholder)):
            if known and literal and actual.startswith(known + literal, at):
                return at + len(known)
        return actual.find(literal, at + 1) if literal else -1

    def _stands(self, placeholder: str, value: str, met: dict[str, str]) -> bool:
        if value in (placeholder, self._originals.get(placeholder)):
            return True
        bound = self._bound.get(placeholder, met.get(placeholder))
        if bound is not None:
            return bound == value
        if value in self._places or value in self._bound.values() or value in met.values():
            return value == STAND_IN  # the replay sets that one for every key that it needs
        if any(map(self._used, self._places[placeholder])):
            return False
        met[placeholder] = value
        return True


class RecordedPlaceholders:
    """The placeholders of a trace, and the entries that may have given them to the program (not chunks that it sent)."""

    def __init__(self) -> None:
        self.places: Final[dict[str, list[int]]] = {}

    @classmethod
    def begin(cls, path: str) -> RecordedPlaceholders:
        return cls()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry."""
        meta = entry.get("meta")
        if type(meta) is not dict or ("redacted" not in meta and "redacted" not in (meta.get("info") or _NOTHING)):
            return
        for pointer, _, text in marks_of(entry):
            places = self.places.setdefault(text, [])
            if not (entry["type"].endswith(".chunk") and pointer.startswith("/output/sent")):
                places.append(entry["seq"])

    #: See ``reader.BlockCollector``.
    watched: ClassVar = (b"redacted",)

    def take(self, block: EntryBlock, marks: int, load: Callable[[int], dict[str, Any]]) -> None:
        for start, _ in block.stretches(b"\1" * len(block), marks):
            if start:
                self.add(block.entry(start - 1))

    #: See ``reader.KeptCollector``.
    made_by: ClassVar = (__name__, "tracekit._runtime.redaction")

    def state(self) -> dict[str, Any]:
        return {"places": self.places}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> RecordedPlaceholders:
        found = cls()
        found.places.update(state["places"])
        return found


def placeholders_of(trace: Trace) -> dict[str, list[int]]:
    """Verify a trace, and return its placeholders with the entries that may have given them to the program."""
    trace.check()
    return trace.collected(RecordedPlaceholders).places


def _data(tree: Any) -> str | None:
    """Return the text in base64 data, or ``None``."""
    if type(tree) is not dict or tree.get("$t") not in ("bytes", "bytearray", "memoryview", "str", "npbytes"):
        return None
    try:
        return a2b_base64(tree["v"]).decode("latin-1")
    except (ValueError, KeyError, TypeError):
        return None


# -- steps and values --------------------------------------------------------------------------------------------------


class Comparison:
    """Compares recorded steps and values with the program's, both in the form of the log."""

    def __init__(self, trace: Trace, redactor: Redactor, bindings: Bindings, ignored: Ignored) -> None:
        self._trace: Final = trace
        self._redactor: Final = redactor
        self._bindings: Final = bindings
        self._ignored: Final = ignored

    # -- values --------------------------------------------------------------------------------------------------------

    def encoded(self, value: object, *, owned: bool = False, own: Patterns | None = None) -> tuple[Any, bytes]:
        """Return a value as logged, as a tree and as JSON; ``owned``: it is a tree already."""
        tree = value if owned else to_json(value)
        data = dumps(tree)
        if oversized(tree, data):
            tree = stand_in(value, data)
            return tree, dumps(tree)
        if own is not None or self._redactor.suspicious(data):
            tree, redacted = self._redactor.also(own).redact(tree)
            if redacted:
                data = dumps(tree)
        return tree, data

    def equal(self, recorded: Any, actual: Any) -> bool:
        """Return whether a recorded tree and a present, redacted one are equal, placeholders standing for their values."""
        data = dumps(recorded)
        if data == dumps(actual) and not (self._bindings and b"REDACTED" in data):
            return True
        return self._bindings.equal(self._redactor.redact(recorded)[0], actual)

    def alike(self, recorded: object, actual: object) -> bool:
        """Return whether ``actual``, from the program, equals what was recorded, placeholders standing for their
        secrets."""
        return self.equal(to_json(recorded), self._redactor.redact(to_json(actual))[0])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def input(self, request: Request) -> tuple[Any, bytes]:
        """Return the input of a request as logged, as a tree and as JSON."""
        return self.encoded(request.input, owned=request.data is not None, own=request.spec.patterns)

    def tail(self, request: Request, agent: str | None) -> bytes | None:
        """Return how the line of exactly this step would end in a recording, if that is cheap to compute: the fast path
        for an exact match."""
        if request.key is not None or agent is not None:
            return None
        spec, info, data = request.spec, request.info, request.data
        rendered = spec.render(self._redactor)
        if info is None:
            suffix = rendered.suffix
        elif type(info) is Circumstances:
            suffix = info.render(spec, self._redactor)
        else:
            return None
        if data is None:
            data = quick(request.input)
        return None if data is None else rendered.prefix + data + suffix

    def ends_so(self, seq: int, tail: bytes) -> bool:
        """Return whether the entry ``seq`` ends in ``tail``, right after the numbers with which every entry begins.

        Equal bytes mean an equal step, redacted or not: redacting what is in the log changes nothing.
        """
        line = self._trace.line(seq)
        end = len(line) - TAIL
        return line.endswith(tail, 0, end) and line[end - len(tail) - 1] in _DIGITS

    def is_step(self, entry: Mapping[str, Any], request: Request, agent: str | None, tree: Any, data: bytes) -> bool:
        """Return whether a recorded step is the requested one, given its encoded input."""
        spec, key = request.spec, request.key
        rendered = spec.render(self._redactor)
        if entry.get("agent_id") != agent:
            return False
        if entry.get("name") == rendered.name and signature(entry) == rendered.meta:
            recorded = entry.get("input_hash")
            if recorded is not None:
                asked = tree if key is None else self.encoded(key)[0]
                equal = bool(recorded == fingerprint(rendered.name, asked))
            else:
                equal = dumps(self._trace.expand(entry["input"])) == data
            if equal or key is not None:
                return equal
        return key is None and self._resembles(entry, spec, rendered, tree)

    def _resembles(self, entry: Mapping[str, Any], spec: Spec, rendered: RenderedSpec, tree: Any) -> bool:
        """Return whether a step equals the recorded one except for addresses and secrets: which texts are known to be
        secret depends on the process."""
        facts = {"name": entry.get("name"), "meta": signature(entry), "input": self._trace.expand(entry["input"])}
        recorded, secrets = self._redactor.also(spec.patterns).redact(facts)
        actual = {"name": rendered.name, "meta": rendered.meta, "input": tree}
        if not secrets and not any(OPAQUE in one for one in (dumps(recorded), dumps(actual))):
            return False
        return self._bindings.equal(steady(recorded), steady(actual))

    def is_argument(self, seq: int, name: str, tree: Any) -> bool:
        """Return whether an argument of the recorded step ``seq`` was this one, except for addresses and secrets."""
        recorded = self._trace.expand(self._trace.entry(seq)["input"])
        if name not in recorded:
            return False
        redact = self._redactor.redact
        return self._bindings.equal(steady(redact({name: recorded[name]})[0]), steady(redact({name: tree})[0]))

    def but_for_ignored(
        self, kind: str, recorded: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Return the differences of two steps if all are in excluded fields, else ``None``."""
        ignored = self._ignored.fields(kind, recorded["name"])
        if not ignored:
            return None
        left = [self._redactor.redact(without(steady(facts), ignored))[0] for facts in (recorded, actual)]
        if not self._bindings.equal(*left):
            return None
        found = differences(steady(recorded), steady(actual), by_place=True)
        return [one for one in found if ignored.fullmatch(one["path"])]

    # -- steps of one entry --------------------------------------------------------------------------------------------

    def note(self, agent: str | None, note: Note) -> dict[str, Any]:
        """Return a step of one entry as logged."""
        meta = dict(note.signature or {})
        meta.pop("info", None)
        return {
            "name": self._redactor.redact_text(note.name)[0],
            "agent_id": agent,
            "input": self.encoded(note.input)[0],  # separately from the output, as it was recorded
            "output": self.encoded(note.output)[0],
            "meta": self.encoded(meta)[0],
        }

    def recorded_note(self, seq: int) -> dict[str, Any]:
        """Return a recorded step of one entry."""
        entry = self._trace.entry(seq)
        return {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self._trace.expand(entry["input"]),
            "output": self._trace.expand(entry["output"]),
            "meta": signature(entry),
        }


def signature(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a recorded step besides its name and input."""
    meta = dict(meta_of(entry))
    meta.pop("info", None)
    return meta
