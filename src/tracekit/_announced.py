"""Reads the entry points of installed packages: integrations, commands, forms of runs.

``importlib.metadata`` gives the same result but takes ten times as long: it imports the parsers for e-mail, CSV and zip
files and reads files that are not needed here. It remains the fallback if packages may be installed anywhere but in
directories on ``sys.path``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, Final

from ._reality import system

__all__ = ["Announcement", "announced"]

_SUFFIXES: Final = (".dist-info", ".egg-info")
_FILE: Final = "entry_points.txt"
#: Bytes read at once; most files fit.
_PIECE: Final = 1 << 16


class Announcement:
    """One entry point of an installed package: a ``name``, and the object as ``module:attribute``."""

    __slots__ = ("_package", "_place", "attribute", "module", "name", "value")

    def __init__(self, name: str, value: str, *, package: str = "", place: str = "") -> None:
        self.name: Final = name
        self.value: Final = value
        module, _, attribute = value.partition("[")[0].partition(":")
        self.module: Final = module.strip()
        self.attribute: Final = attribute.strip()
        self._package: Final = package
        #: The package's metadata directory.
        self._place: Final = place

    @property
    def package(self) -> str:
        """The package's name, from its metadata."""
        if self._package:
            return self._package
        for name in ("METADATA", "PKG-INFO"):
            for line in _content(os.path.join(self._place, name)).decode(errors="replace").splitlines():
                if line.startswith("Name:"):
                    return line[5:].strip()
        return os.path.basename(self._place).partition("-")[0]

    def load(self) -> Any:
        """Import the module, and return the object."""
        found: Any = import_module(self.module)
        for name in filter(None, self.attribute.split(".")):
            found = getattr(found, name)
        return found


def announced(group: str) -> list[Announcement]:
    """Return the entry points of a group. If a package is installed twice, the first on the path counts."""
    if all(_is_plain(finder) for finder in sys.meta_path) and PathFinder in sys.meta_path:
        try:
            return [*_in_directories(group)]
        except NotADirectoryError:
            pass
    from importlib.metadata import entry_points

    points = entry_points(group=group)
    return [
        Announcement(point.name, point.value, package=point.dist.name if point.dist else point.module)
        for point in points
    ]


def _is_plain(finder: Any) -> bool:
    return finder is PathFinder or not hasattr(finder, "find_distributions")


def _in_directories(group: str) -> Iterator[Announcement]:
    """Yield the entry points of the packages in directories on ``sys.path``.

    Raises ``NotADirectoryError`` if the path contains anything else, which may hold packages, too.
    """
    seen = set[str]()
    folders: list[Any] = sys.path  # anything may be in it
    for folder in folders:
        if not isinstance(folder, str) or folder.lower().endswith(".egg"):
            raise NotADirectoryError(folder)
        try:
            directory: int = system.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except NotADirectoryError:
            raise
        except OSError:
            continue
        try:
            yield from _in_directory(directory, folder, group, seen)
        finally:
            system.close(directory)


def _in_directory(directory: int, folder: str, group: str, seen: set[str]) -> Iterator[Announcement]:
    """Yield the entry points of packages in the open ``directory`` that are not in ``seen`` yet."""
    encoded = group.encode()
    for package, name, content in _packages(directory):
        if package in seen:
            continue
        seen.add(package)
        if encoded in content:
            for point, value in _section(content.decode(errors="replace"), group):
                yield Announcement(point, value, place=os.path.join(folder, name))


def _packages(directory: int) -> list[tuple[str, str, bytes]]:
    """Return the name, the metadata directory and the entry points of each package in the open ``directory``."""
    # Relative to the descriptor: the directory's path is resolved once, not for every package. Most packages lack the file,
    # and an exception for each would take longer than the question whether it is there.
    return [
        (
            _normal(name.rpartition(".")[0].partition("-")[0]),
            name,
            _content(path, directory) if system.access(path, os.F_OK, dir_fd=directory) else b"",
        )
        for name in system.listdir(directory)
        if name[-5:].lower() == "-info" and name.lower().endswith(_SUFFIXES)
        for path in (f"{name}/{_FILE}",)
    ]


def _normal(name: str) -> str:
    """Normalise a package's name."""
    name = name.lower().replace(".", "_")
    while "__" in name:
        name = name.replace("__", "_")
    return name


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            inside = line[1:-1] == group
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _content(path: str, folder: int | None = None) -> bytes:
    """Return the content of a file, or nothing if it does not exist. Uses descriptors: creating a file object costs more
    than reading one."""
    pieces: list[bytes] = []
    try:
        descriptor = system.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            while piece := system.read(descriptor, _PIECE):
                pieces.append(piece)
                if len(piece) < _PIECE:
                    break
        finally:
            system.close(descriptor)
    except OSError:
        return b""
    return b"".join(pieces)
