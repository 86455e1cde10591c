"""Trees back to values. A tree is untrusted: nothing is imported, evaluated or initialised because of what it says.

Classes come from the return annotation, from a registered codec, or from a module that is loaded already; their instances get
their fields without ``__init__``, ``__post_init__`` or validators.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from ..errors import NotReplayableError
from .hints import classes_in
from .kinds import MUST_BE
from .registry import codecs_by_tag, loaded_class

__all__ = ["MAX_NESTING", "Decoder", "contains_opaque", "from_json", "refuse"]

#: JSON levels that are followed: more than were ever written.
MAX_NESTING: Final = 300

Tree = Any


def from_json(tree: Tree, hint: Any = None) -> Any:
    """The value that ``tree`` stands for; new containers throughout, so that nobody shares them.

    ``hint`` is the type where one is declared (a return annotation): classes inside it are found whatever module they
    are in. ``NotReplayableError`` where the tree is opaque, malformed, or names a class that is not loaded.
    """
    return Decoder(hint).whole(tree)


def contains_opaque(tree: Tree) -> str | None:
    """What the first opaque value in ``tree`` was (``"module:Type: repr"``), or ``None`` where there is none."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is dict:
            if node.get("$t") == "opaque":
                return f"{node.get('type')}: {node.get('repr')}"
            stack.extend(reversed(node.values()))
        elif type(node) is list:
            stack.extend(reversed(node))
    return None


def refuse(reason: str, next_action: str | None = None) -> NoReturn:
    raise NotReplayableError(
        f"A recorded value can't be rebuilt: {reason}.",
        reason=reason,
        next_action=next_action or "Return a type that can be recorded, or register a codec for it, and record again.",
    )


class Decoder:
    """One tree on its way back; remembers the classes that the hint holds once they are asked for."""

    __slots__ = ("_classes", "_hint")

    def __init__(self, hint: Any = None) -> None:
        self._hint = hint
        self._classes: dict[str, type] | None = None

    def whole(self, tree: Tree) -> Any:
        """As :meth:`value` from the top, every failure told as ``NotReplayableError``."""
        try:
            return self.value(tree, 0)
        except NotReplayableError:
            raise
        except RecursionError as error:
            raise NotReplayableError(
                "A recorded value can't be rebuilt: the stack is exhausted.", reason="stack"
            ) from error
        except Exception as error:
            reason = f"it is malformed ({type(error).__name__}: {str(error)[:200]})"
            raise NotReplayableError(f"A recorded value can't be rebuilt: {reason}.", reason=reason) from error

    def value(self, tree: Tree, depth: int) -> Any:
        if depth > MAX_NESTING:
            refuse(f"it is nested deeper than {MAX_NESTING} levels")
        kind = type(tree)
        if kind is list:
            return [self.value(item, depth + 1) for item in tree]
        if kind is not dict:
            return tree
        tag = tree.get("$t")
        if tag is None:
            return self._plain(tree, depth)
        return self._tagged(tag, tree, depth)

    def _plain(self, tree: dict[str, Tree], depth: int) -> dict[str, Any]:
        value = {}
        for key, item in tree.items():
            if key[:1] == "$":
                refuse(f"the key {key[:40]!r} means nothing here")
            value[key] = self.value(item, depth + 1)
        return value

    def _tagged(self, tag: Any, tree: dict[str, Tree], depth: int) -> Any:
        from .rebuild import REBUILD

        if type(tag) is not str:
            refuse("a tag is not a text")
        rebuild = REBUILD.get(tag)
        if rebuild is not None:
            return rebuild(self, tree, depth)
        codec = codecs_by_tag.get(tag)
        if codec is not None:
            return codec.decode(self.value(tree["v"], depth + 1))
        refuse(f"no codec is registered for {tag[:100]!r}", "Register the codec before the replay, or update tracekit.")

    def items(self, tree: Tree, depth: int) -> list[Any]:
        if type(tree) is not list:
            refuse("a list was expected")
        return [self.value(item, depth + 1) for item in tree]

    def pairs(self, tree: Tree, depth: int) -> list[tuple[Any, Any]]:
        if type(tree) is not list:
            refuse("pairs were expected")
        return [(self.value(key, depth + 2), self.value(item, depth + 2)) for key, item in tree]

    def mapping(self, tree: Tree, depth: int) -> dict[Any, Any]:
        value = self.value(tree, depth + 1)
        if type(value) is not dict:
            refuse("a dictionary was expected")
        return value

    def class_of(self, tree: dict[str, Tree]) -> type:
        """The class that a node names, checked to be of the kind that its tag says."""
        name, tag = tree["c"], tree["$t"]
        if type(name) is not str or len(name) > 1000:
            refuse("a class name is not a text")
        cls = loaded_class(name) or self._hinted(name)
        if cls is None:
            module = name.partition(":")[0]
            refuse(
                f"the class {name} is not loaded",
                f"Import {module!r} before the replay (a trace never imports anything), or name the class in the return annotation.",
            )
        if not MUST_BE[tag](cls, cls.__mro__):
            refuse(f"the loaded {name} is no {tag} class", "Replay with the code that recorded the run.")
        return cls

    def _hinted(self, name: str) -> type | None:
        """From the return annotation: by full name, else by the name within its module (a script's ``__main__`` moves)."""
        if self._classes is None:
            self._classes = classes_in(self._hint)
        exact = self._classes.get(name)
        if exact is not None:
            return exact
        qualname = name.partition(":")[2]
        alike = [cls for known, cls in self._classes.items() if known.partition(":")[2] == qualname]
        return alike[0] if len(alike) == 1 else None
