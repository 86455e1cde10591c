"""An exception as the classification sees it: names of its classes, status, headers, text, causes.

Nothing of an SDK is imported: what libraries have in common is read from attributes and class names. A recorded exception, which is
a tree of JSON, is seen the same way as far as the trace tells.
"""

from __future__ import annotations

import builtins
import errno
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .. import errors

__all__ = ["NETWORK_NUMBERS", "Seen", "seen", "seen_answer", "seen_in"]

#: What of an error's text is kept.
MAX_TEXT: Final = 1 << 20


class Seen:
    """What there is to know of one exception. ``names`` are the plain names of its classes, the most special first."""

    __slots__ = ("_causes", "attributes", "exception", "kind", "members", "names", "text")

    def __init__(
        self, exception: str, names: tuple[str, ...], text: str, attributes: Any, causes: Any, members: list[Any]
    ) -> None:
        self.exception: Final = exception
        self.names: Final = names
        self.text: Final = text
        self.attributes: Final = attributes
        self.members: Final = members
        self._causes: Final = causes

    def get(self, *path: str) -> Any:
        """An attribute, or an attribute of an attribute; ``None`` where there is none, or reading it raises."""
        found = self.attributes
        for name in path:
            found = _item(found, name)
        return found

    @property
    def ordinary(self) -> bool:
        """Whether it is an ``Exception``, as far as is known."""
        return "Exception" in self.names or "BaseException" not in self.names

    @property
    def status(self) -> int | None:
        """The HTTP status that it tells."""
        for path in (("status_code",), ("response", "status_code"), ("status",), ("response", "status"), ("code",)):
            found = self.get(*path)
            if type(found) is int and 100 <= found < 600:
                return found
        return None

    @property
    def headers(self) -> Any:
        """The headers of the answer that it tells of."""
        for path in (("response", "headers"), ("headers",), ("hdrs",)):
            found = self.get(*path)
            if found is not None:
                return found
        return None

    @property
    def codes(self) -> Iterator[str]:
        """The words that a provider's answer has for what went wrong, the innermost first."""
        body = self.get("body")
        inner = _item(body, "error")
        for holder in (inner, body, self.attributes):
            for key in ("code", "type"):
                found = _item(holder, key)
                if isinstance(found, str):
                    yield found

    @property
    def number(self) -> int | None:
        """``errno``."""
        found = self.get("errno")
        return found if type(found) is int else None

    def cause(self) -> Any:
        """The exception behind it, or ``None``."""
        return self._causes()


def seen(error: BaseException) -> Seen:
    """A live exception."""
    kind = type(error)
    members = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []

    def cause() -> BaseException | None:
        return error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    if isinstance(error, errors.RecordedError):
        name = str(error.__dict__.get("type_name", ""))
        return Seen(name, _names_of(name), _text(error), error, cause, members)
    names = tuple(cls.__name__ for cls in kind.__mro__)
    return Seen(f"{kind.__module__}:{kind.__qualname__}", names, _text(error), error, cause, members)


def seen_in(tree: Mapping[str, Any]) -> Seen:
    """A recorded exception: the ``error`` of an entry. What it says is not trusted to be well-formed."""
    name, text = tree.get("type"), tree.get("text")
    name = name if isinstance(name, str) else ""
    attributes = {**_mapping(tree.get("made_of")), **_mapping(tree.get("attrs"))}
    if name.startswith(f"{errors.__name__}:") and isinstance(attributes.get("what"), str):
        text = attributes["what"]  # without the address and the advice
    if name == "urllib.error:HTTPError":
        attributes = {**attributes, "headers": _pairs(attributes.get("headers"))}

    def cause() -> Any:
        found = tree.get("cause") or (None if tree.get("suppress") else tree.get("context"))
        return found if isinstance(found, Mapping) else None

    members = tree.get("members")
    found = [member for member in members if isinstance(member, Mapping)] if isinstance(members, list) else []
    return Seen(name, _names_of(name), text[:MAX_TEXT] if isinstance(text, str) else "", attributes, cause, found)


def seen_answer(status: int, headers: Any, body: Any) -> Seen:
    """An HTTP answer that is an error by its status."""
    inner = _item(body, "error")
    said = next(
        (text for text in (_item(inner, "message"), inner, _item(body, "message")) if isinstance(text, str)), ""
    )
    text = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    about = {"status_code": status, "headers": headers, "body": body}
    return Seen("", (), text[:MAX_TEXT], about, lambda: None, [])


def _names_of(name: str) -> tuple[str, ...]:
    """The names of a recorded class and its bases, where it is built in or ours: of others only its own is known."""
    module, _, qualname = name.partition(":")
    own = qualname.rpartition(".")[2]
    home = builtins if module == "builtins" else errors if module == errors.__name__ else None
    kind = getattr(home, own, None) if home is not None else None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return tuple(cls.__name__ for cls in kind.__mro__)
    return (own,)


def _item(holder: Any, name: str) -> Any:
    if holder is None:
        return None
    if isinstance(holder, Mapping):
        inside = holder.get("v") if "$t" in holder else holder  # as it stands in a trace
        return inside.get(name) if isinstance(inside, Mapping) else None
    try:
        return getattr(holder, name, None)
    except Exception:  # a property that raises, such as `request` of httpx
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) and "$t" not in value else {}


def _pairs(value: object) -> dict[str, Any]:
    pairs = value if isinstance(value, list) else []
    return {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}


def _text(error: BaseException) -> str:
    what = error.what if isinstance(error, errors.TracekitError) else error
    try:
        return str.__str__(str(what))[:MAX_TEXT]
    except Exception as raised:
        return f"<its text raised {type(raised).__name__}>"


#: What the operating system says where the network is at fault.
NETWORK_NUMBERS: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETRESET", "ENETUNREACH",
        "ENOTCONN", "EPIPE", "ESHUTDOWN", "EADDRNOTAVAIL",
    )
    if hasattr(errno, name)
)  # fmt: skip
