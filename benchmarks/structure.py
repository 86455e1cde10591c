"""How the code of a checkout is put together: its size, its import circles, and what five journeys through it touch.

Run ``python -m benchmarks.structure`` for this checkout, ``--checkout DIR`` for another one (its sources are read and imported from
there), ``--json`` for the figures as JSON. Nothing here is timed, so that two checkouts can be compared on any machine.

* *Rooms*: lines (as ``wc -l`` counts them) and modules of each package directly below ``src/tracekit``, and how many of its modules
  are imported by one other module alone.
* *Circles*: groups of modules each of which imports, over however many others, every other one of its group. "On import" counts the
  statements of module level, "at run time" those inside functions too, "with types" also what stands under ``TYPE_CHECKING``.
* *State*: ``global`` statements, objects at module level that begin empty and are filled later, and how often code asks what kind of
  session it has to do with (``isinstance``, ``getattr``, ``hasattr``) instead of asking the session.
* *Journeys*: each is made twice to warm it up, then once under a profiler in a process of its own. Counted are the distinct functions
  of tracekit and its integrations that are called in the journey's own thread, the files that they are in, and how often the next
  call is in another file than the one before.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tracekit"
LEVELS = ("on import", "at run time", "with types")


# -- the sources -------------------------------------------------------------------------------------------------------


def modules_of(checkout: Path) -> dict[str, Path]:
    """The modules of ``src/tracekit`` by their dotted names."""
    source = checkout / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((source / PACKAGE).rglob("*.py"))
    }


def imports_of(name: str, path: Path, modules: dict[str, Path]) -> dict[str, set[str]]:
    """The modules of ``modules`` that one of them imports, by the level of :data:`LEVELS` at which it does."""
    found: dict[str, set[str]] = {level: set() for level in LEVELS}
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def add(level: str, base: str, names: list[str]) -> None:
        for each in names:
            target = f"{base}.{each}" if f"{base}.{each}" in modules else base
            if target in modules and target != name:
                found[level].add(target)

    def visit(node: ast.AST, level: str) -> None:
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            add(level, ".".join(part for part in (above, node.module) if part), [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                add(level, alias.name, [""])
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                visit(child, LEVELS[2])
            for child in node.orelse:
                visit(child, level)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and level == LEVELS[0]
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr):  # which no import is in
                    visit(child, LEVELS[1] if inside else level)

    visit(ast.parse(path.read_bytes()), LEVELS[0])
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of two and more that can all reach one another (Tarjan's algorithm), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = sorted(stack[at:]), []
            if len(group) > 1:
                groups.append(group)

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(groups, key=lambda group: (-len(group), group))


def sources(checkout: Path) -> dict[str, Any]:
    """Lines, modules and single importers a room, and the circles at each level."""
    modules = modules_of(checkout)
    imports = {name: imports_of(name, path, modules) for name, path in modules.items()}
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for name, levels in imports.items():
        for other in set().union(*levels.values()):
            importers[other].add(name)
    rooms: dict[str, dict[str, int]] = {}
    for name, path in modules.items():
        inside = path.relative_to(checkout / "src" / PACKAGE).parts
        room = rooms.setdefault(
            inside[0] + "/" if len(inside) > 1 else inside[0], dict.fromkeys(("lines", "modules", "single_importer"), 0)
        )
        room["lines"] += path.read_bytes().count(b"\n")
        room["modules"] += 1
        room["single_importer"] += len(importers[name]) == 1
    found = {}
    for n, level in enumerate(LEVELS, 1):
        graph = {name: set().union(*(levels[each] for each in LEVELS[:n])) for name, levels in imports.items()}
        found[level] = circles(graph)
    return {"rooms": dict(sorted(rooms.items(), key=lambda item: -item[1]["lines"])), "circles": found}


SESSIONS = {"Recording", "Replay", "Resumption", "PartialReplay"}
CONTAINERS = {
    "dict", "list", "set", "deque", "defaultdict", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet",
}  # fmt: skip


def state(checkout: Path) -> dict[str, int]:
    """What is kept at module level, and how often the kind of a session is asked."""
    found = dict.fromkeys(("globals", "registries", "kinds", "probes"), 0)
    for path in modules_of(checkout).values():
        tree = ast.parse(path.read_bytes())
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            found["registries"] += value is not None and _begins_empty(value)
        for inner in ast.walk(tree):
            found["globals"] += isinstance(inner, ast.Global)
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and len(inner.args) > 1:
                asked, what = ast.unparse(inner.args[0]).rpartition(".")[2], inner.args[1]
                names = {one.id for one in ast.walk(what) if isinstance(one, ast.Name)}
                found["kinds"] += inner.func.id == "isinstance" and bool(names & SESSIONS)
                found["probes"] += inner.func.id in ("getattr", "hasattr") and asked in ("session", "_session")
    return found


def _begins_empty(value: ast.expr) -> bool:
    """Whether it is a container without content, which can only be meant to be filled."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    name = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return name in CONTAINERS and isinstance(value, ast.Call) and not value.args


# -- the journeys: each runs in a process of its own, with the checkout's own tracekit ----------------------------------------


class Footsteps:
    """The calls of one thread into tracekit's code, in order: (file, first line) of each function."""

    def __init__(self, checkout: Path) -> None:
        self._roots = (f"{checkout / 'src' / PACKAGE}{os.sep}", f"{checkout / 'integrations'}{os.sep}")
        self.calls: list[tuple[str, int, str]] = []

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._roots):
            code = frame.f_code
            self.calls.append((code.co_filename, code.co_firstlineno, code.co_qualname))

    @contextmanager
    def followed(self) -> Iterator[None]:
        sys.setprofile(self._seen)
        try:
            yield
        finally:
            sys.setprofile(None)

    @property
    def figures(self) -> dict[str, Any]:
        files = [file for file, _, _ in self.calls]
        return {
            "functions": len(set(self.calls)),
            "files": len(set(files)),
            "changes": sum(before != after for before, after in pairwise(files)),
            "calls": len(self.calls),
        }


def plain_tool(followed: Callable[[], Any]) -> None:
    """A plain tool recorded."""
    from tracekit import record, traced_tool

    @traced_tool(side_effect="read_only")
    def look(order: str) -> str:
        return order

    with record("structure"):
        look("a")
        look("b")
        with followed():
            look("a")


def contracted_tool(followed: Callable[[], Any]) -> None:
    """A tool with `exactly_once` and `timeout_ms`."""
    from tracekit import record, traced_tool

    try:
        decorated = traced_tool(side_effect="irreversible", exactly_once=True, timeout_ms=60_000, timeout_in="thread")
    except TypeError:  # before that field, a plain function with a time limit always ran in a thread
        decorated = traced_tool(side_effect="irreversible", exactly_once=True, timeout_ms=60_000)

    @decorated
    def charge(order: str) -> str:
        return order

    with record("structure"):
        charge("a")
        charge("b")
        with followed():
            charge("c")


def openai_chat(followed: Callable[[], Any]) -> None:
    """An OpenAI chat recorded against a server on loopback."""
    import openai

    from tracekit import instrument, record

    instrument("openai")
    server = ThreadingHTTPServer(("127.0.0.1", 0), ChatCompletions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", max_retries=0)

    def ask(question: str) -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])

    with record("structure"):
        ask("a")
        ask("b")
        with followed():
            ask("a")
    client.close()
    server.shutdown()
    server.server_close()


def empty_record(followed: Callable[[], Any]) -> None:
    """Entering an empty `record()`."""
    from tracekit import record

    for _ in range(2):
        with record("structure"):
            pass
    opened = record("structure")
    with followed():
        opened.__enter__()
    opened.__exit__(None, None, None)


def recovery_scan(followed: Callable[[], Any]) -> None:
    """A recovery scan of one run (it was killed after a payment)."""
    from tracekit import record, recovery, traced_tool

    @traced_tool(side_effect="irreversible")
    def charge(order: str) -> str:
        return order

    with record("structure") as run:
        charge("a")
    path = Path(run.path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    for _ in range(2):
        list(recovery.scan())
    with followed():
        (found,) = recovery.scan()
    assert found.run_id == run.id


JOURNEYS = (plain_tool, contracted_tool, openai_chat, empty_record, recovery_scan)


class ChatCompletions(BaseHTTPRequestHandler):
    """Answers every chat with one sentence."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "Yes."}
        answer = {
            "id": "c", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def journey(checkout: Path, name: str, *, steps: bool) -> None:
    """Make one journey in this process and print what it touched."""
    (chosen,) = (each for each in JOURNEYS if each.__name__ == name)
    imported = Path(importlib.import_module(PACKAGE).__file__ or "")
    if not imported.is_relative_to(checkout):
        raise SystemExit(f"the journeys would go through {imported}, not through {checkout}")
    footsteps = Footsteps(checkout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen(footsteps.followed)
    calls = [f"{Path(file).relative_to(checkout)}:{line} {function}" for file, line, function in footsteps.calls]
    print(json.dumps(footsteps.figures | ({"steps": calls} if steps else {})))


def journeys(checkout: Path, *, steps: bool = False) -> dict[str, Any]:
    """What each journey touches in the tracekit of a checkout."""
    found = {}
    for each in JOURNEYS:
        with tempfile.TemporaryDirectory() as directory:
            ours = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
            paths = os.pathsep.join(str(checkout / part) for part in ("src", "integrations"))
            made = subprocess.run(
                [sys.executable, __file__, "--checkout", str(checkout), "--journey", each.__name__, *(["--steps"] if steps else [])],
                env=ours | {"PYTHONPATH": paths, "TRACEKIT_DIR": directory},
                cwd=directory, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if made.returncode:
            raise SystemExit(f"{each.__name__}: {made.stderr}")
        found[each.__name__] = json.loads(made.stdout.splitlines()[-1])
    return found


# -- the page ----------------------------------------------------------------------------------------------------------


def table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [titles, ("---",) + ("---:",) * (len(titles) - 1), *rows]
    return "\n".join(
        f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in line)} |" for line in lines
    )


STATE = {
    "globals": "`global` statements",
    "registries": "objects at module level that begin empty",
    "kinds": "`isinstance` of a session",
    "probes": "`getattr` of a session",
}


def page(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rooms = [
        (f"`{name}`", room["lines"], room["modules"], room["single_importer"])
        for name, room in figures["rooms"].items()
    ]
    rooms.append(("all", *(sum(column) for column in list(zip(*rooms, strict=True))[1:])))
    groups = [
        (f"import circles {level}", len(found), sum(map(len, found)), max(map(len, found), default=0))
        for level, found in figures["circles"].items()
    ]
    ways = [
        (
            (each.__doc__ or "").rstrip("."),
            *(figures["journeys"][each.__name__][key] for key in ("functions", "files", "changes")),
        )
        for each in JOURNEYS
    ]
    return "\n\n".join(
        [
            table(("room", "lines", "modules", "with one importer"), rooms),
            table(("circles", "number", "modules in them", "largest"), groups),
            table(("state", "number"), [(STATE[key], number) for key, number in figures["state"].items()]),
            table(("journey", "functions", "files", "changes of file"), ways),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=lambda path: Path(path).resolve(), default=ROOT, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, circles by name")
    parser.add_argument("--steps", action="store_true", help="with --json: every call of each journey")
    parser.add_argument("--journey", choices=[each.__name__ for each in JOURNEYS], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.journey:
        journey(options.checkout, options.journey, steps=options.steps)
        return
    figures = sources(options.checkout) | {"state": state(options.checkout)}
    figures |= {"journeys": journeys(options.checkout, steps=options.steps)}
    print(json.dumps(figures, indent=1) if options.json else page(figures))


if __name__ == "__main__":
    main()
