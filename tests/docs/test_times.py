"""The times in the code: each has a reason on a page, so that no new one decides what is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "0019-times-that-are-left.md"
#: What sleeps, sets a timer or reads a steady clock.
CALLS = frozenset(
    {
        "sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time",
        "thread_time_ns", "clock_gettime", "clock_gettime_ns", "call_later", "call_at", "settimeout", "setitimer", "alarm", "select",
        "epoll", "sigtimedwait",
    }
)  # fmt: skip


def of_time(call: ast.Call) -> bool:
    """Whether a call is one of these, passes one on to be called, or waits with a limit."""
    function = call.func
    name = (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")).lstrip("_")
    if name in ("outside_the_run", "pause") and call.args and isinstance(call.args[0], ast.Attribute):
        name = call.args[0].attr
    limits = [option.value for option in call.keywords if option.arg == "timeout"]
    if name == "acquire" and call.args and isinstance(call.args[0], ast.Constant):
        limits += call.args[1:]
    return name in CALLS or any(not (isinstance(one, ast.Constant) and one.value is None) for one in limits)


#: What has a name, and its body in it.
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def functions(node: ast.AST, name: str = "") -> Iterator[str]:
    """The functions that make such a call."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, NAMED):
            yield from functions(child, f"{name}.{child.name}".lstrip("."))
        else:
            if isinstance(child, ast.Call) and of_time(child):
                yield name
            yield from functions(child, name)


def test_each_time_in_the_code_has_its_reason() -> None:
    """Whatever sleeps, reads a steady clock, sets a timer or waits with a limit is in the table of the times that are left."""
    source = ROOT / "src" / "tracekit"
    files = [path for path in source.rglob("*.py") if "demo" not in path.parts]
    files += (ROOT / "integrations").rglob("*.py")
    found = {
        f"{path.relative_to(source).as_posix() if source in path.parents else path.name}: {name}"
        for path in files
        for name in functions(ast.parse(path.read_text(encoding="utf-8")))
    }
    rows = re.findall(r"^\| `([^`]+)`: ((?:`[^`]+`(?:, )?)+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {f"{module}: {name}" for module, names in rows for name in re.findall("`([^`]+)`", names)}
    listed.remove("_journal/reader.py: Trace.unchanging")  # compares a time stamp with the wall clock
    assert found - listed == set(), "times without a reason"
    assert listed - found == set(), "reasons without a time"
