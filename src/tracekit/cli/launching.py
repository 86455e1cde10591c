"""Starting the process in which a program is recorded or replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["launch"]


def launch(told: Mapping[str, Any], environment: Mapping[str, str], cwd: str | None = None) -> int:
    """Run ``tracekit.cli.launch`` with these instructions; returns its exit status, 128 + n where signal n ended it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit.cli.launch"],
        env={**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps(told)},
        cwd=cwd,
    )
    # The terminal sends an interrupt to both; the program decides what it means.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status
