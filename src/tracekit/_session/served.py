"""Where a program that is replayed or resumed would listen for work: its handlers are given the recorded tasks, and nothing listens.

Then it goes on as if its server had been stopped: as the recorded one ended, else by leaving the block of its run.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final, NoReturn

from .._capture import guard
from .._engine.gate import here
from .._engine.resumption import Resumption
from .._engine.scope import current, enter
from .._journal.reader import Trace

__all__ = ["ServerStopped", "serve_the_log"]

#: Ends by which somebody stops a server.
_STOPS: Final[dict[str, type[BaseException]]] = {
    "builtins:KeyboardInterrupt": KeyboardInterrupt,
    "builtins:SystemExit": SystemExit,
}


class ServerStopped(SystemExit):
    """Leaves the server's call, and the block of the run around it, which takes it for the end of that call."""


def serve_the_log() -> None:
    """From now on, in this process: where its program would listen, and has handlers (``@on_task``), those get the recorded tasks."""
    done: set[int] = set()

    def listen() -> None:
        scope = here()
        tasks: Any = sys.modules.get("tracekit.agents.tasks")
        session: Any = None if scope is None else scope.session
        trace = getattr(getattr(session, "log", session), "trace", None)
        if scope is None or tasks is None or not tasks.registered or not isinstance(trace, Trace):
            return  # what it would listen for is not in the log: the guard says so
        if id(session) not in done:
            if not tasks.has_tasks(trace):
                return
            done.add(id(session))
            token = enter(scope)
            try:
                tasks.drive(*tasks.registered.values())
            finally:
                current.reset(token)
        _stop(trace, isinstance(session, Resumption))

    guard.instead_of_listening(listen)


def _stop(trace: Trace, resumed: bool) -> NoReturn:
    last: dict[str, Any] = {} if resumed else trace.entry(len(trace))
    error = last.get("error") if last.get("type") == "run.failed" else None
    kind = _STOPS.get(str(error.get("type"))) if isinstance(error, dict) else None
    if threading.current_thread() is not threading.main_thread():
        os._exit(0)  # who waits for the server in another thread is not told; the replay is judged all the same
    if kind is not None and isinstance(error, dict):
        args = error.get("args")
        raise kind(*args) if isinstance(args, list) else kind()
    raise ServerStopped(0)
