"""An agent that settles an order: ordinary code, as you would write it.

It asks OpenAI and Anthropic models (streaming and not, one after another and at once), uses tools that look, reserve
and charge, reads the clock and draws random numbers. tracekit appears in it as three decorators. `tracekit demo`
puts a copy of this file into a directory of its own and runs it from there; `play.py` beside it records and replays it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI

from tracekit import traced_tool

MODEL = os.environ.get("DEMO_MODEL", "scripted")
CLAUDE = os.environ.get("DEMO_CLAUDE")  # the model to ask through the Anthropic SDK, if any
LEDGER = Path("ledger.jsonl")  # the outside world: what is written here can't be taken back
STOCK = Path("stock.json")

ORDERS = {
    "A-1042": {"sku": "KETTLE-7", "quantity": 2, "amount_cents": 7980, "customer": "Ada Quist"},
    "A-1043": {"sku": "LAMP-3", "quantity": 1, "amount_cents": 4550, "customer": "Ole Brandt"},
}


# -- tools ------------------------------------------------------------------------------------------


@traced_tool(side_effect="read_only")
def look_up_order(order_id: str) -> dict[str, Any]:
    """What was ordered, for how much, and by whom."""
    return {"order_id": order_id, **ORDERS[order_id]}


@traced_tool(side_effect="reversible")
def reserve_stock(sku: str, quantity: int) -> dict[str, Any]:
    """Reserve goods; a reservation can be cancelled."""
    reserved = json.loads(STOCK.read_text()) if STOCK.exists() else {}
    reserved[sku] = reserved.get(sku, 0) + quantity
    STOCK.write_text(json.dumps(reserved))
    return {"sku": sku, "reserved": reserved[sku]}


@traced_tool(side_effect="irreversible", version="1.0")
def charge_card(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Take the money. Each call adds a line to the ledger, and none can be taken out again."""
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"order_id": order_id, "amount_cents": amount_cents}) + "\n")
    return {"charged": amount_cents, "charges_so_far": len(LEDGER.read_text().splitlines())}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {
    "look_up_order": look_up_order,
    "reserve_stock": reserve_stock,
    "charge_card": charge_card,
}

_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}


def described(tool: str, **arguments: dict[str, str]) -> Any:
    """A tool's description for the chat completions API."""
    schema = {"type": "object", "properties": arguments, "required": list(arguments)}
    function = {"name": tool, "description": TOOLS[tool].__doc__, "parameters": schema}
    return {"type": "function", "function": function}


OFFERED = [
    described("look_up_order", order_id=_TEXT),
    described("reserve_stock", sku=_TEXT, quantity=_WHOLE),
    described("charge_card", order_id=_TEXT, amount_cents=_WHOLE),
]


# -- the agent ------------------------------------------------------------------------------------------


def handle(order_id: str) -> dict[str, Any]:
    """Settle one order and inform everybody; returns all answers, clock readings and random numbers."""
    started, begun = datetime.now(), time.time()
    ticket, gate = uuid.uuid4(), random.randint(1, 6)
    result: dict[str, Any] = {
        "ticket": str(ticket),
        "gate": gate,
        "started": started.isoformat(),
        "settled": settle(order_id, gate),
        "letter": write_letter(order_id),
        "forecasts": asyncio.run(ask_for_forecasts(["Lund", "Graz", "Tartu", "Porto"])),
    }
    if CLAUDE:
        result["review"], result["note"] = review(order_id, CLAUDE), write_note(order_id, CLAUDE)
    result["seconds"] = time.time() - begun
    return result


def settle(order_id: str, gate: int) -> dict[str, Any]:
    """The tool loop: ask, call the tools that the model asks for, pass it their results, until it answers in words."""
    messages: list[Any] = [
        {"role": "system", "content": "You settle orders: look the order up, reserve the stock, charge the card once."},
        {"role": "user", "content": f"Please settle order {order_id}. The courier waits at gate {gate}."},
    ]
    calls: list[str] = []
    with OpenAI() as client:
        for _ in range(8):
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=OFFERED)
            message = answer.choices[0].message
            if not message.tool_calls:
                return {"said": message.content, "calls": calls}
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                if call.type != "function":
                    continue
                done = TOOLS[call.function.name](**json.loads(call.function.arguments))
                calls.append(call.function.name)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(done)})
    return {"said": None, "calls": calls}


def write_letter(order_id: str) -> list[str]:
    """A streamed answer: printed piece by piece as it comes."""
    prompt = f"Write one friendly sentence to the customer of order {order_id}."
    chunks = []
    with OpenAI() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], stream=True, max_tokens=60
        )
        for event in stream:
            piece = event.choices[0].delta.content if event.choices else None
            if piece:
                print(piece, end="", flush=True)
                chunks.append(piece)
    print()
    return chunks


async def ask_for_forecasts(towns: list[str]) -> list[str | None]:
    """Several questions at once; their answers come back in any order."""
    async with AsyncOpenAI() as client:

        async def ask(town: str) -> str | None:
            question = f"How is the weather on the road to {town}? Answer in one short sentence."
            answer = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=40
            )
            return answer.choices[0].message.content

        return list(await asyncio.gather(*map(ask, towns)))


def review(order_id: str, model: str) -> str:
    """A question through the Anthropic SDK, with one whole answer."""
    from anthropic import Anthropic

    question = f"Is the invoice of order {order_id} correct? Answer in one short sentence."
    with Anthropic() as client:
        answer = client.messages.create(model=model, max_tokens=60, messages=[{"role": "user", "content": question}])
    return "".join(block.text for block in answer.content if block.type == "text")


def write_note(order_id: str, model: str) -> list[str]:
    """And a streamed one."""
    from anthropic import Anthropic

    question = f"Write a note of one sentence for the driver of order {order_id}."
    chunks = []
    with (
        Anthropic() as client,
        client.messages.stream(model=model, max_tokens=60, messages=[{"role": "user", "content": question}]) as stream,
    ):
        for piece in stream.text_stream:
            print(piece, end="", flush=True)
            chunks.append(piece)
    print()
    return chunks
