"""``tracekit executions``: the same commands grouped, and how two runs differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Final

import click

from .._journal.entry import SINGLES, family_of
from .._journal.reader import ENDS, Trace
from .._journal.store import beside, lane_of, name_of
from .._runtime.divergence import differences
from .._values import dumps
from . import output
from .output import located, printable, short
from .runs import list_
from .show import show, whole

__all__ = ["executions"]

# -- executions --------------------------------------------------------------------------------------------------------
#
# ``tracekit executions``: the same commands grouped, and ``diff``, which compares two runs step by step.

#: The fields of a step that are compared.
_PARTS: Final = ("input", "output", "error")


@click.group()
def executions() -> None:
    """List, show, trace and compare runs."""


executions.add_command(list_, "list")
executions.add_command(show, "show")


@executions.command("trace")
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@click.option("--store", metavar="DIR", help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit).")
@click.option("--expand", is_flag=True, help="Put values in place of the references to them.")
def trace(run: str, store: str | None, expand: bool) -> None:
    """Print the entries of RUN as JSON lines.

    Exit code: 0 for a whole trace, with or without an end; 1 for a broken one, of which the entries that verify are printed.
    """
    with output.reported(), Trace(located(run, where := output.readable(store, run))) as file:
        verdict = where.judge_run(file)
        output.emit(whole(file, 1, expand))
        if verdict.state == "broken":
            output.message(f"broken: {printable(str(verdict.problem))}")
            sys.exit(output.DIFFERENT)


@executions.command("diff")
@click.argument("old", metavar="RUN", shell_complete=output.complete_run)
@click.argument("new", metavar="OTHER", shell_complete=output.complete_run)
@click.option("--store", metavar="DIR", help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(old: str, new: str, store: str | None, as_json: bool) -> None:
    """Compare the steps of two runs, those of their child processes included: their kinds, names, inputs and outcomes.

    As JSON lines: change (removed, added or changed), kind, name, the process where it is not the run's own, the step in each run (in a
    process: SEGMENT:STEP), and for a changed one its differences by field.
    Exit code: 0 if there is none, else 1.
    """
    with output.reported():
        where = output.readable(store, old, new)
        with Trace(located(old, where)) as one, Trace(located(new, where)) as other:
            where.check(one)
            where.check(other)
            changes = list(_changes(_all_steps(one), _all_steps(other)))
        if as_json:
            output.emit(changes)
        else:
            _print_changes(changes)
        sys.exit(output.DIFFERENT if changes else output.RIGHT)


def _all_steps(trace: Trace) -> list[dict[str, Any]]:
    """The steps of a run, then those of each of its child processes, sorted by lane, each with how it ended."""
    found = list(_steps(trace))
    processes = []
    for path in beside(trace.path):
        with Trace(path) as file:
            if len(file):
                processes.append((lane_of(file.entry(1), name_of(path)), name_of(path), [*_steps(file), _end(file)]))
    for lane, segment, steps in sorted(processes, key=lambda process: process[0]):
        found += [{**step, "process": lane, "step": f"{segment}:{step['step']}"} for step in steps]
    return found


def _end(trace: Trace) -> dict[str, Any]:
    """How a process ended: cleanly, with an error, or without an end (killed, or it outlived its run)."""
    last = trace.entry(len(trace))
    about = _step(trace, last) if last["type"] in ENDS else {"step": last["seq"]}
    return {**about, "kind": "end", "name": None, "outcome": last["type"] if last["type"] in ENDS else None}


def _steps(trace: Trace) -> Iterator[dict[str, Any]]:
    """The steps of one file in the order in which they began, values in place of references."""
    found: dict[int, dict[str, Any]] = {}
    for entry in trace.entries():
        known = family_of(entry["type"])
        if entry["type"] in SINGLES or (known is not None and known[1] == "intent"):
            found[entry["seq"]] = _step(trace, entry)
        elif known is not None and (step := found.get(entry["step"])) is not None:
            values = _step(trace, entry)
            if known[1] == "chunk":
                step.setdefault("chunks", []).append(values.get("output"))
            else:
                step.update({key: values[key] for key in _PARTS if key in values}, outcome=entry["type"])
    yield from found.values()


def _step(trace: Trace, entry: dict[str, Any]) -> dict[str, Any]:
    about = {"step": entry["seq"], "kind": entry["type"], "name": entry.get("name")}
    values = {key: trace.expand(entry[key], before=entry["seq"]) for key in _PARTS if key in entry}
    if isinstance(values.get("error"), dict):  # the place where it was raised is not compared
        values["error"] = {key: values["error"].get(key) for key in ("type", "text")}
    return about | values


def _changes(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    matcher = SequenceMatcher(None, [*map(_key, old)], [*map(_key, new)], autojunk=False)
    for tag, i, k, j, m in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(old[i:k], new[j:m], strict=True)
            yield from (change for pair in pairs if (change := _changed(*pair)) is not None)
            continue
        # Steps of one name at one place are one step with another input.
        left, right = old[i:k], new[j:m]
        while left and right and _named(left[0]) == _named(right[0]):
            change = _changed(left.pop(0), right.pop(0))
            if change is not None:
                yield change
        yield from ({"change": "removed", **_place(step, None)} for step in left)
        yield from ({"change": "added", **_place(None, step)} for step in right)


def _named(step: dict[str, Any]) -> tuple[Any, ...]:
    return step.get("process"), step["kind"], step["name"]


def _key(step: dict[str, Any]) -> tuple[Any, ...]:
    return *_named(step), dumps(step.get("input"))


def _changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    left, right = ({key: value for key, value in one.items() if key != "step"} for one in (old, new))
    if dumps(left) == dumps(right):
        return None
    return {"change": "changed", **_place(old, new), "differences": differences(left, right)}


def _place(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    step = old or new or {}
    places = {"step": old and old["step"], "other_step": new and new["step"]}
    process = {"process": step["process"]} if "process" in step else {}
    return {"kind": step["kind"], "name": step["name"], **process, **places}


def _print_changes(changes: list[dict[str, Any]]) -> None:
    from rich.text import Text

    console = output.console()
    for change in changes:
        where = "/".join(str(change[key]) for key in ("step", "other_step") if change[key] is not None)
        style = {"removed": "red", "added": "green", "changed": "yellow"}[change["change"]]
        name = "" if change["name"] is None else f" {printable(str(change['name']))}"
        of = f"  of the process {printable(change['process'])}" if "process" in change else ""
        what = f"  {change['kind']}{name}{of}  (step {where})"
        console.print(Text(change["change"], style=style) + Text(what), soft_wrap=True)
        for one in change.get("differences", ())[:20]:
            line = f"    {one['path']}: {short(one.get('recorded'))} -> {short(one.get('actual'))}"
            console.print(printable(line), markup=False, soft_wrap=True)
    if not changes:
        output.message("The two runs have the same steps.")
