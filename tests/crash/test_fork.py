"""A run, and the processes that are forked while it is recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.place import Place
from tests.support.processes import python
from tracekit.integration import Store

FORKED = """
import multiprocessing, os, sys
import tracekit

@tracekit.traced_tool(side_effect="read_only")
def work(n):
    return n * 2

def child(n):
    work(n)

with tracekit.record() as run:
    work(1)
    pid = os.fork()
    if pid == 0:
        work(10)
        os._exit(0)
    os.waitpid(pid, 0)
    pid = os.fork()
    if pid == 0:
        work(20)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    process = multiprocessing.get_context("fork").Process(target=child, args=(5,))
    process.start()
    process.join()
    pid = os.fork()
    if pid == 0:
        os._exit(0)  # does nothing of the run
    os.waitpid(pid, 0)
    work(2)
print(run.id)
"""


def forked(tmp_path: Path, program: str) -> tuple[Store, str]:
    done = python("-W", "ignore", "-c", program, env={**os.environ, "TRACEKIT_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    return Store(tmp_path), done.stdout.split()[-1]


def entries(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_a_child_never_writes_into_its_parents_file(tmp_path: Path) -> None:
    """Each forked child writes its own segment, and every hash chain is valid."""
    store, run = forked(tmp_path, FORKED)
    parent = entries(store.path(run))
    inputs = [entry["input"] for entry in parent if entry["type"] == "tool.call"]
    assert inputs == [{"n": 1}, {"n": 2}]
    segments = store.segments(run)
    found = sorted(entry["input"]["n"] for path in segments for entry in entries(path) if entry["type"] == "tool.call")  # type: ignore[index]
    assert found == [5, 10, 20]


def test_a_child_that_dies_leaves_its_own_segment_open_only(tmp_path: Path) -> None:
    """If a child dies, only its segment is reported as open; the parent's run is complete, and a child that left by
    ``os._exit`` ended cleanly."""
    store, run = forked(tmp_path, FORKED)
    verdict = store.verify(store.path(run))
    assert (verdict.state, verdict.problem) == ("complete", None)
    assert sorted(segment["state"] for segment in verdict.segments) == [
        "complete",
        "complete",
        "complete",
        "incomplete",
    ]
    (open_one,) = [segment for segment in verdict.segments if segment["state"] == "incomplete"]
    assert "open: its process had not ended it" in open_one["problem"]


def test_segments_name_what_they_come_from_and_are_listed(tmp_path: Path) -> None:
    """A segment names the parent's entry by its hash, and the parent's last entry lists the segment with its count and
    last hash, or as open."""
    store, run = forked(tmp_path, FORKED)
    parent = entries(store.path(run))
    hashes = {entry["seq"]: entry["hash"] for entry in parent}
    for path in store.segments(run):
        (cause,) = entries(path)[0]["cause"]  # type: ignore[misc]
        assert hashes[cause["seq"]] == cause["hash"]
    listed = parent[-1]["meta"]["segments"]  # type: ignore[index]
    assert len(listed) == 4
    assert sum("open" in segment for segment in listed) == 1
    for complete in [segment for segment in listed if "head" in segment]:
        assert entries(store.path(run, complete["segment"]))[-1]["hash"] == complete["head"]


BLOCK = """
import os, sys
import tracekit

@tracekit.traced_tool(side_effect="irreversible")
def work(n):
    return n * 2

with tracekit.record() as run:
    work(1)
    pid = os.fork()
    if pid == 0:
        work(10)
    else:
        os.waitpid(pid, 0)
if pid == 0:
    work(11)  # the block has ended here too: as outside every run
    os._exit(0)
print(run.id)
"""


def test_a_block_that_ends_in_the_child_ends_its_segment_only(tmp_path: Path) -> None:
    """When both processes leave the recorded block, the parent ends the run and the child ends its segment."""
    store, run = forked(tmp_path, BLOCK)
    verdict = store.verify(run)
    assert verdict.state == "complete"
    assert [segment["state"] for segment in verdict.segments] == ["complete"]
    assert [entry["type"] for entry in entries(store.path(run))].count("run.completed") == 1


WORKER = """
import random, sys
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return random.random()

def work():
    for n in range(2):
        with record(f"request {n}") as run:
            print(look(n), run.id, flush=True)

if __name__ == "__main__":
    work()
"""
SERVER = """
import os
from worker import work

for _ in range(3):
    if os.fork() == 0:
        work()
        os._exit(0)
    os.wait()
"""


def test_each_worker_of_a_server_has_runs_of_its_own(tmp_path: Path) -> None:
    """Workers forked before anything was recorded count as separate programs: a replay of a worker's run includes its
    own other runs and none of another worker's."""
    place = Place(tmp_path)
    place.program(WORKER, "worker.py")
    served = place.python(place.program(SERVER, "server.py"))
    assert served.returncode == 0, served.stderr
    said = [line.split() for line in served.stdout.splitlines()]
    assert len(said) == 6
    for first, second in zip(said[::2], said[1::2], strict=True):
        replayed = place.cli("replay", second[1], "--", "worker.py")
        assert replayed.returncode == 0, replayed.stderr
        assert [line.split()[0] for line in replayed.stdout.splitlines()] == [first[0], second[0]]
