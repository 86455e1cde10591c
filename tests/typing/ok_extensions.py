"""Extensions that must check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_type

from tracekit.integration import (
    Form,
    OpenReplay,
    OpenRun,
    ReplaceableCall,
    Request,
    Scope,
    TaskSource,
    Trace,
    entered,
    here,
    next_run,
    perform,
    perform_async,
    register_tasks,
)


def search(words: str) -> list[str]:
    request = Request.of("tool", "library.search", {"words": words}, side_effect="read_only")
    return perform(request, lambda: [words], lambda found: {"hits": len(found)})


async def search_async(words: str) -> int:
    async def call() -> int:
        return len(words)

    return await perform_async(Request.of("tool", "library.count", {"words": words}), call)


class Jobs:
    def has_tasks(self, trace: Trace) -> bool:
        return len(trace) > 0

    def replay_tasks(self) -> None:
        scope = here()
        if scope is not None:
            assert_type(scope, Scope)
            with entered(scope.task("jobs", 1), ends=True):
                search("rivers")


source: TaskSource = Jobs()
register_tasks(source)


class Names(Form):
    name = "names"

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        for trace in traces:
            for entry in trace.entries():
                yield str(entry["type"]).encode()


def by_hand(path: str) -> str | None:
    run = OpenRun(path, name="rows")
    with entered(run.scope):
        search("hills")
    run.close(result="done")
    with Trace(run.path) as trace:
        replay = OpenReplay(trace)
        with entered(replay.scope):
            search("hills")
        assert_type(replay.finish().exact, bool)
    assert_type(ReplaceableCall().end(failed=True).irreversible, str | None)
    following = next_run()
    return None if following is None else str(following.input)
