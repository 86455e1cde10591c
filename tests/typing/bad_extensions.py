"""Extensions that must not check."""

from __future__ import annotations

import tracekit
from tracekit.integration import Request, TaskSource, Trace, perform, register_tasks
from tracekit.integration import segments as segments  # error: attr-defined

tracekit.recrod("trip")  # error: attr-defined


class NoSource:
    def has_tasks(self, trace: Trace) -> bool:
        return False


source: TaskSource = NoSource()  # error: assignment
register_tasks(source)


def count(words: str) -> int:
    request = Request.of("library", "search", {"words": words})  # error: arg-type
    return perform(request, lambda: words)  # error: return-value
