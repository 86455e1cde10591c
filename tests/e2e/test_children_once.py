"""Exactly-once calls in a run of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.family import Family

ONCE = """
import sys
from tracekit import traced_tool

@traced_tool(side_effect="irreversible", exactly_once=True)
def once(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return [n, len(open("effects").read().split())]
"""


@pytest.fixture
def family(tmp_path: Path) -> Family:
    found = Family(tmp_path)
    (tmp_path / "tools.py").write_text(ONCE)
    found.child("""
import sys
from tools import once
print([once(word) for word in sys.argv[1:]])
""")
    return found


def test_a_key_that_the_parent_used_before_the_spawn_holds_in_the_child(family: Family) -> None:
    """A child gets the result of a call that its parent made before starting it, and the parent gets that of a child's
    call."""
    family.exact(
        """
from tools import once
def main():
    return [once("a"), run("child.py", "a", "b", check=True).stdout, once("b"), run("child.py", "b", "a", check=True).stdout]
""",
        ["a", "b"],
    )
    assert family.result == [["a", 1], "[['a', 1], ['b', 2]]\n", ["b", 2], "[['b', 2], ['a', 1]]\n"]


def test_keys_hold_for_grandchildren_and_for_pools(family: Family) -> None:
    """However a process joined, it knows the keys of its ancestors and of the processes beside it."""
    (family.root / "middle.py").write_text("""
import subprocess, sys
from tools import once
print(once("m"), subprocess.run([sys.executable, "child.py", "a", "m", "c"], capture_output=True, text=True).stdout)
""")
    family.exact(
        """
from tools import once
def main():
    found = [once("a"), run("middle.py", check=True).stdout]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found.append(pool.map(once, ["a", "c", "d", "d", "m", "d"]))
    return [*found, once("d"), once("c")]
""",
        ["a", "m", "c", "d"],
    )


def test_a_call_that_a_thread_is_making_when_the_child_begins_is_waited_for(family: Family) -> None:
    """If a thread is making the call when the child begins, the child waits and gets the result."""
    family.exact(
        """
import threading

@traced_tool(side_effect="irreversible", exactly_once=True)
def slow(n):
    began.set()
    while not os.path.exists("child-runs"):
        time.sleep(0.001)
    return pay(n)

began = threading.Event()

def main():
    if os.path.exists("child-runs"):
        began.set()  # no body runs in a replay
    worker = threading.Thread(target=slow, args=("s",))
    worker.start()
    began.wait()
    code = "import parent, sys; open('child-runs', 'w').close(); print(parent.slow('s'))"
    said = run("-c", code, check=True).stdout
    worker.join()
    return said
""",
        ["s"],
    )


def test_a_child_is_not_started_where_its_keys_cannot_be_written(family: Family) -> None:
    """If the keys can't be handed to the child, starting it fails with what is wrong with the store, and nothing
    happens twice."""
    family.program("""
from tools import once
def main():
    once("a")
    os.rename("store/keys", "store/elsewhere") if os.path.exists("store/keys") else None
    open("store/keys", "w").close()  # no directory
    try:
        run("child.py", "a")
    except Exception as error:
        return type(error).__name__
""")
    family.record()
    assert family.result == "LogWriteError"
    assert family.effects == ["a"]
