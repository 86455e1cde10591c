"""Runs of real SDKs that were cut off anywhere go on: answered calls are not asked again, the others are, and all of it replays."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.cut import cut
from tests.support.depth import examples
from tests.support.stub_provider import stub_provider
from tests.support.tracing import entries
from tracekit import record, recovery, replay, resume, traced_tool

done: list[int] = []


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> str:
    done.append(cents)
    return f"paid {cents}"


def program(url: str) -> Any:
    """Calls at once, a stream, another SDK, and an effect that hangs on their answers."""

    def said(text: str) -> Any:
        return {"model": "m", "messages": [{"role": "user", "content": text}]}

    async def together() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k") as client:

            async def one(n: int) -> Any:
                first = await client.chat.completions.create(**said(f"first {n}"))
                text = first.choices[0].message.content
                return (await client.chat.completions.create(**said(f"then {text}"))).choices[0].message.content

            return await asyncio.gather(*(one(n) for n in range(3)))

    found = asyncio.run(together())
    with openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
        stream = client.chat.completions.create(**said("a stream"), stream=True)
        found.append([chunk.choices[0].delta.content for chunk in stream if chunk.choices])
    with anthropic.Anthropic(base_url=url, api_key="k") as other:
        found.append(other.messages.create(max_tokens=9, **said(str(found[-1]))).content[0].text)  # type: ignore[union-attr]
    return [*found, pay(len(str(found)))]


@pytest.mark.usefixtures("instrumented")
def test_cut_off_anywhere(tmp_path: Path) -> None:
    """At each entry: calls with an answer in the log are not asked again, each other one once; nothing is paid twice."""
    with stub_provider() as stub:
        with record("agents") as run:
            run.set_result(program(stub.url))
        whole = entries(run)
        resumed = 0
        for count in random.Random(11).sample(range(2, len(whole)), examples(40)):
            store = tmp_path / str(count)
            path = cut(run, count, store)
            [decision] = recovery.scan(store)
            prefix = whole[:count]
            payments = [e for e in prefix if e["type"] == "tool.call"]
            if decision.decision == "abort":
                assert payments or any(e["type"] == "llm.chunk" for e in prefix), decision.reasons
                continue
            resumed += 1
            done.clear()
            before = sum(stub.requests.values())
            with resume(path, store=store) as again:
                again.set_result(program(stub.url))
            answered = sum(e["type"] == "llm.response" for e in prefix)
            assert sum(stub.requests.values()) - before == 8 - answered
            assert len(done) + len(payments) == 1
            with replay(path, store=store) as session:
                session.set_result(program("http://127.0.0.1:9"))
            assert session.report.exact, (count, session.report.as_dict())
            assert sum(stub.requests.values()) - before == 8 - answered
        assert resumed > examples(14)
