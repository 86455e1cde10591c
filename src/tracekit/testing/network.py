"""A block in which nothing goes over a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .._capture.guard import NoNetwork
from .._runs.block import strings

__all__ = ["no_network"]


@contextmanager
def no_network(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """Inside the block no thread of the process connects, looks up a name or sends: that raises ``LiveCallBlockedError``.

    No ``except Exception`` catches it. ``allow_hosts`` (``"localhost:5432"``) lets a server of the test's own be reached. Processes, files
    and listening are free. In a replay that is so anyway.
    """
    with NoNetwork(strings("allow_hosts", allow_hosts)):
        yield
