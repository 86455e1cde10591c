"""What a clock library costs a process that has the OpenAI and Anthropic SDKs loaded.

Run ``python -m benchmarks.clock_libraries``. Each figure is taken in a fresh process, with clocks that no library has
patched; the smallest of ``ROUNDS`` is printed. The decision that they stand behind is
``docs/decisions/0002-clock-and-context-libraries.md``.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

ROUNDS = 5
PACKAGES = ("freezegun", "time-machine", "openai", "anthropic", "pydantic", "msgspec", "contextvars-extras")

#: The first start of a library, with what is named first imported.
FIRST_START = """
import sys, time
{imports}
{library}
def first(wall=time.perf_counter_ns, cpu=time.process_time_ns):
    modules = len(sys.modules)
    w, c = wall(), cpu()
    start()
    return {{"cpu_ms": (cpu() - c) / 1e6, "wall_ms": (wall() - w) / 1e6, "modules": len(sys.modules) - modules}}
report = first()
"""

#: One read of ``time.time()`` and ``datetime.now()`` while the library is active, and without one.
READ = """
import time, datetime
{library}
def each(read, count=100_000, clock=time.perf_counter_ns):
    begun = clock()
    for _ in range(count):
        read()
    return (clock() - begun) / count
start()
report = {{"time.time_ns": each(time.time), "datetime.now_ns": each(datetime.datetime.now)}}
"""

#: What holds while the library is active, of classes and values made before and after.
TYPES = """
import datetime, msgspec, pydantic
before = (datetime.datetime,)
text, encoded = "2026-01-02T00:00:00", b'"2026-01-02T00:00:00"'
{library}
start()
def tried(make):
    try:
        return type(make()).__name__
    except Exception as error:
        return type(error).__name__
def validate(kind):
    return tried(lambda: pydantic.TypeAdapter(kind).validate_python(text))
report = {{"same class": datetime.datetime is before[0], "same type": type(datetime.datetime.now()) is before[0]}}
report["pydantic, class looked up now"] = validate(datetime.datetime)
report["pydantic, class looked up before"] = validate(before[0])
report["msgspec, class looked up now"] = tried(lambda: msgspec.json.decode(encoded, type=datetime.datetime))
"""

#: Reads of a context variable.
CONTEXT = """
import time, contextvars
plain = contextvars.ContextVar("plain", default=None)
{library}
def each(read, count=200_000, clock=time.perf_counter_ns):
    begun = clock()
    for _ in range(count):
        read()
    return (clock() - begun) / count
report = {{"contextvars_ns": each(plain.get)}}
if extra is not None:
    report["contextvars-extras_ns"] = each(extra.get)
"""

LIBRARIES = {
    "none": "def start(): pass",
    "freezegun": "import freezegun\nstart = freezegun.freeze_time('2026-01-02').start",
    "time-machine": "import time_machine\nstart = time_machine.travel(0).start",
}
IMPORTS = {
    "nothing else": "",
    "openai": "import openai",
    "anthropic": "import anthropic",
    "openai + anthropic": "import openai, anthropic",
}
EXTRA = """
try:
    from contextvars_extras import ContextVarExt
    extra = ContextVarExt("extra", default=None)
except ImportError:
    extra = None
"""


def measure(program: str) -> dict[str, object]:
    """The report of one fresh process."""
    code = program + "\nimport json, sys\nsys.__stdout__.write(json.dumps(report))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    report: dict[str, object] = json.loads(done.stdout)
    return report


def smallest(program: str) -> dict[str, object]:
    """The smallest of each figure over ``ROUNDS`` processes."""
    reports = [measure(program) for _ in range(ROUNDS)]
    return {key: min(report[key] for report in reports) for key in reports[0]}  # type: ignore[type-var]


def line(label: str, report: dict[str, object]) -> None:
    shown = (f"{key} {value:,.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in report.items())
    print(f"{label:34} {'   '.join(shown)}", flush=True)


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} not installed"


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(", ".join(installed(package) for package in PACKAGES))
    print(f"\nfirst start (smallest of {ROUNDS} processes; modules: how many more are loaded after)")
    for library in ("freezegun", "time-machine"):
        for imports, statement in IMPORTS.items():
            line(f"{library}, {imports}", smallest(FIRST_START.format(imports=statement, library=LIBRARIES[library])))
    print("\none read, nanoseconds")
    for library, code in LIBRARIES.items():
        line(library, smallest(READ.format(library=code)))
    print("\ntypes while it is active")
    for library, code in LIBRARIES.items():
        if library != "none":
            line(library, measure(TYPES.format(library=code)))
    print("\none read of a context variable, nanoseconds")
    line("context variables", smallest(CONTEXT.format(library=EXTRA)))


if __name__ == "__main__":
    main()
