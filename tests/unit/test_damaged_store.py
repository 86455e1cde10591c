"""Damage anywhere in a store is reported by every command that looks at more than one run, and by the metrics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from tests.support.cut import cut
from tests.support.processes import python
from tracekit import record, recovery, traced_tool
from tracekit.cli import main
from tracekit.monitoring import RunCollector


@traced_tool(side_effect="irreversible")
def pay(who: str) -> str:
    return f"paid {who}"


def paid(store: Path) -> Path:
    with record("payday", store=store) as run:
        pay("ann")
        pay("bob")
    return Path(run.path)


def ask(*words: str, store: Path) -> Result:
    return CliRunner().invoke(main, [*words, "--store", str(store)])


def damaged(store: Path) -> set[str]:
    """Return the damaged runs of a store, which each command and each function must name."""
    runs = sorted(path for path in (store / "runs").glob("*.jsonl") if "." not in path.stem)
    listed = [json.loads(line) for line in ask("list", "--json", store=store).stdout.splitlines()]
    chosen = [json.loads(line) for line in ask("list", "--state", "broken", "--json", store=store).stdout.splitlines()]
    scanned = [json.loads(line) for line in ask("recovery", "scan", "--json", store=store).stdout.splitlines()]
    found: dict[str, set[str]] = {
        "verify": {path.stem for path in runs if ask("verify", str(path), store=store).exit_code == 1},
        "list": {row["run_id"] for row in listed if row["state"] == "broken"},
        "list --state": {row["run_id"] for row in chosen},
        "scan": {one["run_id"] for one in scanned if one["state"] == "broken"},
        "recovery.scan": {one.run_id for one in recovery.scan(store) if one.state == "broken"},
        "in-doubt": {Path(path).stem.partition(".")[0] for path in recovery.in_doubt(store).unreadable},
    }
    first = found["verify"]
    assert all(one == first for one in found.values()), found
    return first


def metric(store: Path, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(RunCollector(store))
    return registry.get_sample_value(name, labels)


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"paid ann", b"paid eve", 1))


def _line_removed(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))


def _zeroed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(200) + data[len(data) // 2 + 200 :])


def _cut_off(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def _torn_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _extended(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more\n")


def _overwritten(path: Path) -> None:
    path.write_bytes(b"\x07\xff not a trace\n" * 40)


DAMAGE = [_edited, _line_removed, _zeroed, _cut_off, _torn_off, _emptied, _extended, _overwritten]


@pytest.mark.parametrize("damage", DAMAGE, ids=[one.__name__[1:] for one in DAMAGE])
def test_damage_to_a_run_that_has_ended_is_reported_by_all(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Before its end as well as at it: nobody calls such a run complete or died, and nobody says that nothing is in doubt."""
    for _ in range(3):
        paid(tmp_path)
    assert damaged(tmp_path) == set()
    assert ask("in-doubt", store=tmp_path).exit_code == ask("recovery", "scan", store=tmp_path).exit_code == 0
    run = paid(tmp_path)
    damage(run)
    assert damaged(tmp_path) == {run.stem}
    assert metric(tmp_path, "tracekit_runs", state="broken") == 1
    assert metric(tmp_path, "tracekit_runs", state="complete") == 3
    done = ask("in-doubt", store=tmp_path)
    assert done.exit_code == ask("recovery", "scan", store=tmp_path).exit_code == 1
    assert "Nothing is in doubt" not in done.stderr
    assert f"{run} can't be read completely" in done.stderr
    listed = ask("list", store=tmp_path)
    assert f"1 run is damaged: `tracekit verify {run.stem}`" in listed.stderr


@pytest.mark.parametrize("damage", [_edited, _line_removed, _zeroed], ids=lambda one: one.__name__[1:])
def test_damage_to_a_run_that_died_is_reported_by_all(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is broken, and no more one of those that died."""
    with record("payday", store=tmp_path / "source") as run:
        pay("ann")
        pay("bob")
    store = tmp_path / "died"
    died = Path(cut(run, 4, store))
    assert json.loads(ask("list", "--json", store=store).stdout)["state"] == "died"
    damage(died)
    assert damaged(store) == {died.stem}
    assert metric(store, "tracekit_runs", state="broken") == 1


@pytest.mark.parametrize("damage", DAMAGE, ids=[one.__name__[1:] for one in DAMAGE])
def test_the_same_steps_are_in_doubt_everywhere(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """What a damaged run no longer says to have happened is counted alike by ``in-doubt``, ``recovery scan`` and the metrics."""
    damage(paid(tmp_path))
    listed = recovery.in_doubt(tmp_path).in_doubt
    assert metric(tmp_path, "tracekit_in_doubt_steps", declared="true") == len(listed)
    assert sum(len(one.in_doubt) for one in recovery.scan(tmp_path)) == len(listed)
    counted = ask("recovery", "scan", store=tmp_path).stderr
    assert (f"{len(listed)} step" in counted) == bool(listed)


FAMILY = """
import multiprocessing
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def pay(who):
    return who

if __name__ == "__main__":
    with record("family"):
        child = multiprocessing.get_context("spawn").Process(target=pay, args=("ann",))
        child.start()
        child.join()
"""


@pytest.mark.parametrize("damage", [Path.unlink, _edited, _emptied, _cut_off], ids=lambda one: one.__name__)
def test_the_file_of_a_child_process_is_looked_at_as_well(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """One that is missing, edited or cut off breaks its run, in whatever is asked."""
    (tmp_path / "family.py").write_text(FAMILY)
    done = python("family.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / ".tracekit"
    (segment,) = (store / "runs").glob("*.*.jsonl")
    registry = CollectorRegistry()
    registry.register(RunCollector(store))
    assert registry.get_sample_value("tracekit_runs", {"state": "complete"}) == 1
    segment.write_bytes(segment.read_bytes().replace(b'"ann"', b'"eve"', 1)) if damage is _edited else damage(segment)
    run = segment.stem.partition(".")[0]
    assert damaged(store) == {run}
    assert registry.get_sample_value("tracekit_runs", {"state": "broken"}) == 1
    assert metric(store, "tracekit_runs", state="broken") == 1


def test_quick_says_what_it_does_not_see(tmp_path: Path) -> None:
    """It reads the ends of the runs only, which is what its help says; a run that lost its end is found all the same."""
    edited, cut_off = paid(tmp_path), paid(tmp_path)
    _edited(edited)
    _cut_off(cut_off)
    listed = [json.loads(line) for line in ask("list", "--json", "--quick", store=tmp_path).stdout.splitlines()]
    assert {row["run_id"]: row["state"] for row in listed} == {edited.stem: "complete", cut_off.stem: "died"}
    assert recovery.in_doubt(tmp_path, quick=True).unreadable == (str(cut_off),)
    assert [one.run_id for one in recovery.scan(tmp_path, quick=True)] == [cut_off.stem]
    for command in (["in-doubt"], ["recovery", "scan"], ["list"]):
        helped = " ".join(CliRunner().invoke(main, [*command, "--help"]).stdout.split())
        assert "damage before it is not seen" in helped or "damage between them is not seen" in helped


def test_states_are_counted_as_they_are_listed(tmp_path: Path) -> None:
    """The states of ``tracekit list`` are those of the metrics."""
    for damage in (_edited, _emptied, None):
        run = paid(tmp_path)
        if damage is not None:
            damage(run)
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in ask("list", "--json", store=tmp_path).stdout.splitlines()
    ]
    assert Counter(row["state"] for row in rows) == {"broken": 2, "complete": 1}
    for state, count in Counter(row["state"] for row in rows).items():
        assert metric(tmp_path, "tracekit_runs", state=state) == count
