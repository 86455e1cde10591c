"""The processes of a run share its budget."""

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
    """A child is refused whatever exceeds the rest of the run's budget, before the effect; what it spent counts for the
    run when the program learns of its end."""
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
    """What grandchildren, pools and processes that nobody waits for have spent counts at the latest when the run ends."""
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


_WORK = """
from tracekit.errors import BudgetExceededError
OPTIONS = {"budget": Budget(tool_calls=5)}

def work(name):
    try:
        for i in range(4):
            pay(f"{name}{i}")
    except BudgetExceededError:
        return "refused"
    return "all"

def rest():
    try:
        pay("rest")
    except BudgetExceededError as error:
        return error.spent
"""

_POOLS = {
    "executor": """
def main():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        found = list(pool.map(work, "abc"))
""",
    "one executor after the other": """
def main():
    found = []
    for name in "abc":
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            found.append(pool.submit(work, name).result())
""",
    "map": """
def main():
    with spawn.Pool(1) as pool:
        found = pool.map(work, "abc", chunksize=1)
        pool.close()
        pool.join()
""",
    "loop": """
async def all_of_them():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return [await asyncio.get_running_loop().run_in_executor(pool, work, name) for name in "abc"]

def main():
    found = asyncio.run(all_of_them())
""",
}


@pytest.mark.parametrize("way", _POOLS)
def test_the_calls_of_a_pool_keep_the_budget(family: Family, way: str) -> None:
    """Each call of a pool has what the earlier ones left, though all are handed over at the beginning, and the program
    has what all of them left."""
    family.exact(
        "import concurrent.futures\nspawn = multiprocessing.get_context('spawn')\n"
        + _WORK
        + _POOLS[way]
        + "    assert found == ['all', 'refused', 'refused'], found\n    assert rest() == 5\n",
        ["a0", "a1", "a2", "a3", "b0"],
    )


@pytest.mark.parametrize("waits", ["communicate", "wait"])
def test_a_child_of_an_event_loop_counts_when_it_has_ended(family: Family, waits: str) -> None:
    """What a child of an event loop spent counts whether the program reads its output or only waits for it."""
    family.exact(
        f"""
from tracekit.errors import BudgetExceededError
OPTIONS = {{"budget": Budget(tool_calls=5)}}

async def start():
    for name in "abc":
        words = [name + str(i) for i in range(4)]
        child = await asyncio.create_subprocess_exec(sys.executable, "child.py", *words)
        await child.{waits}()

def main():
    asyncio.run(start())
    try:
        pay("rest")
    except BudgetExceededError as error:
        assert error.spent == 5
    else:
        raise AssertionError
""",
        ["a0", "a1", "a2", "a3", "b0"],
    )


def test_a_child_that_is_killed_counts_when_a_loop_hears_of_it(family: Family) -> None:
    """What a killed child spent counts although its segment has no end."""
    family.child("pay('a')\npay('b')\nprint('paid', flush=True)\ninput()\n", "waiting.py")
    family.exact(
        """
from tracekit.errors import BudgetExceededError
OPTIONS = {"budget": Budget(tool_calls=3)}

async def start():
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "waiting.py", stdin=pipe, stdout=pipe)
    await child.stdout.readline()
    child.kill()
    await child.wait()

def main():
    asyncio.run(start())
    pay("c")
    try:
        pay("d")
    except BudgetExceededError as error:
        assert error.spent == 3
""",
        ["a", "b", "c"],
    )


def test_a_block_holds_for_a_pool(family: Family) -> None:
    """What the calls of a pool spent counts in the budget block in which they were made, and in no other one."""
    family.exact(
        """
from tracekit import limit
from tracekit.errors import BudgetExceededError

def main():
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        with limit(Budget(tool_calls=2)):
            pool.map(pay, ["a", "b"], chunksize=1)
        try:
            with limit(Budget(tool_calls=3)):
                pool.map(pay, ["c", "d"], chunksize=1)
                pay("e")
                pay("f")
        except BudgetExceededError as error:
            assert (error.budget, error.spent) == ("limit", 3)
        else:
            raise AssertionError
        pool.close()
        pool.join()
""",
        ["a", "b", "c", "d", "e"],
    )


@pytest.mark.parametrize("limited", ["record", "limit"])
def test_an_overrun_of_children_side_by_side_is_told(family: Family, limited: str) -> None:
    """Children that run side by side each have what was left when they started; the end of the run reports it if they
    exceeded the budget together."""
    family.child("import sys\nsys.stdin.read()\nfor word in sys.argv[1:]:\n    pay(word)\n", "waiting.py")
    body = """
    pipes = [subprocess.Popen([sys.executable, "waiting.py", one, one], stdin=subprocess.PIPE) for one in "ab"]
    for pipe in pipes:
        pipe.communicate()
"""
    if limited == "record":
        family.program('OPTIONS = {"budget": Budget(tool_calls=3)}\n\ndef main():' + body)
    else:
        body = body.replace("\n    ", "\n        ")
        family.program("from tracekit import limit\n\ndef main():\n    with limit(Budget(tool_calls=3)):" + body)
    done = family.record()
    assert family.effects == ["a", "a", "b", "b"]
    told = "the run took more than its budget allows: tool_calls" if limited == "record" else "(limit: tool_calls)"
    assert told in done.stderr
