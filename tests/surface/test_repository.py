"""What must not be in any file of this repository."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

# In two parts, so that this file passes its own test.
MACHINE_PATHS = ["/wo" + "rk/", "/tmp/" + "tk", "/ro" + "ot/", "/home/" + r"[a-z]+/"]
REGISTRY_HOSTS = ["py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.(org|com)", "crates" + r"\.io"]
FORBIDDEN = re.compile("|".join(MACHINE_PATHS + REGISTRY_HOSTS))


def tracked() -> list[Path]:
    """Every file that git tracks and that is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


def findings(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", "replace")
    return [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := FORBIDDEN.search(line))
    ]


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Whoever clones this gets no path of somebody's machine, and no file that decides which package index is used."""
    files = tracked()
    assert len(files) > 20
    assert [finding for path in files for finding in findings(path)] == []


@pytest.mark.parametrize("group", CONFIG["project"]["entry-points"])
def test_what_is_installed_is_announced_as_it_stands_here(group: str) -> None:
    """An installation from before a change of pyproject.toml does not find new commands: python -m pip install --no-deps -e ."""
    announced = {point.name: point.value for point in entry_points(group=group)}
    assert CONFIG["project"]["entry-points"][group].items() <= announced.items()


def test_no_generated_file_is_tracked() -> None:
    """Caches, builds and recorded runs stay out of the repository; golden traces live under tests/golden."""
    generated = re.compile(r"(^|/)(__pycache__|\.venv|dist|build|\.tracekit|\.[a-z]+_cache|\.hypothesis)(/|$)|\.pyc$")
    names = [str(path.relative_to(ROOT)) for path in tracked()]
    assert [name for name in names if generated.search(name) and not name.startswith("tests/golden/")] == []


def test_what_a_message_says_to_install_can_be_installed() -> None:
    """`pip install …` in a message names packages that an extra brings: that works wherever tracekit itself came from."""
    extras = CONFIG["project"]["optional-dependencies"].values()
    known = {re.split(r"[\[<>=]", one)[0] for extra in extras for one in extra} - {"tracekit-replay"}
    known |= {"brotli"}  # of a message on a cassette
    told = {
        name: [*re.findall(r"pip install ([\w -]+)", (ROOT / name).read_text("utf-8"))]
        for name in (str(path.relative_to(ROOT)) for path in tracked())
        if name.startswith("src/") and name.endswith(".py")
    }
    named = {package for found in told.values() for words in found for package in words.partition(" or ")[0].split()}
    assert len(named) > 5
    assert named <= known
    assert not [name for name in told if re.search(r"pip install .?tracekit-replay", (ROOT / name).read_text("utf-8"))]
