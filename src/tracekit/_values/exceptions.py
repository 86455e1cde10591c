"""Exceptions with state beyond arguments and attributes: what is kept of them, and how they are recreated.

Looked up by class name; the library is loaded whenever one of its exceptions exists, and nothing is imported for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from .._lazy import NamedTuple

__all__ = ["RECIPES", "Recipe"]


class Recipe(NamedTuple):
    """``keep(exception)`` returns encodable values; ``make(class, values, text)`` returns the exception, or ``None``."""

    keep: Callable[[Any], dict[str, Any]]
    make: Callable[[Any, dict[str, Any], str], BaseException | None]


# -- pydantic: C code without arguments or attributes ------------------------------------------------------------------


def _keep_validation(exc: Any) -> dict[str, Any]:
    return {"title": exc.title, "errors": exc.errors(include_url=False)}


def _make_validation(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    core: Any = sys.modules["pydantic_core._pydantic_core"]
    lines = [_line(core, error) for error in kept["errors"]]
    # Neither is an attribute of the exception, but both affect its text.
    for source in ("python", "json"):
        for hidden in (False, True):
            exc: BaseException = cls.from_exception_data(kept["title"], lines, source, hidden)
            if str(exc) == text:
                exc.args = ()  # as pydantic raises it
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


# -- urllib: a file, whose ``__getattr__`` breaks without ``__init__`` -------------------------------------------------

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
    """Return what can be read of an error's body without taking it from the program; true if there is an unread one."""
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
        """A body that the tool left for its caller to read."""

        def readable(self) -> bool:
            return True

        def readinto(self, _buffer: Any) -> int:
            raise NotReplayableError(
                "The body of a recorded urllib.error.HTTPError is not in the trace.",
                reason="body",
                next_action="Read it in the tool, and raise or return what it says.",
            )

    return BufferedReader(Unread())


# -- jsonschema: arguments that mean "not given" -----------------------------------------------------------------------

_SCHEMA_FIELDS: Final = ("message", "path", "validator", "validator_value", "instance", "schema", "schema_path")


def _keep_schema(exc: Any) -> dict[str, Any]:
    unset = type(exc)("").validator
    fields = {name: getattr(exc, name) for name in _SCHEMA_FIELDS}
    fields["path"], fields["schema_path"] = list(exc.relative_path), list(exc.relative_schema_path)
    return {name: value for name, value in fields.items() if value is not unset}


def _make_schema(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    exc: BaseException = cls(**kept)
    return exc


# -- decimal: arguments that are lists of its own classes ----------------------------------------------------------------------


def _keep_decimal(exc: Any) -> dict[str, Any]:
    signals = exc.args[0] if len(exc.args) == 1 and type(exc.args[0]) is list else ()
    if signals and all(isinstance(one, type) and _decimal_class(one.__name__) is one for one in signals):
        return {"signals": [one.__name__ for one in signals]}
    return {"args": list(exc.args)}


def _make_decimal(cls: Any, kept: dict[str, Any], text: str) -> BaseException | None:
    args = [[_decimal_class(name) for name in kept["signals"]]] if "signals" in kept else kept["args"]
    exc: BaseException = cls(*args)
    return exc


def _decimal_class(name: str) -> Any:
    module: Any = sys.modules["decimal"]
    found = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, module.DecimalException) else None


_SIGNALS: Final = (
    "Clamped",
    "DivisionByZero",
    "FloatOperation",
    "Inexact",
    "InvalidOperation",
    "Overflow",
    "Rounded",
    "Subnormal",
    "Underflow",
)


RECIPES: Final[dict[str, Recipe]] = {
    "pydantic_core._pydantic_core:ValidationError": Recipe(_keep_validation, _make_validation),
    "urllib.error:HTTPError": Recipe(_keep_http, _make_http),
    "jsonschema.exceptions:ValidationError": Recipe(_keep_schema, _make_schema),
    "jsonschema.exceptions:SchemaError": Recipe(_keep_schema, _make_schema),
    **{f"decimal:{name}": Recipe(_keep_decimal, _make_decimal) for name in _SIGNALS},
}
