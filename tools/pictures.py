"""Make the pictures in ``docs/images``: record the support agent of ``examples/``, and take pictures of ``show`` and ``report``.

Run it with ``python3 -m tools pictures``; it needs Chromium (``apt-get install chromium``).
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from tests.support.browser import chromium
from tools.environment import ROOT

IMAGES: Final = ROOT / "docs" / "images"
COLUMNS: Final = 124
#: rich's template loads fonts from another host; these are installed on most machines.
_SVG: Final = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        example = str(ROOT / "examples" / "support" / "agent.py")
        _tracekit(
            directory, "run", "--name", "support", example, before=[str(ROOT / "examples/offline.py"), "support", "--"]
        )
        _terminal("show last", _tracekit(directory, "show", "last"), IMAGES / "show.svg")
        page = Path(directory, "report.html")
        _tracekit(directory, "report", "last", "-o", str(page))
        with chromium() as browser:
            browser.look(1000, 540)
            browser.open(page)
            browser.press("j", "j", "j", "Enter")
            browser.screenshot(IMAGES / "report.png")


def _tracekit(directory: str, *arguments: str, before: list[str] | None = None) -> str:
    """Run a command and return what it prints on a terminal of ``COLUMNS``, colours included."""
    command = [*(before or []), *(["tracekit"] if before else ["-m", "tracekit"]), *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PATH": path}
    environment |= {"TRACEKIT_DIR": str(Path(directory, ".tracekit")), "MODEL": "scripted-1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def _terminal(command: str, printed: str, path: Path) -> None:
    """Write a picture of a terminal in which ``tracekit COMMAND`` printed ``printed``."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), (f"tracekit {command}", "bold")))
    console.print(Text.from_ansi(printed))
    console.save_svg(str(path), title="tracekit", theme=DIMMED_MONOKAI, code_format=_SVG, unique_id="tracekit")


if __name__ == "__main__":
    main()
