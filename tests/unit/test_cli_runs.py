"""``rm``, ``prune`` and ``compress``: what is needed stays, what goes goes whole, and a compressed run is read as before."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from click.testing import CliRunner, Result

from tests.support.tracing import of_type
from tracekit import Run, record, recorded_failures, recovery, replay, traced_tool
from tracekit.cli import main
from tracekit.errors import TraceIntegrityError
from tracekit.integration import Store, Trace, read_run


@traced_tool(side_effect="irreversible", name="pay")
def pay(cents: int) -> int:
    if cents < 0:
        raise ValueError("a negative amount")
    return cents


@traced_tool(side_effect="irreversible", name="order", exactly_once="store")
def order(number: int) -> int:
    return number


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def recorded(name: str, cents: int = 5) -> Run:
    with record(name, run_id=name) as run:
        pay(cents)
    return run


def runs() -> set[str]:
    return {run.run_id for run in Store().list()}


def files() -> set[str]:
    root = Path(os.environ["TRACEKIT_DIR"])
    return {path.name for path in root.rglob("*") if path.is_file()} - {".gitignore", "secret"}


# -- rm ------------------------------------------------------------------------------------------------------------------


def test_a_run_is_removed_with_all_that_is_kept_of_it() -> None:
    """Its file and its kept tip; a run whose name begins with the same letters stays whole."""
    recorded("a")
    for name in ("a.vault", "a.1", "ab"):
        recorded(name)
    others = files() - {"a.jsonl", "a"}
    done = call("rm", "a")
    assert done.exit_code == 0
    assert "removed a" in done.stdout
    assert files() == others
    assert all(call("verify", run).exit_code == 0 for run in ("a.vault", "a.1", "ab"))


def test_what_is_needed_is_not_removed(tmp_path: Path) -> None:
    """A run that goes on, one with a step in doubt, one that answers others: refused, none removed; --force takes all but the first."""
    recorded("fine")
    died = recorded("died")
    (step,) = of_type(died, "tool.call")
    lines = Path(died.path).read_bytes().splitlines(keepends=True)
    Path(died.path).write_bytes(b"".join(lines[: step["seq"]]))
    os.unlink(Path(Store().tips) / "died")
    with record("once", run_id="once"):
        order(1)
    done = call("rm", "fine", "died", "once")
    assert done.exit_code == 4
    assert f"died is not removed: step {step['seq']} is in doubt" in done.stderr
    assert "once is not removed: 1 call that happen once" in done.stderr
    assert runs() == {"fine", "died", "once"}
    with record("live", run_id="live"):
        for options in ([], ["--force"]):
            assert call("rm", "live", *options).exit_code in (2, 4)
    assert call("rm", "--force", "fine", "died", "once").exit_code == 0
    assert runs() == {"live"}


def test_only_what_was_named_is_removed(tmp_path: Path) -> None:
    """Of a copy the copy alone, with its own processes; never a file that is no trace, nor one process of a run."""
    run = recorded("a")
    segment = "a.0123456789abcdef.jsonl"
    Path(run.path).with_name(segment).write_bytes(Path(run.path).read_bytes())
    for name in ("a.jsonl", segment):
        (tmp_path / name).write_bytes(Path(run.path).with_name(name).read_bytes())
    notes = tmp_path / "notes.txt"
    notes.write_text("buy milk\n")
    kept = files()
    assert call("rm", str(tmp_path / "a.jsonl")).exit_code == 0
    assert (files(), [*tmp_path.glob("a*")]) == (kept, [])
    for name, reason in (
        (str(notes), "is not removed: it is no trace"),
        ("a.0123456789abcdef", "is one process of the run a: `tracekit rm a` removes"),
    ):
        done = call("rm", "--force", name)
        assert done.exit_code == 4
        assert reason in done.stderr
        assert "--force" not in done.stderr
    assert (files(), notes.exists()) == (kept, True)


# -- prune ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def old() -> Iterator[None]:
    """Three runs of forty days ago, one of them failed, one that answers others; and one of today."""
    with time_machine.travel(0, tick=True) as traveller:
        traveller.shift(timedelta(days=20_000))
        recorded("old")
        with pytest.raises(ValueError, match="negative"):
            recorded("old-failed", -1)
        with record("old-once", run_id="old-once"):
            order(2)
        traveller.shift(timedelta(days=40))
        recorded("new")
        yield


@pytest.mark.usefixtures("old")
def test_prune_removes_old_runs_that_nobody_needs() -> None:
    """By age; failed ones stay if asked; what answers other runs stays in any case, and is counted; nothing goes unasked."""
    every = {"old", "old-failed", "old-once", "new"}
    dry = call("prune", "--older-than", "30d", "--dry-run")
    assert dry.exit_code == 0
    assert [line.split()[0] for line in dry.stdout.splitlines()] == ["old-failed", "old"]
    unanswered = call("prune", "--older-than", "30d")
    assert (unanswered.exit_code, "say --yes" in unanswered.stderr) == (2, True)
    assert "nothing was removed" in CliRunner().invoke(main, ["prune", "--older-than", "30d"], input="\n").stderr
    assert runs() == every
    kept = call("prune", "--older-than", "30d", "--keep-failed", "--yes")
    assert kept.exit_code == 0
    assert "left: 1 run: 1 call that happen once" in kept.stderr
    assert runs() == every - {"old"}
    assert call("prune", "--older-than", "30d", "--yes").exit_code == 0
    assert runs() == {"old-once", "new"}
    assert "no run to remove" in call("prune", "--older-than", "30d", "--yes").stderr


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("line", [0, -1])
def test_a_damaged_run_stays_whatever_its_age_looks_like(line: int) -> None:
    """Nobody knows what it did: an intent may be in what can't be read. With its first line, its age is lost, too."""
    path = Path(Store().find("old"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = b"[1, 2]\n" if line == 0 else lines[line].replace(b"run.completed", b"run.failed")
    path.write_bytes(b"".join(lines))
    (shown,) = (json.loads(one) for one in call("list", "--json").stdout.splitlines() if '"run_id":"old"' in one)
    assert shown["state"] == "broken"
    assert "old " in call("list").stdout
    assert not re.search(r"\bold .*\b\d{5} d\b", call("list").stdout)
    pruned = call("prune", "--older-than", "0d", "--yes")
    assert "left: 1 run: it does not verify, so what it did is not known" in pruned.stderr
    assert runs() == {"old", "old-once"}
    removed = call("rm", "old")
    assert (removed.exit_code, "`tracekit verify " in removed.stderr) == (4, True)
    assert call("rm", "old", "--force").exit_code == 0
    assert runs() == {"old-once"}


# -- compress ------------------------------------------------------------------------------------------------------------


def outputs(run: str) -> list[Any]:
    """What every command that reads says of a run."""
    shown = [call(*words).stdout for words in (
        ["show", run], ["show", run, "--json"], ["show", run, "--why", "--json"], ["verify", run], ["verify", run, "--json", "--schema"],
        ["failures", run], ["export", run, "--to", "expanded"], ["executions", "trace", run], ["in-doubt", "--json"],
    )]  # fmt: skip
    (listed,) = [json.loads(line) for line in call("list", "--json").stdout.splitlines()]
    shown[0] = re.sub(r"\(.*? ago\)", "", shown[0])
    return [*shown, {key: value for key, value in listed.items() if key != "size"}]


def test_a_compressed_run_is_read_as_before(tmp_path: Path) -> None:
    """Every command prints the same, hash chain and kept tip are right, it replays, and any gzip reads it."""
    with record("long", run_id="long") as run:
        for cents in range(200):
            pay(cents)
    before, content = outputs("long"), Path(run.path).read_bytes()
    done = call("compress", "long")
    assert done.exit_code == 0, done.output
    packed = Path(run.path).read_bytes()
    assert len(packed) < len(content) / 3
    assert gzip.decompress(packed) == content
    assert outputs("long") == before
    with replay("long") as again:
        assert [pay(cents) for cents in range(200)] == [*range(200)]
    assert again.report.exact
    with read_run(run.path) as view, Trace(run.path) as trace:
        assert len([*view.steps()]) == 200
        trace.check()
        trace.release()
        assert trace.entry(3)["seq"] == 3
    assert call("compress", "long").exit_code == 0  # again changes nothing
    assert Path(run.path).read_bytes() == packed
    assert call("compress", "--undo", "long").exit_code == 0
    assert Path(run.path).read_bytes() == content


def content_of(path: Path) -> bytes | None:
    """What any gzip makes of a file; a date in a header is no content."""
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        return None


def test_damage_in_a_compressed_run_is_found(tmp_path: Path) -> None:
    """A changed byte anywhere, and a file that was cut: broken, never complete or merely incomplete, and no command fails otherwise."""
    run = recorded("one")
    assert call("compress", "one").exit_code == 0
    packed = Path(run.path).read_bytes()
    content, copy = content_of(Path(run.path)), tmp_path / "copy.jsonl"
    for at in (*range(30, len(packed), 17), len(packed) - 1):
        copy.write_bytes(packed[:at] + bytes([packed[at] ^ 0x41]) + packed[at + 1 :])
        # Of the same content a header may be refused all the same: zlib knows flags that Python's gzip does not look at.
        found = call("verify", str(copy)).exit_code
        assert found == 1 or (found == 0 and content_of(copy) == content), at
    second_member = packed.rindex(b"\x1f\x8b\x08")
    for length in (*range(24, len(packed), 31), second_member):
        copy.write_bytes(packed[:length])
        assert call("verify", str(copy)).exit_code == 1, length
    Path(run.path).write_bytes(packed[:16] + b"\xff" + packed[17:])  # where the last line is said to begin
    listed = [one["state"] for one in map(json.loads, call("list", "--json").stdout.splitlines())]
    assert listed == ["complete" if call("verify", "one").exit_code == 0 else "broken"]
    assert call("recovery", "scan").exit_code in (0, 1)
    copy.write_bytes(packed[: len(packed) // 2])
    assert call("show", str(copy)).exit_code == 1
    assert call("failures", str(copy)).exit_code == 1
    with pytest.raises(TraceIntegrityError):
        [*recorded_failures(str(copy))]


def test_only_complete_runs_are_compressed() -> None:
    """One that goes on, or died, is left as it is; of all that are old those that can be are compressed."""
    run = recorded("done")
    with record("live", run_id="live"):
        assert call("compress", "live").exit_code == 2
        done = call("compress", "--older-than", "0s")
        assert done.exit_code == 0
        assert "compressed 1 run" in done.stdout
    assert Path(run.path).read_bytes()[:2] == b"\x1f\x8b"
    assert call("compress").exit_code == call("compress", "done", "--older-than", "1d").exit_code == 2


def test_nothing_is_added_to_a_compressed_run(tmp_path: Path) -> None:
    """Whoever would append to it is refused, and it stays as it is."""
    run = recorded("done")
    assert call("compress", "done").exit_code == 0
    packed = Path(run.path).read_bytes()
    for words in (["recovery", "abort", "done", "--reason", "x"], ["recovery", "resume", "done", "--", "x.py"]):
        assert call(*words).exit_code == 4
    assert Path(run.path).read_bytes() == packed
    assert [*recovery.scan()] == []


# -- completion ----------------------------------------------------------------------------------------------------------


def offered(words: str) -> list[str]:
    """What the shell offers for the last of these words: for each value its type, itself and its description."""
    environment = {
        "_TRACEKIT_COMPLETE": "zsh_complete",
        "COMP_WORDS": f"tracekit {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    return CliRunner().invoke(main, [], prog_name="tracekit", env=environment).stdout.split("\n")


def test_the_shell_completes_what_is_in_a_run() -> None:
    """Steps, kinds, lanes, agents and tools of the run that the command names; nothing for a run that is not there."""
    with record("one", run_id="one", agent="clerk"):
        pay(5)
    for words, wanted in (
        ("show one ", ["3", "tool pay, done"]), ("debug one --at ", ["3", "tool pay, done"]),
        ("recovery settle one ", ["3", "tool pay, done"]),
        ("show one --kind t", ["tool", "1 step"]), ("show one --lane ", ["0", "_"]), ("show one --agent ", ["clerk", "_"]),
        ("audit one --tool p", ["pay", "_"]), ("audit one --agent c", ["clerk", "_"]),
        ("show none ", []), ("show --kind ", []),
    ):  # fmt: skip
        assert [line for line in offered(words) if line not in ("", "plain")] == wanted, words


def test_the_shell_completes_ids_of_runs() -> None:
    """The runs of the store whose ids begin so, each with its name and how it ended; an empty store offers none."""
    assert not any("nightly" in line for line in offered("show night"))
    recorded("nightly-1")
    recorded("nightly-2")
    recorded("other")
    for command in ("show", "verify", "rm", "compress", "failures", "recovery abort"):
        lines = offered(f"{command} night")
        assert [line for line in lines if line in ("nightly-1", "nightly-2", "other")] == ["nightly-2", "nightly-1"], (
            command
        )
        assert any(line.startswith("nightly-1, completed") for line in lines)


def test_a_run_that_goes_on_while_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run does after its file was verified is not shown, however often the file is read, and nothing is asked about it."""

    @traced_tool(side_effect="irreversible")
    def pay(order: int) -> None:
        raise TimeoutError("no answer")

    entries = Trace.entries

    def going_on(self: Trace, **options: Any) -> Iterator[dict[str, Any]]:
        with pytest.raises(TimeoutError):
            pay(2)
        return entries(self, **options)

    with record("going on", store=tmp_path):
        with pytest.raises(TimeoutError):
            pay(1)
        monkeypatch.setattr(Trace, "entries", going_on)
        done = CliRunner().invoke(main, ["show", "last", "--store", str(tmp_path)])
        monkeypatch.undo()
    assert (done.exit_code, done.exception.__class__) == (3, SystemExit), done.exception
    assert "pay(order=1)" in done.stdout
    assert "pay(order=2)" not in done.stdout
