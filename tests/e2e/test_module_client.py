"""A service uses one SDK client for the whole process: its first request and every later one replay alone, in a fresh
process."""

from __future__ import annotations

import pytest

from tests.support import processes
from tests.support.place import Place
from tests.support.stub_provider import stub_provider

SERVICE = """
import asyncio, json, os, sys
import httpx2
from {sdk} import {client}
from tracekit import instrument, record

instrument()
# No connection outlives its event loop: what a pool does with those of another loop is its own affair.
client = {client}(
    base_url=os.environ["PROVIDER"], api_key=os.environ.get("KEY", "no key"),
    http_client=httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0)),
)

async def call(question):
    messages = [{{"role": "user", "content": question}}]
    return (await client.{create}(messages=messages)).id

async def polled(question):
    polls, task = 0, asyncio.create_task(call(question))
    while not task.done():
        polls += 1
        await asyncio.sleep(0)
    return [task.result(), polls]

@record("request")
async def ask(question):
    both = await asyncio.gather(call(question + " 1"), polled(question + " 2"))
    print(json.dumps(both), flush=True)
    return both

async def serve(questions):
    for question in questions:
        await ask(question)

if __name__ == "__main__":
    asyncio.run(serve(["first", "second"]))
    asyncio.run(serve(["in another loop", "and again"]))
"""
SDKS = {
    "openai": ("AsyncOpenAI", 'chat.completions.create(model="gpt-stub", ', "/v1"),
    "anthropic": ("AsyncAnthropic", 'messages.create(model="claude-stub", max_tokens=9, ', ""),
}


@pytest.mark.parametrize("sdk", SDKS)
def test_each_request_of_a_service_replays_alone(tmp_path_factory: pytest.TempPathFactory, sdk: str) -> None:
    """Recorded with a client that was new, and with one that had looked up its platform, in two event loops of one process: each request
    is replayed by ``--entry`` in a new process with a new client, and together in a process that has made the others, exactly."""
    place = Place(tmp_path_factory.mktemp(sdk), imports=processes.SDKS)
    client, create, path = SDKS[sdk]
    create, _, options = create.partition("(")
    source = SERVICE.format(sdk=sdk, client=client, create="CREATE").replace("CREATE(", f"{create}({options}")
    script = place.program(source, "service.py")
    with stub_provider() as provider:
        recorded = place.python(script, PROVIDER=provider.url + path, KEY="sk-module-client-0123456789")
    assert recorded.returncode == 0, recorded.stderr
    seen = recorded.stdout.splitlines()
    assert len({*seen}) == len(place.runs) == 4
    gone = {"PROVIDER": "http://127.0.0.1:9" + path}
    for run, line in zip(place.runs, seen, strict=True):
        replayed = place.cli("replay", run.stem, "--entry", "service:ask", **gone)
        assert (replayed.returncode, replayed.stdout.splitlines()[:1]) == (0, [line]), replayed.stderr
    whole = place.cli("replay", place.runs[-1].stem, "--", script, **gone)
    assert (whole.returncode, whole.stdout.splitlines()) == (0, seen), whole.stderr
    again = place.program(AGAIN.format(runs=[run.stem for run in place.runs]), "again.py")
    warm = place.python(again, **gone)
    assert (warm.returncode, warm.stdout.splitlines()) == (0, seen), warm.stderr


AGAIN = """
import asyncio
from service import ask
from tracekit import replay

for run, question in zip({runs!r}, ["first", "second", "in another loop", "and again"]):
    with replay(run) as session:
        asyncio.run(ask.__wrapped__(question))
    assert session.report.exact, session.report.as_dict()
"""
