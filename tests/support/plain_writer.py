"""A second, independent writer of the trace format: the standard library only, nothing of tracekit.

Made from docs/reference/trace-format.md alone, so that tests don't check the reader against its own writer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

RUN = "0197c0de-0000-7000-8000-000000000001"
START = 1_760_000_000_000_000_000


def entry(kind: str, /, **fields: Any) -> dict[str, Any]:
    """The keys of one entry that the writer does not number itself."""
    return {"type": kind, **fields}


def lines(entries: list[dict[str, Any]], *, run_id: str = RUN, v: int = 1) -> list[bytes]:
    """Numbered, dated, chained lines; a key that the entry sets itself is kept as it is."""
    written: list[bytes] = []
    previous = "0" * 64
    for seq, fields in enumerate(entries, 1):
        whole = {"v": v, "seq": seq, "run_id": run_id, "type": None, "ts_ns": START + seq, "lane": 0}
        if seq > 1:
            whole["parent"] = 1
        whole.update(fields)
        line, previous = chained(whole, previous)
        written.append(line)
    return written


def chained(whole: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """One line and its hash."""
    return chained_raw(json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()[:-1], previous)


def chained_raw(body: bytes, previous: str) -> tuple[bytes, str]:
    """One line from the bytes before ``,"hash":"``."""
    digest = hashlib.sha256(previous.encode() + body).hexdigest()
    return body + b',"hash":"' + digest.encode() + b'"}\n', digest


def small_run(*, end: bool = True, effects: bool = True) -> list[dict[str, Any]]:
    """A run with a span, a model call, an effect and a read of the clock."""
    side = "irreversible" if effects else "read_only"
    entries = [
        entry("run.started", name="small", input={"argv": ["a"]}, meta={"durability": "effects"}),
        entry("clock", name="time.time", values=[1.5, 2.5]),
        entry(
            "llm.request", name="chat", input={"messages": [{"role": "user", "content": "Grüße"}]}, meta={"model": "m"}
        ),
        entry("llm.response", parent=3, step=3, output={"text": "hallo"}),
        entry("tool.call", name="send", input={"to": "a"}, meta={"side_effect": side}),
        entry("tool.return", parent=5, step=5, output=True),
        entry("random", name="random.random", values=[0.25]),
    ]
    if end:
        entries.append(entry("run.completed", output="done", meta={"count": len(entries) + 1}))
    return entries


def write(path: Path, entries: list[dict[str, Any]], **how: Any) -> Path:
    """A trace file of these entries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines(entries, **how)))
    return path
