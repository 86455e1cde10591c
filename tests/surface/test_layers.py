"""Who may import whom: the contracts in pyproject.toml say it for every module, and they hold."""

from __future__ import annotations

import ast
import builtins
import re
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


def test_the_page_on_how_it_works_has_these_floors() -> None:
    """docs/how-it-works.md lists the floors in their order, with modules that are there."""
    page = (ROOT / "docs/how-it-works.md").read_text("utf-8")
    shown = page.partition("## The floors")[2].partition("```text\n")[2].partition("```")[0].splitlines()
    names = [line.split()[0].strip("/") for line in shown]
    floors = [set(re.findall(r"\w+", line)) - {"_version", "__main__"} for line in CONTRACTS["layers"]["layers"]]
    for floor in filter(None, floors):
        here, names = names[: len(floor)], names[len(floor) :]
        assert set(here) == floor
    assert names == []
    for line in shown:
        room, _, listed = line.partition("/ ")
        for module in re.findall(r"\w+", listed.partition(": ")[2]):
            assert (ROOT / "src/tracekit" / room / f"{module}.py").exists(), line


def test_files_that_the_page_on_how_it_works_names_are_there() -> None:
    """Each path of a source file is where docs/how-it-works.md says; functions, classes and constants that it names exist."""
    page = (ROOT / "docs/how-it-works.md").read_text("utf-8")
    folders = [ROOT / "src/tracekit", ROOT / "src", ROOT / "integrations", ROOT]
    paths = re.findall(r"`(\w+/[\w/]+\.(?:py|json))`", page)
    assert len(paths) > 50
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").glob("**/*.py"))
    used = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)\(\)`", page)}
    assert [name for name in used if f"def {name}(" not in sources and f"class {name}(" not in sources] == []
    constants = set(re.findall(r"`(_?[A-Z][A-Z_]+)`", page))
    assert [name for name in constants if not re.search(rf"^{name}: Final", sources, re.MULTILINE)] == []
    classes = {name for name in re.findall(r"`([A-Z][a-z]\w*)`", page) if not hasattr(builtins, name)}
    assert len(classes) > 10
    assert [name for name in classes if not re.search(rf"^(class )?{name}\b", sources, re.MULTILINE)] == []


def test_names_are_in_the_files_that_the_page_on_how_it_works_says() -> None:
    """ "`name()` in `file`", "`file`: `name`" and "`name` (`file`)": the function, class or constant is defined in that file."""
    page = " ".join((ROOT / "docs/how-it-works.md").read_text("utf-8").split())
    file, name = r"`((?:\w+/)+\w+\.py)`", r"`([\w.]+(?:\(\))?)`"
    found = [(where, what) for what, where in re.findall(rf"{name} (?:(?:in|of) |\(){file}", page)]
    pairs = re.findall(rf"{name} (?:and|or|with) {name} (?:(?:in|of) |\(){file}", page)
    found += [(where, what) for *both, where in pairs for what in both]
    found += re.findall(rf"{file}: {name}", page)
    assert len(found) > 30
    folders = [ROOT / "src/tracekit", ROOT / "integrations", ROOT]
    missing = []
    for where, what in found:
        text = next(folder / where for folder in folders if (folder / where).exists()).read_text("utf-8")
        last = what.removesuffix("()").rpartition(".")[2]
        if not re.search(rf"\b(def|class) {last}\b|^\s*{last}\b *[:=]", text, re.MULTILINE):
            missing.append((where, what))
    assert missing == []


EXTENSIONS = re.compile(r"\btracekit\.(agents|harness)\b")


def test_nothing_below_looks_an_extension_up() -> None:
    """Nor by its name: what agents and harness add comes by entry points and arguments, not from ``sys.modules`` or an import in a text."""
    found = []
    for path in (ROOT / "src" / "tracekit").rglob("*.py"):
        if path.relative_to(ROOT / "src" / "tracekit").parts[0] in ("agents", "harness"):
            continue
        text = path.read_text("utf-8")
        if "agents" not in text and "harness" not in text:
            continue
        tree = ast.parse(text)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_text(node)}
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts]
        found += [f"{path.relative_to(ROOT)}:{one.lineno}" for one in used if EXTENSIONS.search(str(one.value))]
    assert found == []


def _has_text(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)


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
