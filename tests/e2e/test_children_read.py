"""Whatever reads a run also reads, and first checks, what its child processes wrote."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.family import Family
from tracekit import recorded_failures
from tracekit.errors import TraceError

PROGRAM = """
def main():
    return [run("child.py", who).returncode for who in ("ann", "bob")]
"""


@pytest.fixture
def family(tmp_path: Path) -> Family:
    found = Family(tmp_path)
    found.child("""
import os, signal, sys
@traced_tool(side_effect="irreversible")
def settle(who):
    with open("effects", "a") as file:
        file.write(who + "\\n")
    if who == os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid " + who
settle(sys.argv[1])
""")
    found.program(PROGRAM)
    return found


def recorded(family: Family, **environment: str) -> str:
    done = family.python("parent.py", "record", **environment)
    assert done.returncode == 0, done.stderr
    family.run_id = done.stdout.split()[-1]
    return family.run_id


def cli(family: Family, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, the JSON lines on stdout, and stderr."""
    words = 2 if arguments[0] in ("recovery", "executions") else 1
    form = () if arguments[0] == "replay" or "--json" in arguments else ("--json",)
    done = family.python("-m", "tracekit", *arguments[:words], *form, *arguments[words:])
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


def segment(family: Family, who: str) -> str:
    """The file of the process that was started for ``who``."""
    (found,) = [
        path
        for path in family.store.segments(family.run_id)
        if json.loads(Path(path).read_bytes().splitlines()[1]).get("input") == {"who": who}
    ]
    return found


def name(path: str) -> str:
    return path[-len(".jsonl") - 16 : -len(".jsonl")]


# -- a child that died in the middle of an effect ------------------------------------------------------------------------


def test_a_payment_in_doubt_in_a_child_is_no_run_that_only_reads(family: Family) -> None:
    """If the run ended cleanly but a child was killed inside an irreversible step, whoever reads the run is told of
    that step."""
    run = recorded(family, DIES="bob")
    place = f"{name(segment(family, 'bob'))}:2"

    code, (why,), _ = cli(family, "show", run, "--why")
    assert code == 0
    assert why["safe_to_retry"]["answer"] is False
    assert "settle may or may not have happened" in why["safe_to_retry"]["text"]
    (doubt,) = [one for one in why["safe_to_retry"]["reasons"] if one["code"] == "in_doubt"]
    assert doubt["entries"] == [place]
    assert "process:child.py#2 has no end; its last entry is" in why["what_happened"]["text"]
    assert "2 tool calls" in why["what_happened"]["text"]
    assert why["can_be_replayed"]["answer"] is None

    code, entries, _ = cli(family, "show", run)
    assert code == 0
    mine = [entry for entry in entries if entry.get("segment") == name(segment(family, "bob"))]
    types = [entry["type"] for entry in mine]
    assert types == ["run.started", "tool.call", "input"]  # the file that it has changed, as it was before
    assert [entry["seq"] for entry in entries if "segment" not in entry] == [e["seq"] for e in family.entries()]


def test_a_doubt_in_a_child_is_scanned_and_settled(family: Family) -> None:
    """``scan`` lists such a run with the step, and no longer once a person has declared what became of it."""
    run = recorded(family, DIES="bob")
    part = name(segment(family, "bob"))
    code, found, _ = cli(family, "recovery", "scan")
    assert code == 1
    (decision,) = found
    assert (decision["run_id"], decision["decision"], decision["in_doubt"]) == (run, "abort", [f"{part}:2"])
    (reason,) = [reason for reason in decision["reasons"] if reason["code"] == "segments"]
    assert reason["in_doubt"] == [2]
    assert f"recovery settle {run}.{part} STEP" in reason["text"]

    code, _, told = cli(family, "recovery", "settle", f"{run}.{part}", "2", "--not-done", "--reason", "looked it up")
    assert code == 0, told
    assert cli(family, "recovery", "scan")[1] == []
    assert [one["in_doubt"] for one in cli(family, "recovery", "scan", "--all")[1]] == [[]]
    assert cli(family, "verify", run)[0] == 0
    assert cli(family, "replay", run, "--", "parent.py", "record")[0] == 0
    assert family.effects == ["ann", "bob"]


def test_an_abort_lists_what_is_in_doubt_in_children(family: Family) -> None:
    """If a run died with its child, an abort and the log list what is in doubt in the child, too."""
    family.program("""
def main():
    run("child.py", "bob")
    os.kill(os.getpid(), signal.SIGKILL)
""")
    family.python("parent.py", "record", DIES="bob")
    (family.run_id,) = [path for path in os.listdir(family.store.runs) if path.count(".") == 1]
    family.run_id = family.run_id.removesuffix(".jsonl")
    place = f"{name(segment(family, 'bob'))}:2"
    assert [one["in_doubt"] for one in cli(family, "recovery", "scan")[1]] == [[place]]
    code, (done,), _ = cli(family, "recovery", "abort", family.run_id, "--reason", "given up")
    assert (code, done["in_doubt"]) == (0, [place])
    assert family.entries()[-1]["meta"]["in_doubt"] == [place]
    assert cli(family, "recovery", "scan")[1] == []
    assert [one["in_doubt"] for one in cli(family, "recovery", "scan", "--all")[1]] == [[place]]


def test_a_child_that_is_ended_outside_of_every_effect_is_not_in_doubt(family: Family) -> None:
    """A child that the program ended outside every effect, as servers are, is not in doubt."""
    family.child("import time\nprint(pay('now'), flush=True)\ntime.sleep(600)\n", "server.py")
    family.program("""
def main():
    process = subprocess.Popen([sys.executable, "server.py"], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    process.kill()
    process.communicate()
    return line
""")
    recorded(family)
    assert cli(family, "recovery", "scan")[1] == []
    assert [one["in_doubt"] for one in cli(family, "recovery", "scan", "--all")[1]] == [[]]


def test_diff_and_estimate_read_the_children(family: Family) -> None:
    """``diff`` tells a good run from one whose child was killed, and ``estimate`` counts what the children did."""
    good, killed = recorded(family), recorded(family, DIES="bob")
    code, changes, _ = cli(family, "diff", good, killed, "--json")
    assert code == 1
    (step,) = [change for change in changes if change["name"] == "settle"]
    assert step["process"] == "process:child.py#2"
    assert {"path": "output", "recorded": "paid bob"} in step["differences"]
    assert [change["differences"] for change in changes if change["kind"] == "end" and "process" in change] == [
        [{"path": "outcome", "recorded": "run.completed", "actual": None}]
    ]
    assert cli(family, "diff", good, good, "--json")[:2] == (0, [])
    assert cli(family, "estimate", "--run-name", "parent")[1][0]["median"]["tool_calls"] == 2


def test_a_run_whose_children_did_it_all_is_not_empty(family: Family) -> None:
    """``tracekit run`` does not say that nothing was captured if the child processes captured something."""
    (family.root / "starts.py").write_text(
        "import subprocess, sys\nsubprocess.Popen([sys.executable, 'child.py', 'ann']).wait()\n"
    )
    done = family.python("-m", "tracekit", "run", "starts.py")
    assert done.returncode == 0
    assert "was captured in it" not in done.stderr


# -- a file of a child that is not what it was ---------------------------------------------------------------------------


def _cut(count: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-count]))

    return change


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"paid ann", b"paid eve"))


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "told", "heads"),
    [
        pytest.param(_cut(1), "cut off", True, id="1"),
        pytest.param(_cut(2), "cut off", False, id="2"),
        pytest.param(_cut(4), "cut off", False, id="4"),
        pytest.param(_edited, "does not match its hash", False, id="edited"),
        pytest.param(_emptied, "cut off", True, id="emptied"),
        pytest.param(os.unlink, "its file is missing", False, id="removed"),
    ],
)
def test_a_changed_segment_is_told_before_anything_runs(
    family: Family, change: Callable[[Any], None], told: str, heads: bool
) -> None:
    """A changed segment is reported as such: it is not replayed as exact, blamed on the program, shown, exported or
    silently left out."""
    run = recorded(family)
    change(Path(path := segment(family, "ann")))
    if not heads:  # then the run's own last entry says what its children wrote
        for file in (family.root / "store" / "heads").iterdir():
            file.unlink()
    (family.root / "effects").unlink()
    program = ("--", "parent.py", "record")
    for code, *arguments in (
        (1, "replay", run, *program),
        (2, "verify-determinism", run, *program),
        (1, "show", run),
        (1, "export", run, "--to", "expanded"),
        (1, "verify", run, "--json"),
        (1, "failures"),
        (1, "diff", run, run),
    ):
        done = family.python("-m", "tracekit", *arguments)
        assert (done.returncode, arguments) == (code, arguments), done.stderr
        said = done.stderr + done.stdout
        assert name(path) in said, said
        assert told in said or (told == "cut off" and "entries" in said), said
    assert not (family.root / "effects").exists()
    done = family.replay()
    assert done.returncode != 0
    assert "TraceIntegrityError" in done.stderr
    (decision,) = cli(family, "recovery", "scan", "--all")[1]
    assert (decision["state"], decision["decision"]) == ("broken", "abort")
    (why,) = cli(family, "show", run, "--why")[1]
    assert why["can_be_replayed"]["answer"] is why["safe_to_retry"]["answer"] is False


def test_the_end_of_a_killed_childs_segment_is_known_too(family: Family) -> None:
    """A segment that was open when its run ended may grow but not shrink, so its last outcome can't be cut away."""
    run = recorded(family, DIES="bob")
    _cut(1)(Path(segment(family, "bob")))
    assert cli(family, "verify", run)[0] == 1
    assert cli(family, "replay", run, "--", "parent.py", "record")[0] == 1


def test_a_copy_of_a_segment_is_no_process(family: Family) -> None:
    """A file that holds another segment than its name says is reported."""
    run = recorded(family)
    path = Path(segment(family, "ann"))
    path.with_name(f"{run}.{'0' * 16}.jsonl").write_bytes(path.read_bytes())
    code, (verdict,), _ = cli(family, "verify", run, "--json")
    assert code == 1
    assert "it is a copy, or was renamed" in verdict["problem"]


def test_failures_tells_a_damaged_child_to_its_caller(family: Family) -> None:
    """``recorded_failures`` raises the error for a file that it can't read, or hands it to ``on_damage``, once for each
    run."""
    recorded(family)
    _edited(Path(segment(family, "ann")))
    with pytest.raises(TraceError, match="does not match its hash"):
        list(recorded_failures(store=family.root / "store"))
    told: list[TraceError] = []
    assert list(recorded_failures(store=family.root / "store", on_damage=told.append)) == []
    assert len(told) == 1


# -- a child that fails while the program waits for it -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["direct", "grandchild", "dies"])
def test_a_failed_child_ends_a_program_that_waits_for_it_for_ever(family: Family, how: str) -> None:
    """``--grace`` also applies if another process has failed: nothing hangs, and nothing is left running."""
    (family.root / "waits.py").write_text(f"""
import multiprocessing as mp, os, signal
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def ask(p):
    return p

def worker(asked, answers):
    asked.get()
    if {how!r} == "dies" and os.path.exists("changed"):
        os.kill(os.getpid(), signal.SIGKILL)
    answers.put(ask(os.path.exists("changed")))

def between(asked, answers):
    process = mp.get_context("spawn").Process(target=worker, args=(asked, answers))
    process.start()
    process.join()
    if os.path.exists("changed"):
        signal.pause()

if __name__ == "__main__":
    with record("waits"):
        context = mp.get_context("spawn")
        asked, answers = context.Queue(), context.Queue()
        target = between if {how!r} == "grandchild" else worker
        process = context.Process(target=target, args=(asked, answers))
        process.start()
        asked.put("go")
        answers.get()
        process.join()
""")
    assert family.python("waits.py").returncode == 0
    (family.root / "changed").write_text("")
    done: subprocess.CompletedProcess[str] = family.python("-m", "tracekit", "replay", "last", "--grace", "1")
    assert done.returncode == 1
    assert "the program has not ended 1 s after that; it is ended" in done.stderr
    assert ("in the process" if how != "dies" else "ended without having been replayed") in done.stderr
