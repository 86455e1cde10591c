"""The disk has room for the intention of a call but not for its outcome: the outcome is written before anything else
happens."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import Log
from tests.support.processes import python
from tracekit import recovery
from tracekit.integration import Store

PROGRAM = Path(__file__).with_name("full_outcome.py")
#: How an effect is made, and how its tool is called.
EFFECTS = ["call", "async", "error", "stream", "once", "reversible", "thread", "process"]


@pytest.fixture
def store() -> Iterator[Path]:
    """A directory of its own; whatever a program mounts on it is unmounted at the end."""
    with tempfile.TemporaryDirectory(prefix="tracekit-full-") as directory:
        yield Path(directory)
        subprocess.run(["umount", directory], capture_output=True)


def run(what: str, store: Path, tmp_path: Path, ends: str) -> tuple[dict[str, Any], list[str], Log]:
    """Run the program; return what it was told, the effects that happened, and the log."""
    ledger = tmp_path / "ledger"
    done = python(str(PROGRAM), what, str(store), str(ledger), ends)
    assert done.returncode == 0, done.stderr
    effects = ledger.read_text().splitlines() if ledger.exists() else []
    return json.loads(done.stdout), effects, Log(store / "runs" / "full.jsonl")


@pytest.mark.parametrize("what", EFFECTS)
def test_what_has_happened_is_not_made_again(what: str, store: Path, tmp_path: Path) -> None:
    """The caller is told that the effect was executed and which step it is; no other effect is executed until its
    outcome is written."""
    told, effects, log = run(what, store, tmp_path, "full")
    assert effects == ["pay 1"]
    first = told["first"]
    assert (first["executed"], first["kept"], first["run_id"]) == (True, True, "full")
    [step] = [step for step in log.steps.values() if step.state == "pending"]
    assert first["step"] == step.seq
    assert first["path"] == str(store / "runs" / "full.jsonl")
    for said in (f"step {step.seq}", "could not be written", "don't call it again", "tracekit in-doubt"):
        assert said in first["text"]
    for later in (*told["again"], *told["late"]):
        assert (later["executed"], later["step"]) == (False, None)
        assert "was not executed" in later["text"]
    assert told["end"] is not None
    verdict = Store(store).verify("full")
    assert (verdict.state, verdict.torn_bytes) == ("incomplete", 0)
    if what != "reversible":
        assert "in doubt" in first["text"]
        assert [one.step for one in recovery.in_doubt(store).in_doubt] == [step.seq]


@pytest.mark.parametrize("what", EFFECTS)
def test_once_there_is_room_it_is_written_first(what: str, store: Path, tmp_path: Path) -> None:
    """When the disk has room again, the outcome is written before every later call, nothing is in doubt, and the run
    goes on."""
    told, effects, log = run(what, store, tmp_path, "room")
    assert effects == (["pay 1", "small 4"] if what == "once" else ["pay 1", "pay 1", "small 4"])
    assert told["late"] == ["raised" if what == "error" else "returned", "returned"]
    assert told["end"] is None
    first = log.steps[told["first"]["step"]]
    # A stream that was broken off has no outcome: nobody knows what else it would have done.
    assert first.state == {"error": "failed", "stream": "pending"}.get(what, "done")
    outcome = max(entry["seq"] for entry in log.entries if entry.get("step") == first.seq)
    assert any(len(json.dumps(entry)) > 160_000 for entry in log.entries[first.seq : outcome])  # what it gave
    later = [step.seq for step in log.steps.values() if step.seq > first.seq]
    assert later
    assert outcome < min(later)
    verdict = Store(store).verify("full")
    assert (verdict.state, verdict.torn_bytes) == ("complete", 0)
    assert verdict.lost > 0  # the program has seen an error that no log has
    assert [one.step for one in recovery.in_doubt(store).in_doubt] == ([first.seq] if what == "stream" else [])


def test_it_is_written_as_soon_as_there_is_room(store: Path, tmp_path: Path) -> None:
    """The pending outcome is written as soon as there is room, even if the program makes no further call."""
    told, effects, log = run("call", store, tmp_path, "waits")
    assert effects == ["pay 1", "pay 1", "small 4"]
    assert log.steps[told["first"]["step"]].state == "done"


@pytest.mark.parametrize("what", ["read", "decision"])
def test_what_is_no_effect_goes_on_and_comes_first_too(what: str, store: Path, tmp_path: Path) -> None:
    """A read or a decision that could not be written still gives the program its result, and is written before the next
    effect."""
    told, effects, log = run(what, store, tmp_path, "room")
    assert told["first"] == told["again"][0] == told["late"][0] == "returned"
    assert [later["executed"] for later in told["again"][1:]] == [False, False]
    assert effects == ["small 4"]
    kinds = [entry["type"] for entry in log.entries]
    first = "tool.return" if what == "read" else "decision"
    assert kinds.index(first) < max(seq for seq, kind in enumerate(kinds) if kind == "tool.call")
    assert Store(store).verify("full").state == "complete"
