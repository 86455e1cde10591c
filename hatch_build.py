"""The optional C extension ``tracekit._native._compiled``, made while a wheel (or an editable installation) is built.

Where it can't be compiled it is left out, and the package is complete without it: ``tracekit._native`` has the same functions in Python.
``python hatch_build.py`` compiles it in place, for who works on it, and shows what the compiler says.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = "src/tracekit/_native"
NAME = "tracekit._native._compiled"
#: The oldest CPython that the extension is for; what is compiled for it works in every later one.
LIMITED, TAG = "0x030B0000", "cp311-abi3"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for each wheel, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.implementation.name != "cpython":
            return
        self._directory = tempfile.TemporaryDirectory()
        if version == "editable":
            # One of other sources must not stay; and as a process may have it loaded, it is not written over.
            for old in (Path(self.root) / SOURCES).glob("_compiled*.so"):
                old.unlink()
        try:
            built = compiled(Path(self.root), Path(self._directory.name))
        except Exception as error:  # no setuptools, no compiler, no headers: whatever it is, the package does without
            self.app.display_info(f"tracekit is installed without its C extension: {error}")
            return
        place = f"{SOURCES}/{built.name}"
        if version == "editable":
            (Path(self.root) / place).write_bytes(built.read_bytes())
            return
        build_data["force_include"][str(built)] = place.removeprefix("src/")
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{self._platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_directory"):
            self._directory.cleanup()

    def _platform(self) -> str:
        """The platform of the wheel, as hatchling says it of one that works with this interpreter alone."""
        from hatchling.builders.wheel import WheelBuilder

        return WheelBuilder(self.root).get_best_matching_tag().rpartition("-")[2]


def sources(root: Path = ROOT) -> list[Path]:
    """The C files, headers included."""
    return sorted((root / SOURCES).glob("*.[ch]"))


def digest(root: Path = ROOT) -> str:
    """What identifies the C files that an extension was made of."""
    return hashlib.sha256(b"\0".join(file.name.encode() + file.read_bytes() for file in sources(root))).hexdigest()[:16]


def compiled(root: Path, into: Path) -> Path:
    """Compile the extension into a directory. Any exception says that this is not possible here."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    # What secrets.c includes: the expressions that the search for secrets has in Python, as tables.
    tables = [sys.executable, "-I", "-B", str(root / "tools" / "secret_tables.py"), str(into / "secret_tables.h")]
    subprocess.run(tables, check=True, capture_output=True)
    flags = [] if os.name == "nt" else ["-std=c11", "-fvisibility=hidden"]
    extension = Extension(
        NAME,
        [str(file) for file in sources(root) if file.suffix == ".c"],
        include_dirs=[str(into)],
        depends=[str(file) for file in sources(root)],
        define_macros=[("Py_LIMITED_API", LIMITED), ("TRACEKIT_SOURCES", f'"{digest(root)}"')],
        extra_compile_args=flags,
        py_limited_api=True,
    )
    command = build_ext(Distribution({"name": "tracekit", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(into / "lib"), str(into / "objects")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(NAME))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        made = compiled(ROOT, Path(directory))
        target = ROOT / SOURCES / made.name
        target.unlink(missing_ok=True)
        target.write_bytes(made.read_bytes())
        sys.stdout.write(f"{target}\n")
