"""What replays of a recorded run have to come to, in the form in which a witness writes what they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orjson import loads

from .._canonical import dumps
from .._engine.divergence import steady
from .._engine.index import Index
from .._engine.placeholders import alike
from .._engine.redaction import Redactor
from .._journal.entry import family_of
from .._journal.reader import Trace
from ..agents.graph import ordered
from ..agents.ids import segment_of_path
from ..agents.view import View, dump
from ..errors import GraphError
from .ends import last_entry
from .witness import kept, name_of

__all__ = ["Recorded"]

_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})


class Recorded:
    """The lines that a witness would have written of one recorded run."""

    def __init__(self, path: str) -> None:
        self.trace: Final = Trace(path)
        first = self.trace.entry(1)
        self.run_id: Final[str] = first["run_id"]
        self.name: Final = name_of(path, self.run_id)
        self._redactor: Final = Redactor.of_process([])
        self._lanes: Final[dict[int, str]] = {0: self._own_lane(first)}
        for entry in self.trace.entries():
            if entry["type"] == "lane":
                self._lane(entry["input"])

    def _own_lane(self, first: Mapping[str, Any]) -> str:
        lane = (first.get("meta") or {}).get("lane")
        return lane if isinstance(lane, str) and self.name != self.run_id else ""

    def _lane(self, about: Mapping[str, Any]) -> None:
        under = f"@{about['under']}" if about.get("under") else ""
        self._lanes[about["id"]] = f"{self._lanes.get(about['parent'], '')}/{about['name']}#{about['n']}{under}"

    def lines(self, like: Mapping[int, tuple[bytes, str]]) -> dict[int, bytes]:
        """Of each step that a replay made, what was recorded of it in the same form."""
        counts: dict[int, int] = {}
        found = {}
        for seq in sorted(like):
            entry = self.trace.entry(seq)
            n = counts[entry["lane"]] = counts.get(entry["lane"], 0) + 1
            found[seq] = dumps(self._about(entry, n, keyed=b'"input_hash":' in like[seq][0]))
        return found

    def _about(self, entry: Mapping[str, Any], n: int, *, keyed: bool) -> dict[str, Any]:
        meta = dict(entry.get("meta") or {})
        info = meta.pop("info", None) or {}
        step = family_of(entry["type"])
        family = step[0] if step is not None else info.get("family")
        about = {
            "run": self.name,
            "lane": self._lanes.get(entry["lane"], ""),
            "n": n,
            "seq": entry["seq"],
            "kind": family or entry["type"],
            "name": entry.get("name"),
            "meta": meta,
        }
        if "agent_id" in entry:
            about["agent_id"] = entry["agent_id"]
        if keyed and "input_hash" in entry:
            return {**about, "input_hash": entry["input_hash"]}
        tree = self.trace.expand(entry.get("input"), before=entry["seq"])
        if family is None:
            output = self.trace.expand(entry.get("output"), before=entry["seq"])
            return {**about, "input": steady(tree), "output": steady(output)}
        return {**about, "input": kept(tree, dumps(tree))}

    def result(self) -> bytes | None:
        """What the run came to; ``None`` where the log does not say, and for a process of it that is not its first."""
        if self.name != self.run_id:
            return None
        last = last_entry(self.trace)
        if last["type"] != "run.completed" or "output" not in last:
            return None
        return dumps(steady(self.trace.expand(last["output"])))

    def same(self, recorded: bytes, actual: bytes) -> bool:
        """Whether a recorded line is one of now, placeholders standing for any text."""
        if recorded == actual:
            return True
        return alike(self._redactor.redact(loads(recorded))[0], loads(actual))

    @property
    def unsealed(self) -> bool:
        """Whether the run has no end."""
        return self.trace.status.state == "unsealed"

    @property
    def several(self) -> bool:
        """Whether it had more than one line of execution: threads, tasks, calls that were submitted."""
        return len(self._lanes) > 1

    def asked(self) -> set[int]:
        """Every step that a replay of the whole log is asked for: none of what happened inside another one."""
        index = Index(self.trace.entries())
        steps = [(seq, family) for (_, family), seqs in index.intentions.items() for seq in seqs]
        inside = {within for seq, family in steps if family != "span" for within in index.inside(seq)}
        return {seq for seq, _ in steps} - inside - index.repeated

    def view(self, steps: Mapping[int, tuple[bytes, str]]) -> bytes | None:
        """The inter-agent view of what a replay did; ``None`` where agents said nothing."""
        trace, spoke = self.trace, False

        def expand(value: Any, before: int) -> Any:
            return trace.expand(value, before=before)

        view = View(expand, segment_of_path(trace.path, self.run_id))
        found = []
        for entry in trace.entries():
            if entry["seq"] in steps:
                did = loads(steps[entry["seq"]][0])
                spoke = spoke or entry["type"] in _MESSAGES
                entry = {**entry, **{key: did[key] for key in ("name", "agent_id", "input", "output") if key in did}}
            event = view.feed(entry)
            if event is not None:
                found.append(event)
        if not spoke:
            return None
        try:
            return dump(ordered(found))
        except GraphError:  # what caused them happened in runs that are not looked at
            return dump(found)
