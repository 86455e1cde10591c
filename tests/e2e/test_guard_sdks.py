"""The first request of a process by a real SDK under the guard: only the connection itself is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import SDKS, python

COMMON = """
import asyncio, sys
from tracekit._capture.guard import Guard
from tracekit.errors import LiveCallBlockedError

told = []
guard = Guard(dry_run=True, failed=told.append)
guard.engage()  # before the program's first line, as the command line does it
import {sdk} as sdk, httpx2

ANSWERS = {{
    "openai": {{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {{"index": 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": "hello"}}}}]}},
    "anthropic": {{"id": "x", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{{"type": "text", "text": "hello"}}], "usage": {{"input_tokens": 1, "output_tokens": 1}}}},
}}

def answer(request):
    assert request.headers["user-agent"]
    return httpx2.Response(200, json=ANSWERS["{sdk}"])

def ask(client):
    messages = [dict(role="user", content="hi")]
    if "{sdk}" == "openai":
        return client.chat.completions.create(model="m", messages=messages)
    return client.messages.create(model="m", max_tokens=5, messages=messages)

def clients(url, transport=None):
    common = dict(api_key="k", base_url=url, max_retries=1)
    if "{mode}" == "sync":
        return (sdk.OpenAI if "{sdk}" == "openai" else sdk.Anthropic)(
            **common, http_client=httpx2.Client(transport=transport))
    return (sdk.AsyncOpenAI if "{sdk}" == "openai" else sdk.AsyncAnthropic)(
        **common, http_client=httpx2.AsyncClient(transport=transport))

def run(url, transport=None):
    if "{mode}" == "sync":
        with clients(url, transport) as client:
            return ask(client)

    async def main():
        async with clients(url, transport) as client:
            return await ask(client)

    return asyncio.run(main())
"""

ANSWERED = """
assert "hello" in str(run("http://x.test", httpx2.MockTransport(answer)))
assert told == [], told
"""

REFUSED = """
for url, kind in (("http://127.0.0.1:9", "connect"), ("https://api.example.test", "lookup")):
    try:
        run(url)
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):  # the task group that asyncio clients connect in
            (error,) = error.exceptions
        assert isinstance(error, LiveCallBlockedError), repr(error)
        assert error.kind == kind, error
        assert "<string>" in error.location, error
    else:
        raise SystemExit("was not refused")
assert [error.kind for error in told] == ["connect", "lookup"], told  # no retry of a refusal either
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
@pytest.mark.parametrize("ending", ["answered", "refused"])
def test_first_request_of_a_process(sdk: str, mode: str, ending: str) -> None:
    """Guarded from a process's first line, dry run included, an SDK's own probes pass; a connection does not.

    The process with the synchronous client, which is answered, imports the SDK as well; the others find that done.
    """
    program = COMMON.format(sdk=sdk, mode=mode) + (ANSWERED if ending == "answered" else REFUSED)
    done = python("-c", program, timeout=60, fresh=(ending, mode) == ("answered", "sync"), imports=SDKS)
    assert done.returncode == 0, done.stderr[-3000:]


AFTERWARDS = """
import gc, sys, tracekit, tracekit.agents
# They hand out half-made objects of other threads, which then can't go on making them.
gc.get_objects = gc.get_referrers = None
from tracekit import record, replay, traced_tool

# `sys.audit` looks at its argument only where somebody listens: without any hook this is no TypeError.
def audited() -> bool:
    try:
        sys.audit(0)
    except TypeError:
        return True
    return False

others = []
if {others}:
    sys.addaudithook(lambda event, args: others.append(event) if event == "ours" else None)

@traced_tool(side_effect="read_only")
def ask(question: str) -> int:
    return len(question)

with record("r") as run:
    ask("?")
    assert audited() is {others}, "a recording listens"
assert audited() is {others}
for _ in range(3):
    with replay(run.id):
        assert audited()
        ask("?")
    assert audited() is {others}, "a replay that is over still listens"

@tracekit.agents.responder("object.created")
def note(event):
    assert audited(), "a responder is watched"

with record("loop"):
    tracekit.agents.Loop([note], world=tracekit.agents.World()).run(tracekit.agents.create("page", {{"url": "a"}}))
assert audited() is {others}
sys.audit("ours")
assert others == ["ours"] * {others}
"""


@pytest.mark.parametrize("others", [False, True])
def test_nothing_listens_afterwards(others: bool, tmp_path: Path) -> None:
    """After the last recording or replay of a process, the interpreter's operations are audited no more than before, so
    that `id()`, `deepcopy` and `open` cost what they did, and other audit hooks still work."""
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    subprocess.run([sys.executable, "-c", AFTERWARDS.format(others=others)], check=True, env=environment, timeout=60)


BESIDE_THREADS = """
import os, socket, sys, threading
from tracekit._capture.guard import Guard
from tracekit.errors import LiveCallBlockedError

sys.setswitchinterval(1e-5)
heard, over = [], threading.Event()

def busy():
    while not over.is_set():
        with open(os.devnull) as stream:
            stream.read()

def hooking():
    for number in range(20):
        sys.addaudithook(lambda event, _args, mine=f"test.{number}": event == mine and heard.append(event))
        over.wait(0.001)

threads = [threading.Thread(target=work) for work in (busy, busy, hooking)]
for thread in threads:
    thread.start()
refused = 0
for _ in range(100):
    with Guard():
        try:
            socket.getaddrinfo("example.test", 80)
        except LiveCallBlockedError:
            refused += 1
over.set()
for thread in threads:
    thread.join()
for number in range(20):
    sys.audit(f"test.{number}")
assert refused == 100, refused
assert heard == [f"test.{number}" for number in range(20)], heard
"""


def test_guards_come_and_go_beside_other_threads() -> None:
    """While other threads open files and add audit hooks, each guard refuses what it should, and no hook is lost."""
    subprocess.run([sys.executable, "-c", BESIDE_THREADS], check=True, timeout=60)


PROBES = """
import ctypes.util, platform
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def look():
    return 1

def program():
    look()
    platform._uname_cache = None
    platform.uname().processor
    ctypes.util.find_library("c")

with record("probes") as run:
    program()
assert run.warnings == [], run.warnings
with replay(run.id) as session:
    program()
assert session.report.exact
"""


def test_probes_of_the_interpreter_are_no_processes_of_the_program(tmp_path: Path) -> None:
    """`uname -p`, `ldconfig` and the like, which libraries run when they are imported, do not count among the processes
    of a run, which can still be replayed and resumed."""
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBES], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


LATE_UVLOOP = """
import asyncio
from tracekit._capture.guard import Guard
from tracekit.errors import LiveCallBlockedError
with Guard():
    import uvloop
    try:
        uvloop.run(asyncio.open_connection("127.0.0.1", 9))
    except LiveCallBlockedError as error:
        print(error.operation)
assert "create_connection" not in vars(uvloop.Loop)
"""


def test_uvloop_imported_under_the_guard() -> None:
    """uvloop connects below Python, and is refused even if it is imported after the guard began."""
    result = subprocess.run([sys.executable, "-c", LATE_UVLOOP], capture_output=True, text=True, check=True)
    assert result.stdout == "uvloop.create_connection\n"
