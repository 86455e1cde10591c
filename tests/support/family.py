"""A program that starts processes: recorded once, and replayed in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.processes import python
from tracekit.integration import Store

__all__ = ["EFFECT", "Family"]

#: A tool whose effect is counted outside of the process.
EFFECT = """
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n
"""

_HEAD = f"""
import asyncio, multiprocessing, os, signal, subprocess, sys, time
from tracekit import Budget, record, replay, traced_tool
{EFFECT}
def run(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)
"""

_TAIL = """
if __name__ == "__main__":
    if sys.argv[1] == "record":
        with record("parent", **globals().get("OPTIONS", {})) as opened:
            opened.set_result(main())
        print(opened.id)
    else:
        with replay(sys.argv[1], live_env=sys.argv[2:], **globals().get("REPLAYED", {})) as opened:
            opened.set_result(main())
        print("the replay is", opened.report.verdict.line)
        print(opened.report.as_dict())
        print("\\n".join(opened.report.warnings))
"""


class Family:
    """A directory with a program, the programs that it starts, and their store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_id = ""
        #: Whether the processes that the program starts begin with nothing imported.
        self.fresh = False

    def child(self, text: str, name: str = "child.py") -> None:
        (self.root / name).write_text(EFFECT + text)

    def program(self, body: str) -> None:
        """``body`` defines ``main()``, whose result is that of the run."""
        (self.root / "parent.py").write_text(_HEAD + body + _TAIL)

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"TRACEKIT_DIR": str(self.root / "store"), "PYTHONHASHSEED": "0", **environment}
        seeds = () if self.fresh else ("0",)
        return python(*arguments, cwd=self.root, env={**os.environ, **variables}, seeds=seeds)

    def record(self) -> subprocess.CompletedProcess[str]:
        done = self.python("parent.py", "record")
        assert done.returncode == 0, done.stderr
        self.run_id = done.stdout.split()[-1]
        return done

    def replay(self, *live_env: str) -> subprocess.CompletedProcess[str]:
        """``live_env``: the variables of which today's value counts."""
        return self.python("parent.py", self.run_id, *live_env)

    def exact(self, body: str, effects: list[str]) -> None:
        """Recorded, and replayed by a process of its own: the same result, each effect happened once, and the store is as it was, so that
        any other replay finds the same."""
        self.program(body)
        self.record()
        kept = self.kept()
        done = self.replay()
        assert done.returncode == 0, done.stderr
        assert "the replay is exact\n" in done.stdout, done.stdout
        assert self.effects == sorted(effects)
        assert self.kept() == kept

    def kept(self) -> dict[Path, bytes]:
        """Every file of the store."""
        return {path: path.read_bytes() for path in (self.root / "store").rglob("*") if path.is_file()}

    @property
    def effects(self) -> list[str]:
        file = self.root / "effects"
        return sorted(file.read_text().split()) if file.exists() else []

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def entries(self) -> list[dict[str, Any]]:
        return _entries(self.store.path(self.run_id))

    def segments(self) -> dict[str, list[dict[str, Any]]]:
        """The segments by the path of their lane."""
        found = [_entries(path) for path in self.store.segments(self.run_id)]
        return {entries[0]["meta"]["lane"]: entries for entries in found}

    @property
    def result(self) -> Any:
        return self.entries()[-1]["output"]

    @property
    def warnings(self) -> list[str]:
        """What the run says at its end."""
        told: list[str] = self.entries()[-1]["meta"].get("warnings", [])
        return told


def _entries(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]
