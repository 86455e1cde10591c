"""Whose a source file is: tracekit's, Python's, an installed package's, or the user's own."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Final, Literal

from . import _reality

__all__ = [
    "ASYNCIO",
    "PACKAGES",
    "STDLIB",
    "TRACEKIT",
    "absolute",
    "in_packages",
    "is_package",
    "is_python",
    "is_tracekit",
    "is_user_code",
]

#: The directories of tracekit itself, of the standard library and of asyncio, each with a separator at its end.
TRACEKIT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
STDLIB: Final = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
ASYNCIO: Final = os.path.join(STDLIB, "asyncio", "")

# The paths from ``sysconfig``, without loading all it needs to compute them; the second differs on some systems
# (``lib64``).
_PYTHON: Final = (
    STDLIB,
    os.path.join(sys.exec_prefix, sys.platlibdir, f"python{sys.version_info[0]}.{sys.version_info[1]}", ""),
    os.path.join(sys.prefix, "lib"),
)
PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: Integrations are packages called ``tracekit_…``: beside tracekit, in a checkout, or installed anywhere.
_OURS: Final = (
    TRACEKIT,
    os.path.join(os.path.dirname(TRACEKIT[:-1]), "tracekit_"),
    os.path.join(os.path.dirname(os.path.dirname(TRACEKIT[:-1])), "integrations", "tracekit_"),
)

# Taken now: a tool that detects blocking calls in event loops replaces it later. It reads nothing.
_absolute: Final = _reality.off_loop()(os.path.abspath)


def absolute(path: str) -> str:
    """Like ``os.path.abspath``, which most paths of files are already: that is seen in a third of the time."""
    if path[:1] != "/" or "//" in path or "/./" in path or "/../" in path or path.endswith(("/", "/.", "/..")):
        return _absolute(path)
    return path


Owner = Literal["tracekit", "python", "package", "user", ""]


@lru_cache(maxsize=4096)
def is_tracekit(path: str) -> bool:
    """Return whether a file or directory belongs to tracekit or one of its integrations."""
    return _owner(path) == "tracekit"


@lru_cache(maxsize=4096)
def is_python(file: str) -> bool:
    """Return whether a file belongs to the standard library."""
    return _owner(file) == "python"


@lru_cache(maxsize=4096)
def is_package(file: str) -> bool:
    """Return whether a file belongs to an installed package other than tracekit and its integrations."""
    return _owner(file) == "package"


@lru_cache(maxsize=4096)
def is_user_code(file: str) -> bool:
    """Return whether a file is the user's own: not the standard library's, not installed, not tracekit's."""
    return _owner(file) == "user"


@lru_cache(maxsize=4096)
def _owner(path: str) -> Owner:
    """Return whose a file or directory is; nobody's if it is none (``<string>``)."""
    if path.startswith("<"):
        return "python" if path.startswith("<frozen ") else ""
    path = os.path.join(absolute(path), "")
    installed = in_packages(path)
    if path.startswith(_OURS) or (installed and any(f"{place}tracekit_" in path for place in PACKAGES)):
        return "tracekit"
    if installed:
        return "package"
    return "python" if path.startswith(_PYTHON) else "user"


def in_packages(path: str) -> bool:
    """Return whether a path is below a directory in which packages are installed, tracekit's included."""
    return PACKAGES[0] in path or PACKAGES[1] in path
