"""A research agent: it lets the model plan searches, makes them side by side, and streams an answer from what they found.

python agent.py "Why do honey bees dance?"
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import date

import anthropic
import httpx

PLAN = "List three short search queries for this question, as a JSON array of strings and nothing else: {question}"
WRITE = "Today is {today}. Answer in three sentences, from these notes only.\n\nQuestion: {question}\n\n{notes}"


async def search(client: httpx.AsyncClient, query: str) -> str:
    """The first results for a query, as text. A plain GET: tracekit records it as a step, and a replay answers it."""
    where = os.environ.get("SEARCH_URL", "https://en.wikipedia.org/w/rest.php/v1/search/page")
    answer = await client.get(where, params={"q": query, "limit": 2})
    answer.raise_for_status()
    return "\n".join(f"- {page['title']}: {page['description']}" for page in answer.json()["pages"])


async def research(question: str) -> str:
    model = os.environ.get("MODEL", "claude-opus-4-6")
    async with anthropic.AsyncAnthropic() as claude, httpx.AsyncClient() as client:
        plan = await claude.messages.create(
            model=model, max_tokens=200, messages=[{"role": "user", "content": PLAN.format(question=question)}]
        )
        queries = json.loads(plan.content[0].text)
        # In a replay they end in the order in which they ended when this was recorded.
        notes = await asyncio.gather(*(search(client, query) for query in queries))
        prompt = WRITE.format(today=date.today(), question=question, notes="\n".join(notes))
        text = ""
        async with claude.messages.stream(
            model=model, max_tokens=500, messages=[{"role": "user", "content": prompt}]
        ) as stream:
            async for piece in stream.text_stream:
                text += piece
        return text


if __name__ == "__main__":
    print(asyncio.run(research(" ".join(sys.argv[1:]) or "Why do honey bees dance?")))
