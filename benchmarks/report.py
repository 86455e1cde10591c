"""The report of a run of 10,000 steps: how long it takes to write, how large it is, how soon a browser shows it.

Run ``python -m benchmarks.report`` (``--steps`` for another size, ``--keep FILE`` to look at the page); the time to open needs Debian's
``chromium``, or another that ``CHROMIUM`` names. The run is that of agents side by side: each has a conversation that grows to 40
messages, of which it then drops the oldest, calls a tool after each answer, decides, and now and then fails. To reach: 20 MB, and 2 s
from the request for the file until the list of its steps is drawn.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

REACH_MB = 20
REACH_SECONDS = 2.0
AGENTS = 16
WORDS = [
    "order",
    "kettle",
    "courier",
    "gate",
    "parcel",
    "invoice",
    "route",
    "stock",
    "customer",
    "window",
    "refund",
    "label",
    "delay",
]


def record(steps: int) -> str:
    """Record such a run; returns its path."""
    from tracekit import decision, record, traced_model, traced_tool

    @traced_model(model="tiny-1")
    def ask(messages: list[Any]) -> str:
        return text(Random(len(messages[-1]["content"])), 60)

    @traced_tool(side_effect="read_only")
    def look_up(order: str, fields: list[str]) -> dict[str, Any]:
        if order.endswith("7"):
            raise KeyError(order)
        return {"order": order, "fields": fields, "rows": [{"sku": word, "note": order * 3} for word in fields]}

    def text(random: Random, words: int) -> str:
        return " ".join(random.choice(WORDS) for _ in range(words))

    def agent(number: int) -> None:
        random = Random(number)
        messages = [{"role": "system", "content": text(random, 400)}]
        for turn in range(steps // AGENTS // 3):
            messages.append({"role": "user", "content": text(random, 80)})
            answer = ask([*messages])
            messages.append({"role": "assistant", "content": answer})
            decision("next", input=WORDS[:3], output=random.choice(WORDS[:3]))
            try:
                found = look_up(f"{number}-{turn}", [random.choice(WORDS) for _ in range(6)])
            except KeyError:
                found = {}
            messages.append({"role": "user", "content": str(found)})
            if len(messages) > 40:
                del messages[1:4]

    with record("report") as run:
        threads = [threading.Thread(target=agent, args=(number,), name=f"agent {number}") for number in range(AGENTS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return run.path


def opened(page: Path) -> float:
    """Seconds until a browser has drawn it, the best of three."""
    from tests.support.browser import chromium

    with chromium() as browser:
        browser.look(1400, 900)
        found = []
        for _ in range(3):
            found.append(browser.open(page) / 1000)
            assert browser.complaints == []
            print(f"  opened in {found[-1]:.2f} s: {browser.text('.count')}", flush=True)
        return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the run (about)")
    parser.add_argument("--keep", type=Path, help="keep the page there")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    program = os.environ.get("CHROMIUM") or "chromium"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {version}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        os.environ["TRACEKIT_DIR"] = directory
        path = record(options.steps)
        page = options.keep or Path(directory) / "page.html"
        begun = time.perf_counter()
        command = [sys.executable, "-m", "tracekit", "report", path, "-o", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written, size = time.perf_counter() - begun, page.stat().st_size / 1e6
        print(f"trace {os.path.getsize(path) / 1e6:.1f} MB, page {size:.1f} MB, written in {written:.1f} s", flush=True)
        took = opened(page)
        verdict = "reached" if size <= REACH_MB and took <= REACH_SECONDS else "MISSED"
        print(f"{size:.1f} MB (to reach: {REACH_MB}), opened in {took:.2f} s (to reach: {REACH_SECONDS}): {verdict}")


if __name__ == "__main__":
    main()
