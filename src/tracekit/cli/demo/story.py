"""How the demo is told: headings, what was said, and the checks with their marks."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["Story"]


class Story:
    """Writes to ``console`` as things happen and keeps ``checks``, a list of (what, came out, detail)."""

    def __init__(self, console: Console) -> None:
        self.console: Final = console
        self.checks: Final[list[tuple[str, bool, str]]] = []
        self._chapter = 0
        self._fresh = True

    @property
    def right(self) -> bool:
        """Whether something was checked and all of it came out."""
        return bool(self.checks) and all(ok for _, ok, _ in self.checks)

    def chapter(self, title: str, text: str = "") -> None:
        self._chapter += 1
        self.console.print(f"\n[bold cyan]{self._chapter}[/]  [bold]{escape(title)}[/]")
        if text:
            self.say(text)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Padding(Text(text, style=style), (0, 0, 0, 3)))

    def live(self, text: str) -> None:
        """Something that an agent prints, as it prints it."""
        for part in text.splitlines(keepends=True):
            self.console.print(Text(("     " if self._fresh else "") + part, style="green"), end="", soft_wrap=True)
            self._fresh = part.endswith("\n")

    def check(self, what: str, ok: bool, detail: str = "") -> None:
        self.checks.append((what, bool(ok), detail))
        mark = Text("✓ ", style="bold green") if ok else Text("✗ ", style="bold red")
        line = mark + Text(what) + Text(f"  {detail}" if detail else "", style="dim")
        self.console.print(Padding(line, (0, 0, 0, 3)))

    def compare(self, rows: list[tuple[str, Any, Any]], left: str, right: str) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("", style="dim")
        table.add_column(left, ratio=1)
        table.add_column(right, ratio=1)
        for name, first, second in rows:
            table.add_row(name, Text(str(first)), Text(str(second)))
        self.console.print(Padding(table, (0, 0, 0, 3)))

    def quote(self, text: str, limit: int = 40) -> None:
        """A message of tracekit as it stands, ``limit`` lines at most."""
        lines = text.splitlines()
        if len(lines) > limit:
            lines[limit:] = [f"… and {len(lines) - limit} more lines"]
        for line in lines:
            self.console.print(Text("   │ ", style="dim") + Text(line, style="yellow"), soft_wrap=True)
