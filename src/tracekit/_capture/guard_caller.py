"""Who is calling: the user's file and line for the message, and those few callers whose calls are not the program's."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Final

from .guard_attempts import Kind

__all__ = ["Caller", "find"]

_STDLIB: Final = os.path.dirname(os.__file__) + os.sep
_TRACEKIT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: What stands between the caller and the operation.
_SEAMS: Final = ("tracekit._capture.guard", "tracekit._capture.pools", "tracekit._capture.processes")
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
#: Debuggers talk to their front end; what the program asks for while it is debugged has other frames innermost.
_DEBUGGERS: Final = ("debugpy", "pydevd", "_pydev", "pydev_", "remote_pdb", "rpdb", "web_pdb", "madbg")
#: Modules that ask the host what it is by running a fixed command (``uname -p``, ``file``, ``ldconfig``).
_PROBES: Final = frozenset({"platform", "uuid", "ctypes.util", "distro.distro"})
_PAIRS: Final = frozenset({"socketpair", "_fallback_socketpair"})
_MAKERS: Final = frozenset({"create_connection", "create_server"})
#: Whose files are no work of the program's: compiled modules, logs, what debuggers and test runners keep.
_KEEPERS: Final = ("importlib.", "logging", "pdb", "bdb")
_KEEPING: Final = frozenset(
    {"IPython", "_pytest", "concurrent_log_handler", "coverage", "loguru", "structlog", "traitlets"}
)
_CLOSING: Final = frozenset({"_do_shutdown", "unwrap"})


class Caller:
    """The call stack seen from a guarded operation, read once.

    ``location`` is the innermost ``file:line`` of the user's own code, else of a package; ``own`` says which.
    """

    __slots__ = ("_nearest", "_standard", "location", "own")

    def __init__(self) -> None:
        self.location: str | None = None
        self.own = False
        self._nearest = ""  # the module nearest to the operation that is not the standard library's
        self._standard: list[tuple[str, str]] = []  # (module, function) of the standard library, before that
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.own:
            self._read(frame)
            frame = frame.f_back

    def _read(self, frame: FrameType) -> None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if module.startswith(_SEAMS):
            return
        installed = any(mark in file for mark in _INSTALLED)
        if file.startswith("<frozen ") or (file.startswith(_STDLIB) and not installed):
            if not self._nearest:
                self._standard.append((module, frame.f_code.co_name))
            return
        self._nearest = self._nearest or module or file
        if module.startswith("tracekit") and (file.startswith(_TRACEKIT) or module.startswith("tracekit_")):
            return
        self.own = not installed
        if self.own or self.location is None:
            self.location = f"{file}:{frame.f_lineno}"

    def passes(self, kind: Kind) -> bool:
        """Whether this is not the program's call: a debugger's, a probe, tracekit's files, a socket pair."""
        if kind == "process":
            return any(module in _PROBES for module, _ in self._standard) or self._nearest in _PROBES or self._tracker
        if kind == "listen" and self._nearest == "urllib3.util.connection":
            return True  # it binds a socket at its import, to see whether there is IPv6
        if kind == "act" and self._nearest.startswith(_DEBUGGERS):
            return True
        if kind in ("file", "act"):
            return self._nearest.partition(".")[0] == "tracekit"
        return self._nearest.startswith(_DEBUGGERS) or self._plumbing(kind)

    @property
    def keeps(self) -> bool:
        """Whether a file is changed that is none of the program's: by the import system, a log, a debugger, a test runner."""
        by_itself = any(module.startswith(_KEEPERS) for module, _ in self._standard)
        return by_itself or self._nearest.partition(".")[0] in _KEEPING or self._nearest.startswith(_DEBUGGERS)

    @property
    def leaks(self) -> bool:
        """Whether the socket is a helper's that closes it after an ``OSError`` only: nobody else can."""
        return any(module == "socket" and name in _MAKERS for module, name in self._standard)

    @property
    def _tracker(self) -> bool:
        """Multiprocessing's own helper, which runs nothing of the program."""
        return any(module == "multiprocessing.resource_tracker" for module, _ in self._standard)

    def _plumbing(self, kind: Kind) -> bool:
        pairs = any(module == "socket" and name in _PAIRS for module, name in self._standard)
        closes = kind == "send" and any(name in _CLOSING for _, name in self._standard)
        return pairs or closes


def find() -> Caller:
    """The caller of the guarded operation that is being examined."""
    return Caller()
