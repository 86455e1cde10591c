"""A callback that is told of a future asks nothing by asking that one how it stands."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
def look() -> str:
    return "found"


def program(*, done_before: bool) -> list[Any]:
    """A callback is added to what a thread has brought, or is going to bring."""
    future: Future[str] = Future()
    seen: list[Any] = []
    added = threading.Event()

    def bring() -> None:
        if not done_before:
            added.wait()
        future.set_result(look())

    def on_done(one: Future[str]) -> None:
        seen.append([one.cancelled(), one.done(), one.running(), one.result(0), one.exception(0)])

    thread = threading.Thread(target=bring)
    thread.start()
    if done_before:
        thread.join()
    future.add_done_callback(on_done)
    added.set()
    thread.join()
    return [*seen, look()]


def test_who_calls_a_callback_of_a_future_is_no_difference() -> None:
    """The thread that brings the result, or the one that adds the callback: which of them is faster is not up to the program."""
    for first, then in ((True, False), (False, True)):
        with record("told") as run:
            recorded = program(done_before=first)
        for done_before in (first, then):
            with replay(run.id) as session:
                assert program(done_before=done_before) == recorded
            assert session.report.exact
            assert not session.report.verdict.remarks
