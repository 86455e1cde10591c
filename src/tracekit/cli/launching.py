"""Becoming the process in which a program is recorded or replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["launch"]


def launch(told: Mapping[str, Any], environment: Mapping[str, str], cwd: str | None = None) -> NoReturn:
    """Become ``tracekit.cli.launch`` with these instructions: the same process, so that signals and exit status are the program's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "tracekit.cli.launch"]
    variables = {**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps(told)}
    if sys.platform == "win32":  # exec starts another process there, and ends this one at once
        sys.exit(subprocess.run(command, env=variables, cwd=cwd, check=False).returncode)
    if cwd is not None:
        os.chdir(cwd)
    os.execve(sys.executable, command, variables)
