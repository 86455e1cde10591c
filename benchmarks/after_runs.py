"""What Python's own operations cost when the last run of a process is over, beside what they cost before its first.

    python -m benchmarks.after_runs

`id()`, `copy.deepcopy` and `open` raise audit events, which cost as soon as anybody listens. Before, and after each of some
recordings and replays, all three are measured in turn; each figure is the least of its rounds, in nanoseconds. Up to five per
cent over *before* is what other load on the machine leaves.
"""

from __future__ import annotations

import copy
import os
import tempfile
import timeit
from collections.abc import Callable
from typing import Final

SUBJECT: Final = [{"role": "user", "content": "hi"}]
OPERATIONS: Final[dict[str, tuple[Callable[[], object], int]]] = {
    "id(x)": (lambda: id(SUBJECT), 20_000),
    "copy.deepcopy(messages)": (lambda: copy.deepcopy(SUBJECT), 1_000),
    "open(os.devnull).close()": (lambda: open(os.devnull).close(), 500),
}
ROUNDS: Final = 60


def measured() -> dict[str, float]:
    """Nanoseconds a call, the least of all rounds: load only ever adds."""
    least = dict.fromkeys(OPERATIONS, float("inf"))
    for _ in range(ROUNDS):
        for name, (operation, number) in OPERATIONS.items():
            least[name] = min(least[name], timeit.timeit(operation, number=number) / number * 1e9)
    return least


def main() -> None:
    before = measured()  # nothing of tracekit is imported yet
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TRACEKIT_DIR"] = os.path.join(directory, "store")
        from tracekit import record, replay, traced_tool

        @traced_tool(side_effect="read_only")
        def ask(question: str) -> int:
            return len(question)

        columns = {"before": before, "imported": measured()}
        with record("run") as run:
            ask("?")
        columns["recorded"] = measured()
        with replay(run.id):
            ask("?")
            columns["replaying"] = measured()
        columns["replayed"] = measured()
    print(f"{'ns':<26}" + "".join(f"{name:>12}" for name in columns) + "   replayed / before")
    for name in OPERATIONS:
        row = "".join(f"{column[name]:>12,.1f}" for column in columns.values())
        print(f"{name:<26}{row}   {columns['replayed'][name] / before[name]:.3f}")


if __name__ == "__main__":
    main()
