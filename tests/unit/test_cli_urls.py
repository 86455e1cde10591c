"""A store, or a run, may be at a URL: every command that reads takes it, and nothing is written there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner, Result

from tests.support.processes import python
from tracekit import record, recovery, replay, traced_tool
from tracekit.cli import main
from tracekit.errors import RunStateError

URL = "memory://bucket/traces"
ONE = f"{URL}/runs/one.jsonl"


@traced_tool(side_effect="irreversible", name="pay")
def pay(cents: int) -> int:
    if cents < 0:
        raise ConnectionResetError("the answer was lost")
    return cents


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def bucket() -> Iterator[None]:
    """A store of three runs in an object store, one of them with a payment in doubt; nothing of it is on the disk."""
    for name, cents in (("one", 1), ("two", 2)):
        with record(name, run_id=name):
            pay(cents)
    with pytest.raises(ConnectionResetError), record("lost", run_id="lost"):
        pay(-1)
    root = Path(os.environ["TRACEKIT_DIR"])
    files = fsspec.filesystem("memory")
    for path in root.rglob("*"):
        if path.is_file():
            files.pipe_file(f"/bucket/traces/{path.relative_to(root)}", path.read_bytes())
            path.unlink()
    yield
    files.rm("/bucket", recursive=True)


@pytest.mark.usefixtures("bucket")
def test_every_command_that_reads_takes_a_url() -> None:
    """A store by --store or TRACEKIT_DIR, a run by its id there or by its own URL."""
    assert {json.loads(line)["run_id"] for line in call("list", "--json", "--store", URL).stdout.splitlines()} == {
        "one",
        "two",
        "lost",
    }
    assert "pay(cents=2)" in call("show", "two", "--store", URL).stdout
    assert "pay(cents=2)" in call("show", f"{URL}/runs/two.jsonl").stdout
    assert call("verify", "two", "--store", URL).exit_code == 0
    assert call("verify", "last", "--store", URL).exit_code == 0
    assert call("diff", "last~1", "last", "--store", URL, "--json").exit_code == 1
    assert call("failures", "--store", URL, "--json").stdout.count("ConnectionResetError") >= 1
    assert call("executions", "diff", "one", "two", "--store", URL).exit_code == 1
    assert call("export", "one", "--to", "expanded", "--store", URL).exit_code == 0
    assert "tool pay" in call("text", "two", "--store", URL).stdout
    doubt = call("in-doubt", "--store", URL)
    assert (doubt.exit_code, "pay(cents=-1)" in doubt.stdout) == (1, True)
    assert call("recovery", "scan", "--store", URL).exit_code == 1


@pytest.mark.usefixtures("bucket")
def test_what_is_at_a_url_is_named_by_it() -> None:
    """Paths and commands in answers are of use when the answer is there: none leads to a copy that is gone by then."""
    run = f"{URL}/runs/lost.jsonl"
    assert f"complete  {run}" in call("verify", run).stdout
    assert json.loads(call("verify", "lost", "--store", URL, "--json").stdout)["path"] == run
    assert {
        json.loads(line)["path"]
        for line in call("list", "--json", "--name", "lost", "--store", URL).stdout.splitlines()
    } == {run}
    assert f"tracekit recovery settle {run} 2 --not-done" in call("in-doubt", "--store", URL).stdout
    assert f"there is no run 'none' in {URL}" in call("show", "none", "--store", URL).stderr
    assert f"tracekit replay {run} -- SCRIPT" in call("replay", run).stderr


@pytest.mark.usefixtures("bucket")
def test_what_is_not_there_is_an_error() -> None:
    """A run, a store, a protocol that nobody knows: what, where, and what next; exit code 2."""
    missing = call("show", "twoo", "--store", URL)
    assert (missing.exit_code, "two" in missing.stderr.split("next:")[1]) == (2, True)
    for words in (
        ["list", "--store", "memory://nothing"],
        ["list", "--store", "nobody://x"],
        ["list", "--store", "ftp://127.0.0.1:1/x"],
        ["show", "memory://nothing/x.jsonl"],
    ):
        done = call(*words)
        assert done.exit_code == 2, done.output
        assert "next:" in done.stderr


@pytest.mark.usefixtures("bucket")
def test_what_is_at_a_url_is_only_read() -> None:
    """Commands that change something refuse, and it stays as it is."""
    files = fsspec.filesystem("memory")
    before = {name: files.cat_file(name) for name in files.find("/bucket")}
    for words in (
        ["rm", "one"], ["prune", "--older-than", "0s", "--yes"], ["compress", "one"], ["recovery", "abort", "one", "--reason", "x"],
        ["recovery", "settle", "lost", "2", "--not-done", "--reason", "x"], ["recovery", "resume", "one"], ["replay", "one"],
    ):  # fmt: skip
        done = call(*words, "--store", URL)
        assert (done.exit_code, "is only read" in done.stderr) == (2, True), (words, done.output)
    for words in (
        ["rm", ONE], ["compress", ONE], ["seal", "--key", "none", ONE], ["recovery", "abort", ONE, "--reason", "x"],
        ["recovery", "settle", ONE, "2", "--not-done", "--reason", "x"], ["recovery", "resume", ONE], ["serve", "--store", URL],
        ["run", "--store", URL, __file__], ["estimate", "--agent", "clerk", "--store", URL],
    ):  # fmt: skip
        done = call(*words)
        assert (done.exit_code, "is only read" in done.stderr) == (2, True), (words, done.output)
    with pytest.raises(RunStateError, match="is only read"), record("new", store=URL):
        pass
    assert {name: files.cat_file(name) for name in files.find("/bucket")} == before


def test_a_run_at_a_path_needs_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TRACEKIT_DIR is a URL for the commands that read, recordings beside tests are replayed; nothing is called empty unseen."""
    with record("kept", path=tmp_path / "kept.jsonl"):
        pay(1)
    monkeypatch.setenv("TRACEKIT_DIR", URL)
    with replay(tmp_path / "kept.jsonl"):
        assert pay(1) == 1
    with pytest.raises(RunStateError, match="is only read"):
        list(recovery.scan())


def test_what_was_downloaded_for_a_replay_is_removed(tmp_path: Path) -> None:
    """A trace holds what the program saw: no copy is left behind when its replay has ended."""
    program, temporary = tmp_path / "program.py", tmp_path / "temporary"
    program.write_text(
        "import random\nfrom tracekit import record\nwith record('x', run_id='x'):\n    random.random()\n"
    )
    temporary.mkdir()
    env = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store"), "TMPDIR": str(temporary)}
    assert python(str(program), env=env).returncode == 0
    url = f"file://{tmp_path}/store/runs/x.jsonl"
    done = python("-m", "tracekit", "replay", url, "--", str(program), env=env)
    assert (done.returncode, [*temporary.iterdir()]) == (0, []), done.stderr


@pytest.mark.usefixtures("bucket")
def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the extra that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    done = call("list", "--store", URL)
    assert (done.exit_code, "pip install fsspec" in done.stderr) == (2, True)
    assert "pip install fsspec s3fs\n" in call("list", "--store", "s3://agents/traces").stderr
