"""Talks to an OpenAI-compatible server at temperature 1: ``python -m tests.llama.agent RUN STORE CHAT_URL EMBEDDINGS_URL``.

As a program it replays ``RUN`` and prints what it saw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tracekit
from tracekit import replay, traced_tool


@traced_tool(side_effect="read_only")
def measure(city: str) -> int:
    """The weather: not the same twice, and not for a replay to ask."""
    import secrets

    return secrets.randbelow(1000)


def converse(chat_url: str, embeddings_url: str) -> dict[str, Any]:
    """A conversation of three turns with a tool's answer in it, one of them streamed, and two embeddings."""
    from openai import OpenAI

    seen: dict[str, Any] = {}
    with OpenAI(base_url=f"{chat_url}/v1", api_key="none", timeout=120) as client:
        messages: list[Any] = [{"role": "user", "content": "Name an animal, and say in one sentence what it eats."}]
        first = client.chat.completions.create(model="smollm2", messages=messages, temperature=1.0, max_tokens=40)
        seen["chat"] = first.model_dump(mode="json")
        messages.append({"role": "assistant", "content": first.choices[0].message.content})
        messages.append({"role": "user", "content": f"It is {measure('Oslo')} degrees. Write a short poem about that."})
        stream = client.chat.completions.create(
            model="smollm2", messages=messages, temperature=1.0, max_tokens=40, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk.model_dump(mode="json") for chunk in stream]
        seen["chunks"] = chunks
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        seen["text"] = text
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": "Now a title for it."})
        last = client.chat.completions.create(
            model="smollm2", messages=messages, temperature=1.0, max_tokens=12, logprobs=True
        )
        seen["title"] = last.model_dump(mode="json")
    with OpenAI(base_url=f"{embeddings_url}/v1", api_key="none", timeout=120) as client:
        vectors = client.embeddings.create(model="smollm2", input=[text or "nothing", "another"])
        seen["embeddings"] = [item.embedding for item in vectors.data]
    return seen


def main() -> None:
    run, store, *urls = sys.argv[1:]
    tracekit.instrument()
    with replay(run, store=store) as session:
        seen = converse(*urls)
    json.dump({"seen": seen, "exact": session.report.exact}, sys.stdout)


if __name__ == "__main__":
    main()
