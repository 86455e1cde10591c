"""The command line at a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def on_a_terminal(*arguments: str, columns: int = 160) -> tuple[str, int]:
    """What ``tracekit`` with these arguments prints where its output is a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from tracekit.cli import main; main()", *arguments]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not data:
                break
            text += data
    os.close(ours)
    return text.decode().replace("\r\n", "\n"), process.returncode
