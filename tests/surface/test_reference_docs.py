"""The reference pages say everything that there is, and nothing that there is not."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path

import pytest

import tracekit
from tracekit import errors, integration

DOCS = Path(__file__).parents[2] / "docs" / "reference"
ERRORS = (DOCS / "errors.md").read_text()
#: The pages of public names: a line ``::: module.name`` has the site print the name's signature and docstring.
API = "\n".join(path.read_text() for path in sorted(DOCS.glob("api*.md")))


def sections(text: str, level: str) -> dict[str, str]:
    """The text under each heading of a level."""
    parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


MODULES = sections(API, "##")
NAMES = re.findall(r"^::: (\S+)$", API, re.MULTILINE)


def test_the_page_of_errors_says_where_they_are_imported_from() -> None:
    """From ``tracekit.errors``, each of them; what the page says of ``tracekit`` itself is so, too."""
    assert "Every class is in `tracekit.errors`" in ERRORS
    for cls in every_error():
        if not cls.__name__.startswith("_"):
            assert getattr(errors, cls.__name__) is cls
    own = {name for name in errors.__all__ if name not in tracekit.__all__}
    assert not own & {name.removeprefix("tracekit.") for name in NAMES}


def every_error() -> list[type[errors.TracekitError]]:
    """Every class with a code of its own; an extension's subclass without one is reported as the error that it is a kind of."""
    found, queue = [], [errors.TracekitError]
    while queue:
        cls = queue.pop()
        queue += cls.__subclasses__()
        if not cls.__name__.startswith("_") and "code" in vars(cls):
            found.append(cls)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_page_of_public_names_is_complete(module: str) -> None:
    """Each module's section has exactly the names of its __all__, once: a name that is missing there needs a line ``::: module.name``."""
    loaded = importlib.import_module(module)
    listed = re.findall(r"^::: (\S+)$", MODULES[module], re.MULTILINE)
    assert sorted(listed) == sorted(f"{module}.{name}" for name in loaded.__all__)


def test_a_public_name_means_one_thing() -> None:
    """Two modules that share a name mean the same by it."""
    meanings: dict[str, set[int]] = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            meanings.setdefault(name, set()).add(id(getattr(module, name)))
    assert sorted(name for name, found in meanings.items() if len(found) > 1) == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    """Functions and classes say what they are; a constant has a sentence on the page, in which its name stands."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if inspect.isclass(value) or callable(getattr(value, "__wrapped__", None)) or inspect.isroutine(value):
            assert len(vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__ or "") > 10, name
        else:
            assert re.search(rf"`{name}`|^::: {module}\.{name}\n\n(?!:::)\w", MODULES[module], re.MULTILINE), name


def test_every_public_module_is_on_the_page() -> None:
    """A module without an underscore is public and documented; the command line and the errors have pages of their own."""
    public = {info.name for info in pkgutil.iter_modules(tracekit.__path__) if not info.name.startswith("_")}
    assert {f"tracekit.{name}" for name in public - {"cli", "errors"}} | {"tracekit"} == set(MODULES)


def test_every_error_has_a_section_that_names_it() -> None:
    """Each code is a heading, unique, under which the class is named; there is no section for a code that does not exist."""
    codes = {cls.code: cls.__name__ for cls in every_error()}
    assert len(codes) == len(every_error())
    told = sections(ERRORS, "##")
    assert set(told) == set(codes)
    for code, name in codes.items():
        assert f"`{name}`" in told[code].split("\n\n")[1], code


def test_every_error_is_in_the_tree() -> None:
    """The tree at the top of the module has every class with a code, each below the one that it derives from."""
    lines = re.findall(
        r"^ *([│├└─ ]*)(\w+Error)\b", (errors.__doc__ or "").partition("Each error carries")[0], re.MULTILINE
    )
    above: dict[int, str] = {}
    shown = {}
    for drawn, name in lines:
        above[len(drawn)] = name
        shown[name] = above.get(len(drawn) - 4)
    names = {cls.__name__ for cls in every_error()}
    bases = {cls.__name__: [base.__name__ for base in cls.__mro__[1:]] for cls in every_error()}
    assert shown == {name: next((base for base in bases[name] if base in names), None) for name in names}


def test_every_error_says_why_and_what_to_do() -> None:
    """Each error that is raised has its reasons and its way out."""
    families = {"error", "replay", "trace"}
    for code, text in sections(ERRORS, "##").items():
        if code not in families:
            assert "**Why.**" in text, code
            assert "**What to do.**" in text, code


def test_every_error_is_exported() -> None:
    """errors.__all__ has every class; what the façade exports is the same object."""
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in every_error())
    for name in errors.__all__:
        if name in tracekit.__all__:
            assert getattr(tracekit, name) is getattr(errors, name)


#: Where the codes of the verdict are on its page: by the function that makes the reason, what stands before and after them.
_TABLES = {
    "_against_a_replay": ("| reason against a replay |", "\n\n"),
    "_uncaptured": ("| reason against a replay |", "\n\n"),
    "_against_running_it": ("| reason against running it again |", "\n\n"),
    "_with_effects": ("| reason against running it again |", "\n\n"),
    "inexact": ("| reason | |", "\n\n"),
    "remark": ("| remark |", "\n\n"),
    "allow": ("| allowed | |", "\n\n"),
    "unknown": ("## Was this replay exact?", "\n## "),
}


#: The methods of a report that take a code.
_REPORTED = frozenset({"inexact", "remark", "allow", "unknown"})


@functools.cache
def codes() -> list[tuple[str, str]]:
    """Each code that a reason of the verdict is made with, and what makes it: a function of the verdict, a method of a report, a module."""
    found = []
    for path in (Path(tracekit.__file__).parent).rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            for call in ast.walk(node):
                if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Constant):
                    continue
                if not isinstance(call.func, ast.Name) and getattr(call.func, "attr", None) not in _REPORTED:
                    continue
                made = ast.unparse(call.func)
                reported = re.fullmatch(rf"(?:\w+\.)*_?report\.({'|'.join(_REPORTED)})", made)
                if reported:
                    found.append((reported[1], call.args[0].value))
                elif made in ("Reason", "_of_steps") and path.name == "verdict.py":
                    found.append((getattr(node, "name", ""), call.args[0].value))
    return found


def test_the_page_of_the_verdict_has_every_code() -> None:
    """Each where it belongs: among the reasons against a replay, the remarks, what the caller allowed …"""
    page = (DOCS / "verdict.md").read_text("utf-8")
    made = codes()
    assert {maker for maker, _ in made} == {*_TABLES, ""}
    missing = []
    for maker, code in made:
        before, after = _TABLES.get(maker, ("", "\0"))
        assert before in page, before
        if f"`{code}`" not in page.partition(before)[2].partition(after)[0] if before else f"`{code}`" not in page:
            missing.append((maker, code))
    assert missing == []


def table(module: str, name: str) -> dict[str, str]:
    """A table in the sources: its keys, with the expressions that are their values."""
    source = (Path(tracekit.__file__).parent / module).read_text("utf-8")
    (found,) = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and isinstance(node.value, ast.Dict)
    ]
    keys = [key.value for key in found.keys if isinstance(key, ast.Constant)]
    return dict(zip(keys, map(ast.unparse, found.values), strict=True))


def test_every_code_of_a_replay_is_counted_in_words() -> None:
    """Each code that a session reports has a row in the table of the verdict: how a line counts it, and what to do about it. No row
    is for a code that nothing reports."""
    known = table("_runtime/verdict.py", "CODES")
    reported = {code for maker, code in codes() if maker in ("inexact", "remark", "allow", "unknown")}
    assert reported - known.keys() == set()
    sources = "\n".join(path.read_text("utf-8") for path in Path(tracekit.__file__).parent.rglob("*.py"))
    assert [code for code in known if len(re.findall(rf'"{code}"', sources)) < 2] == []


def test_every_finding_of_doctor_has_its_advice() -> None:
    """``tracekit doctor`` says what to do about each reason against a replay, or why not, and about each kind of crossing; what it
    finds is on its page."""
    reasons, crossed = table("cli/doctor.py", "_REASONS"), table("cli/doctor.py", "_CROSSED")
    made = {code for maker, code in codes() if maker in ("_against_a_replay", "_uncaptured")}
    assert reasons.keys() == made | {"boundary_not_observed", "inputs_not_observed", "nothing_lacking"}
    assert crossed.keys() == table("_runtime/boundary.py", "KINDS").keys()
    page = (DOCS / "cli.md").read_text("utf-8").partition("| code | finding |")[2].partition("\n\n")[0]
    found = {*crossed, *(code for code, advice in reasons.items() if advice != "None")}
    assert found - {*re.findall(r"`(\w+)`", page)} == set()


def test_the_page_of_the_format_has_every_kind_that_is_observed(tmp_path: Path) -> None:
    """What the first entry of a run names (connections, files …) is explained among the boundary's kinds or the inputs', in the
    schema, too."""
    with tracekit.record("kinds", store=tmp_path) as run:
        pass
    with integration.Trace(run.path) as trace:
        observed = set(trace.entry(1)["meta"]["boundary"])
    format_page = sections((DOCS / "trace-format.md").read_text("utf-8"), "##")
    rows = [
        re.search(r"^\| `name` \| the kind: (.+)\|$", format_page[one], re.MULTILINE) for one in ("Boundary", "Inputs")
    ]
    told = {kind for row in rows if row for kind in re.findall(r"(?:^|, )`(\w+)`", row[1])}
    schema = json.loads((Path(tracekit.__file__).parent / "_journal/schema.json").read_text("utf-8"))
    rules = [
        one["then"]
        for one in schema["allOf"]
        if one["if"]["properties"].get("type", {}).get("const") in ("boundary", "input")
    ]
    described = {
        kind
        for rule in rules
        for kind in re.findall(r"(?:^the kind: |, )(\w+)", rule["properties"]["name"]["description"])
    }
    assert observed - told == set()
    assert told ^ described == set()


def test_links_of_the_pages_lead_somewhere() -> None:
    """Relative links of the reference pages name files that exist."""
    for text in (API, ERRORS):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (DOCS / target).resolve().exists(), target
