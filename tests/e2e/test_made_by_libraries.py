"""What packages make or run for a program is recorded like its own: native ids, column defaults, code given to
``exec``, prompts."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import os
import random
import secrets
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import TOOL, Place
from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
def look(what: Any) -> Any:
    return what


def replayed(tmp_path: Path, program: Callable[[], Any]) -> None:
    """What ``program`` returns reaches a step, and is the same in an exact replay."""
    with record("r", store=tmp_path) as run:
        recorded = look(program())
    with replay(run.id, store=tmp_path) as session:
        assert look(program()) == recorded
    assert session.report.exact


def test_ids_of_fastuuid(tmp_path: Path) -> None:
    """The ids that litellm takes from fastuuid are recorded, whether one by one, in bulk or as texts."""
    fastuuid = pytest.importorskip("fastuuid")

    def program() -> list[str]:
        ids = [fastuuid.uuid4(), fastuuid.uuid7(), fastuuid.uuid1(), *fastuuid.uuid4_bulk(3)]
        assert all(isinstance(one, fastuuid.UUID) for one in ids)
        return [*map(str, ids), *fastuuid.uuid4_as_strings_bulk(2)]

    replayed(tmp_path, program)


def test_functions_that_a_pool_calls_as_they_are(tmp_path: Path) -> None:
    """A library function that is handed to a pool draws numbers and reads the clock for the program, though no function
    of the program calls it."""

    async def threads() -> list[Any]:
        loop = asyncio.get_running_loop()
        return [await asyncio.to_thread(random.random), await loop.run_in_executor(None, uuid.uuid4)]

    def program() -> list[str]:
        with ThreadPoolExecutor(2) as pool:
            drawn: list[Any] = [
                *pool.map(random.uniform, [0, 0], [1, 1]),
                pool.submit(os.urandom, 4).result(),
                pool.submit(secrets.token_hex, 4).result(),
                pool.submit(partial(random.randint, 1, 10**9)).result(),
                pool.submit(time.time).result(),
            ]
        return [str(one) for one in [*drawn, *asyncio.run(threads())]]

    replayed(tmp_path, program)


def test_functions_that_a_pool_of_processes_calls_as_they_are(tmp_path: Path) -> None:
    """A pool of processes that is handed ``random.random`` or ``time.time`` itself gets the recorded values in a replay."""
    place = Place(tmp_path)
    name = place.program(
        """
        import multiprocessing, os, random, time, uuid
        from concurrent.futures import ProcessPoolExecutor

        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(1, context) as pool:
                print(pool.submit(random.random).result(), pool.submit(uuid.uuid4).result(), pool.submit(time.time).result())
                print(pool.submit(os.urandom, 4).result(), list(pool.map(random.gauss, [1], [2])))
            with context.Pool(1) as pool:
                print(pool.apply(random.random), pool.apply(os.urandom, (4,)))
        """
    )
    recorded = place.cli("run", name)
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert "other output" not in replayed.stderr


def test_results_of_processes_in_the_order_in_which_they_were_done(tmp_path: Path) -> None:
    """One by one, in chunks, or with a limit: a replay, in which a process is done at another moment, takes them in the recorded order."""
    place = Place(tmp_path)
    name = place.program(
        """
        import multiprocessing, os, time
        from tracekit import traced_tool

        @traced_tool(side_effect="read_only")
        def look(n):
            while n == 0 and not os.path.exists("done"):
                time.sleep(0.001)
            if n == 1:
                open("done", "w").close()
            return n

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(list(pool.imap_unordered(look, (0, 1))))
                os.unlink("done")
                print(list(pool.imap_unordered(look, (0, 2, 1, 3), 2)))
                found = pool.imap_unordered(look, range(4, 9))
                print(found.next(timeout=60), *found, list(pool.imap(look, (4, 5))))
        """
    )
    recorded = place.cli("run", name)
    replayed = place.cli("replay", "last", "--strict", "output")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


def test_names_of_temporary_files(tmp_path: Path) -> None:
    """Names of temporary files are the recorded ones; if such a file still exists, a replay takes another name, as the
    program would."""

    def program() -> list[str]:
        with tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile() as file:
            return [directory, file.name, tempfile.mktemp()]

    replayed(tmp_path, program)
    with record("r", store=tmp_path) as run:
        left = tempfile.mkdtemp(dir=tmp_path)
        look(1)
    with replay(run.id, store=tmp_path) as session:
        assert tempfile.mkdtemp(dir=tmp_path) != left
        look(1)
    assert session.report.exact


def test_names_of_a_packages_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package gives a temporary file's path to a process, as jupyter_client does to a kernel, a replay has the
    recorded path."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "connecting.py").write_text(
        "import os, subprocess, tempfile\n"
        "def made():\n"
        "    file, path = tempfile.mkstemp('.json')\n"
        "    os.close(file)\n"
        "    try:\n"
        "        return subprocess.run(['echo', path], capture_output=True, text=True).stdout\n"
        "    finally:\n"
        "        os.unlink(path)\n"
    )
    monkeypatch.syspath_prepend(str(package))
    connecting = importlib.import_module("connecting")
    replayed(tmp_path, connecting.made)


def test_column_defaults(tmp_path: Path) -> None:
    """``default=datetime.utcnow`` of a database column is called by the package for the program, and is recorded."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    table = sqlalchemy.Table(
        "t", sqlalchemy.MetaData(), sqlalchemy.Column("at", sqlalchemy.DateTime, default=datetime.datetime.now)
    )

    def program() -> str:
        engine = sqlalchemy.create_engine("sqlite://")
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert())
            made = str(connection.execute(sqlalchemy.select(table.c.at)).scalar_one())
        engine.dispose()
        return made

    replayed(tmp_path, program)


def test_code_that_a_package_executes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package executes a plugin's text or a model's code, what that reads and draws counts as the program's."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "plugging.py").write_text(
        "def run(text):\n    names = {}\n    exec(text, names)\n    return names['f']()\n"
    )
    monkeypatch.syspath_prepend(str(package))
    plugging = importlib.import_module("plugging")
    text = "import random, time\ndef f():\n    return time.time(), random.random()\n"
    replayed(tmp_path, lambda: list(plugging.run(text)))


def test_prompts_and_a_library_that_a_tool_loads(tmp_path: Path) -> None:
    """A replay prints the prompt of ``input()`` even into a pipe, and restores NumPy's global generator even if the
    tool that loaded NumPy does not run."""
    pytest.importorskip("numpy")
    here = tmp_path / "here"
    here.mkdir()
    place = Place(here)
    place.program(
        textwrap.dedent(TOOL)
        + """
@traced_tool(side_effect="read_only")
def load():
    import numpy.random
    return "numpy" in sys.modules

name = input("name> ")
print(load(), name, input())
import numpy
print(charge(numpy.random.rand()))
"""
    )
    done = place.python("-m", "tracekit", "run", "agent.py", input="Ann\nx\n", fresh=True)
    assert (done.returncode, done.stdout[:17]) == (0, "name> True Ann x\n"), done.stderr
    again = place.python("-m", "tracekit", "replay", "last", "--strict", "output", fresh=True)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
