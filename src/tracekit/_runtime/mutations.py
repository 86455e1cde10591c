"""Records what a call changes in its arguments, and repeats these changes in a replay.

A tool may append to a list that its caller keeps using, fill in a dataclass, or return the very dictionary that it was
given. A replay does not run the tool, so all of that is part of its outcome. Each container in the arguments has a
*pointer*: its place in the recorded input when the call began (RFC 6901; a method's own object is under ``/self``). The
outcome's ``arguments`` says, by pointer, what each changed container has become. A container that existed before is
written as ``{"$t": "argument", "v": pointer}``, so that a replay moves the program's own objects instead of creating
equal ones.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from orjson import loads

from .._native import sha256_hex
from .._values import Made, Structure, Walk, attributes_of, dumps, dumps_in_order, noted, structure_of, to_json
from .._values.decoding import Decoder, from_json, refuse, structured
from .._values.registry import has_state, set_state, state_of
from ..errors import NotReplayableError
from .changeable import FIXED, changeable, has_fields, may_change
from .session import current

if TYPE_CHECKING:
    from threading import RLock

    from .index import Index
    from .matching import Comparison
    from .redaction import Redactor
    from .session import Step
    from .step import Spec
    from .verdict import Report

__all__ = [
    "LARGEST",
    "ChangedArguments",
    "Changes",
    "WatchedArguments",
    "state_hash",
    "watched_arguments",
]

#: Arguments with a longer canonical form are compared only if ``mutates=`` names them.
LARGEST: Final = 64 << 10
_TAGS_OF_PAIRS: Final = frozenset(("dict", "OrderedDict", "Counter", "defaultdict"))
_TAGS_OF_ATTRIBUTES: Final = frozenset(("dataclass", "attrs", "msgspec", "namespace", "object"))
_WHOLE: Final = frozenset(("bytearray", "ndarray", "array"))
#: What an array has besides its contents: a call that changes the contents leaves it as it is.
_LAYOUT: Final = frozenset(("strides", "view", "readonly"))
#: Immutable containers, whose contents may be changeable.
_SEALED: Final = frozenset(("tuple", "namedtuple"))

Tree = Any
#: A part of a container: the kind of its content (``items``, ``pairs``, ``attributes``, ``members``, ``whole``), and
#: the content.
Part = tuple[str, Any]


def state_hash(canonical: bytes) -> str:
    return "sha256:" + sha256_hex(canonical)


def _state(value: Any, notes: list[str], known: Mapping[int, str] | None = None, made: Any = None) -> Tree:
    """Return the tree of an argument; for an object of an unknown type, its attributes as far as they can be recorded.

    A ``known`` container is written as its pointer; the others in it are added to ``made``, as ``Walk`` does.
    """
    token = current.set(None)  # ``__repr__`` is the program's own code: what it does is not part of the run
    try:
        found: list[str] = []
        tree = to_json(value, found) if known is None else _Linked(known, found, made).value(value, 0)
        if type(tree) is dict and tree.get("$t") == "opaque" and has_state(value):
            return attributes_of(Walk(notes) if known is None else _Linked(known, notes, made), value)
        notes += found
        return tree
    finally:
        current.reset(token)


# -- containers and their pointers -------------------------------------------------------------------------------------


def _key(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _children(tree: Tree, value: Any) -> Iterator[tuple[str, Tree, Any]]:
    """Yield the children of a container: their part of the pointer, tree and value."""
    if type(tree) is list:
        for i, (sub, item) in enumerate(zip(tree, _items(value), strict=True)):
            yield f"/{i}", sub, item
        return
    tag = tree.get("$t")
    if tag is None:
        for (key, sub), item in zip(tree.items(), dict.values(value), strict=True):
            yield _key(key), sub, item
    elif tag in _TAGS_OF_PAIRS:
        values = value.values() if type(value) is OrderedDict else dict.values(value)
        for i, (pair, item) in enumerate(zip(tree["v"], values, strict=True)):
            yield f"/v/{i}/1", pair[1], item
    elif tag in _SEALED or tag == "deque":
        for i, (sub, item) in enumerate(zip(tree["v"], _items(value), strict=True)):
            yield f"/v/{i}", sub, item
    elif tag == "ChainMap":
        for i, (sub, item) in enumerate(zip(tree["v"], value.maps, strict=True)):
            yield f"/v/{i}", sub, item
    elif tag == "exception":
        about, state = tree["v"], state_of(value)
        for i, (sub, item) in enumerate(zip(about["args"], value.args, strict=False)):
            yield f"/v/args/{i}", sub, item
        yield from _named(
            "/v/attrs", {name: sub for name, sub in about.get("attrs", {}).items() if name in state}, state
        )
    elif tag in _TAGS_OF_ATTRIBUTES or tag == "pydantic":
        yield from _named("/v", tree["v"], state_of(value))
        for part in ("extra", "private"):
            if tag == "pydantic" and part in tree:
                yield from _named(f"/{part}", tree[part], _pydantic(value, part))
    elif tag == "sub":
        if type(tree["v"]) is list or type(tree["v"]) is dict:
            for at, sub, item in _children(tree["v"], value):
                yield "/v" + at, sub, item
        yield from _named("/a", tree.get("a", {}), state_of(value))


def _items(value: Any) -> Iterator[Any]:
    for base in (list, tuple, deque):
        if isinstance(value, base):
            return base.__iter__(value)  # type: ignore[arg-type]
    return iter(())


def _named(at: str, tree: Tree, state: Mapping[str, Any]) -> Iterator[tuple[str, Tree, Any]]:
    if type(tree) is dict and "$t" not in tree:
        for name, sub in tree.items():
            yield at + _key(name), sub, state[name]


def _pydantic(value: Any, part: str) -> Any:
    return object.__getattribute__(value, f"__pydantic_{part}__")


def _is_container(tree: Tree) -> bool:
    return type(tree) is list or (type(tree) is dict and bool(_parts(tree)))


def _placed(tree: Tree, value: Any, at: str, found: dict[str, Any]) -> None:
    """Collect every container in ``value`` by pointer. Raises ``ValueError``, ``KeyError`` … if another thread has
    changed it since ``tree`` was made."""
    if type(tree) is not list and type(tree) is not dict:
        return
    if _is_container(tree):
        found[at] = value
    for step, sub, item in _children(tree, value):
        if type(sub) is list or type(sub) is dict:
            _placed(sub, item, at + step, found)


def _placed_by_order(tree: Tree, seen: Iterator[Any], at: str, found: dict[str, Any]) -> None:
    """Collect every container of a value encoded by the fast path, by pointer; ``seen`` has the containers in the order
    of ``tree``."""
    if type(tree) is list:
        found[at] = next(seen)
        steps: Any = enumerate(tree)
    elif type(tree) is dict:
        tag = tree.get("$t")
        if tag == "float":
            return
        value = next(seen)
        if tag == "tuple":
            at += "/v"
            steps = enumerate(tree["v"])
        else:
            found[at] = value
            steps = tree.items()
    else:
        return
    for step, sub in steps:
        if type(sub) is list or type(sub) is dict:
            _placed_by_order(sub, seen, at + (_key(step) if type(step) is str else f"/{step}"), found)


def _at(tree: Tree, pointer: str) -> Tree:
    """Return the node at a JSON pointer."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        tree = tree[int(key)] if type(tree) is list else tree[key]
    return tree


# -- a single container ------------------------------------------------------------------------------------------------


def _parts(tree: Tree) -> dict[str, Part]:
    """Return the changeable parts of a container by name; none for a value that is replaced as a whole."""
    if type(tree) is list:
        return {"": ("items", tree)}
    tag = tree.get("$t")
    if tag is None or tag in _TAGS_OF_PAIRS:
        return {"": ("pairs", _pairs(tree))}
    if tag == "set":
        return {"": ("members", tree["v"])}
    if tag == "deque":
        return {"": ("items", tree["v"])}
    if tag == "memoryview":
        return {"": ("whole", tree)} if tree.get("writable") is True else {}
    if tag == "exception":
        about = tree["v"]
        return {
            "": ("attributes", sorted(_pairs(about.get("attrs", {})), key=_first)),
            "args": ("whole", about["args"]),
            "notes": ("whole", about.get("notes", [])),
        }
    if tag in _WHOLE:
        return {"": ("whole", {key: item for key, item in tree.items() if key not in _LAYOUT})}
    if tag in _TAGS_OF_ATTRIBUTES:
        return {"": ("attributes", sorted(_pairs(tree["v"]), key=_first))}
    if tag == "pydantic":
        parts: dict[str, Part] = {
            "": ("attributes", sorted(_pairs(tree["v"]), key=_first)),
            "set": ("whole", tree["set"]),
        }
        for part in ("extra", "private"):
            parts[part] = ("pairs", _pairs(tree.get(part, {})))
        return parts
    if tag == "sub" and tree["b"] in ("list", "dict", "set", "bytearray"):
        base = {"$t": tree["b"], "v": tree["v"]["v"]} if type(tree["v"]) is dict and "$t" in tree["v"] else tree["v"]
        return {**_parts(base), "a": ("attributes", sorted(_pairs(tree.get("a", {})), key=_first))}
    return {}


def _first(pair: list[Tree]) -> bytes:
    return dumps(pair[0])


def _pairs(tree: Tree) -> list[list[Tree]]:
    if type(tree) is dict and "$t" in tree:
        return tree["v"]  # type: ignore[no-any-return]
    return [[key, item] for key, item in tree.items()]


def _mapping(pairs: list[list[Tree]]) -> Tree:
    """Return pairs as the tree of a dictionary: by key if possible, so that names of secrets are recognised."""
    if all(type(key) is str and key[:1] != "$" for key, _ in pairs):
        return dict(pairs)
    return {"$t": "dict", "v": pairs}


class _Linked(Walk):
    """A walk in which containers that existed when the call began are replaced by their pointers."""

    __slots__ = ("known",)

    def __init__(self, known: Mapping[int, str], notes: list[str], made: Any) -> None:
        super().__init__(notes)
        self.known: Final = known
        self.made = made

    def _compound(self, value: Any, kind: type, depth: int) -> Tree:
        at = self.known.get(id(value)) if depth else None
        return super()._compound(value, kind, depth) if at is None else {"$t": "argument", "v": at}


def _cut(tree: Tree, at: str, known: Mapping[str, str], top: bool = True) -> Tree:
    """Return ``tree`` with the containers inside replaced by their pointers, as ``_Linked`` does."""
    if not top and at in known:
        return {"$t": "argument", "v": known[at]}
    if type(tree) is list:
        return [_cut(sub, f"{at}/{i}", known, False) for i, sub in enumerate(tree)]
    if type(tree) is dict:
        return {key: _cut(sub, at + _key(key), known, False) for key, sub in tree.items()}
    return tree


def _differences(at: str, before: Tree, now: Tree) -> Iterator[dict[str, Any]]:
    """Yield the changes that turn a container from ``before`` into ``now``."""
    new = _parts(now)
    for name, (kind, old) in _parts(before).items():
        content = new[name][1]
        if dumps(content) == dumps(old):
            continue
        change: dict[str, Any] = {"at": at}
        if name:
            change["part"] = name
        if kind == "items":
            change["items"] = _splice(old, content)
        elif kind == "pairs":
            change.update(_rewritten(old, content))
        elif kind == "attributes":
            change["unset"], put = _delta(old, content)
            change["set"] = _mapping(put)
        elif kind == "members":
            had, has = {dumps(one) for one in old}, {dumps(one) for one in content}
            change["discard"] = [one for one in old if dumps(one) not in has]
            change["add"] = [one for one in content if dumps(one) not in had]
        else:
            change["whole"] = content
        yield change


def _splice(old: list[Tree], new: list[Tree]) -> list[Any]:
    """Return where two lists differ: the start, how many old items, and the new items."""
    was, now = [dumps(one) for one in old], [dumps(one) for one in new]
    shorter = min(len(was), len(now))
    start = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    rest = shorter - start
    same = next((i for i in range(rest) if was[-1 - i] != now[-1 - i]), rest)
    return [start, len(old) - same - start, new[start : len(new) - same]]


def _rewritten(old: list[list[Tree]], new: list[list[Tree]]) -> dict[str, Any]:
    """Return the removed keys and the new items; all items if the order of the remaining keys changed."""
    had, has = [dumps(key) for key, _ in old], [dumps(key) for key, _ in new]
    stay = [key for key in had if key in set(has)]
    if has[: len(stay)] != stay:
        return {"pairs": _mapping(new)}
    drop, put = _delta(old, new)
    return {"drop": drop, "put": _mapping(put)}


def _delta(old: list[list[Tree]], new: list[list[Tree]]) -> tuple[list[Tree], list[list[Tree]]]:
    was, now = {dumps(key): dumps(item) for key, item in old}, {dumps(key) for key, _ in new}
    put = [pair for pair in new if was.get(dumps(pair[0])) != dumps(pair[1])]
    return [key for key, _ in old if dumps(key) not in now], put


# -- references to containers ------------------------------------------------------------------------------------------


def _longer(value: Any, limit: int) -> bool:
    """Return whether a value's encoding is certainly longer than ``limit``, without encoding it."""
    left = limit
    above: set[int] = set()  # where a container contains itself, its encoding stops
    open_ones: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    while open_ones and left >= 0:
        owner, rest = open_ones[-1]
        for node in rest:
            kind = type(node)
            if kind is str or kind is bytes or kind is bytearray:
                left -= len(node)
                if left < 0:
                    break
            elif (kind is list or kind is tuple or kind is set or kind is dict) and id(node) not in above:
                left -= len(node) * (3 if kind is dict else 1)
                above.add(id(node))
                open_ones.append((id(node), iter(list(node.values() if kind is dict else node))))
                break
        else:
            open_ones.pop()
            above.discard(owner)
    return left < 0


#: Up to this many containers are examined directly; in a larger value each is looked up by its pointer.
_MANY: Final = 10_000


def _holds(value: Any, wanted: set[int]) -> bool:
    """Return whether a value is, or may contain, one of the objects with these ids."""
    pending, met = [value], set()
    while pending:
        node = pending.pop()
        if id(node) in wanted:
            return True
        kind = type(node)
        if kind in FIXED or id(node) in met:
            continue
        met.add(id(node))
        if len(met) > _MANY:
            return True
        inside: Any = ()
        if isinstance(node, dict):
            inside = list(dict.values(node))
        elif isinstance(node, list | tuple | deque):
            inside = list(_items(node))
        elif kind is SimpleNamespace or has_fields(kind):
            inside = list(state_of(node).values())
        if not FIXED.issuperset(map(type, inside)):
            pending.extend(inside)
    return False


def _links(output: Any, *known: Mapping[int, str]) -> list[dict[str, str]]:
    """Return where ``output`` is, or contains, one of the ``known`` containers: its pointers mapped to theirs, for each
    of these mappings."""
    found: list[dict[str, str]] = [{} for _ in known]
    if type(output) not in FIXED and any(_holds(output, set(one)) for one in known if one):
        _link(_state(output, []), output, "", known, found)
    return found


def _link(tree: Tree, value: Any, at: str, known: Sequence[Mapping[int, str]], found: list[dict[str, str]]) -> None:
    for there, links in zip(known, found, strict=True):
        if id(value) in there:
            links[at] = there[id(value)]
            return
    for step, sub, item in _children(tree, value):
        if type(sub) is list or type(sub) is dict:
            _link(sub, item, at + step, known, found)


# -- recording ---------------------------------------------------------------------------------------------------------


class WatchedArguments:
    """The arguments of a recorded call as they were when it began, or was last resumed."""

    __slots__ = ("_before", "_placed", "_plain", "_seen", "arguments", "large", "mutates")

    def __init__(
        self, arguments: dict[str, Any], mutates: tuple[str, ...], plain: bytes | None, seen: list[Any]
    ) -> None:
        self.arguments = arguments
        self.mutates: Final = mutates
        #: The encoding of all arguments by the fast path, and the containers in it.
        self._plain = plain
        self._seen = seen
        #: The arguments that are not compared because of their size.
        self.large: Sequence[str] = ()
        if plain is None:
            self._take()

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to compare, and nothing to report."""
        return self._plain is None and not (self._before or self.large)

    def holds(self, instance: object) -> None:
        """Add the method's own object to the arguments."""
        self.arguments = {**self.arguments, "self": instance}
        self._plain = None
        self._take()

    def resumed(self) -> None:
        """Take a new snapshot: a generator continues, and its caller may have changed its arguments meanwhile."""
        self._plain = None
        self._take()

    def _take(self) -> None:
        #: The encoding of each argument, and the containers in it by pointer.
        self._before: dict[str, bytes] = {}
        self._placed: dict[str, Any] = {}
        self.large = large = []
        for name, value in self.arguments.items():
            named = name in self.mutates
            if type(value) in FIXED or not (named or may_change(type(value))):
                continue
            if not named and _longer(value, LARGEST):
                large.append(name)
                continue
            found: dict[str, Any] = {}
            try:
                tree = self._encoded(name)
                before = dumps_in_order(tree)
                _placed(tree, value, _key(name), found)
            except Exception:  # another thread is changing it: what this call does to it is unknown
                continue
            if not found:
                continue
            if not named and len(before) > LARGEST:
                large.append(name)
                continue
            self._before[name] = before
            self._placed.update(found)

    def unchanged(self, output: object) -> bool:
        """Return true if the fast path shows that there is nothing to report."""
        if self._plain is None or noted(self.arguments, []) != self._plain:
            return False
        kind = type(output)
        if kind is dict:
            inside: Any = output.values()  # type: ignore[attr-defined]
        elif kind is list:
            inside = output
        else:
            return kind in FIXED
        return FIXED.issuperset(map(type, inside)) and all(output is not one for one in self._seen)

    def changes(self, output: object, notes: list[str]) -> Changes | None:
        """Return the changed arguments, and which of them ``output`` is or contains; ``None`` if there are none.

        ``notes`` receives a sentence for each new value that can't be recorded.
        """
        if self._plain is not None:
            same = noted(self.arguments, []) == self._plain
            if same:
                if type(output) in FIXED or not _holds(output, {id(one) for one in self._seen}):
                    return None
                for name, value in self.arguments.items():
                    if value is output and type(value) is not tuple:
                        return Changes({}, {"output": {"": _key(name)}})
            self._unfold()
        changed = {name: now for name, was in self._before.items() if (now := self._now(name)) != was}
        known = {id(value): at for at, value in reversed(self._placed.items())}
        if not changed and (type(output) in FIXED or not _holds(output, set(known))):
            return None
        found = Changes({name: loads(self._before[name]) for name in changed}, {})
        if changed:
            self._compare(changed, known, found, notes)
        fresh = {id(value): at for at, value in found.fresh.items()}
        for key, links in zip(("output", "output_after"), _links(output, known, fresh), strict=True):
            if links:
                found.about[key] = links
        return found if changed or found.about else None

    def _compare(
        self, changed: Mapping[str, bytes | None], known: Mapping[int, str], found: Changes, notes: list[str]
    ) -> None:
        before = {name: loads(was) for name, was in self._before.items()}
        patch = found.about["patch"] = []
        pointers = {at: known[id(value)] for at, value in self._placed.items()}
        made: Made = {}
        for at, value in self._placed.items():
            if pointers[at] == at:  # otherwise the same object again
                after = _state(value, notes, known, made)
                patch += _differences(at, _cut(_at(before, at), at, pointers), after)
        places = [change["at"] + "/" for change in patch] + [at + "/" for at, to in pointers.items() if to != at]
        found.lost = [name for name in changed if not any(one.startswith(_key(name) + "/") for one in places)]
        found.structure = structure_of(found.about, made)
        for name, now in changed.items():
            found.now[name] = loads(now or b"null")
            with suppress(Exception):  # another thread is changing it
                _placed(found.now[name], self.arguments[name], _key(name), found.fresh)

    def _unfold(self) -> None:
        """Restore the initial state: each argument as a tree, and every container in it by pointer."""
        trees = loads(self._plain or b"{}")
        self._placed = {}
        _placed_by_order(trees, iter(self._seen), "", self._placed)
        del self._placed[""]  # the dictionary of the arguments itself is not the program's
        self._before = {name: dumps_in_order(trees[name]) for name in self.arguments}
        self._plain = None

    def _now(self, name: str) -> bytes | None:
        try:
            return dumps_in_order(self._encoded(name))
        except Exception:  # another thread is changing it
            return None

    def _encoded(self, name: str) -> Tree:
        value = self.arguments[name]
        return _state(value, []) if name in self.mutates else to_json(value)


def watched_arguments(mutates: tuple[str, ...], input: object) -> WatchedArguments | None:
    """Return the arguments of a call, if there is anything to compare when it returns."""
    if not changeable(input, mutates):
        return None
    seen: list[Any] = []
    plain = noted(input, seen)
    watched = WatchedArguments(input, mutates, None if plain is None or len(plain) > LARGEST else plain, seen)
    return None if watched.idle else watched


class Changes:
    """What a call has changed: the changed arguments before (``was``) and ``now``, and what is logged ``about`` it.

    ``fresh`` are the containers now in the changed arguments, by pointer; ``structure`` is that of the new ones in
    ``about``. ``lost`` are the arguments of which a replay can't change again what has changed.
    """

    __slots__ = ("about", "fresh", "lost", "now", "structure", "was")

    def __init__(self, was: dict[str, Tree], about: dict[str, Any]) -> None:
        self.was: Final = was
        self.now: Final[dict[str, Tree]] = {}
        self.about: Final = about
        self.fresh: Final[dict[str, Any]] = {}
        self.structure: Structure = []
        self.lost: list[str] = []


# -- replaying ---------------------------------------------------------------------------------------------------------


class ReplayedArguments:
    """The arguments of a replayed call that changed them in the recording, as they were when it was called, or last
    resumed."""

    __slots__ = ("_at_call", "_contents", "_left", "_nodes", "arguments", "mutates")

    def __init__(self, arguments: Mapping[str, Any], mutates: tuple[str, ...]) -> None:
        self.arguments: Final = arguments
        self.mutates: Final = mutates
        #: Containers by pointer, and the contents of each.
        self._nodes: Final[dict[str, Any]] = {}
        self._contents: Final[dict[str, Any]] = {}
        #: The state in which recorded calls have left each argument: as long as it matches, nothing else has changed
        #: the argument.
        self._left: Final[dict[str, bytes]] = {}
        for name, value in arguments.items():
            if type(value) not in FIXED and (name in mutates or may_change(type(value))):
                tree = self.tree(name)
                self._left[name] = dumps_in_order(tree)
                _placed(tree, value, _key(name), self._nodes)
        self._at_call: Final = dict(self._left)
        for at, value in self._nodes.items():
            self._contents[at] = _content(value)

    def tree(self, name: str) -> Tree:
        value = self.arguments.get(name)
        return _state(value, []) if name in self.mutates else to_json(value)

    def state(self, name: str) -> Tree:
        """Return the tree of an argument as it was when the call began."""
        return loads(self._at_call.get(name, b"null"))

    def untouched(self, name: str) -> bool:
        """Return whether only recorded calls have changed an argument since."""
        return self._left.get(name) == dumps_in_order(self.tree(name))

    def apply(self, patch: list[dict[str, Any]]) -> list[Any]:
        """Repeat the changes; return the containers that changed."""
        decoder = Linking(None, self, {})
        todo = [
            (self.at(change.get("at")), change, decoder.whole(_news(change))) for change in patch
        ]  # all of it, or nothing
        for value, change, news in todo:
            try:
                _change(value, self._contents[change["at"]], change, news)
            except Exception as error:
                refuse(
                    f"an argument can't be changed as the recording says ({type(error).__name__}: {str(error)[:200]})"
                )
        return [value for value, _, _ in todo]

    def also(self, changed: list[Any]) -> None:
        """Note that another recorded call, not the program's own code, has changed these."""
        ids = {id(value) for value in changed}
        for name in self._left:
            if any(id(value) in ids for at, value in self._nodes.items() if (at + "/").startswith(_key(name) + "/")):
                self._left[name] = dumps_in_order(self.tree(name))

    def knows(self, pointer: Any) -> bool:
        return pointer in self._nodes

    def at(self, pointer: Any) -> Any:
        if pointer not in self._nodes:
            refuse(f"no argument has anything at {str(pointer)[:100]!r}")
        return self._nodes[pointer]

    def after(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the containers now in these arguments, by pointer."""
        found: dict[str, Any] = {}
        for name in names:
            _placed(self.tree(name), self.arguments.get(name), _key(name), found)
        return found


class ChangedArguments:
    """The calls of a replay that changed their arguments in the recording; each repeats its changes, if the arguments
    match."""

    def __init__(self, index: Index, comparison: Comparison, redactor: Redactor, report: Report, lock: RLock) -> None:
        self._index: Final = index
        self._comparison: Final = comparison
        self._redactor: Final = redactor
        self._report: Final = report
        self._lock: Final = lock
        #: The calls in progress.
        self._called: Final[dict[Step, ReplayedArguments]] = {}

    def begins(self, step: Step, arguments: Mapping[str, Any], mutates: tuple[str, ...]) -> None:
        """Note that such a call begins, or a generator continues."""
        called = ReplayedArguments(arguments, mutates)
        with self._lock:
            self._called[step] = called

    def output(
        self, step: Step, spec: Spec, seq: int, tree: Tree, meta: Mapping[str, Any], about: Mapping[str, Any]
    ) -> Any:
        """Return the call's output after changing its arguments as entry ``seq`` says (``about``)."""
        try:
            with self._lock:
                return self._output(step, spec, seq, tree, meta, about)
        except NotReplayableError:
            raise
        except Exception as malformed:  # a trace is untrusted
            reason = f"what it changed is malformed ({type(malformed).__name__}: {str(malformed)[:200]})"
            raise NotReplayableError(reason, reason=reason) from malformed

    def _output(
        self, step: Step, spec: Spec, seq: int, tree: Tree, meta: Mapping[str, Any], about: Mapping[str, Any]
    ) -> Any:
        called = self._called.pop(step, None)
        about = structured(about, meta, "/arguments")
        if called is None:
            value = from_json(structured(tree, meta, "/output"), spec.hint())
            self._leave(step, spec, "changed its arguments in the recording, and they are not compared here")
            return value
        if not self._done_again(step, spec, seq, called, about):
            about = {"output": {at: to for at, to in about.get("output", {}).items() if called.knows(to)}}
        after = called.after(about["was"]) if "output_after" in about else {}
        return Linking(spec.hint(), called, after).whole(structured(grafted(tree, about), meta, "/output"))

    def _done_again(
        self, step: Step, spec: Spec, seq: int, called: ReplayedArguments, about: Mapping[str, Any]
    ) -> bool:
        """Repeat the changes of the recorded call; if the arguments don't match, report that and return false."""
        was: Mapping[str, str] = about.get("was", {})
        other = [name for name, digest in was.items() if not self._as_then(step, spec, called, name, digest)]
        if other:
            names = ", ".join(other)
            self._leave(step, spec, f"changed {names} in the recording, which was in another state when it was called")
            return False
        if all(called.untouched(name) for name in was):
            changed = called.apply(about.get("patch", []))
            for one in self._called.values():
                one.also(changed)
            return True
        if all(self._digest(spec, name, called.tree(name)) == digest for name, digest in about["is"].items()):
            return True  # something concurrent has already made exactly these changes
        names = ", ".join(was)
        if self._index.others_between(step.seq, seq):
            how = f"changed {names} in the recording while other lanes ran, which change it here: left as it is"
            self._report.remark("shared_argument", f"{self._shown(step, spec)} {how}", step=step.seq)
        else:
            self._leave(
                step, spec, f"changed {names} in the recording, which has been changed here since it was called"
            )
        return False

    def _leave(self, step: Step, spec: Spec, how: str) -> None:
        self._report.inexact("shared_argument", f"{self._shown(step, spec)} {how}: left as it is", step=step.seq)

    def _shown(self, step: Step, spec: Spec) -> str:
        return f"{spec.family} {spec.render(self._redactor).name!r} (step {step.seq})"

    def _as_then(self, step: Step, spec: Spec, called: ReplayedArguments, name: str, digest: str) -> bool:
        tree = called.state(name)
        return self._digest(spec, name, tree) == digest or self._comparison.is_argument(step.seq, name, tree)

    def _digest(self, spec: Spec, name: str, tree: Tree) -> str:
        return state_hash(self._comparison.encoded({name: tree}, owned=True, own=spec.patterns)[1])


class Linking(Decoder):
    """A decoder in which some nodes are existing objects of the program."""

    __slots__ = ("_after", "_called")

    def __init__(self, hint: Any, called: ReplayedArguments, after: Mapping[str, Any]) -> None:
        super().__init__(hint)
        self._called: Final = called
        self._after: Final = after

    def _tagged(self, tag: Any, tree: dict[str, Tree], depth: int) -> Any:
        if tag != "argument":
            return super()._tagged(tag, tree, depth)
        pointer: Any = tree.get("v")
        return self._after[pointer] if tree.get("after") else self._called.at(pointer)


def grafted(tree: Tree, about: Mapping[str, Any]) -> Tree:
    """Return the tree of an output with links to what it took from the arguments; ``tree`` itself is not modified."""
    for key in ("output", "output_after"):
        for at, to in about.get(key, {}).items():
            tree = _grafted(tree, at.split("/")[1:], {"$t": "argument", "v": to, "after": key != "output"})
    return tree


def _grafted(tree: Tree, steps: list[str], node: Tree) -> Tree:
    if not steps:
        return node
    key: Any = steps[0].replace("~1", "/").replace("~0", "~")
    copy = list(tree) if type(tree) is list else dict(tree)
    if type(copy) is list:
        key = int(key)
    copy[key] = _grafted(copy[key], steps[1:], node)
    return copy


def _news(change: Mapping[str, Any]) -> Tree:
    """Return the trees of a change, to be decoded together."""
    if "items" in change:
        return change["items"][2]
    for put, drop in (("put", "drop"), ("set", "unset"), ("add", "discard")):
        if put in change:
            return [change[put], change[drop]]
    return [change["pairs"] if "pairs" in change else change["whole"]]


def _content(value: Any) -> Any:
    if isinstance(value, list | deque):
        return list(_items(value))
    return (
        dict(value.items())
        if type(value) is OrderedDict
        else dict(dict.items(value))
        if isinstance(value, dict)
        else None
    )


def _change(value: Any, content: Any, change: Mapping[str, Any], news: Any) -> None:
    """Apply one change: ``content`` is what was in ``value`` when the call began, ``news`` the new content."""
    part = change.get("part", "")
    if "items" in change:
        start, gone, _ = change["items"]
        items = list(content)
        items[start : start + gone] = news
        if isinstance(value, deque):
            deque.clear(value)
            deque.extend(value, items)
        else:
            list.__setitem__(value, slice(None), items)
    elif "add" in change:
        set.difference_update(value, news[1])
        set.update(value, news[0])
    elif "whole" in change:
        _replace(value, part, news[0])
    elif "set" in change:
        for name in news[1]:
            _delete(value, name)
        _set(value, news[0])
    elif part:
        held = _pydantic(value, part)
        _rewrite(held, dict(held), change, news)
    else:
        _rewrite(value, dict(content), change, news)


def _rewrite(value: Any, content: dict[Any, Any], change: Mapping[str, Any], news: Any) -> None:
    if "pairs" in change:
        content = news[0]
    else:
        for key in news[1]:
            del content[key]
        content.update(news[0])
    base: Any = OrderedDict if type(value) is OrderedDict else dict
    base.clear(value)
    for key, item in content.items():
        base.__setitem__(value, key, item)


def _replace(value: Any, part: str, news: Any) -> None:
    if part == "set":
        object.__setattr__(value, "__pydantic_fields_set__", set(news))
    elif part == "args":
        value.args = tuple(news)
    elif part == "notes":
        if news:
            value.__notes__ = list(news)
        else:
            value.__dict__.pop("__notes__", None)
    elif isinstance(value, memoryview):
        if value.ndim == 1:
            value[:] = news
        else:
            value.cast("B")[:] = news.cast("B")
    elif isinstance(value, bytearray):
        bytearray.__setitem__(value, slice(None), news)
    elif type(value).__name__ == "ndarray":
        if value.shape != news.shape or value.dtype != news.dtype:
            raise ValueError(f"an array of shape {news.shape} in place of one of {value.shape}")
        value[...] = news
    else:
        value[:] = news


def _set(value: Any, state: dict[str, Any]) -> None:
    if hasattr(type(value), "__struct_fields__"):
        for name, item in state.items():
            sys.modules["msgspec"].structs.force_setattr(value, name, item)
    else:
        set_state(value, state)


def _delete(value: Any, name: str) -> None:
    own = getattr(value, "__dict__", {})
    if name in own:
        del own[name]
    else:
        object.__delattr__(value, name)
