"""A callback that a program adds to a thread's future: the thread calls it, or the loop that added it a moment too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place

PROGRAM = """
import asyncio, os, time
from concurrent.futures import ThreadPoolExecutor

# Whether the call has ended before its callback is added: no input of the run.
EARLY = os.environ.get("PYTHONORDER") == "early"
pool = ThreadPoolExecutor(2)

async def ask(permits, n):
    added = []
    def work():
        while not (EARLY or added):
            pass
        return n
    await permits.acquire()
    future = pool.submit(work)
    while EARLY and future._state != "FINISHED":
        pass
    loop = asyncio.get_running_loop()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(permits.release))
    added.append(True)
    return await asyncio.wrap_future(future), time.time()

async def main():
    permits = asyncio.Semaphore(1)
    for answer in await asyncio.gather(*(ask(permits, n) for n in range(4))):
        print(answer)

asyncio.run(main())
"""


@pytest.mark.parametrize("recorded", ["early", "late"])
@pytest.mark.parametrize("replayed", ["early", "late"])
def test_who_calls_a_callback_does_not_matter(tmp_path: Path, recorded: str, replayed: str) -> None:
    """A callback hands a permit back to the loop. If the call has ended already, the loop's own thread runs the callback
    where it is added, else the thread of the call does: a replay is exact whichever it is."""
    place = Place(tmp_path)
    place.program(PROGRAM)
    done = place.cli("run", "agent.py", PYTHONORDER=recorded)
    assert done.returncode == 0, done.stderr
    again = place.cli("replay", "last", PYTHONORDER=replayed)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "exact" in again.stderr
