"""The ready tools: they do their work while recording, and nothing at all in a replay."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tracekit import record, replay
from tracekit.errors import DivergenceError, LogWriteError, StepTimeoutError
from tracekit.harness import load_trace
from tracekit.tools import ProcessResult, WrittenFile, read_file, run_process, write_file

PYTHON = sys.executable


def test_a_process_is_run_once_and_replayed_without_running(tmp_path: Path) -> None:
    """A replay gives the recorded status, output and type back, under the guard, and the process is not started again."""
    ledger = tmp_path / "ledger"
    code = f"import sys, os; open({str(ledger)!r}, 'a').write('x'); sys.stderr.write('e'); print(os.getpid(), sys.stdin.read())"

    def program() -> ProcessResult:
        return run_process([PYTHON, "-c", code], input="given")

    with record("process") as run:
        first = program()
    with replay(run.id) as session:
        again = program()
    assert again == first
    assert type(again) is ProcessResult
    assert (first.returncode, first.stderr) == (0, b"e")
    assert first.text.endswith("given\n")
    assert ledger.read_text() == "x"
    assert session.report.exact


def test_directory_environment_and_failure_are_as_with_subprocess(tmp_path: Path) -> None:
    """cwd and env reach the process; a bad status is a result, and check() raises it."""
    code = "import os, sys; print(os.getcwd(), os.environ['COLOUR']); sys.exit(3)"
    done = run_process([PYTHON, "-c", code], cwd=tmp_path, env={"COLOUR": "blue"}, side_effect="read_only")
    assert done.returncode == 3
    assert done.text.split() == [str(tmp_path), "blue"]
    with pytest.raises(subprocess.CalledProcessError):
        done.check()


def test_secrets_of_a_process_stay_out_of_the_trace(tmp_path: Path) -> None:
    """Values of variables and options with secret names reach the process and no byte of the trace, and are not compared."""
    code = "import os, sys; sys.exit(0 if os.environ['SHOP_API_KEY'] == sys.argv[2] and len(sys.argv[2]) == 12 else 1)"

    def program(secret: str) -> int:
        env = {"SHOP_API_KEY": secret, "COLOUR": "blue"}
        return run_process([PYTHON, "-c", code, "--password", secret], env=env, side_effect="read_only").returncode

    with record("secret") as run:
        assert program("plainsecret1") == 0
    assert b"plainsecret" not in Path(run.path).read_bytes()
    assert b"blue" in Path(run.path).read_bytes()
    with replay(run.id):
        assert program("plainsecret2") == 0


def test_another_command_is_a_divergence() -> None:
    """Arguments and declared side effect are compared."""
    with record("process") as run:
        run_process([PYTHON, "-c", "0"])
    with pytest.raises(DivergenceError), replay(run.id):
        run_process([PYTHON, "-c", "1"])
    with pytest.raises(DivergenceError), replay(run.id):
        run_process([PYTHON, "-c", "0"], side_effect="read_only")


def test_a_process_that_takes_too_long_is_killed_and_replays_so() -> None:
    """After its timeout the process is gone, the caller has StepTimeoutError without the arguments, and so in the replay."""
    code = "import time; time.sleep(600)"

    def program() -> None:
        run_process([PYTHON, "-c", code], timeout=0.2, side_effect="read_only")

    with record("slow") as run, pytest.raises(StepTimeoutError) as first:
        program()
    with replay(run.id), pytest.raises(StepTimeoutError) as again:
        program()
    assert str(again.value) == str(first.value)
    assert "time.sleep" not in str(first.value)


def test_a_missing_program_fails_as_it_does_without_tracekit() -> None:
    """The error of the operating system reaches the caller, and again in a replay."""
    with record("missing") as run, pytest.raises(FileNotFoundError):
        run_process(["/no/such/program"])
    with replay(run.id), pytest.raises(FileNotFoundError):
        run_process(["/no/such/program"])


def test_files_are_written_and_read_once(tmp_path: Path) -> None:
    """A replay writes no file, reads no file, and gives back what was written and read."""
    text, data = tmp_path / "a.txt", tmp_path / "b.bin"

    def program() -> tuple[Any, ...]:
        written = write_file(text, "grüße\n"), write_file(data, b"\x00\xff")
        return (*written, read_file(text), read_file(data, encoding=None))

    with record("files") as run:
        first = program()
    assert first[0] == WrittenFile(text, 8, hashlib.sha256("grüße\n".encode()).hexdigest())
    text.write_text("other")
    data.unlink()
    with replay(run.id, dry_run=True):
        again = program()
    assert again == first
    assert [type(value) for value in again] == [WrittenFile, WrittenFile, str, bytes]
    assert first[2:] == ("grüße\n", b"\x00\xff")
    assert text.read_text() == "other"
    assert not data.exists()


def test_writing_is_all_or_nothing_and_keeps_permissions(tmp_path: Path) -> None:
    """The mode of a file that is there stays, a link stays a link, and a write that fails leaves the old content and no debris."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    fresh = tmp_path / "fresh"
    write_file(fresh, "x")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~_umask()
    directory = tmp_path / "directory"
    directory.mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(directory, "x")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".tracekit") == [
        "directory",
        "fresh",
        "link",
        "target",
    ]


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_the_declared_classes_are_in_the_trace(tmp_path: Path) -> None:
    """Processes are irreversible unless said otherwise, writes reversible, reads read-only."""
    with record("classes") as run:
        run_process([PYTHON, "-c", "0"])
        write_file(tmp_path / "note", "x")
        read_file(tmp_path / "note")
    told = {event.name: event.metadata["side_effect"] for event in load_trace(run.id)}
    assert told == {"process.run": "irreversible", "file.write": "reversible", "file.read": "read_only"}


def test_an_effect_that_cannot_be_logged_does_not_happen(tmp_path: Path) -> None:
    """If the log can't be written, no process is started and no file written: LogWriteError."""
    ledger = tmp_path / "ledger"

    def program() -> None:
        with record("full") as run:
            journal = run._session.log.journal  # type: ignore[union-attr]
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, journal._fd)
            os.close(full)
            with pytest.raises(LogWriteError):
                run_process([PYTHON, "-c", f"open({str(ledger)!r}, 'w')"])
            with pytest.raises(LogWriteError):
                write_file(ledger, "x")

    with pytest.raises(LogWriteError):
        program()
    assert not ledger.exists()


def test_wrong_use_is_refused_before_anything_happens() -> None:
    """A command line, an empty list and an unknown class are errors of the caller."""
    with pytest.raises(TypeError, match="no shell"):
        run_process("rm -rf x")
    with pytest.raises(ValueError, match="no program"):
        run_process([])
    with pytest.raises(ValueError, match="irreversible"):
        run_process([PYTHON], side_effect="harmless")  # type: ignore[arg-type]
