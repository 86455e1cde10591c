"""Ready-made traced tools: run a process, write a file, read a file. A replay returns the recorded result instead.

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
    """The result of a process: its exit status (negative: the signal that killed it) and its output."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text: UTF-8, with invalid bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    def check(self) -> ProcessResult:
        """Return ``self``, or raise ``subprocess.CalledProcessError`` if the exit status is not 0."""
        if self.returncode:
            from subprocess import CalledProcessError

            raise CalledProcessError(self.returncode, "the process", self.stdout, self.stderr)
        return self


@dataclasses.dataclass(frozen=True)
class WrittenFile:
    """A written file: its path, its size in bytes, and its SHA-256 in hexadecimal."""

    path: Path
    size: int
    sha256: str


class _Veiled:
    """A value for the tool, and what the trace shows in its place."""

    __slots__ = ("shown", "value")

    def __init__(self, value: Any, shown: Any) -> None:
        self.value: Final = value
        self.shown: Final = shown


register(_Veiled, "tracekit.veiled", lambda veiled: veiled.shown, lambda shown: _Veiled(None, shown))

#: Recognises secrets by the names of variables and options. The run's own patterns are applied as well.
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
    """Run a program (without a shell), wait for it, and return its exit status and output. A replay runs nothing and
    returns the recorded result.

    ``args`` is the program and its arguments, ``env`` its complete environment (``None``: that of this process, which
    is not recorded), ``input`` its standard input (empty by default). After ``timeout`` seconds the process is killed
    and ``StepTimeoutError`` raised. ``side_effect`` declares what the program does; the default is the cautious
    ``"irreversible"``.

    The trace records everything except the values of variables and options whose names mark them as secret
    (``API_KEY``, ``--password``); a replay does not compare those.
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
            # Not chained: the text of TimeoutExpired shows the arguments.
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
    """Write a whole file atomically (text as UTF-8): readers see either the old content or the new. A replay writes
    nothing.

    The content is synced to the device before this returns. The permissions of an existing file are kept. A relative
    ``path`` is recorded as given.
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
    """Return the process's umask if it can be read without changing it, else the usual one."""
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
    """Return the content of a file: text, or bytes with ``encoding=None``. A replay returns the recorded content."""
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
