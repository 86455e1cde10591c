"""What a verification of determinism compares: recordings without a program, served twice, and streams in which anything at all differs."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.drawn import event, graphs
from tests.agents.flat import PROGRAMS
from tests.agents.test_agentloom import V1, V2, with_events
from tests.support.tracing import recorded
from tracekit._runs.determinism import Recorded, Transcript, first_difference
from tracekit.agents import events, serialize
from tracekit.agents.forms import inter_agent_form
from tracekit.agents.view import dump
from tracekit.cli import main
from tracekit.cli import verify_determinism as serving
from tracekit.harness import import_agentloom


def verify(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["verify-determinism", "--json", *map(str, arguments)])


# -- recordings that name no program -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [V1, V2, with_events(V2)], ids=["v1", "v2", "v2 with events"])
def test_recordings_of_agentloom_are_served_twice(tree: dict[str, Any], tmp_path: Path) -> None:
    """Every turn under every key is asked for in two fresh processes, and what they answer is what the file has."""
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(tree))
    done = verify(file)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    turns = sum(len(answer) if isinstance(answer, list) else 1 for key, answer in tree.items() if key[0] != "_")
    assert told["lines"] == turns + len(tree.get("_inter_agent_events", ()))
    assert told["identical"] is True
    assert "names no program" in done.stderr


def test_it_is_said_in_words(tmp_path: Path) -> None:
    """One line for people; JSON where it is asked for."""
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(V1))
    said = CliRunner().invoke(main, ["verify-determinism", str(file)]).stdout
    assert said.startswith("identical: 5 lines, served 2 times, sha256 ")
    assert json.loads(verify(file).stdout)["form"] == "agentloom"


def test_an_imported_recording_is_served_too(tmp_path: Path) -> None:
    """As a run of the store it names no program either; the answers are the same bytes as the file's."""
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(V2))
    writer = import_agentloom(file)
    done = verify(writer.run_id)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == json.loads(verify(file).stdout)["sha256"]


def test_files_of_events_are_ordered_in_two_processes(tmp_path: Path) -> None:
    """The same events, written in any order, are served as the same bytes."""
    found = events(recorded(PROGRAMS[0])[0].path)
    digests = set()
    for seed in range(2):
        random.Random(seed).shuffle(found)
        file = tmp_path / f"{seed}.jsonl"
        file.write_bytes(dump(found))
        done = verify(file)
        assert done.exit_code == 0, done.stderr
        digests.add(json.loads(done.stdout)["sha256"])
    assert len(digests) == 1


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers())
def test_whatever_order_events_are_written_in_what_is_served_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]], seed: int
) -> None:
    """Over random graphs and random write orders."""
    file = tmp_path_factory.mktemp("events") / "events.jsonl"
    lines = dump(found).splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    file.write_bytes(b"".join(lines))
    assert b"".join(inter_agent_form.recorded(str(file))) == serialize(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (dump([event("a", ["b"])]).decode(), "parents are not there"),
        (dump([event("a", []), event("a", [])]).decode(), "several events with one id"),
        (dump([event("a", ["b"]), event("b", ["a"])]).decode(), "each other's causes"),
        (json.dumps({**event("a", []), "payload_hash": "0"}), "payload_hash"),
        (json.dumps({"_version": 3, "plan": {}}), "version 3"),
        (json.dumps({"plan": 1}), "neither an answer nor a list of turns"),
        (json.dumps({**V2, "_inter_agent_events": [event("a", ["b"])]}), "parents are not there"),
        ("{}", "nothing is recorded in it"),
        (json.dumps({"_version": 2}), "nothing is recorded in it"),
        ("", "has no entries"),
    ],
)
def test_what_is_no_recording_is_unusable(text: str, said: str, tmp_path: Path) -> None:
    """Exit code 2, with what is wrong, ids named."""
    file = tmp_path / "file.json"
    file.write_text(text)
    done = verify(file)
    assert done.exit_code == 2, done.stdout
    assert said in done.stderr


def test_streams_that_differ_are_told_by_their_first_line(tmp_path: Path) -> None:
    """The first line that differs, of both sides; a stream that is shorter differs too."""
    same = [b"1\n", b"2\n"]
    assert serving.difference(("a", same), ("b", list(same))) is None
    told = serving.difference(("a", same), ("b", [b"1\n", b"3\n"]))
    assert told == "line 2 is different in b than in a\n  a:\n    2\n  b:\n    3"
    assert "(nothing)" in str(serving.difference(("a", same), ("b", same[:1])))


def test_a_served_stream_that_differs_is_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and the line."""
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(V2))
    served = serving.served
    monkeypatch.setattr(serving, "served", lambda path, form, seed: served(path, form, seed)[seed - 1 :])
    done = verify(file)
    assert done.exit_code == 1
    assert "DIVERGENCE: line 1 is different in process 2" in done.stderr


# -- streams -------------------------------------------------------------------------------------------------------------


def replays(run_id: str, path: str) -> list[Transcript]:
    """Two replays that did exactly what was recorded."""
    recording = Recorded(path)
    seqs = [
        entry["seq"] for entry in recording.trace.entries() if entry["type"].endswith(("_sent", "_received", ".call"))
    ]
    lines = recording.lines(dict.fromkeys(seqs, (b"", "")))
    end = {"kind": "end", "code": 0, "status": 0, "error": None}
    return [
        Transcript(
            f"replay {n}", n, 0, b"one\ntwo\n", b"",
            runs={run_id: path}, steps={run_id: {seq: (line, "agent.py:7") for seq, line in lines.items()}}, end=dict(end),
            places=[(0, "agent.py:1"), (1, "agent.py:2")],
        )
        for n in (1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("which", [0, 1])
def test_anything_that_differs_is_found(which: int) -> None:
    """Every byte of every step, a step too few, a result, an end, a status, a line of output: each is the first difference by itself."""
    run, _ = recorded(PROGRAMS[0])
    right = replays(run.id, run.path)
    recordings = {run.id: Recorded(run.path)}
    assert first_difference(right, recordings) is None
    assert right[0].digest() == right[1].digest()
    for seq, (line, _) in right[0].steps[run.id].items():
        tree = json.loads(line)
        for key in tree.keys() - {"seq", "run"}:
            wrong = copy.deepcopy(right)
            changed = json.dumps({**tree, key: "another"}, sort_keys=True, separators=(",", ":")).encode()
            wrong[which].steps[run.id][seq] = changed, "agent.py:9"
            found = first_difference(wrong, recordings)
            assert found is not None
            assert (found.kind, found.step, found.where) == ("step", seq, "agent.py:9")
            assert f"step {seq}" in found.text
            assert "another" in found.text
            assert wrong[0].digest() != wrong[1].digest()
        wrong = copy.deepcopy(right)
        del wrong[which].steps[run.id][seq]
        found = first_difference(wrong, recordings)
        assert found is not None
        assert f"never reached step {seq}" in found.text
    for change, kind in (
        ({"results": {run.id: (b"1", "agent.py:3")}}, "result"),
        ({"end": {**right[0].end, "status": 3}}, "end"),  # type: ignore[dict-item]
        ({"status": 3}, "end"),
        ({"stdout": b"one\nthree\n"}, "stdout"),
        ({"stdout": b"one\n"}, "stdout"),
        ({"runs": {}}, "run"),
        ({"end": None}, "replay"),
        ({"end": {**right[0].end, "code": 1}}, "replay"),  # type: ignore[dict-item]
    ):
        wrong = copy.deepcopy(right)
        for name, value in change.items():
            setattr(wrong[which], name, value)
        found = first_difference(wrong, recordings, expected=[run.id])
        assert found is not None, change
        assert found.kind == kind
        assert found.text
    wrong = copy.deepcopy(right)
    wrong[which].stdout = b"one\nthree\n"
    assert first_difference(wrong, recordings, stdout=False) is None
    found = first_difference(wrong, recordings)
    assert found is not None
    assert found.where == "agent.py:2"


def test_the_view_of_a_replay_is_that_of_the_recording() -> None:
    """Worked out of what the program did: byte for byte what the export writes of the trace."""
    run, _ = recorded(PROGRAMS[0])
    recording = Recorded(run.path)
    steps = replays(run.id, run.path)[0].steps[run.id]
    assert inter_agent_form.compared(recording.trace, recording.as_replayed(steps)) == serialize(events(run.path))
    changed = {seq: (line.replace(b"north", b"south"), place) for seq, (line, place) in steps.items()}
    found = inter_agent_form.compared(recording.trace, recording.as_replayed(changed))
    assert found not in (None, serialize(events(run.path)))
