"""What a routed intent costs, and a thousand at once: ``python -m benchmarks.routing`` (``--json FILE``, ``--quick``).

Default durability, read-only agents, a new store. Each figure is the median of rounds; what is recorded and what it is
compared with take turns, so that a slow spell of the machine hits both. The floor is what any recorder of this format must
do for the same entries: as many lines of the same bytes, hashed into a chain and appended with ``os.write``. Before a
figure is printed the traces are read again and replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit import record, replay
from tracekit.agents import AgentRegistry, ExecutionRecord, IntentEnvelope, IntentRouter, stable_hash

#: Seconds an intent, and for a thousand at once, that are to be reached.
ONE, THOUSAND = 0.3e-3, 2.0

registry = AgentRegistry()
router = IntentRouter(registry)
asked = 0


@registry.agent(intent="quote", side_effect="read_only")
def quote(payload: dict[str, Any]) -> dict[str, Any]:
    global asked
    asked += 1
    return {"sku": payload["sku"], "cents": payload["n"] * 100}


@registry.agent(intent="quote_async", side_effect="read_only")
async def quote_async(payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return quote(payload)


def envelopes(intent: str, count: int) -> list[IntentEnvelope]:
    return [
        IntentEnvelope.from_dict(
            {
                "intent": intent,
                "payload": {"sku": f"A-{n}", "n": n, "note": "three items, to be paid within thirty days"},
                "context": {"sourceAgent": "planner", "tags": ["billing"]},
                "metadata": {"requestId": f"r-{n}", "traceId": f"t-{n}"},
            }
        )
        for n in range(count)
    ]


def timed(work: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def route_all(requests: list[IntentEnvelope]) -> list[Any]:
    return [router.route(request).payload for request in requests]


async def route_at_once(requests: list[IntentEnvelope]) -> list[Any]:
    return [one.payload for one in await asyncio.gather(*map(router.route_async, requests))]


def floor(path: str, lines: list[bytes]) -> None:
    """The same lines, chained and appended."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    head = b"0" * 64
    try:
        for line in lines:
            head = hashlib.sha256(head + line[:-76]).hexdigest().encode()
            os.write(fd, line[:-76] + b',"hash":"' + head + b'"}\n')
    finally:
        os.close(fd)


def measure(rounds: int, count: int, store: str) -> dict[str, Any]:
    global asked
    one, many = envelopes("quote", count), envelopes("quote_async", 1000)
    expected = [{"sku": f"A-{n}", "cents": n * 100} for n in range(1000)]
    plain, recorded, bare, at_once, again = [], [], [], [], []
    orders: set[tuple[Any, ...]] = set()
    for n in range(rounds):
        plain.append(timed(lambda: route_all(one)) / count)
        with record("intents") as run:
            route_all(one)  # the entries of the first are longer: names, identities
            recorded.append(timed(lambda: route_all(one)) / count)
        lines = Path(run.path).read_bytes().splitlines(keepends=True)
        lines = lines[len(lines) // 2 :]
        bare.append(timed(lambda lines=lines, n=n: floor(f"{store}/floor-{n}", lines)) / count)  # type: ignore[misc]
        with record("at once") as run:
            answers: list[Any] = []
            at_once.append(timed(lambda answers=answers: answers.extend(asyncio.run(route_at_once(many)))))  # type: ignore[misc]
        assert answers == expected
        entries = [json.loads(line) for line in Path(run.path).read_bytes().splitlines()]
        orders.add(tuple((entry["type"], entry["lane"], str(entry.get("output"))) for entry in entries[1:-1]))
        before = asked
        with replay(run) as session:
            again.append(timed(lambda answers=answers: answers.extend(asyncio.run(route_at_once(many)))))  # type: ignore[misc]
        assert answers == expected * 2
        assert (session.report.exact, asked) == (True, before)
    records = ExecutionRecord.all(run)
    assert len(records) == 1000
    assert all(
        stable_hash(found.envelope) == found.header.envelope_hash and found.header.replayable for found in records
    )
    assert len(orders) == 1
    return {
        "intent_s": statistics.median(recorded),
        "intent_best_s": min(recorded),
        "intent_outside_a_run_s": statistics.median(plain),
        "intent_floor_s": statistics.median(bare),
        "thousand_at_once_s": statistics.median(at_once),
        "thousand_replayed_s": statistics.median(again),
        "recordings_in_one_order": rounds,
        "entries_an_intent": len(lines) / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        os.environ["TRACEKIT_DIR"] = store
        found = measure(3 if given.quick else 10, 1000, store)
    found |= {"python": platform.python_version(), "machine": platform.platform(), "cores": os.cpu_count()}
    print(
        f"an intent, recorded      {found['intent_s'] * 1e6:8.0f} µs  (to reach: {ONE * 1e6:.0f}; best {found['intent_best_s'] * 1e6:.0f})"
    )
    print(f"  outside a run          {found['intent_outside_a_run_s'] * 1e6:8.0f} µs")
    print(
        f"  floor of its entries   {found['intent_floor_s'] * 1e6:8.0f} µs  ({found['entries_an_intent']:.1f} entries)"
    )
    print(f"1,000 at once, recorded  {found['thousand_at_once_s'] * 1e3:8.0f} ms  (to reach: {THOUSAND * 1e3:.0f})")
    print(f"  replayed               {found['thousand_replayed_s'] * 1e3:8.0f} ms")
    print(f"  the same order in {found['recordings_in_one_order']} recordings")
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
