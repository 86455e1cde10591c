"""Traces that were committed once: every later version reads, verifies and replays them, and nobody rewrites them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.golden import programs
from tracekit import replay
from tracekit._journal.entry import load_schema
from tracekit._journal.entry import FORMAT_VERSION
from tracekit.integration import Trace
from tracekit.integration import Store
from tracekit.harness import ReplayLLMClient, ReplayToolClient, ReplayTraceWriter, TraceIndex, load_trace
from tracekit.testing import assert_replays

#: They were recorded elsewhere: that the replay says so is right, and no news here.
pytestmark = pytest.mark.filterwarnings("ignore:.*in the recording and .* here:RuntimeWarning")

FILES = sorted(programs.HERE.glob("v*/*.jsonl"))


def test_no_golden_trace_has_changed() -> None:
    """Each committed trace has the bytes that it was committed with; each is listed, and nothing is listed that is not there."""
    found = {f"{path.parent.name}/{path.name}": programs.digest_of(path) for path in FILES}
    assert found == programs.hashes()


def test_the_list_of_hashes_only_grows() -> None:
    """A line of HASHES that was committed stays: other bytes need a new format version, which is a new directory."""
    if shutil.which("git") is None:  # an unpacked archive has no history to compare with
        return
    command = ["git", "log", "--format=", "-p", "--no-color", "--", "HASHES"]
    shown = subprocess.run(command, cwd=programs.HERE, capture_output=True, text=True)
    removed = set(re.findall(r"^-([0-9a-f]{64}  \S+)$", shown.stdout, re.MULTILINE))
    listed = {f"{digest}  {name}" for name, digest in programs.hashes().items()}
    assert not removed - listed


def test_every_format_version_has_golden_traces() -> None:
    """There is a directory of traces for each version of the format up to the present one."""
    versions = {path.parent.name for path in FILES}
    assert versions == {f"v{number}" for number in range(1, FORMAT_VERSION + 1)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_trace_verifies(path: Path) -> None:
    """Today's reader verifies each: complete, or incomplete where it is a torn one."""
    with Trace(str(path)) as trace:
        verdict = trace.check()
    assert verdict.state == ("incomplete" if path.stem == "torn" else "complete")
    assert bool(verdict.torn_bytes) is (path.stem == "torn")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_trace_satisfies_the_schema(path: Path) -> None:
    """Today's schema describes each line of each."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(load_schema())
    for line in path.read_bytes().split(b"\n")[:-1]:
        validator.validate(json.loads(line))


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_golden_trace_replays(name: str) -> None:
    """The unchanged program replays from each, to the recorded result; nothing is written beside it."""
    path = programs.trace_of(name)
    before = sorted(os.listdir(path.parent))
    report = assert_replays(path, programs.PROGRAMS[name])
    assert report.consumed or name == "reads"
    assert sorted(os.listdir(path.parent)) == before


def test_the_golden_trace_of_the_harness_replays() -> None:
    """Replay clients answer from it, to the recorded result."""
    with TraceIndex(load_trace(programs.trace_of("harness"))) as index:
        result = programs.harness(
            ReplayLLMClient(index, **programs.MODEL), ReplayToolClient(index, **programs.TOOL), ReplayTraceWriter(index)
        )
    assert result[2] == ["two ", "pens ", "were ", "bought"]
    assert index.report.exact


def test_a_torn_golden_trace_replays_as_far_as_it_goes() -> None:
    """What was written before the kill is answered; there the replay ends, and it is said that the run is incomplete."""
    with replay(programs.trace_of("torn")) as session:
        assert isinstance(programs.pay(programs.decimal.Decimal("12.50")), programs.Receipt)
        assert programs.book(["a", "b", "a"]) == (3, {"a", "b"})
    assert any("incomplete" in warning for warning in session.report.warnings)
    assert session.report.verdict.answer == "unknown"


def test_a_history_cut_off_behind_any_entry_has_all_that_it_refers_to(tmp_path: Path) -> None:
    """Wherever the process was killed, each request that is in the file can be read: it refers to what was written before it."""
    lines = programs.trace_of("history").read_bytes().splitlines(keepends=True)
    with Trace(programs.trace_of("history")) as trace:
        whole = [trace.expand(entry.get("input"), before=entry["seq"]) for entry in trace.entries()]
    assert sum(b'"$extend"' in line for line in lines) == 6
    for count in range(1, len(lines)):
        cut = tmp_path / f"{count}.jsonl"
        cut.write_bytes(b"".join(lines[:count]) + lines[count][:40])
        with Trace(cut) as trace:
            last = trace.last
            assert trace.status.state == "incomplete"
            assert trace.expand(last.get("input"), before=last["seq"]) == whole[count - 1]


def test_golden_traces_are_read_from_anywhere(tmp_path: Path) -> None:
    """A trace is one file: copied elsewhere, under another name, it still verifies."""
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(programs.trace_of("tools").read_bytes())
    assert Store().verify(copy).state == "complete"
