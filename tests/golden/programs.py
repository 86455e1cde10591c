"""The programs that the golden traces are recordings of. A program here is never changed: add another beside it.

``python -c "from tests.golden import programs; programs.main()"`` records those that have no trace yet, and adds them to ``HASHES``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import hashlib
import os
import random
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracekit import agent, breaker, decision, detection, policy_check, record, state_transition, traced, traced_model, traced_tool
from tracekit.harness import TracedLLMClient, TracedToolClient, TraceWriter
from tracekit.testing import ScriptedModel, ToolUse

HERE = Path(__file__).parent
HASHES = HERE / "HASHES"
VERSION = "v1"


@dataclasses.dataclass(frozen=True)
class Receipt:
    number: uuid.UUID
    amount: decimal.Decimal
    when: datetime.datetime
    raw: bytes


@traced_tool(side_effect="irreversible", name="golden.pay", version="2.1", config={"region": "eu"})
def pay(amount: decimal.Decimal, to: str = "acme") -> Receipt:
    return Receipt(uuid.uuid4(), amount, datetime.datetime.now(datetime.UTC), os.urandom(8))


@traced_tool(side_effect="reversible", name="golden.book")
def book(lines: list[str]) -> tuple[int, set[str]]:
    return len(lines), set(lines)


@traced_tool(side_effect="read_only", name="golden.look")
def look(what: str) -> dict[Any, Any]:
    return {"what": what, 1: float("inf"), "big": 2**70, "text": "ü" * 700}


@traced_tool(side_effect="read_only", name="golden.fail")
def fail(why: str) -> None:
    raise LookupError(why, 7)


@traced_model(model="golden-model", parameters={"temperature": 0.5}, version="2026-11")
def speak(prompt: str) -> Iterator[str]:
    yield from (f"{prompt} {os.urandom(2).hex()}" for _ in range(3))


@traced("golden.phase")
def phase() -> str:
    return str(look("inside")["what"])


def tools() -> list[Any]:
    """Every shape of step, every class of effect, values of many types."""
    seen: list[Any] = [
        pay(decimal.Decimal("12.50")),
        book(["a", "b", "a"]),
        look("outside"),
        "".join(speak("hello")),
        phase(),
    ]
    try:
        fail("no such thing")
    except LookupError as error:
        seen.append([type(error).__name__, *error.args])
    with agent("planner", identity={"spiffe_id": "spiffe://acme/planner"}):
        seen.append(decision("golden.plan", input={"seen": len(seen)}, output=["go"]))
        policy_check("golden.policy", input={"action": "pay"}, output={"decision": "allow"}, bundle="7")
        breaker("golden.breaker", output="closed")
        detection("golden.filter", input="text", output={"score": 0.25})
        state_transition("golden.order", from_="open", to="paid")
    return seen


def reads() -> list[Any]:
    """Clocks and dice, by names and by objects."""
    dice = random.Random()
    return [
        time.time(),
        time.time(),
        time.monotonic_ns(),
        datetime.datetime.now(),
        datetime.date.today(),
        random.random(),
        random.choice("abcdef"),
        dice.randint(1, 10**9),
        str(uuid.uuid4()),
        os.urandom(4).hex(),
    ]


def threads() -> list[Any]:
    """Three threads that call the same tools, each with answers of its own."""
    answers: list[Any] = [None] * 3

    def work(number: int) -> None:
        answers[number] = [look(f"worker {number}")["what"], pay(decimal.Decimal(number)), "".join(speak("again"))]

    workers = [threading.Thread(target=work, args=(number,), name=f"worker-{number}") for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return answers


def conversation() -> list[Any]:
    """A history that grows, so that messages and lists are interned."""
    history: list[dict[str, str]] = []

    @traced_model(model="golden-chat")
    def chat(messages: list[dict[str, str]]) -> str:
        return f"answer {len(messages)} " + os.urandom(300).hex()

    for turn in range(5):
        history.append({"role": "user", "content": f"question {turn} " + "why " * 300})
        history.append({"role": "assistant", "content": chat(history)})
    return [message["content"] for message in history]


def history() -> list[Any]:
    """A history that grows, is sent twice, is cut, and has a message exchanged: lists that extend others, and refer to them."""

    @traced_model(model="golden-history")
    def chat(messages: list[dict[str, str]], tools: list[dict[str, str]]) -> str:
        return f"answer {len(messages)} " + os.urandom(300).hex()

    tools = [{"name": name, "description": f"what {name} does " * 30} for name in ("look", "pay")]
    said: list[dict[str, str]] = []
    seen: list[str] = []
    for turn in range(4):
        said.append({"role": "user", "content": f"question {turn} " + "why " * 300})
        said.append({"role": "assistant", "content": chat(said, tools)})
    edited = [*said[:3], {"role": "assistant", "content": "another answer " * 30}, *said[4:]]
    for messages in (said, said, said[:4], edited):
        seen.append(chat([*messages, {"role": "user", "content": "and then?"}], tools))
    return [*(message["content"] for message in said), *seen]


def missing() -> list[Any]:
    """A process that can't be started: it crossed the boundary of the run, and turned out to be captured."""
    try:
        subprocess.run(["tracekit-no-such-program"], check=True)
    except FileNotFoundError as error:
        return [look("instead")["what"], error.filename]
    return []


def processes() -> list[Any]:
    """Processes that do not join the run. The trace has each question for a status, also those that the program could answer itself."""
    echoed = subprocess.run(["echo", "one"], capture_output=True, text=True, check=True)
    failed = subprocess.run(["false"], check=False)
    started = subprocess.Popen(["true"])
    return [echoed.stdout, failed.returncode, started.wait(), started.poll(), started.wait()]


#: What ``harness`` is handed: its clients record and replay by themselves.
def harness(llm: Any, tool: Any, trace: Any) -> list[Any]:
    """The injected clients: a plan, a tool call, a stream."""
    plan = llm.generate("plan it", max_tokens=9)
    trace.record("decision", {"query": "it"}, {"plan": plan}, {"policy": "p-1"}, name="plan")
    return [plan, tool.execute(plan), list(llm.stream([{"role": "user", "content": "sum up"}]))]


MODEL: dict[str, Any] = {"model_id": "golden-harness", "parameters": {"temperature": 0}}
TOOL: dict[str, Any] = {"tool_id": "golden.shop", "side_effect": "irreversible", "version": "1"}

PROGRAMS: dict[str, Callable[[], Any]] = {
    "tools": tools,
    "reads": reads,
    "threads": threads,
    "conversation": conversation,
    "missing": missing,
    "processes": processes,
    "history": history,
}


def trace_of(name: str) -> Path:
    return HERE / VERSION / f"{name}.jsonl"


def hashes() -> dict[str, str]:
    """The SHA-256 of each committed file, by its path from here."""
    lines = HASHES.read_text().splitlines() if HASHES.exists() else []
    return {name: digest for digest, name in (line.split("  ") for line in lines if line and not line.startswith("#"))}


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record_program(name: str, store: Path) -> Path:
    if name == "harness":
        model = ScriptedModel("buy two pens", "two pens were bought")
        with TraceWriter(store, run_id=name) as writer:
            llm, tool = (
                TracedLLMClient(model, writer, **MODEL),
                TracedToolClient(lambda plan: ToolUse(plan, {}), writer, **TOOL),
            )
            writer.set_result(harness(llm, tool, writer))
        return Path(writer.path)
    with record(f"golden.{name}", run_id=name, store=store) as run:
        run.set_result(PROGRAMS[name]())
    return Path(run.path)


def main() -> None:
    import tempfile

    known = hashes()
    for name in (*PROGRAMS, "harness"):
        target = trace_of(name)
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as store:
            target.write_bytes(_record_program(name, Path(store)).read_bytes())
        known[f"{VERSION}/{name}.jsonl"] = digest_of(target)
        if name == "tools":  # the same run, killed in the middle of a line
            torn = trace_of("torn")
            lines = target.read_bytes().splitlines(keepends=True)
            torn.write_bytes(b"".join(lines[:5]) + lines[5][:40])
            known[f"{VERSION}/torn.jsonl"] = digest_of(torn)
    head = "# SHA-256 of each golden trace. A line here changes only together with a new format version.\n"
    HASHES.write_text(head + "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items())))
