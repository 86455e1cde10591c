"""Programs in processes of their own print the same in their recording and in their replay, as a library and by the
command line."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tracekit

PACKAGES = [str(Path(tracekit.__file__).parents[1]), str(Path(__file__).parents[2] / "integrations")]
CLI = "from tracekit.cli import main; main()"
#: The same program with blocks of its own; ``sys.argv[1]`` says which.
LIBRARY = """
import sys
def program():
    import runpy
    runpy.run_path("agent.py", run_name="agent")
{imports}
import tracekit
if sys.argv[1] == "record":
    with tracekit.record("fresh", run_id="fresh", user_modules=["agent"]):
        program()
else:
    with tracekit.replay("fresh"):
        program()
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {"TRACEKIT_DIR": str(directory / ".tracekit"), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, cwd=directory, env=environment, check=False, timeout=60,
    )  # fmt: skip


def by_command(
    directory: Path, program: str
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """The program under ``tracekit run``, and the replay of what that recorded."""
    (directory / "agent.py").write_text(textwrap.dedent(program))
    first = run(directory, "-c", CLI, "run", "agent.py")
    (trace,) = (directory / ".tracekit" / "runs").glob("*.jsonl")
    return first, run(directory, "-c", CLI, "replay", str(trace))


NUMPY = """
import numpy as np
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def weigh(x):
    return x

weigh(1)
print(np.random.rand(2), np.random.default_rng(3).random(), np.random.RandomState().rand())
np.random.seed(7)
print(np.random.rand())
"""


def test_numpy_that_loads_its_dice_when_they_are_asked_for(tmp_path: Path) -> None:
    """``import numpy`` is enough: ``np.random`` gives the recorded numbers even if it is loaded in the middle of a run."""
    first, second = by_command(tmp_path, NUMPY)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout


@pytest.mark.parametrize("imports", ["import numpy", "import numpy.random", ""])
def test_the_same_in_the_library(tmp_path: Path, imports: str) -> None:
    """The same holds for ``record()`` blocks, whatever parts of NumPy were loaded before them."""
    (tmp_path / "agent.py").write_text(NUMPY)
    (tmp_path / "main.py").write_text(LIBRARY.format(imports=imports))
    first, second = run(tmp_path, "main.py", "record"), run(tmp_path, "main.py", "replay")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout


FACTORIES = """
import dataclasses, datetime, functools, time, uuid
import attrs, msgspec, pydantic
from tracekit import traced_tool

class Event(pydantic.BaseModel):
    at: datetime.datetime = pydantic.Field(default_factory=datetime.datetime.now)
    clock: float = pydantic.Field(default_factory=time.time)
    id: uuid.UUID = pydantic.Field(default_factory=uuid.uuid4)

@pydantic.dataclasses.dataclass
class Checked:
    at: datetime.datetime = dataclasses.field(default_factory=datetime.datetime.now)

@dataclasses.dataclass
class Plain:
    at: float = dataclasses.field(default_factory=time.time)

@attrs.define
class Defined:
    at: float = attrs.field(factory=time.time)
    id: uuid.UUID = attrs.field(factory=uuid.uuid4)

class Packed(msgspec.Struct):
    at: float = msgspec.field(default_factory=time.time)

class Cached:
    at = functools.cached_property(lambda self: time.time())

@traced_tool(side_effect="read_only")
def store(value):
    return value

store(str(Event()))
print(Event(), Event.model_validate({}), Checked(), Plain(), Defined(), Packed(), Cached().at)
print(msgspec.json.decode(b"{}", type=Packed), time.time())
"""


def test_default_factories_read_the_recorded_clock(tmp_path: Path) -> None:
    """``default_factory=datetime.now`` of a pydantic, attrs, msgspec or standard data class gives what the recording
    gave."""
    first, second = by_command(tmp_path, FACTORIES)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout


def test_the_development_mode_of_python(tmp_path: Path) -> None:
    """Programs are recorded and replayed without warnings under ``python -X dev``, whose allocator overwrites freed
    memory."""
    (tmp_path / "agent.py").write_text(
        textwrap.dedent("""
        import asyncio, random, threading, time
        from tracekit import traced_tool

        @traced_tool(side_effect="read_only")
        def look(n):
            return n, random.random(), time.time()

        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60  # of which the mode warns by the clock
            return await asyncio.gather(*(asyncio.to_thread(look, n) for n in range(3)))

        for _ in range(3):
            print(look(0), random.random(), time.time(), asyncio.run(main()))
        """)
    )
    (tmp_path / "whole.py").write_text(LIBRARY.format(imports=""))
    development = ("-X", "dev", "-W", "error", "whole.py")
    first, second = run(tmp_path, *development, "record"), run(tmp_path, *development, "replay")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (first.stdout, first.stderr, second.stderr) == (second.stdout, "", "")
    assert first.stdout.count("\n") == 3


def test_options_of_the_interpreter_are_the_programs(tmp_path: Path) -> None:
    """``python -W error -X dev -m tracekit run`` and ``replay`` start the program with these options."""
    (tmp_path / "agent.py").write_text(
        "import sys, time\nprint(sys.flags.dev_mode, sys.warnoptions[-1:], time.time())\n"
    )
    options = ("-X", "dev", "-W", "error", "-c", CLI)
    first = run(tmp_path, *options, "run", "agent.py")
    (trace,) = (tmp_path / ".tracekit" / "runs").glob("*.jsonl")
    second = run(tmp_path, *options, "replay", str(trace))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.startswith("True ['error']")
    assert second.stdout.startswith("True ['error']")
