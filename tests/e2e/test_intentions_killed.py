"""A loop whose process is killed: it goes on from its log, nothing that was answered is done again, and the whole replays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit.agents import World, pending_requests

PROGRAM = """
import asyncio, os, signal

from tracekit import record, traced_tool
from tracekit.agents import LLMExecutor, Loop, ToolExecutor, ask, call, create, patch, responder


def happen(what):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(what + "\\n")
    if os.environ.get("KILL_AT") == what:
        os.kill(os.getpid(), signal.SIGKILL)


class Desk:
    @traced_tool(side_effect="read_only")
    async def look(self, page: str) -> str:
        happen(f"look {page}")
        await asyncio.sleep(0)
        return f"seen {page}"


async def model(messages, **rest):
    question = messages[-1]["content"]
    await asyncio.sleep(0)
    happen(f"ask {question}")
    return {"text": f"about {question}", "cost_usd": 0.5}


@responder("object.created")
def want(event):
    return ask(event.object, object=event.object)


@responder("llm.response")
def note(event):
    return [patch(event.object, {"text": event.text}), call("look", {"page": event.object}, object=event.object)]


@responder("tool.return")
def keep(event):
    return patch(event.object, {"seen": event.output})


with record("desk"):
    loop = Loop([want, note, keep], [LLMExecutor(model), ToolExecutor(Desk())])
    outcome = loop.run(*[create(f"page-{n}", {}) for n in range(3)])
print(outcome.hash, outcome.cost_usd)
"""


@pytest.mark.parametrize("kill_at", ["ask page-1", "look page-0", "look page-2"])
def test_a_loop_that_was_killed_goes_on(kill_at: str, tmp_path: Path) -> None:
    """Killed in a model call or a tool, resumed, replayed: what had its answer is done once, what had none at most once more, a
    replay does nothing and costs nothing."""
    (tmp_path / "program.py").write_text(PROGRAM)
    effects = tmp_path / "effects"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        "TRACEKIT_DIR": str(tmp_path / "store"), "EFFECTS": str(effects),
    }  # fmt: skip

    def tracekit(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "tracekit", *arguments, cwd=tmp_path, env={**environment, **more})

    killed = tracekit("run", "program.py", KILL_AT=kill_at)
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    [path] = (tmp_path / "store" / "runs").glob("*.jsonl")
    left = pending_requests(path)
    assert left
    before = Counter(effects.read_text().splitlines())
    assert set(before.values()) == {1}

    resumed = tracekit("recovery", "resume", path.stem)
    assert resumed.returncode == 0, resumed.stderr
    after = Counter(effects.read_text().splitlines())
    assert set(after) == {f"{what} page-{n}" for what in ("ask", "look") for n in range(3)}
    assert sum(count - 1 for count in after.values()) <= len(left)
    assert max(after.values()) <= 2
    world = World.of(path)
    assert world.as_dict() == {f"page-{n}": {"text": f"about page-{n}", "seen": f"seen page-{n}"} for n in range(3)}
    assert world.hash in resumed.stdout
    assert pending_requests(path) == []

    replayed = tracekit("replay", path.stem)
    assert replayed.returncode == 0, replayed.stderr
    assert f"{world.hash} 0.0" in replayed.stdout
    assert Counter(effects.read_text().splitlines()) == after
