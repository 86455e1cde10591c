"""The first call of each SDK in a fresh process, recorded and then replayed under the guard, with the server gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tracekit
from tests.support.processes import SDKS, python
from tests.support.stub_provider import stub_provider

PROGRAM = """
import asyncio, sys
from {sdk} import {client}

ASK = [{{"role": "user", "content": "Hello"}}]

def made(kind):
    return kind(base_url=sys.argv[1]{suffix}{key})

def call(client):
    {call}

async def asynchronous():
    async with made({client}) as client:
        return (await call(client)).id

if "Async" in "{client}":
    print(asyncio.run(asynchronous()))
else:
    with made({client}) as client:
        print(call(client).id)
"""
CALLS = {
    "openai": 'return client.chat.completions.create(model="gpt-stub", messages=ASK)',
    "anthropic": 'return client.messages.create(model="claude-stub", max_tokens=9, messages=ASK)',
}


def cli(place: Path, *arguments: str, fresh: bool, **keys: str) -> subprocess.CompletedProcess[str]:
    packages = [str(Path(tracekit.__file__).parents[1]), str(Path(__file__).parents[2] / "integrations")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "TRACEKIT_DIR": str(place / "store"), **keys}
    line = ("-c", "from tracekit.cli import main; main()", *arguments)
    return python(*line, cwd=place, env=environment, timeout=100, fresh=fresh, imports=SDKS)


@pytest.mark.parametrize(
    ("sdk", "client"),
    [("openai", "OpenAI"), ("openai", "AsyncOpenAI"), ("anthropic", "Anthropic"), ("anthropic", "AsyncAnthropic")],
)
def test_the_first_call_of_a_process(tmp_path: Path, sdk: str, client: str) -> None:
    """No key set, no network, no file written: imports, the SDK's own probes and the first answer pass all the same.

    The imports are those of the first client; the other's process finds them done, and nothing else.
    """
    fresh = not client.startswith("Async")
    suffix = ' + "/v1"' if sdk == "openai" else ""
    program = PROGRAM.format(sdk=sdk, client=client, suffix=suffix, call=CALLS[sdk], key="")
    (tmp_path / "agent.py").write_text(program)
    with stub_provider() as provider:
        keys = {"OPENAI_API_KEY": "sk-first-call-0123456789", "ANTHROPIC_API_KEY": "sk-ant-first-call-0123456789"}
        recorded = cli(tmp_path, "run", "agent.py", provider.url, fresh=fresh, **keys)
    assert recorded.returncode == 0, recorded.stderr
    (trace,) = (tmp_path / "store" / "runs").glob("*.jsonl")
    before = trace.read_bytes()
    replayed = cli(tmp_path, "replay", trace.stem, "--no-writes", fresh=fresh)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert trace.read_bytes() == before
    assert b"first-call-0123456789" not in before


def test_a_token_instead_of_a_key(tmp_path: Path) -> None:
    """A program that signed in with the other credential that its SDK accepts, and with no key, is replayed without either."""
    program = PROGRAM.format(sdk="anthropic", client="Anthropic", suffix="", call=CALLS["anthropic"], key="")
    (tmp_path / "agent.py").write_text(program)
    with stub_provider() as provider:
        token = {"ANTHROPIC_AUTH_TOKEN": "token-first-call-0123456789"}
        recorded = cli(tmp_path, "run", "agent.py", provider.url, fresh=False, **token)
    assert recorded.returncode == 0, recorded.stderr
    (trace,) = (tmp_path / "store" / "runs").glob("*.jsonl")
    replayed = cli(tmp_path, "replay", trace.stem, fresh=False)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert b"first-call-0123456789" not in trace.read_bytes()
