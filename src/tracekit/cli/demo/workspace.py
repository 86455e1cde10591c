"""The directory that the demo plays in: copies of the agent, its outside world, its runs, and the processes on them."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["Play", "Workspace"]

_HERE: Final = Path(__file__).parent
_OUTSIDE: Final = ("ledger.jsonl", "stock.json")


class Workspace:
    """``directory`` is where all happens: ``agent.py`` and ``play.py``, the ledger, ``.tracekit/runs``."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self.store: Final = directory / ".tracekit"
        self._copy(directory)

    def _copy(self, into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        for name in ("agent.py", "play.py"):
            (into / name).write_text((_HERE / name).read_text(encoding="utf-8"), encoding="utf-8")

    def change(self, old: str, new: str) -> Path:
        """A second copy of the agent with one piece of its text changed; returns its directory."""
        into = self.directory / "changed"
        self._copy(into)
        text = (into / "agent.py").read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        (into / "agent.py").write_text(text.replace(old, new), encoding="utf-8")
        return into

    def play(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str],
        code: Path | None = None,
        relay: Callable[[str], None] | None = None,
    ) -> Play:
        """Start ``play.py ARGUMENTS`` in a fresh process; ``code`` is the directory of another copy of the agent."""
        script = (code or self.directory) / "play.py"
        return Play([sys.executable, str(script), *map(str, arguments)], self.directory, dict(environment), relay)

    def outside(self) -> dict[str, tuple[bytes, int] | None]:
        """Content and time of change (ns) of all that the tools can touch."""
        paths = {name: self.directory / name for name in _OUTSIDE}
        return {name: (p.read_bytes(), p.stat().st_mtime_ns) if p.exists() else None for name, p in paths.items()}

    def charges(self) -> int:
        """Lines in the ledger."""
        ledger = self.directory / _OUTSIDE[0]
        return len(ledger.read_bytes().splitlines()) if ledger.exists() else 0

    def saved(self, name: str) -> dict[str, Any]:
        """What ``play.py`` wrote to file ``name``, or an empty dictionary if it did not get there."""
        path = self.directory / name
        if not path.exists():
            return {}
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded

    def environment(self, **extra: str) -> dict[str, str]:
        """This process's environment without credentials or addresses of providers, for a child in the directory."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENAI_", "ANTHROPIC_", "TRACEKIT_", "DEMO_"))
        }
        return {**kept, "PYTHONPATH": _python_path(), "TRACEKIT_DIR": str(self.store), "PYTHONUTF8": "1", **extra}


class Play:
    """One process. Its standard output goes to ``relay`` as it comes; ``wait`` returns when all of it is there."""

    def __init__(
        self, command: list[str], cwd: Path, environment: dict[str, str], relay: Callable[[str], None] | None
    ) -> None:
        self._process: Final = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._relay: Final = relay
        self._out: Final[list[str]] = []
        self._err = b""
        self._readers: Final = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while data := os.read(self._process.stdout.fileno(), 65536):
            text = decode(data)
            self._out.append(text)
            if self._relay is not None:
                self._relay(text)

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        self._err = self._process.stderr.read()

    def wait(self, timeout: float) -> Play:
        """Wait for the end, at most ``timeout`` seconds, then end it by force (its status is then negative)."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return self

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def status(self) -> int:
        return int(self._process.returncode)

    @property
    def printed(self) -> str:
        return "".join(self._out)

    @property
    def complaint(self) -> str:
        """What it wrote to standard error."""
        return self._err.decode(errors="replace")

    @property
    def error(self) -> str:
        """The text of the exception that ended it, from its ``[code]`` on, else all that it complained."""
        at = self.complaint.rfind("Error: [")
        return self.complaint[at + len("Error: ") :].strip() if at >= 0 else self.complaint.strip()


def _python_path() -> str:
    """The child's ``PYTHONPATH``: this process's, absolute, and where tracekit is if it is not installed."""
    entries = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = str(_HERE.parents[2])
    if root not in entries and root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        entries.insert(0, root)
    return os.pathsep.join(entries)
