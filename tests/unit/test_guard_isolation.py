"""A network namespace around a replay: what it says is what is in force."""

from __future__ import annotations

import subprocess
import sys
import threading

from tracekit._capture import isolation

PROGRAM = """
import os, socket
from tracekit._capture import isolation
could = isolation.available()
uid = os.geteuid()
said = isolation.enter(loopback=True)
if could:
    assert said.startswith("network namespace of its own"), said
    assert os.geteuid() == uid
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError as error:
        assert error.errno == 101, error  # unreachable: the only interface is a loopback of its own
    else:
        raise SystemExit("reached the network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
else:
    assert said.startswith("not isolated: "), said
print("as said")
"""


def test_what_it_says_is_in_force() -> None:
    """Where the system allows it nothing is reachable after ``enter``; else ``enter`` says so and goes on."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert result.stdout == "as said\n", result.stderr


def test_refused_once_there_are_threads() -> None:
    """With several threads a process can't move whole: nothing is done, and the answer says why."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not isolation.available()
        assert isolation.enter().startswith("not isolated: ")
    finally:
        stop.set()
        thread.join()
