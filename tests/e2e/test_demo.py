"""What ``tracekit demo`` claims is true, and it says so if it is not."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.support.processes import SDKS, forking, python
from tracekit.cli import main
from tracekit.cli.demo import command
from tracekit.testing import ScriptedModel

COMMAND = ("-c", "from tracekit.cli import main; main()", "demo")
PROMISES = {
    "the two runs differ",
    "each run charged the card once",
    "the server was really asked",
    "the second run is on disk",
    "it ran to its end",
    "same text",
    "same chunks",
    "same times",
    "same random numbers",
    "same result to the last bit, same output on the screen",
    "nothing was sent",
    "nothing was done twice",
    "the difference was found",
    "the trace was refused",
}


def entries(directory: Path) -> list[dict[str, Any]]:
    (trace,) = (directory / ".tracekit" / "runs").glob("*.jsonl")
    return [json.loads(line) for line in trace.read_bytes().splitlines()]


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """The demo records, replays and refuses two manipulations; every check passes, and the files that it leaves say the
    same."""
    place = tmp_path / "kept"
    done = python(*COMMAND, "--json", "--keep", str(place), timeout=100, imports=SDKS, seeds=("0",))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert {check["check"] for check in told["checks"] if check["ok"]} == PROMISES
    assert len((place / "ledger.jsonl").read_text().splitlines()) == 2
    results = [json.loads((place / f"{name}.json").read_text())["result"] for name in ("first", "second", "third")]
    assert results[0] != results[1] == results[2]
    assert not (place / "fourth.json").exists()
    assert not (place / "fifth.json").exists()
    kinds = {entry["type"] for entry in entries(place)}
    assert {"llm.request", "llm.chunk", "tool.call", "clock", "random", "run.completed"} <= kinds
    classes = {entry["meta"]["side_effect"] for entry in entries(place) if entry["type"] == "tool.call"}
    assert classes == {"read_only", "reversible", "irreversible"}
    (trace,) = (place / ".tracekit" / "runs").glob("*.jsonl")
    checked = CliRunner().invoke(main, ["verify", str(trace), "--schema", "--json"])
    assert (checked.exit_code, json.loads(checked.stdout)["schema"]) == (0, [])
    why = json.loads(CliRunner().invoke(main, ["show", str(trace), "--why", "--json"]).stdout)
    assert "look_up_order" in why["why_this_path"]["text"]
    assert why["safe_to_retry"]["answer"] is False
    assert why["can_be_replayed"]["answer"] is True
    assert "--- recorded" in done.stderr
    assert "does not match its hash" in done.stderr


def test_the_demo_on_another_provider(tmp_path: Path) -> None:
    """With ``--base-url`` the agent asks that server, replays ask it nothing, and the key is nowhere on disk."""
    place, canary = tmp_path / "kept", "sk-canary-4242424242424242424242424242424242"
    model = ScriptedModel(*command.script(anthropic=False))
    with model.served() as url:
        environment = {**os.environ, "OPENAI_API_KEY": canary}
        arguments = ["--keep", str(place), "--base-url", f"{url}/v1", "--model", "some-model"]
        done = python(*COMMAND, *arguments, timeout=100, env=environment, imports=SDKS, seeds=("0",))
    assert done.returncode == 0, done.stderr
    requests = [entry for entry in entries(place) if entry["type"] == "llm.request"]
    assert {entry["name"] for entry in requests} == {"some-model"}
    assert len(model.requests) == 2 * len(requests), "two live runs, and not one request more"
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert not [path for path in files if canary.encode() in path.read_bytes()]


def test_the_demo_tells_when_a_promise_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the changed prompt or the changed byte went unnoticed, the checks fail, and the exit code is 1."""

    def harmless(trace: Path, copy: Path) -> tuple[Path, int, str]:
        copy.write_bytes(trace.read_bytes())
        return copy, 1, "nothing"

    monkeypatch.setattr(command, "_CHANGED", command._PROMPT)
    monkeypatch.setattr(command, "_damage", harmless)
    with ScriptedModel(*command.script(anthropic=False)).served() as url, forking(imports=SDKS):
        done = CliRunner().invoke(main, ["demo", "--json", "--base-url", f"{url}/v1"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    failed = {check["check"] for check in told["checks"] if not check["ok"]}
    assert failed == {"the difference was found", "the trace was refused"}
    assert "2 of 11 checks failed" in done.stderr


def test_the_demo_needs_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDKs it prints the line that installs them, and exits with 2."""
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 2
    assert "pip install openai anthropic" in done.stderr
    assert done.stdout == ""


def test_the_demo_overwrites_nothing(tmp_path: Path) -> None:
    """A directory that exists and is not empty is refused, and stays as it was."""
    (tmp_path / "agent.py").write_text("mine")
    done = CliRunner().invoke(main, ["demo", "--keep", str(tmp_path)])
    assert done.exit_code == 2
    assert (tmp_path / "agent.py").read_text() == "mine"


def test_connections_to_the_stopped_server_are_counted() -> None:
    """The claim that nothing was sent is checked: each connection to the address of the stopped server is counted."""
    with ScriptedModel().served() as url:
        address = ("127.0.0.1", urlsplit(url).port or 0)
    with command.Tripwire(address[1]) as tripwire:
        assert tripwire.touched == 0
        for _ in range(2):
            socket.create_connection(address).close()
        assert tripwire.touched == 2
