"""The table of the last runs: ``results.json`` beside this file, and the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.rows import ROWS

__all__ = ["PAGE", "load", "page", "save"]

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "programs.md"

HEAD = """\
# Real programs

<!-- written by `python3 -m tools programs`: run it instead of changing this page -->

Programs that use other people's packages, written as a user would write them, each with a server of its own on loopback. Each was
recorded with `tracekit run`, replayed in a fresh process with the server still running (and its requests counted), and replayed once
more with the server stopped. The output was compared each time.

- **exact**: both replays say so, they printed the same, and the server received no request.
- **inexact**: the replay ended and reports that it was not exact, and why.
- **refused**: the replay stopped at something that the recording does not have and that must not happen again.
- **failed**: the replay diverged, or the program does not run when it is recorded.
- **not run**: the packages could not be installed, or the program does not run by itself.

`python3 -m tools programs [ROW…]` runs them again, each in a virtual environment with the packages that it needs, and writes
this page. The programs are in `tests/programs/scripts`.

"""


def load() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else {}


def save(results: dict[str, Any]) -> None:
    ordered = {row.name: results[row.name] for row in ROWS if row.name in results}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(ordered), "utf-8")


def page(results: dict[str, Any]) -> str:
    """The page, with a line for each row, whether it has been run or not."""
    counted: dict[str, int] = {}
    commits: dict[str, int] = {}
    lines = ["| program | versions | Python | requests: recorded, replayed | result |", "|---|---|---|---|---|"]
    for row in ROWS:
        found = results.get(row.name)
        verdict = found["result"] if found else "not run"
        counted[verdict] = counted.get(verdict, 0) + 1
        if found is None:
            lines.append(f"| **{row.name}**: {row.about} | {', '.join(row.packages)} | | | **not run** |")
            continue
        commit = found.get("tracekit", "")
        commits[commit] = commits.get(commit, 0) + 1
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items()) or ", ".join(
            row.packages
        )
        requests = f"{found['recorded']}, {found['replayed']}" if found["result"] != "not run" else ""
        reason = f": {_cell(found['reason'])}" if found["reason"] else ""
        told = f"<br>Told while recording: {_cell('; '.join(found['told']))}" if found["told"] and reason else ""
        lines.append(
            f"| **{row.name}**: {row.about} | {versions} | {found['python']} | {requests} | **{verdict}**{reason}{told} |"
        )
    total = _counts(counted)
    by = _counts({f"at {commit}" if commit else "at an earlier commit": count for commit, count in commits.items()})
    return f"{HEAD}{len(ROWS)} programs: {total}. With tracekit: {by}.\n\n" + "\n".join(lines) + "\n"


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counted.items(), key=lambda one: -one[1]))


def _cell(text: str) -> str:
    """Text that stays in its cell and is nobody's markup."""
    text = " ".join(text.split())
    for character in "\\`|<>*_[]":
        text = text.replace(character, f"\\{character}")
    return text if len(text) <= 400 else text[:400].rstrip("\\") + " …"
