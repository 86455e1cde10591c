"""The real SDKs' first request of a process, under the guard: nothing but the connection itself is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    """Guarded from a process's first line, dry run included, an SDK's own probes pass; a connection does not."""
    program = COMMON.format(sdk=sdk, mode=mode) + (ANSWERED if ending == "answered" else REFUSED)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr[-3000:]


IDLE = """
import sys, tracekit._capture.guard as guard
assert not guard._hooked
sys.audit("tracekit.test")
with guard.Guard():
    pass
assert guard._hooked and guard._events == {} and guard.guard_seams._live == []
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
"""


def test_idle_guard_is_an_empty_table() -> None:
    """Importing the guard adds no audit hook (it can't be taken away again); once released, its table is empty."""
    subprocess.run([sys.executable, "-c", IDLE], check=True)


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
    """uvloop connects below Python; imported after the guard closed, it is refused all the same."""
    result = subprocess.run([sys.executable, "-c", LATE_UVLOOP], capture_output=True, text=True, check=True)
    assert result.stdout == "uvloop.create_connection\n"
