"""The examples in the docstrings of public names, each in a directory of its own: ``python -m tests.support.docstrings DIRECTORY``.

Prints what failed; the names without a failure are the lines of ``DIRECTORY/passed``.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tracekit

MODULES = ("tracekit", "tracekit.recovery", "tracekit.testing", "tracekit.tools", "tracekit.integration")


def examples() -> Iterator[tuple[str, Any]]:
    """The public names whose docstring has an example, each once, and what they name."""
    seen = set()
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:  # type: ignore[attr-defined]
            value = getattr(module, name)
            if ">>> " in (getattr(value, "__doc__", None) or "") and id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}", value


def killed(who: str) -> str:
    """The run of a process that has paid ann, and was killed when ``who`` was to be paid."""

    @tracekit.traced_tool(side_effect="irreversible", name="pay")
    def pay(who: str) -> str:
        if who == "bob":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {who}"

    child = os.fork()
    if child == 0:
        with tracekit.record("payday", run_id="payday"):
            pay("ann")
            if who:
                pay(who)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return "payday"


SHOP = """
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look_up(order):
    return "lost"

@record("shop")
def main(order):
    return f"{order} is {look_up(order)}"
"""


def shop() -> None:
    """A module ``shop``, and a run of it."""
    Path("shop.py").write_text(SHOP, encoding="utf-8")
    sys.path.insert(0, os.getcwd())
    importlib.import_module("shop").main("A-1042")


PREPARED: dict[str, Callable[[], Any]] = {
    "tracekit.resume": lambda: {"died": killed("")},
    "tracekit.recovery.in_doubt": lambda: killed("bob"),
    "tracekit.regress": shop,
}


def main(directory: Path) -> bool:
    """Whether all examples print what their docstrings say."""
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with open(directory / "passed", "w", encoding="utf-8") as passed:
        for name, value in examples():
            place = directory / name
            place.mkdir()
            os.chdir(place)
            given = PREPARED.get(name, dict)()
            names = {"__name__": "example", **(given if isinstance(given, dict) else {})}
            test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", names, name, None, 0)
            if runner.run(test).failed == 0:
                print(name, file=passed)
    return runner.summarize(verbose=False).failed == 0


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1])))
