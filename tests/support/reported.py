"""A run that has one of each thing that a report shows, and what a hostile trace would put in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import tracekit
from tracekit import decision, record, traced, traced_model, traced_tool

__all__ = ["HOSTILE", "conversation", "hostile", "shop"]

#: Texts that would end a script, begin one, load something, turn the text around them, or be no text at all.
HOSTILE: Final = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "]]></style><style>*{display:none}</style>",
    "&lt;b&gt; &amp;",
    "line\u2028separator\u2029and \u202eturned\u202c",
    "\x01" + "0",
    "\x02" + "7",
    "\ud800 alone",
    "javascript:document.title='owned'",
    "a\x00b\x1b[31m\x9b",
    "{{constructor.constructor('return 1')()}}${document.title='owned'}",
)


@traced_tool(side_effect="read_only")
def look_up(order: str) -> dict[str, Any]:
    return {
        "order": order,
        "lines": ["kettle", "cup"],
        "note": "leave it\nat the gate\n" * 3,
        "weight": 1.0,
        "id": 2**63 + 1,
    }


@traced_tool(side_effect="irreversible")
def charge(order: str, cents: int) -> str:
    if cents < 0:
        raise ValueError(f"{cents} is no amount")
    return f"receipt of {order}"


@traced_model(model="tiny-1")
def ask(messages: list[Any], temperature: float = 0.0) -> str:
    return f"answer to {len(messages)}: {messages[-1]['content'][:40]}"


@traced_model(model="tiny-1")
def write(prompt: str) -> Iterator[str]:
    yield from ("Dear ", "customer, ", "it is on its way.")


def conversation(turns: int, of: str = "order") -> None:
    """A conversation that grows, whose system prompt is changed in the middle, and of which the oldest turn is dropped at the end."""
    messages = [{"role": "system", "content": "You are brief.\nYou are kind.\nYou never guess."}]
    for turn in range(turns):
        if turn == turns // 2:
            messages[0] = {"role": "system", "content": "You are brief.\nYou are precise.\nYou never guess."}
        if turn == turns - 1 and turns > 3:
            del messages[1:3]
        messages.append({"role": "user", "content": f"question {turn} on {of} " + "with a long story " * 6})
        messages.append({"role": "assistant", "content": ask([*messages])})


def shop(store: Path, *, cents: int = 7980, turns: int = 4, name: str = "shop") -> Any:
    """Record it: a conversation, tools, a failure that is caught, a stream, threads, a decision, an agent; returns the run."""
    with record(name, store=store, input={"order": "A-1042"}) as run:
        decision("route", input=["fast", "slow"], output="fast")
        conversation(turns)
        with tracekit.agent("biller"):
            traced(name="billing")(lambda: (look_up("A-1042"), charge("A-1042", cents)))()
        try:
            charge("A-1042", -1)
        except ValueError:
            pass
        _beside(lambda: look_up("B-7"), "stock")
        _beside(lambda: conversation(2, "the courier"), "courier")
        run.set_result({"letter": [*write("Write to the customer")]})
    return run


def hostile(store: Path) -> Any:
    """Record a run that has these texts wherever a trace can have one; returns the run."""
    with record(HOSTILE[0], store=store, input=list(HOSTILE)) as run:
        for number, text in enumerate(HOSTILE):
            printable = text.encode("utf-8", "replace").decode()

            @traced_tool(side_effect="read_only", name=printable)
            def tool(**given: Any) -> Any:
                if given["number"] % 3 == 2:
                    raise ValueError(given["text"])
                return [given, given["text"] * 50]

            try:
                tool(number=number, text=text, **{f"key {printable}": {text: text}, "__proto__": text})
            except ValueError:
                pass
            decision(printable, input=text, output={text: [text]})
            ask(
                [
                    {"role": printable, "content": printable},
                    {"role": "tool", "tool_call_id": printable, "content": printable},
                ]
            )
            with tracekit.agent(printable):
                _beside(lambda: look_up("x"), printable)
        run.set_result(list(HOSTILE))
    return run


def _beside(work: Callable[[], object], name: str) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
