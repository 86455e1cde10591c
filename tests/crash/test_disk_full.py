"""If the log can't be written, effects do not happen and the caller is told why, but reading tools go on."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.processes import python
from tracekit.cli import main
from tracekit.harness import load_trace
from tracekit.integration import Store

PROGRAM = Path(__file__).with_name("full_disk.py")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A directory that any user can reach; whatever a test mounts on it is unmounted at the end."""
    with tempfile.TemporaryDirectory(prefix="tracekit-full-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
        subprocess.run(["umount", directory], capture_output=True)


def run(what: str, store: Path, tmp_path: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the program; return what it was told and the effects that happened."""
    ledger = tmp_path / "ledger"
    done = python(str(PROGRAM), what, str(store), str(ledger))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), ledger.read_text().splitlines() if ledger.exists() else []


@pytest.mark.parametrize("what", ["limit", "limit-mended", "tmpfs", "eio", "no-sync"])
def test_no_effect_without_a_log(what: str, store: Path, tmp_path: Path) -> None:
    """After a full disk, an I/O error or a failed sync no effect happens, callers get a LogWriteError that names the
    log, and read-only tools go on."""
    told, effects = run(what, store, tmp_path)
    assert told["before"] == ["paid", "1: "]
    for code, path, text in (*told["pay"], told["book"]):
        assert code == "log-write"
        assert path == str(store / "runs" / "full.jsonl")
        assert path in text
    assert effects == (["pay 1", "pay 4"] if what == "limit-mended" else ["pay 1"])
    assert (told["looks"], told["studies"], told["studied"]) == (200, 20, 7200)
    assert told["after"] == "3: "
    assert told["decided"] == [5, True, "6: "]


@pytest.mark.parametrize("what", ["limit", "tmpfs", "eio", "no-sync"])
def test_the_run_says_at_its_end_that_the_log_failed(what: str, store: Path, tmp_path: Path) -> None:
    """A run whose log failed does not end silently: it raises at its end, or warns that steps are missing."""
    told, _ = run(what, store, tmp_path)
    if told["end"] is None:
        assert any("steps are missing" in sentence for sentence in told["warnings"])
    else:
        assert told["end"][0] == "log-write"


def test_after_the_device_was_mended_the_run_goes_on_and_says_what_is_missing(store: Path, tmp_path: Path) -> None:
    """Once there is room again effects happen again; the trace verifies, is complete and counts the lost entries, and
    the program is warned."""
    told, _ = run("limit-mended", store, tmp_path)
    assert told["mended"] == "paid"
    assert told["end"] is None
    assert any("steps are missing" in sentence for sentence in told["warnings"])
    verdict = Store(store).verify("full")
    assert verdict.state == "complete"
    events = load_trace("full", store=store)
    last = events.trace.entry(verdict.count)
    assert last["meta"]["lost"] == verdict.lost > 0
    why = CliRunner().invoke(main, ["show", "full", "--why", "--json", "--store", str(store)])
    answer = json.loads(why.stdout)["can_be_replayed"]
    assert answer["answer"] is False
    assert f"{verdict.lost} of its entries could not be written" in answer["text"]
    verified = CliRunner().invoke(main, ["verify", "full", "--json", "--store", str(store)])
    assert json.loads(verified.stdout)["lost"] == verdict.lost
    assert [event.input["number"] for event in events if event.name == "pay"] == [1, 4]
    assert not [event for event in events if event.name == "book"]


@pytest.mark.parametrize("what", ["limit", "eio"])
def test_what_was_written_before_the_failure_is_whole(what: str, store: Path, tmp_path: Path) -> None:
    """The file ends after a complete line that verifies, because a write that was cut short is taken back."""
    run(what, store, tmp_path)
    verdict = Store(store).verify("full")
    assert (verdict.state, verdict.torn_bytes) == ("incomplete" if what == "limit" else verdict.state, 0)
    assert verdict.state != "broken"
    events = load_trace("full", store=store)
    assert events[0].output == "paid"


def test_a_store_that_cannot_be_written_stops_the_run_before_it_begins(store: Path, tmp_path: Path) -> None:
    """In a read-only directory the recorded block is not entered, and the LogWriteError names the file."""
    told, effects = run("read-only", store, tmp_path)
    assert told["body"] is False
    assert told["end"][0] == "log-write"
    assert str(store) in told["end"][1]
    assert effects == []
