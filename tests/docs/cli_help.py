"""The help texts in the command line's reference, as they are now: ``python -m tests.docs.cli_help`` writes them into the page."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from tracekit.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
_BLOCK = re.compile(
    r"(<!-- help: (?P<command>[a-z -]*?) ?-->\n\n```text\n)(?P<text>.*?)(?=^```$)", re.MULTILINE | re.DOTALL
)


def text_of(command: str) -> str:
    """What ``tracekit COMMAND --help`` prints, 80 columns wide."""
    done = CliRunner().invoke(main, [*command.split(), "--help"], prog_name="tracekit", terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output


def pasted(page: str) -> dict[str, str]:
    """The help texts in the page, by command."""
    return {match["command"]: match["text"] for match in _BLOCK.finditer(page)}


def updated(page: str) -> str:
    """The page with help texts as they are now."""
    return _BLOCK.sub(lambda match: match[1] + text_of(match["command"]), page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
