"""The virtual environment in which the commands run, created on first use.

An active virtual environment is used; otherwise ``.venv`` is created in the repository. A stamp in the environment
records what was installed: a second command starts at once, and a changed ``pyproject.toml`` leads to a new installation.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ROOT", "Environment"]

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3", "python")


class Environment:
    """A virtual environment, by its interpreter."""

    def __init__(self, python: Path) -> None:
        self.python = python
        #: The directory of the environment.
        self.home = python.parent.parent
        self._compiling: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> Environment:
        """Return the active virtual environment, else ``.venv``, which is created if it is missing."""
        if sys.prefix != sys.base_prefix and sys.version_info >= MINIMUM:
            return cls(Path(sys.executable))
        return cls.at(ROOT / ".venv")

    @classmethod
    def at(cls, home: Path) -> Environment:
        """Return the virtual environment in a directory, which is created if it is missing."""
        environment = cls(_interpreter_in(home))
        if not environment.python.exists():
            _say(f"making {environment.home}")
            _run([_new_enough(), "-m", "venv", str(environment.home)])
        return environment

    def install_wheel(self, extras: str) -> None:
        """Install this checkout as its users do: a wheel among the other packages, with the comma-separated ``extras``."""
        # what is installed has the same version, and pip would keep it
        self.run("-m", "pip", "uninstall", "--quiet", "--yes", "tracekit-replay")
        self.run("-m", "pip", "install", "--quiet", f"{ROOT}[{extras}]")

    def install(self, extras: str) -> None:
        """Install this checkout, editable, with the comma-separated ``extras``, unless it is installed and unchanged."""
        stamp = self.home / f".tracekit-{extras.replace(',', '-')}"
        extension = [*sorted((ROOT / "src/tracekit/_native").glob("*.[ch]")), ROOT / "src/tracekit/_runtime/secrets.py"]
        made_of = [ROOT / "pyproject.toml", ROOT / "hatch_build.py", ROOT / "tools/secret_tables.py", *extension]
        wanted = hashlib.sha256(b"".join(file.read_bytes() for file in made_of) + str(ROOT).encode()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        _say(f"installing tracekit-replay[{extras}] into {self.home}")
        if not self.succeeds("-m", "pip", "--version"):
            self.run("-m", "ensurepip", "--upgrade")
        self.run("-m", "pip", "install", "--quiet", "--no-compile", "--editable", f"{ROOT}[{extras}]")
        stamp.write_text(wanted)
        # pip compiles on one core and before it returns. Files that can't be compiled (templates, say) are never imported.
        packages = self.python.parent.parent / "lib"
        self._compiling = subprocess.Popen(
            [str(self.python), "-m", "compileall", "-qq", "-j", "0", str(packages)], stdout=subprocess.DEVNULL
        )

    def run(self, *arguments: str) -> None:
        """Run the interpreter in the repository. If it fails, this command exits with its status."""
        self._compiled()
        _run([str(self.python), *arguments])

    def script(self, name: str, *arguments: str) -> None:
        """Run a console script of the environment, as :meth:`run` does."""
        self._compiled()
        _run([str(self.python.parent / name), *arguments])

    def side_by_side(self, commands: Sequence[Sequence[str]]) -> None:
        """Run console scripts in parallel, and print the output of each one when it has ended.

        All run to their end; then, if any failed, this command exits with the status of the first one in the given order. The
        installed packages are compiled at the same time.
        """
        paths = [[str(self.python.parent / name), *arguments] for name, *arguments in commands]
        running = [
            subprocess.Popen(path, cwd=ROOT, env=_variables(path[0]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for path in paths
        ]
        for command, process in zip(commands, running, strict=True):
            output, _ = process.communicate()
            _say(" ".join(command))
            sys.stdout.buffer.write(output)
            sys.stdout.flush()
        self._compiled()
        _exit_unless_zero(next((process.returncode for process in running if process.returncode), 0))

    def _compiled(self) -> None:
        """Wait until the installed packages are compiled."""
        if self._compiling is not None:
            self._compiling.wait()
            self._compiling = None

    def succeeds(self, *arguments: str) -> bool:
        """Return whether the interpreter runs ``arguments`` with status 0; its output is discarded."""
        return subprocess.run([str(self.python), *arguments], capture_output=True, check=False).returncode == 0


def _interpreter_in(home: Path) -> Path:
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _new_enough() -> str:
    if sys.version_info >= MINIMUM:
        return sys.executable
    probe = f"import sys; sys.exit(sys.version_info < {MINIMUM})"
    for name in CANDIDATES:
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", probe], capture_output=True, check=False).returncode == 0:
            return found
    sys.exit("tracekit needs Python 3.11 or newer, and none was found on the path")


def _run(command: list[str]) -> None:
    _exit_unless_zero(subprocess.run(command, cwd=ROOT, env=_variables(command[0]), check=False).returncode)


def _exit_unless_zero(status: int) -> None:
    if status:
        sys.exit(status if status > 0 else 128 - status)


def _variables(python: str) -> dict[str, str]:
    """Return our environment variables with the scripts of the virtual environment first on the path, as if it were activated."""
    # The site is built with MkDocs 1; without this variable its theme warns about MkDocs 2 at each build.
    return {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")]),
    }


def _say(text: str) -> None:
    print(f"tools: {text}", file=sys.stderr, flush=True)
