"""A support agent: it looks an order up, asks the refund policy, and pays a refund, which nobody can take back.

python agent.py "Where is order A-1042?"
"""

from __future__ import annotations

import json
import os
import sys
from datetime import date

from openai import OpenAI

from tracekit import policy_check, traced_tool

ORDERS = {
    "A-1042": {"status": "lost", "cents": 4200, "customer": "Ada"},
    "B-7": {"status": "delivered", "cents": 190_000, "customer": "Bob"},
}
LIMIT = 10_000  # cents; more needs a person


@traced_tool(side_effect="read_only")
def look_up_order(order: str) -> dict:
    """The order's status and price in cents."""
    return {"order": order, **ORDERS.get(order, {"status": "unknown", "cents": 0})}


# Made once for an order, however often the model asks for it; its intent is on the disk before it starts.
@traced_tool(side_effect="irreversible", exactly_once=True, idempotency_key="order")
def pay_refund(order: str, cents: int) -> str:
    """Send the money back."""
    print(f"(payment provider: {cents / 100:.2f} EUR go back for {order})")
    return f"refunded {cents} cents of {order}"


def refund(order: str) -> str:
    """Refund an order if the policy allows it."""
    cents = look_up_order(order)["cents"]
    decision = "allow" if 0 < cents <= LIMIT else "deny"
    policy_check("refund", input={"action": "refund", "order": order, "cents": cents}, output={"decision": decision})
    return pay_refund(order, cents) if decision == "allow" else f"{order} was not refunded: a person has to look at it"


TOOLS = {"look_up_order": look_up_order, "refund": refund}
ONE_ORDER = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
OFFERED = [
    {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": ONE_ORDER}}
    for name, tool in TOOLS.items()
]


def answer(question: str) -> str:
    client = OpenAI()
    model = os.environ.get("MODEL", "gpt-4o-mini")
    messages: list = [
        {"role": "system", "content": f"You answer customers of a shop, briefly. Today is {date.today()}."},
        {"role": "user", "content": question},
    ]
    while True:
        completion = client.chat.completions.create(model=model, messages=messages, tools=OFFERED)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


if __name__ == "__main__":
    print(answer(" ".join(sys.argv[1:]) or "Where is order A-1042?"))
