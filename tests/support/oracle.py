"""A second opinion on a run that did not end: what its bytes say was done, and whether it may go on.

Made from the description of the format and of the decision, with the standard library; nothing of tracekit is imported here, so that
tracekit is not checked against itself. It knows what the programs of the crash tests do, no more.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Log", "Opinion", "Step"]

INTENTIONS = {"tool.call", "llm.request", "http.request"}
CHUNKS = {"tool.chunk", "llm.chunk", "http.chunk"}
RETURNS = {"tool.return", "llm.response", "http.response"}
ERRORS = {"tool.error", "llm.error", "http.error"}
SKIPPED = {"tool.skipped", "llm.skipped", "http.skipped"}
#: What tells that the program itself went on in a lane: steps, reads and notes, not the log's own entries.
NO_STEPS = {"lane", "blob", "identity", "recovery.started", "recovery.completed", "recovery.settled", "run.started"}
ENDS = {"run.completed", "run.failed", "run.aborted"}


class Step:
    """One call: its intention, the pieces that it delivered, and its last outcome."""

    def __init__(self, entry: dict[str, Any], end: int) -> None:
        meta = entry.get("meta") or {}
        self.seq: int = entry["seq"]
        self.name: str = entry["name"]
        self.input: Any = entry.get("input")
        self.lane: int = entry["lane"]
        self.side_effect: str | None = meta.get("side_effect")
        self.info: dict[str, Any] = meta.get("info") or {}
        self.duplicate = "duplicate_of" in self.info
        #: Where its intention ends in the file.
        self.end = end
        self.around: list[int] = []
        self.chunks: list[Any] = []
        self.state = "pending"
        self.values: list[Any] = []
        self.continued = False

    @property
    def irreversible(self) -> bool:
        """Or of no class that anybody knows."""
        return self.side_effect not in ("read_only", "reversible") and not self.duplicate


class Opinion(NamedTuple):
    """``resume`` or ``abort``, why not to go on, and the steps in doubt."""

    decision: str
    against: tuple[str, ...]
    in_doubt: tuple[int, ...]


class Log:
    """The bytes of one trace file: what verifies, what is torn, and the steps."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        data = Path(path).read_bytes()
        self.entries: list[dict[str, Any]] = []
        self.ends: list[int] = []
        #: The number of the first whole line that does not verify.
        self.broken: int | None = None
        *lines, rest = data.split(b"\n")
        self.torn = len(rest)
        head, size = "0" * 64, 0
        for number, line in enumerate(lines, 1):
            body, key, said = line.rpartition(b',"hash":"')
            head = hashlib.sha256(head.encode() + body).hexdigest()
            if not key or said != head.encode() + b'"}':
                self.broken = number
                break
            entry = json.loads(line)
            if entry["seq"] != number or entry["v"] != 1:
                self.broken = number
                break
            size += len(line) + 1
            self.entries.append(entry)
            self.ends.append(size)
        self.steps: dict[int, Step] = {}
        self._parents: dict[int, int] = {}
        self._under: dict[int, int] = {}
        for entry, end in zip(self.entries, self.ends, strict=True):
            self._read(entry, end)

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _read(self, entry: dict[str, Any], end: int) -> None:
        seq, kind, lane = entry["seq"], entry["type"], entry["lane"]
        self._parents[seq] = entry.get("parent", 0)
        if kind == "lane":
            self._under[entry["input"]["id"]] = entry["input"].get("under", 0)
        around = self._around(entry)
        if kind not in NO_STEPS:
            for stream in self.steps.values():
                inside = stream.seq in around or entry.get("step") == stream.seq
                if stream.chunks and stream.state == "pending" and not inside and lane == stream.lane:
                    stream.continued = True
        if kind in INTENTIONS:
            self.steps[seq] = step = Step(entry, end)
            step.around = around
        elif (step := self.steps.get(entry.get("step", 0))) is not None:  # type: ignore[assignment]
            self._outcome(step, kind, entry)

    def _outcome(self, step: Step, kind: str, entry: dict[str, Any]) -> None:
        info = (entry.get("meta") or {}).get("info") or {}
        if kind in CHUNKS:
            step.chunks.append(self.value(entry["output"]))
        elif kind in RETURNS or (kind in SKIPPED and "output" in entry):
            step.state = "done"
            step.values.append(self.value(entry.get("output")))
        elif kind in ERRORS or (kind in SKIPPED and "error" in entry):
            step.state = "failed"
            step.values.append(entry["error"]["text"])
        elif kind in SKIPPED:
            step.state = "given up"
        step.duplicate = step.duplicate or "duplicate_of" in info or "duplicate_of" in (entry.get("meta") or {})

    def _around(self, entry: dict[str, Any]) -> list[int]:
        """The calls that an entry stands inside of, from the inside out."""
        found = []
        seq, lane = entry.get("parent", 0), entry["lane"]
        while seq > 1:
            if seq in self.steps:
                found.append(seq)
            seq = self._parents[seq]
        under = self._under.get(lane, 0)
        while under > 1:
            if under in self.steps and under not in found:
                found.append(under)
            under = self._parents[under]
        return found

    def value(self, tree: Any) -> Any:
        """A stored value; a long text stands in an entry of its own."""
        if isinstance(tree, dict) and set(tree) == {"$ref"} and isinstance(tree["$ref"], int):
            return self.entries[tree["$ref"] - 1]["output"]
        return tree

    def calls(self, name: str, **arguments: Any) -> list[Step]:
        """The calls of a tool with these arguments among theirs."""
        return [
            step
            for step in self.steps.values()
            if step.name == name and isinstance(step.input, dict) and arguments.items() <= step.input.items()
        ]

    # -- the decision ----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return bool(self.entries) and self.entries[-1]["type"] in ENDS

    def opinion(self) -> Opinion:
        """Whether the run may go on: only if nothing in it may have happened twice if it did."""
        if self.finished and self.broken is None and not self.torn:
            return Opinion("abort", ("finished",), ())
        against: list[str] = []
        if self.broken is not None:
            against.append("broken")
        if not self.entries:
            against.append("no entries")
        doubt = []
        for step in self.steps.values():
            pending = [seq for seq in step.around if self.steps[seq].state == "pending"]
            if step.irreversible and step.state in ("pending", "failed"):
                doubt.append(step.seq)
                against.append(f"{step.name} ({step.seq}) may have happened")
            if step.irreversible and step.state != "given up" and pending:
                against.append(f"{step.name} ({step.seq}) would be made again with what is around it")
            ended = bool(step.around) and all(self.steps[seq].state in ("done", "failed") for seq in step.around)
            if step.state == "pending" and step.side_effect == "reversible" and ended:
                against.append(f"{step.name} ({step.seq}) would be left half done")
            if step.state == "pending" and step.continued and not step.around:
                against.append(f"the program has gone on with pieces of {step.name} ({step.seq})")
        return Opinion("abort" if against else "resume", tuple(against), tuple(sorted(doubt)))
