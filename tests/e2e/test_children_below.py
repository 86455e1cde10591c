"""What a child process did counts as done inside the tool that started it: after an irreversible effect there the tool
is not called again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.family import Family

PROGRAM = """
from concurrent.futures import ProcessPoolExecutor

STARTS = {
    "a program": lambda what: subprocess.run([sys.executable, "child.py", what], check=True),
    "a pool": lambda what: in_pool(what),
}

def in_pool(what):
    from child import make
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(make, what).result()

@traced_tool(side_effect="reversible", max_retries=2)
def order(how, what):
    STARTS[how](what)
    raise ConnectionError("the answer was lost")

def main():
    try:
        order(os.environ["HOW"], os.environ["WHAT"])
    except ConnectionError:
        return "failed"
"""

CHILD = """
import sys

@traced_tool(side_effect="reversible")
def book(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")

def make(what):
    (pay if what == "pay" else book)(what)

if __name__ == "__main__":
    make(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["a program", "a pool"])
@pytest.mark.parametrize(("what", "count"), [("pay", 1), ("book", 3)])
def test_a_tool_whose_child_process_has_paid_is_not_called_again(
    tmp_path: Path, how: str, what: str, count: int
) -> None:
    """There is one payment, wherever it was made; an undoable effect happens as often as the tool is called, and the
    replay starts no process."""
    family = Family(tmp_path)
    family.child(CHILD)
    family.program(PROGRAM)
    done = family.python("parent.py", "record", HOW=how, WHAT=what)
    assert done.returncode == 0, done.stderr
    family.run_id = done.stdout.split()[-1]
    assert (tmp_path / "effects").read_text().split() == [what] * count
    again = family.python("parent.py", family.run_id, HOW=how, WHAT=what)
    assert "the replay is exact\n" in again.stdout, again.stdout + again.stderr
    assert (tmp_path / "effects").read_text().split() == [what] * count
