"""Who may import whom: the contracts in pyproject.toml say it for every module, and they hold."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LINTER = CONFIG["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract for contract in LINTER["contracts"]}


def modules_in(folder: Path) -> set[str]:
    """The top-level modules and packages of a folder, by name."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def test_every_module_has_a_floor() -> None:
    """A new module is given its place in the layers before it merges."""
    lines = CONTRACTS["layers"]["layers"]
    floors = {name.strip(" ()") for line in lines for name in line.replace(":", "|").split("|")}
    assert modules_in(ROOT / "src" / "tracekit") - floors == set()


def test_every_integration_is_known_to_the_contracts() -> None:
    """A new integration is held to the public modules, and apart from the others, from its first day."""
    there = {path.name for path in (ROOT / "integrations").glob("tracekit_*") if any(path.glob("*.py"))}
    assert there - set(LINTER["root_packages"]) == set()
    assert there - set(CONTRACTS["public-surface"]["source_modules"]) == set()
    assert there - set(CONTRACTS["independence"]["modules"]) == set()
    assert there - set(CONTRACTS["no-sdk"]["forbidden_modules"]) == set()


def test_the_contracts_hold() -> None:
    """No module imports from a room above its own, none inside imports the façade, the core names no SDK."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    result = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
