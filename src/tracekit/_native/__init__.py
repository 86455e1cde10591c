"""The functions worth compiling: in C if the package was installed with a compiler, else in Python.

``TRACEKIT_PURE=1`` selects the Python versions. Results are the same, to the byte, but for the ``digest`` of a long
text, which is in no log: ``tests/unit/test_compiled.py`` compares them.
"""

from __future__ import annotations

# What orjson imports when it is loaded, in C: an exception there (Ctrl-C, a handler's) would crash the interpreter.
import dataclasses  # noqa: F401
import datetime  # noqa: F401
import enum  # noqa: F401
import json  # noqa: F401
import os
import uuid  # noqa: F401
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from .pure import (
        Chain,
        Pieces,
        answered,
        as_it_is,
        collected,
        columns,
        copied,
        decoded,
        digest,
        elements,
        fields,
        grouped,
        header_values,
        line,
        nearest,
        noted,
        numbered,
        of_text,
        owner,
        parts,
        picked,
        plain,
        quick_look,
        read_json,
        repeated,
        sha256_hex,
        shallow,
        siblings,
        spaced,
        survey,
        unknown,
    )

__all__ = [
    "FORM",
    "Chain",
    "Pieces",
    "answered",
    "as_it_is",
    "collected",
    "columns",
    "copied",
    "decoded",
    "digest",
    "elements",
    "fields",
    "grouped",
    "header_values",
    "line",
    "nearest",
    "noted",
    "numbered",
    "of_text",
    "owner",
    "parts",
    "picked",
    "plain",
    "quick_look",
    "read_json",
    "repeated",
    "sha256_hex",
    "shallow",
    "siblings",
    "spaced",
    "survey",
    "unknown",
]

_FUNCTIONS: Final = tuple(name for name in __all__ if name != "FORM")


def _chosen() -> Any:
    """Return the module that has the functions."""
    try:
        if os.environ.get("TRACEKIT_PURE", "0") in ("", "0"):
            from . import _compiled  # type: ignore[attr-defined]

            if all(hasattr(_compiled, name) for name in _FUNCTIONS):  # otherwise it is older than this checkout
                return _compiled
    except (
        ImportError,
        AttributeError,
    ):  # of an older one, which looks in ``pure`` for something that no longer exists
        pass
    from . import pure

    return pure


_module: Final = _chosen()
globals().update({name: getattr(_module, name) for name in _FUNCTIONS})

#: The language of the functions in use.
FORM: Final[Literal["C", "Python"]] = "Python" if _module.__name__.endswith(".pure") else "C"
