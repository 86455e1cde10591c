"""What is the same at every call of one capture point, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from .._canonical import dumps_in_order, to_json
from .._journal.entry import FAMILIES, EntryFamily
from .gate import Call, Family

__all__ = ["Circumstances", "Spec"]


class Circumstances(dict[str, Any]):
    """The ``info`` of a step, where it is the same at many calls of one spec. Not to be changed.

    ``suffix`` is ``meta`` as the log has it, once it has been worked out.
    """

    __slots__ = ("suffix",)

    def __init__(self, info: Mapping[str, Any]) -> None:
        super().__init__(info)
        self.suffix: bytes | None = None


class Spec:
    """A capture point's constants: name, family, side-effect class, signature, and how they look in the log.

    ``signature`` goes into ``meta`` as it is, ``side_effect`` beside it; replay compares both.
    """

    __slots__ = (
        "bare", "effect", "family", "lists", "meta", "name", "prefix", "resolve", "returns", "side_effect", "signature",
        "structural", "suffix", "types",
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
    ) -> None:
        self.family: Final = family
        self.name: Final = name
        self.side_effect: Final = side_effect
        self.signature: Final = dict(signature or {})
        self.returns = returns
        #: Works out ``returns`` when it is first needed: annotations may name classes that are defined later.
        self.resolve = resolve
        self.lists: Final = lists
        self.types: Final[EntryFamily] = FAMILIES[family]
        #: The body of a structural step runs in a replay too.
        self.structural: Final = family == "span"
        #: An effect must not start before its intention is on the device.
        self.effect: Final = side_effect in ("irreversible", "reversible")
        self.meta: Final = _meta(side_effect, self.signature)
        #: Nothing in ``meta`` is the program's own, and so nothing needs redaction.
        self.bare: Final = not self.signature
        self.prefix: Final = b',"name":%b,"input":' % orjson.dumps(name)
        self.suffix: Final = b',"meta":%b' % dumps_in_order(self.meta) if self.meta else b""

    def hint(self) -> Any:
        """The declared type of the output, or ``None``."""
        if self.resolve is not None:
            self.returns, self.resolve = self.resolve(), None
        return self.returns

    @classmethod
    def of(cls, call: Call) -> Spec:
        return cls(
            call.family,
            call.name,
            side_effect=call.side_effect,
            signature=call.signature,
            returns=call.returns,
            lists=call.lists,
        )


def _meta(side_effect: str | None, signature: Mapping[str, Any]) -> dict[str, Any]:
    # By way of its bytes: a copy, which the program can't change later.
    meta: dict[str, Any] = orjson.loads(dumps_in_order({key: to_json(value) for key, value in signature.items()}))
    if side_effect is not None:
        meta["side_effect"] = side_effect
    return meta
