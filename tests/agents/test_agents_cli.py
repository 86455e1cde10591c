"""``tracekit export``, ``import`` and ``schema inter-agent``: data on stdout, messages on stderr, exit codes 0, 1 and 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from tests.agents.flat import PROGRAMS
from tests.agents.test_agentloom import V2
from tests.support.tracing import entries, of_type, recorded
from tracekit import record
from tracekit.agents import receive_task, send_task
from tracekit.agents.view import load
from tracekit.cli import main


def tracekit(*arguments: Any) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_the_schema_is_printed() -> None:
    """`schema` is the trace's, as before; `schema inter-agent` the view's."""
    assert json.loads(tracekit("schema", "inter-agent").stdout) == load()
    assert json.loads(tracekit("schema").stdout) == json.loads(tracekit("schema", "trace").stdout) != load()
    assert tracekit("schema", "other").exit_code == 2


def test_events_are_exported_in_causal_order(tmp_path: Path) -> None:
    """JSON lines on stdout or in a new file, each right by the schema, and the same each time."""
    run, _ = recorded(PROGRAMS[0])
    done = tracekit("export", run.id, "--to", "inter-agent")
    assert (done.exit_code, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in found:
        Draft202012Validator(load()).validate(one)
    seen: set[str] = set()
    for one in found:
        assert set(one["parent_event_ids"]) <= seen
        seen.add(one["event_id"])
    file = tmp_path / "events.jsonl"
    assert tracekit("export", run.path, "--to", "inter-agent", "-o", file).exit_code == 0
    assert file.read_text() == done.stdout
    again = tracekit("export", run.path, "--to", "inter-agent", "-o", file)
    assert again.exit_code == 2
    assert "can't be written" in again.stderr
    whole = tracekit("export", "last", "--to", "inter-agent", "--payloads").stdout
    assert all("payload" in json.loads(line) for line in whole.splitlines())


def test_a_parent_in_another_run_is_asked_for() -> None:
    """The events of one side alone have no order: exit code 2, the id named; with both runs they have one."""
    with record("one") as one:
        message = send_task("b", 1)
    with record("two") as two:
        receive_task(message)
    alone = tracekit("export", two.id, "--to", "inter-agent")
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert str(message.event_id) in alone.stderr
    both = tracekit("export", two.id, one.id, two.id, "--to", "inter-agent")
    assert [json.loads(line)["event_type"] for line in both.stdout.splitlines()] == ["task_sent", "task_received"]


def test_entries_are_exported_with_every_value_written_out() -> None:
    """No reference is left, and nothing else is lost; the entries that only hold values are not there."""
    long = "word " * 1000

    def program() -> None:
        send_task("x", [long])
        send_task("x", [long])

    run, _ = recorded(program)
    assert of_type(run, "blob")
    found = [json.loads(line) for line in tracekit("export", run.id, "--to", "expanded").stdout.splitlines()]
    assert "$ref" not in json.dumps(found)
    assert [one["output"] for one in found if one["type"] == "task_sent"] == [[long], [long]]
    assert [one["seq"] for one in found] == [one["seq"] for one in entries(run) if one["type"] != "blob"]
    assert all("hash" not in one for one in found)


def test_agentloom_goes_in_and_comes_out(tmp_path: Path) -> None:
    """import prints the run; export gives the recording back."""
    file = tmp_path / "flats.json"
    file.write_text(json.dumps(V2))
    done = tracekit("import", "agentloom", file, "--json", "--run-id", "flats", "--store", tmp_path / "store")
    assert json.loads(done.stdout)["run_id"] == "flats"
    assert tracekit("verify", "flats", "--store", tmp_path / "store", "--schema").exit_code == 0
    out = tracekit("export", "flats", "--to", "agentloom", "--store", tmp_path / "store")
    assert json.loads(out.stdout) == V2


@pytest.mark.parametrize("text", ["", "[]", '{"_version": 9}', '{"a": 1}'])
def test_what_can_not_be_imported_makes_no_run(tmp_path: Path, text: str) -> None:
    """Exit code 2, the reason on stderr, no run."""
    file = tmp_path / "bad.json"
    file.write_text(text)
    done = tracekit("import", "agentloom", file, "--store", tmp_path / "store")
    assert (done.exit_code, done.stdout) == (2, "")
    assert str(file) in done.stderr
    assert not (tmp_path / "store").exists()


def test_wrong_use_and_damage(tmp_path: Path) -> None:
    """No such run, no form, payloads of what has none: 2. A damaged trace: 1, and no file is made."""
    run, _ = recorded(PROGRAMS[0])
    assert tracekit("export", "nowhere", "--to", "inter-agent").exit_code == 2
    assert tracekit("export", run.id).exit_code == 2
    assert tracekit("export", run.id, "--to", "expanded", "--payloads").exit_code == 2
    path = Path(run.path)
    path.write_bytes(path.read_bytes().replace(b"north", b"norht"))
    for form in ("inter-agent", "agentloom", "expanded"):
        done = tracekit("export", run.id, "--to", form, "-o", tmp_path / form)
        assert done.exit_code == 1
        assert not (tmp_path / form).exists()
