"""What a recorded conversation costs over the bare SDK: single calls, and calls at turn 40 and 200, with text that people really send.

Run ``python -m benchmarks.conversations`` (``--turns 40``, ``--text code``, ``--json FILE``, ``--quick``). A call sends the whole
history, as the SDKs do, and is answered from memory, so that the floor is the SDK's own work. In each round one process has the
same conversation twice, bare and recorded, the one and the other first in turns; a figure is the median of the rounds' ratios of
CPU time (the process's own, the kernel's for it included), with the middle half of them beside it. The last turns are counted,
after a few that are not; the beginning of a long conversation is sent with them, and not by itself.
``benchmarks.instructions`` counts the same on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import tracekit
from benchmarks import secrets
from benchmarks.overhead import Model, cpu_ns, machine, own_store

TURNS = (1, 40, 200)
#: So many calls at the end of a conversation are counted; as many of single calls, each with a prompt of its own.
COUNTED = 10
#: What a turn asks, and is answered.
ASKED, ANSWERED = 700, 1400
TEXTS = (
    "prose", "prose that speaks of secrets", "code", "code that speaks of secrets", "a log", "a log that speaks of secrets",
    "JSON in a text", "JSON that speaks of secrets",
)  # fmt: skip


def text_of(name: str) -> str:
    found = secrets.texts()[name]
    return found if isinstance(found, str) else json.dumps(found)


def history_of(text: str, turns: int) -> list[dict[str, str]]:
    """What was said up to the question of turn ``turns``; nothing twice."""
    said = []
    for turn in range(turns):
        at = turn * 97 % 3000
        said.append({"role": "user", "content": f"{turn}. {text[at : at + ASKED]}"})
        said.append({"role": "assistant", "content": f"{turn}: {text[at + ASKED : at + ASKED + ANSWERED]}"})
    return said[:-1]


def calls(model: Model, text: str, turns: int) -> float:
    """The nanoseconds of one call at the end of a conversation, or of a call of 10 KB by itself."""
    create: Any = model.client.chat.completions.create
    if turns == 1:
        asked: list[Any] = [[{"role": "user", "content": f"{n} {text[:10_000]}"}] for n in range(COUNTED + 3)]
    else:
        said = history_of(text, turns)
        asked = [said[: 2 * turn - 1] for turn in range(1, turns + 1)]
        asked = asked[-COUNTED - 5 :]
    for messages in asked[:-COUNTED]:
        create(model="m", temperature=0.1, messages=messages)
    gc.collect()
    begun = cpu_ns()
    for messages in asked[-COUNTED:]:
        create(model="m", temperature=0.1, messages=messages)
    return (cpu_ns() - begun) / COUNTED


def measured(name: str, turns: int, rounds: int) -> dict[str, Any]:
    model, text = Model(), text_of(name)
    found: dict[str, list[float]] = {"bare": [], "recorded": []}
    for number in range(rounds):
        for kind in ("bare", "recorded") if number % 2 else ("recorded", "bare"):
            if kind == "bare":
                tracekit.uninstrument()
                found[kind].append(calls(model, text, turns))
            else:
                tracekit.instrument()
                with tracekit.record("conversation"):
                    found[kind].append(calls(model, text, turns))
    tracekit.uninstrument()
    model.client.close()
    more = [(after / before - 1) * 100 for before, after in zip(found["bare"], found["recorded"], strict=True)]
    low, middle, high = statistics.quantiles(more, n=4)
    return {
        "text": name,
        "turn": turns,
        "bare_us": round(statistics.median(found["bare"]) / 1e3, 1),
        "recorded_us": round(statistics.median(found["recorded"]) / 1e3, 1),
        "more_percent": round(middle, 1),
        "half_of_them_percent": [round(low, 1), round(high, 1)],
        "to_reach_percent": 20 if turns == 1 else 8,
    }


def shown(one: dict[str, Any]) -> str:
    low, high = one["half_of_them_percent"]
    verdict = "reached" if one["more_percent"] <= one["to_reach_percent"] else "MISSED"
    return (
        f"{one['text']:<30} turn {one['turn']:>3} {one['bare_us']:>9,.0f} -> {one['recorded_us']:>9,.0f} µs of CPU "
        f"{one['more_percent']:>+7.1f} %  ({low:+.1f} to {high:+.1f})  {verdict} (to reach {one['to_reach_percent']} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to compare")
    parser.add_argument("--turns", type=int, action="append", choices=TURNS, help="this length (may be repeated)")
    parser.add_argument("--text", action="append", choices=TEXTS, help="this text (may be repeated)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    about, figures = machine(), []
    print(f"Python {about['python']}, {about['cpu']}, {about['cores']} cores, load {about['load']:.1f}")
    print(", ".join(f"{name} {number}" for name, number in about["versions"].items()))
    with own_store():
        for turns in options.turns or TURNS:
            for name in options.text or TEXTS:
                figures.append(measured(name, turns, 3 if options.quick else 15 if turns == 200 else 31))
                print(shown(figures[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
