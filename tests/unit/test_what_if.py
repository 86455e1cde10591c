"""Replays in which some steps go live."""

from __future__ import annotations

import random
import socket
import threading

import pytest

import tracekit
from tracekit import record, replay, traced_tool
from tracekit.integration import Store, Trace

live: list[str] = []


@traced_tool(side_effect="read_only")
def search(query: str) -> float:
    live.append("search")
    return random.random()


@traced_tool(side_effect="read_only")
def read(name: str) -> str:
    live.append("read")
    return f"{name} {search(name)}"


@traced_tool(side_effect="irreversible")
def charge(cents: int) -> int:
    live.append("charge")
    return cents


def program() -> list[object]:
    return [search("a"), charge(1), read("b"), random.random()]


@pytest.fixture(autouse=True)
def nothing_live() -> None:
    live.clear()


def test_only_what_was_named_goes_live() -> None:
    """``live={"tool:search"}`` calls that tool for real and answers everything else from the file."""
    with record() as run:
        first = program()
    live.clear()
    with replay(run, live={"tool:search"}) as session:
        second = program()
    assert live == ["search"]
    assert second[0] != first[0]
    assert second[1:] == first[1:]
    assert [difference["name"] for difference in session.report.differences] == ["search"]


def test_a_new_run_is_written_that_names_its_origin() -> None:
    """The partial replay is a run of its own: it names the one it comes from, verifies, and replays exactly."""
    with record() as run:
        program()
    with replay(run, live={"tool:search"}) as session:
        second = program()
    new = session.new_run_id
    assert new is not None
    assert new != run.id
    store = Store()
    assert store.verify(new).state == "complete"
    with Trace(store.find(new)) as trace:
        assert trace.entry(1)["meta"]["origin"]["run_id"] == run.id
        assert trace.entry(1)["cause"] == [{"run_id": run.id, "seq": 1}]
    live.clear()
    with replay(new) as again:
        assert program() == second
    assert live == []
    assert again.report.exact


def test_the_irreversible_never_goes_live() -> None:
    """Whole kinds may be named; a tool declared irreversible is answered from the file all the same."""
    with record() as run:
        program()
    live.clear()
    with replay(run, live={"tool"}):
        program()
    assert "charge" not in live
    assert live == ["search", "read", "search"]


def test_the_guard_stands_outside_what_goes_live() -> None:
    """The body of a live step may reach the network; the program beside it may not."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    @traced_tool(side_effect="read_only")
    def ask() -> int:
        with socket.create_connection(("127.0.0.1", port)):
            return 1

    with server:
        with record() as run:
            ask()
        with replay(run, live={"tool"}):
            assert ask() == 1

        def beside() -> None:
            ask()
            socket.create_connection(("127.0.0.1", port))

        with pytest.raises(tracekit.LiveCallBlockedError), replay(run, live={"tool"}):
            beside()


def test_a_kind_that_is_none_is_refused() -> None:
    """``live`` takes kinds that can go live, and says which."""
    with pytest.raises(ValueError, match="tool:search"):
        replay("whatever", live={"clock"})


def test_threads_keep_their_lanes_in_the_new_run() -> None:
    """Steps of threads are in the new run under the same lanes."""

    def threads() -> list[float]:
        found: list[float] = []
        for name in ("x", "y"):
            thread = threading.Thread(target=lambda name=name: found.append(search(name)))
            thread.start()
            thread.join()
        return found

    with record() as run:
        threads()
    with replay(run, live={"tool"}) as session:
        second = threads()
    assert session.new_run_id is not None
    with replay(session.new_run_id):
        assert threads() == second
