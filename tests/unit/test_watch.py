"""The suite's own watch over what its tests write."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support import watch


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A run's file, which is gone before the suite looks at everything."""
    with tracekit.record("watched", store=tmp_path, metadata={"python": os.environ[watch.NAME]}) as run:
        pass
    yield Path(run.path)
    Path(run.path).unlink()


def rewritten(path: Path, **fields: Any) -> None:
    """Every line with other fields, and a chain that is right."""
    head = "0" * 64
    lines = []
    for line in path.read_text().splitlines():
        entry = {**json.loads(line), **fields}
        del entry["hash"]
        body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)[:-1]
        head = hashlib.sha256((head + body).encode()).hexdigest()
        lines.append(f'{body},"hash":"{head}"}}\n')
    path.write_text("".join(lines))


def test_what_a_run_writes_passes(path: Path) -> None:
    """The canary of the environment is redacted, and each line is as the schema says."""
    assert watch.problems(path.parent) == []


def test_a_leak_is_found(path: Path) -> None:
    """One copy of the canary in any file of a store."""
    rewritten(path, name=watch.CANARY)
    assert watch.problems(path.parent) == [f"{path}: holds the canary"]


def test_a_misfit_is_found(path: Path) -> None:
    """A line that the reader takes and the schema does not."""
    rewritten(path, input_hash="md5:1")
    assert [problem.split(": ")[1] for problem in watch.problems(path.parent)] == [
        "line 1 (run.started)",
        "line 2 (run.completed)",
    ]
