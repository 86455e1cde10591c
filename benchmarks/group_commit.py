"""What threads gain that wait for the disk at once: one sync for all of them, beside one sync for each entry.

Run ``python -m benchmarks.group_commit`` (options as of ``benchmarks.durability``). Eight threads append to one log
in durability ``"always"``, where an append returns when its entry is on the device. The floor is the same log, the same threads
and the same lines with one sync for each entry: under a lock, so that no sync is shared. Both take turns. To reach: twice the
floor's entries a second.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.durability import run
from benchmarks.overhead import Figure
from tracekit import _reality, record, traced_tool
from tracekit._journal.store import Store
from tracekit._journal.writer import Journal

THREADS = 8
#: The rest of a tool call's line, some 400 bytes as a whole.
TAIL = (
    b',"name":"pay","input":{"text":"' + b"The invoice of October. " * 8 + b'"},"meta":{"side_effect":"irreversible"}'
)


@traced_tool(side_effect="irreversible")
def pay(number: int) -> int:
    return number


class Bench:
    """Rounds in which the log and the floor take turns."""

    def __init__(self, *, quick: bool) -> None:
        self.rounds = 3 if quick else 9
        self.calls = 100 if quick else 400

    def figures(self) -> Iterator[Figure]:
        for threads in (1, 2, 4, THREADS):
            yield self.compared(threads)
        rate = statistics.median(self.tools(THREADS) for _ in range(self.rounds))
        yield Figure(f"irreversible calls, {THREADS} threads", rate, "/s")

    def compared(self, threads: int) -> Figure:
        ratios, shared, single = [], [], []
        for _ in range(self.rounds):
            together, alone = self.together(threads), self.alone(threads)
            ratios.append(together / alone)
            shared.append(1e6 / together)
            single.append(1e6 / alone)
        goals = (2.0, 3.0) if threads == THREADS else (None, None)
        detail = f"{statistics.median(shared):.0f} µs an entry against {statistics.median(single):.0f}"
        name = f"appends in always, {threads} thread" + "s" * (threads > 1)
        return Figure(name, statistics.median(ratios), "× one each", *goals, more_is_better=True, detail=detail)

    def together(self, threads: int) -> float:
        """Entries a second of the log in durability ``"always"``."""
        with _journal("always") as journal:
            return self._rate(threads, lambda: journal.append("tool.call", 0, 1, TAIL))

    def alone(self, threads: int) -> float:
        """The same, each entry with a sync of its own."""
        lock = threading.Lock()
        with _journal("none") as journal:
            fd = journal._fd

            def append() -> None:
                with lock:
                    journal.append("tool.call", 0, 1, TAIL)
                    os.fdatasync(fd)

            return self._rate(threads, append)

    def tools(self, threads: int) -> float:
        """Irreversible calls a second in a run in durability ``"always"``: two lines each."""
        with record("group", durability="always"):
            return self._rate(threads, lambda: pay(1))

    def _rate(self, threads: int, append: Callable[[], Any]) -> float:
        ready = threading.Barrier(threads + 1)

        def work() -> None:
            ready.wait()
            for _ in range(self.calls):
                append()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        ready.wait()
        begun = _reality.perf_counter_ns()
        for worker in workers:
            worker.join()
        return threads * self.calls * 1e9 / (_reality.perf_counter_ns() - begun)


class _journal:
    """A log in the benchmark's store, with its first line."""

    def __init__(self, durability: Any) -> None:
        self.durability = durability

    def __enter__(self) -> Journal:
        self.journal = Store().create(durability=self.durability)
        self.journal.append("run.started", 0, 0, b',"input":null')
        return self.journal

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        os.unlink(self.journal.path)


def figures(directory: Path, quick: bool) -> Iterator[Figure]:
    return Bench(quick=quick).figures()


if __name__ == "__main__":
    run(figures, __doc__)
