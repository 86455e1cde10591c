"""Scenarios recorded here, and replayed in a fresh process with the server gone."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tracekit
from tests.integrations import scenarios
from tests.support.processes import SDKS, python
from tests.support.stub_provider import stub_provider
from tracekit.integration import Trace

__all__ = ["Recorded", "record_scenarios"]

ROOT = Path(__file__).parents[2]


class Recorded(NamedTuple):
    saw: dict[str, Any]
    entries: dict[str, list[dict[str, Any]]]
    replayed: dict[str, Any]
    bytes: bytes


def record_scenarios(names: Iterable[str], store: Path) -> Recorded:
    """What these scenarios saw when they were recorded, what the log has of them, and what they see in a replay."""
    saw: dict[str, Any] = {}
    paths: dict[str, str] = {}
    runs: dict[str, str] = {}
    tracekit.instrument()
    try:
        with stub_provider() as provider:
            url = provider.url
            for name in names:
                with warnings.catch_warnings():
                    # The server sets a cookie, whose value is in no log.
                    warnings.filterwarnings(
                        "ignore", ".* was redacted: a replay passes on the placeholder", RuntimeWarning
                    )
                    with tracekit.record(name, store=store) as run:
                        saw[name] = scenarios.run(name, url)
                runs[name], paths[name] = run.id, run.path
    finally:
        tracekit.uninstrument()
    replayed = _replay(store, url, runs)
    whole = {name: Path(path).read_bytes() for name, path in paths.items()}
    entries = {name: _expanded(path) for name, path in paths.items()}
    return Recorded(saw, entries, replayed, b"".join(whole.values()))


def _expanded(path: str) -> list[dict[str, Any]]:
    trace = Trace(path)
    parts = ("input", "output")
    return [{key: trace.expand(e[key]) if key in parts else e[key] for key in e} for e in trace.entries()]


def _replay(store: Path, url: str, runs: dict[str, str]) -> dict[str, Any]:
    """What the scenarios see in a process that knows no key, has another hash seed, and finds no server."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment["PYTHONHASHSEED"] = "1" if environment.get("PYTHONHASHSEED") == "0" else "0"
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    line = ("-m", "tests.integrations.scenarios", str(store), url)
    done = python(*line, input=json.dumps(runs), env=environment, cwd=ROOT, timeout=120, imports=SDKS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
