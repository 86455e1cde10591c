"""Run the agent: `play.py live FILE` as it is, `record FILE` recorded, `replay FILE RUN` from a recording.

The result is written to FILE as JSON. `play.py both FILE FILE` is a live run and then a recorded one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import handle  # type: ignore[import-not-found,unused-ignore]  # the file beside this one

import tracekit
from tracekit import record, replay

ORDER = "A-1042"


def live(file: str) -> None:
    save(file, result=handle(ORDER))


def recorded(file: str) -> None:
    with record("demo") as run:
        result = handle(ORDER)
        run.set_result(result)
    save(file, result=result, run_id=run.id)


def replayed(file: str, run: str) -> None:
    with replay(run) as session:
        result = handle(ORDER)
    save(file, result=result, steps=session.report.consumed)


def both(first: str, second: str) -> None:
    live(first)
    recorded(second)


def save(file: str, **outcome: Any) -> None:
    Path(file).write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    tracekit.instrument()
    modes: dict[str, Callable[..., None]] = {"live": live, "record": recorded, "replay": replayed, "both": both}
    modes[sys.argv[1]](*sys.argv[2:])
