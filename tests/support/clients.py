"""The SDKs of providers, with all that they import when a first client is made and asked: what a warm interpreter imports for the programs
that ask one. See :mod:`tests.support.processes`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib

import anthropic
import openai


def _made() -> None:
    """Nobody is asked."""
    nowhere = "http://127.0.0.1:9"
    with (
        openai.OpenAI(api_key="none", base_url=nowhere) as gpt,
        anthropic.Anthropic(api_key="none", base_url=nowhere) as claude,
    ):
        assert gpt.chat.completions
        assert gpt.responses
        assert claude.messages


async def _made_asynchronously() -> None:
    nowhere = "http://127.0.0.1:9"
    async with (
        openai.AsyncOpenAI(api_key="none", base_url=nowhere) as gpt,
        anthropic.AsyncAnthropic(api_key="none", base_url=nowhere) as claude,
    ):
        assert gpt.chat.completions
        assert gpt.responses
        assert claude.messages


_made()
asyncio.run(_made_asynchronously())
#: What a run imports when it has such a client, and a replay to say what was saved.
for _name in (
    "encodings.idna", "concurrent.futures.thread", "genai_prices.data", "genai_prices.data_snapshot", "genai_prices.data_units",
    "tracekit_aiohttp._connection", "tracekit_aiohttp._requests", "tracekit_http_client._connection",
    "tracekit_httpx._async", "tracekit_httpx._sync",
):  # fmt: skip
    importlib.import_module(_name)
with contextlib.suppress(ImportError):
    importlib.import_module("opentelemetry.propagate")
