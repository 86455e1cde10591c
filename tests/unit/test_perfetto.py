"""``tracekit export --to perfetto``: Chrome trace events that Perfetto opens."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tracekit
from tests.support.cut import cut
from tests.support.tracing import entries, of_type
from tracekit import record, traced, traced_tool
from tracekit.agents import agent, receive_task, send_task
from tracekit.cli import main


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order


@traced("shopping")
def shopping(order: str) -> str:
    return look(order)


@traced_tool(side_effect="read_only")
async def read(order: str, go: asyncio.Event) -> str:
    await go.wait()
    return order


def exported(*runs: Any, store: Path, payloads: bool = False) -> list[dict[str, Any]]:
    """The events, in the form that Perfetto reads: one JSON object with a list."""
    names = [str(getattr(run, "path", run)) for run in runs]
    more = ["--payloads"] if payloads else []
    done = CliRunner().invoke(main, ["export", *names, "--to", "perfetto", "--store", str(store), *more])
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout)
    assert whole["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = whole["traceEvents"]
    check(events)
    return events


def check(events: list[dict[str, Any]]) -> None:
    """What the format asks for: slices of one track nest, every track has a name, each arrow has two ends that stand in slices."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in {"M", "X", "i", "s", "f"}
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(tracks) <= named
    for slices in tracks.values():
        open_now: list[float] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_now and open_now[-1] <= start + 0.001:
                open_now.pop()
            assert not open_now or end <= open_now[-1] + 0.001
            open_now.append(end)
    arrows: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event["ph"])
            assert any(
                start <= event["ts"] + 0.001 and event["ts"] <= end for start, end in tracks[event["pid"], event["tid"]]
            )
    assert all(ends == ["s", "f"] for ends in arrows.values())


def slices(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["name"]: event for event in events if event["ph"] == "X"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    return_to = os.getcwd()
    yield tmp_path / "store"
    assert os.getcwd() == return_to


def test_a_run_is_slices_at_the_recorded_times(store: Path) -> None:
    """Each call once, from its intent record to its outcome, inside the one around it; decisions are instants."""
    with record("shop", store=store) as run:
        shopping("canary")
        tracekit.decision("route", input=1, output=2)
    events = exported(run, store=store)
    found = slices(events)
    assert set(found) == {"shop", "shopping", "look"}
    began = entries(run)[0]["ts_ns"]
    (call,), (answer,) = of_type(run, "tool.call"), of_type(run, "tool.return")
    assert found["look"]["ts"] == pytest.approx((call["ts_ns"] - began) / 1000, abs=0.001)
    assert found["look"]["dur"] == pytest.approx(max(answer["ts_ns"] - call["ts_ns"], 1000) / 1000, abs=0.001)
    assert found["look"]["args"]["state"] == "done"
    assert [event["name"] for event in events if event["ph"] == "i"] == ["decision route"]
    assert "canary" not in json.dumps(events)
    assert slices(exported(run, store=store, payloads=True))["look"]["args"]["input"] == {"order": "canary"}


def test_each_lane_is_a_track_and_each_hop_an_arrow(store: Path) -> None:
    """Threads and tasks side by side, calls of one lane that overlap on tracks of their own, arrows from where each was started."""

    async def several() -> None:
        go = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, go.set)
        await asyncio.gather(*(read(order, go) for order in "abc"))

    with record("shop", store=store) as run:
        thread = threading.Thread(target=look, args=("t",), name="reader")
        thread.start()
        thread.join()
        asyncio.run(several())
    events = exported(run, store=store)
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"main", "look#1", "read#1", "read#2", "read#3"} <= set(tracks)
    hops = {event["id"]: event for event in events if event["ph"] == "f" and event["name"] == "hop"}
    started = {event["id"]: event for event in events if event["ph"] == "s"}
    assert {hops[one]["tid"] for one in hops} == {tid for name, tid in tracks.items() if name != "main"}
    assert {started[one]["tid"] for one in hops} == {tracks["main"]}


def test_calls_of_one_lane_that_overlap_are_on_tracks_of_their_own(store: Path) -> None:
    """Two streams that are read in turns: neither is inside the other, and both are whole."""

    @traced_tool(side_effect="read_only", name="pages")
    def pages(name: str) -> Iterator[str]:
        time.sleep(0.002)  # slices are as long as it takes, and here longer than the shortest
        yield name
        time.sleep(0.002)
        yield name

    with record("shop", store=store) as run:
        first, second = pages("a"), pages("b")
        assert next(first) + next(second) + next(first) == "aba"
        assert [*first, *second] == ["b"]
    events = exported(run, store=store)
    tracks = {event["tid"] for event in events if event["ph"] == "X" and event["name"] == "pages"}
    assert len(tracks) == 2
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"main", "main (2)"}


def test_messages_between_runs_are_arrows(store: Path) -> None:
    """From the slice of the sending to the slice of the receiving, in one file for both runs."""
    with record("planner", store=store) as planner, agent("planner"):
        message = send_task("worker", {"do": 1})
    with record("worker", store=store) as worker, agent("worker"):
        receive_task(message)
    events = exported(planner, worker, store=store)
    (start,) = [event for event in events if event["ph"] == "s"]
    (end,) = [event for event in events if event["ph"] == "f"]
    assert (start["name"], start["pid"], end["pid"]) == ("message", 1, 2)
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"planner", "worker"}


def test_a_child_process_is_a_process(store: Path) -> None:
    """With tracks of its own, and an arrow from where it was started."""
    program = "import tracekit\n@tracekit.traced_tool(side_effect='read_only')\ndef inside(): pass\ninside()"
    with record("shop", store=store) as run:
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    events = exported(run, store=store)
    assert {event["pid"] for event in events} == {1, 2}
    assert slices(events)["inside"]["pid"] == 2
    assert [(event["ph"], event["pid"]) for event in events if event["name"] == "process"] == [("s", 1), ("f", 2)]


def test_a_run_that_died_is_shown_as_far_as_it_came(store: Path) -> None:
    """What has no outcome lasts until the end of the log, and says so."""
    with record("shop", store=store) as run:
        shopping("a")
    (call,) = of_type(run, "tool.call")
    path = cut(run, call["seq"], store.parent / "died")
    found = slices(exported(path, store=store.parent / "died"))
    assert found["look"]["args"]["state"] == "cut off"


def test_an_empty_log_is_no_error(store: Path) -> None:
    """A run that died before its first entry has nothing to show."""
    with record("shop", store=store) as run:
        look("a")
    path = cut(run, 0, store.parent / "died")
    assert [event for event in exported(path, store=store.parent / "died") if event["ph"] != "M"] == []
