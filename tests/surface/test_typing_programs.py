"""Typing is API: what a user's type checker says about programs that use tracekit.

``tests/typing/ok_*.py`` must check under ``mypy --strict``. ``tests/typing/bad_*.py`` must get exactly the errors that
they name, each in a comment on its line: ``# error: arg-type``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "tests" / "typing").glob("*.py"))
GOOD = [path for path in PROGRAMS if path.name.startswith("ok_")]
BAD = [path for path in PROGRAMS if path.name.startswith("bad_")]

EXPECTED = re.compile(r"# error: (?P<codes>[a-z-]+(?:, [a-z-]+)*)$")
REPORTED = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[a-z-]+)\]$")

#: An error as line number and code.
Errors = set[tuple[int, str]]


def expected(path: Path) -> Errors:
    """The errors that a program names in its comments."""
    return {
        (number, code)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := EXPECTED.search(line))
        for code in match["codes"].split(", ")
    }


def check(*paths: Path) -> tuple[dict[str, Errors], str]:
    """The errors that mypy reports for each program, by file name, and all that it said."""
    options = ["--strict", "--no-error-summary", "--no-pretty", "--hide-error-context", "--show-error-codes"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--config-file", "pyproject.toml", "--", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Errors] = {}
    for line in done.stdout.splitlines():
        if match := REPORTED.match(line):
            found.setdefault(Path(match["file"]).name, set()).add((int(match["line"]), match["code"]))
    return found, done.stdout


@cache
def checked() -> tuple[dict[str, Errors], str]:
    """All programs in one run of mypy: most of its time goes into reading tracekit."""
    return check(*PROGRAMS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", GOOD, ids=lambda path: path.stem)
def test_a_right_program_checks(program: Path) -> None:
    """Decorated functions keep their signature, and what tracekit returns has the documented type."""
    found, said = checked()
    assert found.get(program.name, set()) == set(), said


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", BAD, ids=lambda path: path.stem)
def test_a_wrong_program_is_told_where(program: Path) -> None:
    """A wrong use of the public names is an error on its line, with the code that the program names, and no other."""
    assert expected(program), f"{program.name} names no error"
    found, said = checked()
    assert found.get(program.name, set()) == expected(program), said


def test_the_harness_sees_an_error_and_its_absence(tmp_path: Path) -> None:
    """An error that is reported but not named, or named but not reported, makes the two sides differ."""
    program = tmp_path / "bad_probe.py"
    program.write_text('a: int = "x"\nb: int = "x"  # error: assignment\nc: int = 1  # error: assignment\n', "utf-8")
    found, _ = check(program)
    assert found["bad_probe.py"] == {(1, "assignment"), (2, "assignment")}
    assert expected(program) == {(2, "assignment"), (3, "assignment")}
