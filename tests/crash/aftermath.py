"""What a killed run leaves behind, and the promises that must hold for it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tracekit.harness import TraceEvent, load_trace
from tracekit.integration import Store, Trace, Verdict

__all__ = ["Aftermath"]


class Aftermath:
    """The store of one killed program, its ledger of effects, and what it had seen before it ended."""

    def __init__(self, job: dict[str, Any], end: int, errors: str) -> None:
        self.job = job
        self.end = end
        self.errors = errors
        directory = Path(job["dir"])
        self.store = Store(directory)
        self.path = Path(self.store.path("victim"))
        self.ledger = Counter(_whole_lines(directory / "ledger"))
        self.observed = [json.loads(line) for line in _whole_lines(directory / "observed")]

    @property
    def verdict(self) -> Verdict:
        return self.store.verify("victim")

    def events(self) -> list[TraceEvent]:
        return load_trace("victim", store=self.store)

    def intentions(self) -> Counter[str]:
        """Return how often each call was begun, under the names that the ledger uses."""
        return Counter(f"{event.name} {event.input['number']}" for event in self.events() if event.kind == "tool_call")

    def seen_in_trace(self) -> Counter[str]:
        """Return every outcome and streamed piece in the trace, in the form in which the program noted it."""
        found: Counter[str] = Counter()
        for event in self.events():
            if event.kind != "tool_call":
                continue
            values = event.chunks if event.name == "listen" else [event.output] if event.finished else []
            if event.error is not None:
                values = [str(event.error)]
            found.update(json.dumps([event.name, event.input["number"], value]) for value in values)
        return found

    def check(self) -> None:
        """Check what must hold whenever and wherever the process died."""
        if not self.path.exists():
            assert not self.observed
            assert not self.ledger
            return
        assert self.verdict.state in ("incomplete", "complete"), self.verdict
        lost = Counter(json.dumps(one) for one in self.observed) - self.seen_in_trace()
        assert not lost, f"seen by the program and not in the trace: {lost}"
        unannounced = self.ledger - self.intentions()
        assert not unannounced, f"done, and no intention in the trace: {unannounced}"

    def check_reopened(self) -> None:
        """Check that a reopened run continues the sequence and the hash chain, and changes nothing that verified
        before."""
        before = self.verdict
        if before.state == "complete":
            return
        good = self.path.read_bytes()[: before.size - before.torn_bytes]
        journal, verdict = self.store.reopen("victim")
        assert verdict.count == before.count
        seq = journal.append("decision", 0, 1 if before.count else 0, b',"name":"after","input":null,"output":1', True)
        journal.close()
        assert seq == before.count + 1
        after = self.verdict
        assert (after.state, after.count, after.torn_bytes) == ("incomplete", before.count + 1, 0)
        assert self.path.read_bytes().startswith(good)
        with Trace(str(self.path)) as trace:
            assert trace.entry(seq)["name"] == "after"


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that were written completely."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
