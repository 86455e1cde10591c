"""The command line at a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.support.processes import command


def on_a_terminal(*arguments: str, columns: int = 160, lines: int | None = None) -> tuple[str, int]:
    """What ``tracekit`` with these arguments prints where its output is a terminal, and its exit code.

    With ``lines`` it is a terminal with colours and of this height, and its input, too: longer output goes into a pager.
    """
    ours, theirs = pty.openpty()
    line = ("-c", "from tracekit.cli import main; main()", *arguments)
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns)}
    if lines is not None:
        environment |= {"TERM": "xterm", "LINES": str(lines)}
    given = None if lines is None else theirs
    # An interpreter of its own where the order of what it and the pager print is the subject.
    started = command(*line) if lines is None else [sys.executable, *line]
    with subprocess.Popen(started, stdin=given, stdout=theirs, stderr=theirs, env=environment) as process:
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
