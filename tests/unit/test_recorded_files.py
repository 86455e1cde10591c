"""Runs that are recorded into a file of the caller's choice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit import record, replay, traced_tool
from tracekit.errors import RunStateError
from tracekit.integration import Store, Trace

PROGRAM = """
import subprocess, sys
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="irreversible")
def pay(n):
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n

def main():
    pay(1)
    return subprocess.run([sys.executable, "child.py"], capture_output=True, text=True, check=True).stdout

if __name__ == "__main__":
    with record("family", path="traces/family.jsonl") as run:
        first = main()
    with replay("traces/family.jsonl") as session:
        assert main() == first
    assert session.report.exact
"""
CHILD = """
from program import pay
print(pay(2))
"""


@traced_tool(side_effect="irreversible", exactly_once=True)
def pay(amount: int) -> int:
    return amount


def test_a_run_is_recorded_into_the_file_that_was_named(tmp_path: Path) -> None:
    """``record(path=…)`` writes that file, its directory included, and puts nothing else beside it; it is replayed by its path."""
    path = tmp_path / "traces" / "deep" / "pays.jsonl"
    with record("pays", path=path) as run:
        run.set_result([pay(3), pay(3)])
    assert run.path == str(path)
    assert [file.name for file in path.parent.iterdir()] == ["pays.jsonl"]
    assert [file.name for file in (tmp_path / "traces").iterdir()] == ["deep"]
    with replay(path) as session:
        session.set_result([pay(3), pay(3)])
    assert session.report.exact
    assert Store().list() == ()
    assert (Path(Store().root) / ".gitignore").read_text() == "*\n"  # it has the secret of the placeholders


def test_no_recording_takes_the_place_of_another(tmp_path: Path) -> None:
    """A file that is there is left as it is, and named; so is a name that a child process's file would have."""
    path = tmp_path / "a.jsonl"
    with record(path=path):
        pay(1)
    before = path.read_bytes()
    with pytest.raises(RunStateError, match=r"there is a file .*a\.jsonl already") as found, record(path=path):
        pytest.fail("it began")
    assert "name another file, or remove this one" in str(found.value)
    assert path.read_bytes() == before
    for name in ("a.txt", ".jsonl", "a.0123456789abcdef.jsonl"):
        with pytest.raises(RunStateError, match="can't be the file of a run"), record(path=tmp_path / name):
            pytest.fail("it began")


def test_a_store_and_a_file_are_not_both_named(tmp_path: Path) -> None:
    """A directory beside ``path`` is where the secret and the keys are; a path that is none is refused."""
    with record(path=tmp_path / "a.jsonl", store=tmp_path / "keys"):
        pay(1)
    assert (tmp_path / "keys" / "secret").exists()
    with pytest.raises(TypeError, match="not both"):
        record(path=tmp_path / "b.jsonl", store=Store(tmp_path))
    with pytest.raises(TypeError, match="path is the path of a file"):
        record(path=3)  # type: ignore[call-overload]


def test_what_child_processes_write_lies_beside_it(tmp_path: Path) -> None:
    """Each child process's file is ``<stem>.<16 hexadecimal digits>.jsonl`` there; a replay finds it, copied and renamed with its run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "child.py").write_text(CHILD)
    done = python("program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "effects").read_text() == "1\n2\n"
    run, segment = sorted((tmp_path / "traces").iterdir(), key=lambda path: len(path.name))
    assert segment.name.startswith("family.")
    with Trace(str(run)) as trace:
        verdict = Store().judge_run(trace)
    assert (verdict.state, len(verdict.segments), verdict.segments[0]["state"]) == ("complete", 1, "complete")
    other = segment.with_name(segment.name.replace("family", "other"))
    segment.rename(other)
    with Trace(str(run)) as trace:
        assert "its file is missing" in str(Store().judge_run(trace).problem)
    run.rename(run.with_name("other.jsonl"))
    code = "from program import main, replay\nwith replay('traces/other.jsonl') as session: main()\nassert session.report.exact"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "effects").read_text() == "1\n2\n"
