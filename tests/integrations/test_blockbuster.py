"""Programs watched by ``blockbuster`` for calls that block their event loop are recorded and replayed like any other."""

from __future__ import annotations

import asyncio
import os
from contextlib import redirect_stderr
from pathlib import Path
from uuid import uuid4

import pytest
from blockbuster import BlockBuster

from tests.support import processes
from tests.support.place import PACKAGES
from tracekit import InexactReplayError, record, replay

#: All of it happens in the loop, the opening and the end of every run and replay too.
PROGRAM = '''
import asyncio, os, random, sys, time
from datetime import datetime
from zoneinfo import ZoneInfo

from blockbuster import BlockBuster, BlockingError

watch = BlockBuster()
if sys.argv[1] == "before":
    watch.activate()
from tracekit import Budget, current_run, decision, effect, record, replay, resume, traced, traced_tool
from tracekit.harness import TracedToolClient, TraceWriter
if sys.argv[1] == "after":
    watch.activate()

AT = datetime(2026, 3, 1, tzinfo=ZoneInfo("Europe/Vienna"))
FLAKY = []

@traced_tool(side_effect="irreversible")
async def pay(cents):
    await asyncio.sleep(0.001)
    return cents

@traced_tool(side_effect="read_only")
def look(what):
    return [what * 2, AT]

@traced_tool(side_effect="irreversible", exactly_once="store")
async def once(n):
    await asyncio.sleep(0)
    return n

@traced_tool(side_effect="irreversible", exactly_once=True)
def once_a_run(n):
    return n

@traced_tool(side_effect="read_only", timeout_ms=60_000, max_retries=2)
async def limited(n):
    FLAKY.append(n)
    if len(FLAKY) == 1:
        raise ConnectionError("once more")
    return n

@traced_tool(side_effect="read_only", timeout_ms=60_000, timeout_in="thread")
def limited_in_a_thread(n):
    time.sleep(0.01)  # the loop waits for it, whoever is faster
    return n

def put_back(n, output):
    pass

@traced_tool(side_effect="reversible", compensate=put_back)
def put(n):
    return n

@traced("a phase")
def phase():
    return look("inside")

async def agent(n):
    found = [look("a"), phase(), time.time(), random.random(), decision("d", input=1, output={"a": 1}, schema={"type": "object"})]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pay(cents)) for cents in range(3)]
        same = [group.create_task(once(n)) for _ in range(3)]
    found += [task.result() for task in [*tasks, *same]]
    found += await asyncio.gather(*(asyncio.to_thread(look, str(k)) for k in range(3)))
    found += [once_a_run(n), once_a_run(n), await limited(1), limited_in_a_thread(1), put(n)]
    with effect("charge", side_effect="irreversible", input=n) as e:
        found.append(e.perform(lambda: n))
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        found.append("too late")
    return found

CHILD = """
from tracekit import traced_tool
print(traced_tool(side_effect="read_only")(lambda: 3)())
"""

async def parent():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdout=asyncio.subprocess.PIPE)
    return await child.communicate(), child.returncode

def cut(run):
    # as if its process had died before it wrote the end
    with open(run.path, "rb+") as file:
        lines = file.read().splitlines(keepends=True)
        file.truncate(len(b"".join(lines[:-1])))
    os.remove(os.path.join(os.path.dirname(os.path.dirname(run.path)), "heads", run.id))

async def first():
    async with record("async", budget=Budget(tool_calls=1000, usd=1.0)) as one:
        recorded = await agent(1)
    with record("sync") as other:
        again = await agent(2)
    with record("aborted") as aborted:
        put(1)
        current_run().abort("changed its mind")
    async with record("parent") as family:
        printed = await parent()
    async with replay(family) as session:
        assert await parent() == printed == ((b"3\\n", None), 0)
    assert session.report.exact, session.report.verdict.line
    with TraceWriter() as writer:
        assert TracedToolClient(lambda plan: plan, writer, tool_id="shop", side_effect="irreversible").execute("pens") == "pens"
    FLAKY.clear()
    async with replay(one) as session:
        assert await agent(1) == recorded
    assert session.report.exact, session.report.verdict.line
    FLAKY.clear()
    with replay(other) as session:
        assert await agent(2) == again
    assert session.report.exact, session.report.verdict.line
    with replay(other, live=["llm"]) as session:
        assert await agent(2) == again
    return other, again

async def second(run, recorded):
    async with resume(run.id) as resumed:
        assert await agent(2) == recorded
    assert resumed.id == run.id

async def blocks():
    time.sleep(0)

run, recorded = asyncio.run(first())
cut(run)
asyncio.run(second(run, recorded))
try:
    asyncio.run(blocks())
except BlockingError:
    print("and it was watching")
sys.stdout.flush()
os._exit(0)  # a program that blockbuster has watched crashes when the interpreter ends, without tracekit as well
'''


@pytest.mark.parametrize("switched_on", ["before", "after"])
def test_nothing_of_tracekit_is_taken_for_blocking(tmp_path: Path, switched_on: str) -> None:
    """``blockbuster`` finds nothing in runs, replays and resumes with tools, contracts, keys, budgets and threads,
    whether it was activated before tracekit was imported or after."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store"), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    done = processes.python(str(program), switched_on, cwd=tmp_path, env=environment, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "and it was watching\n"


def test_what_a_watched_program_reads_is_its_own(tmp_path: Path) -> None:
    """A directory that the program lists through ``blockbuster``'s wrappers is recorded as the program's input, and
    replayed."""
    (tmp_path / "first").touch()

    def agent() -> list[str]:
        watch = BlockBuster()
        watch.activate()
        try:
            return [*os.listdir(tmp_path), str(uuid4())]
        finally:
            watch.deactivate()

    with record(store=tmp_path / "store") as run:
        recorded = agent()
    (tmp_path / "second").touch()
    with replay(run) as session:
        assert agent() == recorded
    assert session.report.exact


def test_what_is_looked_at_for_a_package_is_not_taken_for_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an installed package opens a file in the loop, tracekit's look at the file makes ``blockbuster`` find no more
    than without a run."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "acme_settings.py").write_text(
        "def settings(path):\n    try:\n        open(path).close()\n    except FileNotFoundError:\n        return 'none'\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    import acme_settings

    async def agent() -> tuple[str, str]:
        watch = BlockBuster()
        watch.activate()
        try:
            return acme_settings.settings(tmp_path / "config" / "settings.json"), str(uuid4())
        finally:
            watch.deactivate()

    async def both() -> None:
        async with record(store=tmp_path / "store") as run:
            recorded = await agent()
        async with replay(run) as session:
            assert await agent() == recorded
        assert session.report.exact

    asyncio.run(both())


def test_what_a_replay_looks_at_before_a_write_is_not_taken_for_blocking(tmp_path: Path) -> None:
    """Where a program opens a file for writing in the loop, as each import does for its bytecode, the replay's look at the
    path makes ``blockbuster`` find no more than without a run."""

    async def agent() -> str:
        watch = BlockBuster()
        watch.activate()
        try:
            open(tmp_path / "report", "w").close()
            return str(uuid4())
        finally:
            watch.deactivate()

    async def both() -> None:
        async with record(store=tmp_path / "store") as run:
            recorded = await agent()
        async with replay(run) as session:
            assert await agent() == recorded
        assert session.report.exact

    asyncio.run(both())


def test_what_a_replay_says_is_not_taken_for_blocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remark that a variable has another value today is printed without a blocking call in a watched loop."""
    said = (tmp_path / "said").open("w+")

    async def agent() -> tuple[str, str]:
        watch = BlockBuster()
        watch.activate()
        try:
            with redirect_stderr(said):  # ``blockbuster`` lets pass what is written to the one that it has found
                return os.environ["ACME_REGION"], str(uuid4())
        finally:
            watch.deactivate()

    async def both() -> None:
        monkeypatch.setenv("ACME_REGION", "east")
        async with record(store=tmp_path / "store") as run:
            recorded = await agent()
        monkeypatch.setenv("ACME_REGION", "west")
        async with replay(run):
            assert await agent() == recorded

    with pytest.raises(InexactReplayError):
        asyncio.run(both())
    with said:
        said.seek(0)
        assert "ACME_REGION" in said.read()
