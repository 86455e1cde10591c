"""The wheel of this checkout, and environments with nothing but it and what they ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["ROOT", "Installed", "build", "installed"]

ROOT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


class Installed:
    """An environment of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = str(home / "bin" / "python")

    def install(self, *requirements: str) -> None:
        """By ``uv`` where it is there: pip looks through the versions of large packages for many minutes."""
        uv = shutil.which("uv")
        command = [uv, "pip", "install", "-q", "--python", self.python] if uv else [self.python, *PIP, "install"]
        command += requirements
        # The suite's own authority is for its servers.
        env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
        if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
            env["SSL_CERT_FILE"] = bundle
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=env)
        assert done.returncode == 0, done.stderr[-3000:]

    def run(
        self, *arguments: str, input: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter in the repository, which has the tests, and not the sources, on its path. It is no test: Logfire sends
        nothing from one."""
        hidden = ("PYTHONPATH", "PYTHONHASHSEED", "PYTEST_VERSION", "PYTEST_CURRENT_TEST")
        plain = {name: value for name, value in os.environ.items() if name not in hidden}
        variables = {**{name: value for name, value in plain.items() if not name.endswith("_API_KEY")}, **(env or {})}
        command = [self.python, *arguments]
        return subprocess.run(
            command, input=input, capture_output=True, text=True, cwd=ROOT, env=variables, check=False, timeout=300
        )


def build(into: Path, kind: str = "wheel", root: Path = ROOT, **variables: str) -> Path:
    """Build the wheel (or the ``sdist``) of a checkout with the backend that is installed here, as ``pip`` would."""
    code = (
        f"import sys; from hatchling.build import build_{kind}; sys.stdout.write('\\n' + build_{kind}({str(into)!r}))"
    )
    env = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


def installed(home: Path, wheel: Path, *requirements: str) -> Installed:
    """A fresh environment with the wheel and ``requirements``."""
    venv.create(home, with_pip=True, symlinks=True)
    environment = Installed(home)
    environment.install(str(wheel), *requirements)
    return environment
