"""Ready tools: run a process, write a file, read a file; each a captured step that a replay answers and never makes.

::

    from tracekit.tools import read_file, run_process, write_file

    run_process(["git", "push"])                                      # irreversible, unless you say otherwise
    run_process(["git", "status"], side_effect="read_only").text
    write_file("report.md", text)
    read_file("report.md")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, overload

from ._capture.decorators import SideEffect, traced_tool
from ._runtime.redaction import Redactor
from ._values import register
from .errors import StepTimeoutError

__all__ = ["ProcessResult", "WrittenFile", "read_file", "run_process", "write_file"]


@dataclasses.dataclass(frozen=True)
class ProcessResult:
    """What a process came to: its exit status (negative: killed by that signal) and what it wrote."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text (UTF-8, what is none replaced)."""
        return self.stdout.decode("utf-8", "replace")

    def check(self) -> ProcessResult:
        """Itself; ``subprocess.CalledProcessError`` if the process did not end with status 0."""
        if self.returncode:
            from subprocess import CalledProcessError

            raise CalledProcessError(self.returncode, "the process", self.stdout, self.stderr)
        return self


@dataclasses.dataclass(frozen=True)
class WrittenFile:
    """A file as it was written: where, how many bytes, and their SHA-256 (hexadecimal)."""

    path: Path
    size: int
    sha256: str


class _Veiled:
    """A value for the tool, and what the trace shows of it."""

    __slots__ = ("shown", "value")

    def __init__(self, value: Any, shown: Any) -> None:
        self.value: Final = value
        self.shown: Final = shown


register(_Veiled, "tracekit.veiled", lambda veiled: veiled.shown, lambda shown: _Veiled(None, shown))

#: Names of variables and options that hold secrets are known without the run's own patterns, which come on top.
_redactor: Final = Redactor()


def _veil(value: Any, shown: Any) -> Any:
    return value if shown == value else _Veiled(value, shown)


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, _Veiled) else value


# -- processes -----------------------------------------------------------------------------------------------------------


def run_process(
    args: Iterable[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes | None = None,
    timeout: float | None = None,
    side_effect: SideEffect = "irreversible",
) -> ProcessResult:
    """Run a program (no shell) and wait for its end; in a replay nothing is run and the recorded result is given back.

    ``args`` is the program and its arguments, ``env`` its whole environment (``None``: this process's own, which is not recorded),
    ``input`` its standard input (else empty), ``timeout`` in seconds, after which it is killed and ``StepTimeoutError`` raised. What it
    does is for you to declare: ``side_effect`` is ``"irreversible"`` unless you know better. The trace holds everything but the values of
    variables and options whose names say that they are secret (``API_KEY``, ``--password``); those are not compared either.
    """
    if isinstance(args, str | bytes):
        raise TypeError("args is a list, the program and its arguments: there is no shell to take a line apart")
    words = [os.fspath(word) for word in args]
    if not words:
        raise ValueError("args is empty: there is no program to run")
    variables = None if env is None else dict(env)
    shown = None if variables is None else _redactor.redact_environment(variables.items())
    place = None if cwd is None else os.fspath(cwd)
    run: Callable[..., ProcessResult] = _PROCESS.get(side_effect) or _process(side_effect)
    return run(_veil(words, _redactor.redact_argv(words)), place, _veil(variables, shown), input, timeout)


def _process(side_effect: SideEffect) -> Any:
    @traced_tool(side_effect=side_effect, name="process.run")
    def run(args: Any, cwd: str | None, env: Any, input: str | bytes | None, timeout: float | None) -> ProcessResult:
        import subprocess

        words = _bare(args)
        data = input.encode() if isinstance(input, str) else input
        try:
            done = subprocess.run(
                words,
                cwd=cwd,
                env=_bare(env),
                input=b"" if data is None else data,
                capture_output=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            # Its own text would show the arguments.
            raise StepTimeoutError(
                f"the process {words[0]!r} ran longer than {timeout} s and was killed",
                next_action="give it more time, or find out what it waits for",
            ) from None
        return ProcessResult(done.returncode, done.stdout, done.stderr)

    return run


# -- files ---------------------------------------------------------------------------------------------------------------


def write_file(
    path: str | os.PathLike[str], data: str | bytes, *, side_effect: SideEffect = "reversible"
) -> WrittenFile:
    """Write a whole file (text as UTF-8), in one go: whoever reads it sees the old content or the new. Nothing is written in a replay.

    It is on the device when this returns. Permissions of a file that is there stay. A relative ``path`` is recorded as it is given.
    """
    write = _WRITE[side_effect] if side_effect in _WRITE else _writer(side_effect)
    return write(os.fspath(path), data)  # type: ignore[no-any-return]


def _writer(side_effect: SideEffect) -> Any:
    @traced_tool(side_effect=side_effect, name="file.write")
    def write(path: str, data: str | bytes) -> WrittenFile:
        import hashlib

        content = data.encode() if isinstance(data, str) else bytes(data)
        _replace(os.path.realpath(path), content)
        return WrittenFile(Path(path), len(content), hashlib.sha256(content).hexdigest())

    return write


def _replace(path: str, content: bytes) -> None:
    import shutil
    import tempfile

    fd, temporary = tempfile.mkstemp(prefix=".tracekit-", dir=os.path.dirname(path))
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        else:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """The process's mask, where it can be read without changing it; else the usual one."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022


@overload
def read_file(path: str | os.PathLike[str]) -> str: ...
@overload
def read_file(path: str | os.PathLike[str], *, encoding: str) -> str: ...
@overload
def read_file(path: str | os.PathLike[str], *, encoding: None) -> bytes: ...
def read_file(path: str | os.PathLike[str], *, encoding: str | None = "utf-8") -> str | bytes:
    """The content of a file: text, or bytes with ``encoding=None``. A replay gives the recorded content, whatever is there now."""
    return _read(os.fspath(path), encoding)  # type: ignore[no-any-return]


def _reader() -> Any:
    @traced_tool(side_effect="read_only", name="file.read")
    def read(path: str, encoding: str | None) -> str | bytes:
        with open(path, "rb") as file:
            content = file.read()
        return content if encoding is None else content.decode(encoding)

    return read


_CLASSES: Final[tuple[SideEffect, ...]] = ("read_only", "reversible", "irreversible")
_PROCESS: Final[Mapping[str, Any]] = {one: _process(one) for one in _CLASSES}
_WRITE: Final[Mapping[str, Any]] = {one: _writer(one) for one in _CLASSES}
_read: Final = _reader()
