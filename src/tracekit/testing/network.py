"""Blocks in which nothing goes over a network, and in which nothing is live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .._capture.guard import NoNetwork
from .._runs.block import strings
from .._runtime.callsite import caller
from .._runtime.process import process
from ..errors import LiveCallBlockedError

__all__ = ["no_network", "nothing_live"]


@contextmanager
def no_network(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """Inside the block no thread of the process connects, looks up a name or sends: that raises ``LiveCallBlockedError``.

    No ``except Exception`` catches it. ``allow_hosts`` (``"localhost:5432"``) lets a server of the test's own be reached. Processes, files
    and listening are free. In a replay that is so anyway.
    """
    with NoNetwork(strings("allow_hosts", allow_hosts)):
        yield


@contextmanager
def nothing_live(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """As ``no_network``, and no traced tool and no model call is made outside a run either: what follows a replay in its process.

    Each raises ``LiveCallBlockedError``, which no ``except Exception`` catches.
    """
    with no_network(allow_hosts=allow_hosts):
        process.refuse_outside(_refuse)
        try:
            yield
        finally:
            process.allow_outside(_refuse)


def _refuse(family: str, name: str) -> None:
    raise LiveCallBlockedError(
        f"{family} {name!r} was called after the end of a replay, where it would be live; it was not executed",
        location=caller(),
        operation=f"{family} {name}",
        next_action="call it inside the run; or, where it cleans up after a recording, only then (`if tracekit_run.recording:`)",
    )
