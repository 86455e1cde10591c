"""Exceptions as values: type, arguments, attributes, traceback, cause and group members, and how each is made again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, NamedTuple

from ..errors import NotReplayableError, RecordedError, ReplayError, TracekitError
from .codec import MAX_ITEMS, Decoder, TooLarge, Tree, Walk, to_json
from .registry import is_heap, loaded_class, name_of, set_state, state_of

__all__ = ["RECIPES", "Recipe", "exception_from_json", "exception_to_json", "shortfalls"]

# -- recipes -----------------------------------------------------------------------------------------------------------
#
# Exceptions that are more than their arguments and attributes: what of them is kept, and how they are made from it again.
#
# Looked up by the class's name; the library itself is there whenever one of its exceptions is, and nothing is imported for them.


class Recipe(NamedTuple):
    """``keep(exception)`` gives values that can be encoded; ``make(class, values, text)`` the exception, or ``None``."""

    keep: Callable[[Any], dict[str, Any]]
    make: Callable[[Any, dict[str, Any], str], BaseException | None]


# -- pydantic: C code without arguments or attributes --------------------------------------------------------------------------


def _keep_validation(exc: Any) -> dict[str, Any]:
    return {"title": exc.title, "errors": exc.errors(include_url=False)}


def _make_validation(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    core: Any = sys.modules["pydantic_core._pydantic_core"]
    lines = [_line(core, error) for error in kept["errors"]]
    # Neither is told by the exception, and both are seen in its text.
    for source in ("python", "json"):
        for hidden in (False, True):
            exc: BaseException = cls.from_exception_data(kept["title"], lines, source, hidden)
            if str(exc) == text:
                return exc
    return None


def _line(core: Any, error: dict[str, Any]) -> dict[str, Any]:
    line = {"type": error["type"], "loc": tuple(error["loc"]), "input": error["input"]}
    context = error.get("ctx")
    try:
        core.PydanticKnownError(error["type"], context)
    except (KeyError, TypeError):  # the program's own kind
        line["type"] = core.PydanticCustomError(error["type"], error["msg"], context)
    else:
        if context is not None:
            line["ctx"] = context
    return line


# -- urllib: a file, whose ``__getattr__`` breaks without an ``__init__`` -----------------------------------------------------

_CREDENTIALS: Final = frozenset(("set-cookie", "set-cookie2", "cookie", "authorization", "proxy-authorization"))


def _keep_http(exc: Any) -> dict[str, Any]:
    headers = exc.hdrs
    return {
        "url": exc.filename,
        "code": exc.code,
        "msg": exc.msg,
        "headers": None
        if headers is None
        else [pair for pair in headers.items() if pair[0].lower() not in _CREDENTIALS],
        "body": _body(exc.fp),
    }


def _body(file: Any) -> bytes | bool | None:
    """What can be read of an error's body without taking it from the program; true where there is one nobody has read."""
    from io import BytesIO

    if file is None:
        return None
    if type(file) is BytesIO:
        return file.getvalue()[file.tell() :]
    return b"" if file.closed or getattr(file, "fp", file) is None else True


def _make_http(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    from email.message import Message
    from io import BytesIO

    headers = None
    if kept["headers"] is not None:
        client = sys.modules.get("http.client")
        headers = Message() if client is None else client.HTTPMessage()
        for name, value in kept["headers"]:
            headers[name] = value
    body = kept["body"]
    file = None if body is None else _unread() if body is True else BytesIO(body)
    exc: BaseException = cls(kept["url"], kept["code"], kept["msg"], headers, file)
    return exc


def _unread() -> Any:
    from io import BufferedReader, RawIOBase

    from ..errors import NotReplayableError

    class Unread(RawIOBase):
        """A body that the tool left to its caller."""

        def readable(self) -> bool:
            return True

        def readinto(self, _buffer: Any) -> int:
            raise NotReplayableError(
                "The body of a recorded urllib.error.HTTPError is not in the trace.",
                reason="body",
                next_action="Read it in the tool, and raise or return what it says.",
            )

    return BufferedReader(Unread())


# -- jsonschema: arguments that say "not given" ---------------------------------------------------------------------------------

_SCHEMA_FIELDS: Final = ("message", "path", "validator", "validator_value", "instance", "schema", "schema_path")


def _keep_schema(exc: Any) -> dict[str, Any]:
    unset = type(exc)("").validator
    fields = {name: getattr(exc, name) for name in _SCHEMA_FIELDS}
    fields["path"], fields["schema_path"] = list(exc.relative_path), list(exc.relative_schema_path)
    return {name: value for name, value in fields.items() if value is not unset}


def _make_schema(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    exc: BaseException = cls(**kept)
    return exc


RECIPES: Final[dict[str, Recipe]] = {
    "pydantic_core._pydantic_core:ValidationError": Recipe(_keep_validation, _make_validation),
    "urllib.error:HTTPError": Recipe(_keep_http, _make_http),
    "jsonschema.exceptions:ValidationError": Recipe(_keep_schema, _make_schema),
    "jsonschema.exceptions:SchemaError": Recipe(_keep_schema, _make_schema),
}

# -- exceptions --------------------------------------------------------------------------------------------------------
#
# Exceptions as trees, and back: type, ``args``, text, attributes, traceback, cause, notes, members of a group.
#
# What is more than that is in ``recipes.py``.

#: How far causes, contexts and groups are followed.
MAX_CHAIN: Final = 16
MAX_MEMBERS: Final = 256
MAX_FRAMES: Final = 64
MAX_TEXT: Final = 1 << 20
#: Items in one argument or attribute.
MAX_PART: Final = 100_000
_SKIPPED: Final = {"obj", "__notes__", "__traceback__", "args", "with_traceback"}


def exception_to_json(exc: BaseException, notes: list[str] | None = None) -> dict[str, Tree]:
    """The tree of an exception: ``type``, ``text``, ``args``, and where there are any ``attrs``, ``traceback`` (``file``, ``line``,
    ``function``, ``code``), ``notes``, ``cause``, ``context``, ``suppress``, ``members``; ``made_of`` of a class that has a recipe,
    and ``lost``, the names of attributes that can't be recorded. Never raises."""
    walk = Walk(notes)
    try:
        walk.above.add(id(exc))
        return describe(walk, exc, 0)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {"type": name_of(type(exc)), "text": to_json(_text(exc)), "args": [], "cut": type(error).__name__}


def describe(walk: Walk, exc: BaseException, depth: int, chain: int = 0) -> dict[str, Tree]:
    tree: dict[str, Tree] = {"type": name_of(type(exc)), "text": to_json(_text(exc))}
    members = exc.exceptions if isinstance(exc, BaseExceptionGroup) else None
    tree["args"] = _args(walk, exc, depth) if members is None else [walk.value(exc.message, depth + 2)]  # type: ignore[attr-defined]
    recipe = RECIPES.get(tree["type"])
    made_of = _NOT if recipe is None else _ingredients(walk, recipe, exc, depth + 1)
    if made_of is not _NOT:
        tree["made_of"] = made_of
    else:
        _state(walk, exc, depth, tree)
    frames = _frames(exc)
    if frames:
        tree["traceback"] = frames
    said = getattr(exc, "__notes__", None)
    if type(said) is list and all(type(note) is str for note in said):
        tree["notes"] = [to_json(note) for note in said[:MAX_MEMBERS]]
    _chain(walk, exc, depth, chain, tree)
    if members is not None:
        tree["members"] = [_linked(walk, member, depth + 2, chain + 1) for member in members[:MAX_MEMBERS]]
    return tree


def _state(walk: Walk, exc: BaseException, depth: int, tree: dict[str, Tree]) -> None:
    """``attrs``, and ``lost`` for those that are more than a note to itself."""
    kept: dict[str, Tree] = {}
    lost: list[str] = []
    for name, item in _attributes(exc):
        encoded = _whole(walk, item, depth + 2)
        if encoded is not _NOT:
            kept[name] = encoded
        elif not isinstance(item, type):
            lost.append(name)
    if kept:
        tree["attrs"] = kept
    if lost:
        tree["lost"] = lost


def _ingredients(walk: Walk, recipe: Any, exc: BaseException, depth: int) -> Tree:
    try:
        return _whole(walk, recipe.keep(exc), depth)
    except Exception:  # another release of the library: it is told as far as any exception is
        return _NOT


def _chain(walk: Walk, exc: BaseException, depth: int, chain: int, tree: dict[str, Tree]) -> None:
    cause, context = exc.__cause__, exc.__context__
    if cause is not None:
        tree["cause"] = _linked(walk, cause, depth + 1, chain + 1)
    if context is not None and context is not cause:
        tree["context"] = _linked(walk, context, depth + 1, chain + 1)
    if exc.__suppress_context__:
        tree["suppress"] = True


def _linked(walk: Walk, exc: BaseException, depth: int, chain: int) -> Tree:
    me = id(exc)
    walk.left -= 1000  # a chain may fork at each link
    if chain > MAX_CHAIN or me in walk.above or walk.left < MAX_ITEMS // 2:
        return {"type": name_of(type(exc)), "text": to_json(_text(exc)), "args": [], "cut": True}
    walk.above.add(me)
    try:
        return describe(walk, exc, depth, chain)
    finally:
        walk.above.discard(me)


def _text(exc: BaseException) -> str:
    try:
        return str.__str__(str(exc))[:MAX_TEXT]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<its text raised {type(error).__name__}>"


def _args(walk: Walk, exc: BaseException, depth: int) -> list[Tree]:
    args: Any = BaseException.args.__get__(exc)  # type: ignore[attr-defined]
    return [_bounded(walk, item, depth + 2) for item in args]


def _bounded(walk: Walk, item: object, depth: int) -> Tree:
    trial = Walk(walk.notes)
    trial.above, trial.left = walk.above, MAX_PART
    try:
        return trial.value(item, depth)
    except TooLarge:
        return walk.opaque(item, "it is too large")


_NOT: Final = object()


def _whole(walk: Walk, item: object, depth: int) -> Tree:
    """The tree of an attribute, or ``_NOT`` where any part of it can't be recorded: clients and sockets are no loss."""
    notes: list[str] = []
    trial = Walk(notes)
    trial.above, trial.left = walk.above, MAX_PART
    try:
        tree = trial.value(item, depth)
    except Exception:
        return _NOT
    return _NOT if notes else tree


def _native(cls: type) -> Iterator[tuple[str, Any]]:
    """The C-level attributes of built-in exceptions (``errno``, ``filename``, ``reason`` …)."""
    for base in cls.__mro__:
        if not is_heap(base) and base not in (BaseException, object):
            for name, item in vars(base).items():
                if type(item) in (MemberDescriptorType, GetSetDescriptorType) and not name.startswith("__"):
                    yield name, item


def _attributes(exc: BaseException) -> Iterator[tuple[str, Any]]:
    for name, slot in _native(type(exc)):
        try:
            item = slot.__get__(exc)
        except Exception:
            continue
        if item is not None and name not in _SKIPPED and name not in ("exceptions", "message"):
            yield name, item
    for name, item in state_of(exc).items():
        if (
            type(name) is str
            and name not in _SKIPPED
            and not name.startswith("__")
            and name[:1] != "$"
            and to_json(name) == name
        ):
            yield name, item


def _frames(exc: BaseException) -> list[Tree]:
    """From the outermost to the innermost; of a long traceback both ends."""
    frames: list[tuple[Any, int | None, dict[str, Any]]] = []
    traceback = exc.__traceback__
    while traceback is not None and len(frames) < 10_000:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_frame.f_globals))
        traceback = traceback.tb_next
    if len(frames) > MAX_FRAMES:
        frames = frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    return [_frame(code, line, names) for code, line, names in frames]


def _frame(code: Any, line: int | None, names: dict[str, Any]) -> dict[str, Tree]:
    from linecache import getline

    tree = {"file": to_json(code.co_filename), "line": line, "function": to_json(code.co_qualname)}
    try:
        source = getline(code.co_filename, line or 0, names).strip()
    except Exception:
        source = ""
    if source:
        tree["code"] = to_json(source[:300])
    return tree


def exception_from_json(tree: dict[str, Tree]) -> BaseException:
    """The exception that ``tree`` stands for, to be raised.

    Of its own type where that is loaded already and is an ``Exception``, ``CancelledError``, ``KeyboardInterrupt``, ``SystemExit`` or
    a class of the program's own: made without its ``__init__``, with the recorded arguments and attributes, and only if its text
    is then the recorded one. Else a :class:`RecordedError` with that text. ``NotReplayableError`` where the tree is malformed.
    """
    built = Decoder().whole({"$t": "exception", "v": tree})
    assert isinstance(built, BaseException)
    return built


def shortfalls(tree: Tree, exc: BaseException) -> list[str]:
    """Sentences about what of a recorded exception did not come back; empty where all of it did."""
    if type(exc) is RecordedError and tree.get("type") != name_of(RecordedError):
        return [
            f"raised {tree.get('type')}, which comes back as RecordedError: no `except` for its own type catches it"
        ]
    said: list[str] = []
    if tree.get("lost"):
        names = ", ".join(str(name) for name in tree["lost"])
        said.append(f"raised {tree['type']}, whose attributes are not in the trace: {names}")
    if isinstance(exc, BaseExceptionGroup):
        for member, inner in zip(tree.get("members", ()), exc.exceptions, strict=False):
            said += shortfalls(member, inner)
    return said


def rebuilt(decoder: Decoder, tree: Any, depth: int) -> BaseException:
    text, name = decoder.value(tree["text"], depth + 1), tree["type"]
    if type(text) is not str or type(name) is not str:
        raise TypeError("an exception has a type and a text")
    members = [rebuilt(decoder, member, depth + 2) for member in tree.get("members", ())]
    exc = _original(decoder, tree, text, members, depth) or _stand_in(decoder, tree, text, depth)
    for note in tree.get("notes", ()):
        exc.add_note(decoder.value(note, depth + 2))
    if tree.get("context") is not None:
        exc.__context__ = rebuilt(decoder, tree["context"], depth + 1)
    if tree.get("cause") is not None:
        exc.__cause__ = rebuilt(decoder, tree["cause"], depth + 1)
        exc.__context__ = exc.__context__ or exc.__cause__
    exc.__suppress_context__ = tree.get("suppress") is True
    return exc


def _stand_in(decoder: Decoder, tree: dict[str, Tree], text: str, depth: int) -> RecordedError:
    try:
        args = tuple(decoder.items(tree.get("args", []), depth + 1))
    except NotReplayableError:
        args = ()
    return RecordedError(text, type_name=tree["type"], recorded_args=args)


def _original(
    decoder: Decoder, tree: dict[str, Tree], text: str, members: list[BaseException], depth: int
) -> BaseException | None:
    """The exception as one of its own type, or ``None`` where that can't be had faithfully."""
    cls = loaded_class(tree["type"]) or _local_class(tree["type"])
    if cls is None or not _may_be_made(cls) or tree.get("cut"):
        return None
    if "made_of" in tree:
        return _by_recipe(decoder, cls, tree, text, depth)
    try:
        args = tuple(decoder.items(tree.get("args", []), depth + 1))
        exc = _made(cls, args, members)
        state = {name: decoder.value(item, depth + 2) for name, item in tree.get("attrs", {}).items()}
        native = dict(_native(cls))
        for name, item in state.items():
            if name in native:
                _set_native(native[name], exc, item)
            else:
                set_state(exc, {name: item})
        return exc if _text(exc) == text or _says_its_args(cls) else None
    except (NotReplayableError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _by_recipe(decoder: Decoder, cls: type, tree: dict[str, Tree], text: str, depth: int) -> BaseException | None:
    recipe = RECIPES.get(tree["type"])
    try:
        exc = recipe and recipe.make(cls, decoder.value(tree["made_of"], depth + 1), text)
        return exc if exc is not None and _text(exc) == text else None
    except (NotReplayableError, Exception):  # what a library says to values of its own kind is nobody's failure
        return None


def _local_class(name: str) -> type | None:
    """The exception class of a name that no module has: made inside a function, and so found among the classes there are.

    The function may have made it again at each of its calls: the last one is the one that the program can name now.
    """
    if "<locals>" not in name:
        return None
    found: list[type] = []
    seen: set[type] = set()
    level: list[type] = [BaseException]
    while level:
        below: list[type] = []
        for base in level:
            below += type.__subclasses__(base)
        level = [cls for cls in below if cls not in seen]
        seen.update(level)
        found += [cls for cls in level if is_heap(cls) and name_of(cls) == name]
    return found[-1] if found else None


def _says_its_args(cls: type) -> bool:
    """Whether the text is nothing but the arguments: that of a set may come in another order."""
    told: Any = cls
    return told.__str__ in (BaseException.__str__, KeyError.__str__) and told.__repr__ is BaseException.__repr__


def _may_be_made(cls: type) -> bool:
    from asyncio import CancelledError

    if issubclass(cls, TracekitError):  # what this program is told by us, no trace says
        return not issubclass(cls, ReplayError) and cls is not TracekitError
    own = is_heap(cls) and issubclass(cls, BaseException) and not issubclass(cls, GeneratorExit)
    return (
        own or issubclass(cls, Exception) or cls in (CancelledError, KeyboardInterrupt, SystemExit, BaseExceptionGroup)
    )


def _made(cls: Any, args: tuple[Any, ...], members: list[BaseException]) -> BaseException:
    """An instance by the built-in base's own ``__new__`` and ``__init__``, which are C code without effects."""
    base: Any = next(base for base in cls.__mro__ if not is_heap(base) and issubclass(base, BaseException))
    if issubclass(cls, BaseExceptionGroup):
        group: BaseException = BaseExceptionGroup.__new__(cls, args[0], members)
        group.args = (args[0], members)
        return group
    exc: BaseException = base.__new__(cls, *args)
    try:
        base.__init__(exc, *args)
    except TypeError:  # the subclass takes other arguments than its base
        pass
    exc.args = args
    return exc


def _set_native(slot: Any, exc: BaseException, item: Any) -> None:
    try:
        slot.__set__(exc, item)
    except (AttributeError, TypeError):  # read-only: set by the arguments
        pass
