"""Becoming the process in which a program is recorded or replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any, NoReturn

__all__ = ["follow", "launch"]


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


def follow(
    told: Mapping[str, Any], environment: Mapping[str, str], cwd: str | None, stdout: IO[bytes], stderr: IO[bytes]
) -> int:
    """Have another process become that, with no input of its own; returns its exit status when it has ended."""
    variables = {**os.environ, **environment, "TRACEKIT_LAUNCH": json.dumps(told)}
    command = [sys.executable, "-m", "tracekit.cli.launch"]
    return subprocess.run(
        command, env=variables, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False
    ).returncode
