"""What the processes of a run may spend together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.family import Family


@pytest.fixture
def family(tmp_path: Path) -> Family:
    found = Family(tmp_path)
    found.child("""
import sys
from tracekit.errors import BudgetExceededError
try:
    for word in sys.argv[1:]:
        pay(word)
except BudgetExceededError as error:
    print("refused:", error.budget, error.limit)
""")
    return found


def test_a_child_has_what_the_run_has_left(family: Family) -> None:
    """It is refused what goes over that, before the effect; what it has spent is the run's when the program hears of its end."""
    family.exact(
        """
from tracekit.errors import BudgetExceededError
OPTIONS = {"budget": Budget(tool_calls=5)}

def main():
    pay("a")
    found = [run("child.py", "b", "c").stdout, run("child.py", "d", "e", "f").stdout]
    try:
        pay("g")
    except BudgetExceededError as error:
        found.append(error.spent)
    assert found == ["", "refused: process 2\\n", 5], found
""",
        ["a", "b", "c", "d", "e"],
    )


def test_the_account_of_a_run_has_its_processes(family: Family) -> None:
    """Grandchildren, pools and processes that nobody waits for count at the latest when the run ends."""
    (family.root / "middle.py").write_text("""
import subprocess, sys
from child import pay
pay("m")
subprocess.run([sys.executable, "child.py", "x", "y"])
""")
    family.program("""
OPTIONS = {"budget": Budget(tool_calls=100)}

def main():
    run("middle.py", check=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(pay, ["p", "q"])
    os.posix_spawn(sys.executable, [sys.executable, "child.py", "z"], os.environ)
    os.wait()
""")
    family.record()
    assert family.effects == ["m", "p", "q", "x", "y", "z"]
    assert family.entries()[-1]["meta"]["budget"]["spent"]["tool_calls"] == 6
    middle = family.segments()["/process:middle.py#1"]
    assert middle[-1]["meta"]["budget"]["spent"]["tool_calls"] == 3
