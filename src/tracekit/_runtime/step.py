"""``Request`` and ``Spec``: one call that a capture point hands over, and what all calls of it share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import orjson

from .._journal.entry import FAMILIES, EntryFamily
from .._values import dumps_in_order, to_json

if TYPE_CHECKING:
    from .bodies import Continuation
    from .redaction import Redactor
    from .spending import Budget

__all__ = ["Circumstances", "Family", "HasSpecs", "Note", "Patterns", "RenderedSpec", "Request", "Spec"]

#: The patterns of a tool for secrets in its values, in addition to those of the run.
Patterns = tuple[re.Pattern[str], ...]
#: A kind of step; the entry types of a family are in ``_journal.entry``.
Family = Literal["tool", "llm", "http", "process", "pipe", "span"]


class Circumstances(dict[str, Any]):
    """The ``info`` of a step that is the same for many calls of a spec; don't modify it.

    ``rendered`` caches a redactor's ``state`` and the ``meta`` as logged.
    """

    __slots__ = ("rendered",)

    def __init__(self, info: Mapping[str, Any]) -> None:
        super().__init__(info)
        self.rendered: tuple[object, bytes] | None = None

    def render(self, spec: Spec, redactor: Redactor) -> bytes:
        """Return ``,"meta":{…}`` of the intent record of a step of ``spec`` with this ``info``; cached as in
        ``Spec.render``."""
        known, state = self.rendered, redactor.state
        if known is not None and known[0] is state:
            return known[1]
        tree, marks = redactor.redact({**spec.meta, "info": to_json(dict(self))})
        marks = [
            *spec.render(redactor).marks,
            *([["/meta" + at, *rest] for at, *rest in marks if at.startswith("/info")]),
        ]
        suffix = b',"meta":%b' % dumps_in_order(tree if not marks else marked(tree, marks))
        if not marks:  # otherwise another run has other placeholders
            self.rendered = state, suffix
        return suffix


class RenderedSpec:
    """The redacted parts of a spec that go into the log; valid while the redactor's ``state`` is this one. Immutable."""

    __slots__ = ("marks", "meta", "name", "prefix", "state", "suffix")

    def __init__(self, state: object, name: str, meta: dict[str, Any], marks: list[Any] | None = None) -> None:
        #: The positions of placeholders.
        self.marks: Final = marks or []
        self.state: Final = object() if marks else state  # another run has other placeholders
        self.name: Final = name
        self.meta: Final = meta
        self.prefix: Final = b',"name":%b,"input":' % orjson.dumps(name)
        about = marked(meta, self.marks) if marks else meta
        self.suffix: Final = b',"meta":%b' % dumps_in_order(about) if about else b""


def marked(meta: Mapping[str, Any], marks: list[Any]) -> dict[str, Any]:
    """Return the ``meta`` of an entry with the positions of placeholders added."""
    info = meta.get("info") or {}
    return {**meta, "info": {**info, "redacted": [*marks, *info.get("redacted", ())]}}


class Note(NamedTuple):
    """A step of one entry, such as a decision: its type in the log, what it is about, and what came of it.

    ``signature`` is compared in a replay, ``info`` is not. If it can't be written, it has happened nevertheless and is
    written later; with ``must`` it has not happened (its seq is 0).
    """

    type: str
    name: str
    input: object = None
    output: object = None
    signature: Mapping[str, Any] | None = None
    info: Mapping[str, Any] | None = None
    must: bool = False


class Spec:
    """The constants of a capture point: name, family, side-effect class, signature, and their form in the log.

    ``signature`` (model, decoding parameters, tool version …) is stored in ``meta``, next to ``side_effect``; a replay
    compares both. ``returns`` is the type as which a recorded output is rebuilt, if declared. With ``lists``, elements
    of lists in the input are interned one by one (conversations).
    """

    __slots__ = (
        "budget",
        "compensation",
        "effect",
        "family",
        "lists",
        "meta",
        "mutates",
        "name",
        "patterns",
        "rendered",
        "resolve",
        "returns",
        "side_effect",
        "signature",
        "structural",
        "types",
    )  # fmt: skip

    def __init__(
        self,
        family: Family,
        name: str,
        *,
        side_effect: str | None = None,
        signature: Mapping[str, Any] | None = None,
        returns: Any = None,
        resolve: Callable[[], Any] | None = None,
        lists: bool = False,
        budget: Budget | None = None,
        mutates: tuple[str, ...] | None = None,
    ) -> None:
        self.family: Final = family
        self.name: Final = name
        self.side_effect: Final = side_effect
        #: What the step's body may spend.
        self.budget: Final = budget
        #: The arguments that it declares to change, of any size; ``None`` if changes to arguments are not recorded.
        self.mutates: Final = mutates
        self.signature: Final = dict(signature or {})
        self.returns = returns
        #: Resolves ``returns`` on first use: annotations may name classes that are defined later.
        self.resolve = resolve
        self.lists: Final = lists
        self.types: Final[EntryFamily] = FAMILIES[family]
        #: The body of a structural step also runs in a replay.
        self.structural: Final = family == "span"
        #: An effect must not start before its intent record is on the device.
        self.effect: Final = side_effect in ("irreversible", "reversible")
        self.meta: Final = _meta(side_effect, self.signature)
        #: How the effect is undone, if declared.
        self.compensation: Any = None
        #: Patterns for secrets that the run's own redactor leaves in. Steps with patterns always have ``info``, if only
        #: ``{}``.
        self.patterns: Patterns | None = None
        #: Valid only if its ``state`` is the redactor's; otherwise call ``render``.
        self.rendered: RenderedSpec = RenderedSpec(self, name, self.meta)

    def render(self, redactor: Redactor) -> RenderedSpec:
        """Return the spec's form in the log; cached until another redactor asks or this one has learned a secret."""
        rendered = self.rendered
        if rendered.state is not redactor.state:
            state = redactor.state
            name, in_name = redactor.redact_text(self.name)
            meta, in_meta = redactor.redact(self.meta)
            marks = [["/name", *rest] for _, *rest in in_name] + [["/meta" + at, *rest] for at, *rest in in_meta]
            rendered = self.rendered = RenderedSpec(state, name, meta, marks)
        return rendered

    def hint(self) -> Any:
        """The declared type of the output, or ``None``."""
        if self.resolve is not None:
            self.returns, self.resolve = self.resolve(), None
        return self.returns


class HasSpecs(Protocol):
    """An object of the program that makes steps with specs of its own; recovery looks for such objects in the module
    that an operator names."""

    def tracekit_specs(self) -> Iterable[Spec]:
        """Return the spec of each kind of step that it makes, with its compensation if the step can be undone."""
        ...


class Request:
    """One step that a capture point asks a session to begin. Immutable by convention.

    - ``input``: Python values; the session encodes and redacts them.
    - ``info``: recorded in ``meta``, not compared.
    - ``key``: a value to be fingerprinted instead of ``input`` (a multipart body without its boundary).
    - ``data``: the JSON of ``input`` as the log writes it, if available; then nobody else refers to ``input``.
    - ``once_key``: the key of an ``exactly_once`` contract; a second call with it is answered instead of made.
    - ``continued``: where ``data``, which ends in a request's body, continues an earlier body.
    """

    # No __slots__: from 3.13 on Python makes objects without them faster, and one is made for every step.
    def __init__(
        self,
        spec: Spec,
        input: object,
        info: Mapping[str, Any] | None = None,
        key: object = None,
        data: bytes | None = None,
        once_key: bytes | None = None,
        continued: Continuation | None = None,
    ) -> None:
        self.spec: Final = spec
        self.input: Final = input
        self.info: Final = info
        self.key: Final = key
        self.data: Final = data
        self.once_key: Final = once_key
        self.continued: Final = continued

    @classmethod
    def of(
        cls,
        family: Family,
        name: str,
        input: object,
        *,
        side_effect: str | None = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        returns: Any = None,
        lists: bool = False,
        key: object = None,
    ) -> Request:
        """Create a request with a spec of its own. Frequent callers should create the ``Spec`` once."""
        spec = Spec(family, name, side_effect=side_effect, signature=signature, returns=returns, lists=lists)
        return cls(spec, input, info, key)

    def saying(self, more: Mapping[str, Any]) -> Request:
        """Return a copy with ``more`` added to its ``info``."""
        return Request(
            self.spec, self.input, {**(self.info or {}), **more}, self.key, self.data, self.once_key, self.continued
        )

    def unkeyed(self, more: Mapping[str, Any] | None = None) -> Request:
        """Return a copy without its ``exactly_once`` key, with ``more`` added to its ``info``."""
        info = {**(self.info or {}), **more} if more else self.info
        return Request(self.spec, self.input, info, self.key, self.data, None, self.continued)


def _meta(side_effect: str | None, signature: Mapping[str, Any]) -> dict[str, Any]:
    # Encoding and decoding makes a copy that the program can't change later.
    meta: dict[str, Any] = orjson.loads(dumps_in_order({key: to_json(value) for key, value in signature.items()}))
    if side_effect is not None:
        meta["side_effect"] = side_effect
    return meta
