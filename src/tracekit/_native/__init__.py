"""The functions that are worth compiling: in C where the package was installed with a compiler, else the same in Python.

``TRACEKIT_PURE=1`` takes those in Python. What they answer is the same, to the byte: ``tests/unit/test_compiled.py`` compares them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from .pure import (
        Chain,
        Pieces,
        brackets,
        columns,
        decoded,
        digest,
        elements,
        fields,
        grouped,
        line,
        nearest,
        noted,
        of_text,
        owner,
        parts,
        picked,
        plain,
        quick_look,
        said,
        spaced,
    )

__all__ = [
    "FORM",
    "Chain",
    "Pieces",
    "brackets",
    "columns",
    "decoded",
    "digest",
    "elements",
    "fields",
    "grouped",
    "line",
    "nearest",
    "noted",
    "of_text",
    "owner",
    "parts",
    "picked",
    "plain",
    "quick_look",
    "said",
    "spaced",
]

_FUNCTIONS: Final = tuple(name for name in __all__ if name != "FORM")


def _chosen() -> Any:
    """The module that has the functions."""
    try:
        if os.environ.get("TRACEKIT_PURE", "0") in ("", "0"):
            from . import _compiled  # type: ignore[attr-defined]

            if all(hasattr(_compiled, name) for name in _FUNCTIONS):  # else it is older than this checkout
                return _compiled
    except (ImportError, AttributeError):  # of an older one, which looks in ``pure`` for what is not there any more
        pass
    from . import pure

    return pure


_module: Final = _chosen()
globals().update({name: getattr(_module, name) for name in _FUNCTIONS})

#: In which language those are that are in use.
FORM: Final[Literal["C", "Python"]] = "Python" if _module.__name__.endswith(".pure") else "C"
