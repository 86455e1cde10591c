"""A fixture that kills programs and returns what each one left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.aftermath import Aftermath
from tests.support.processes import python

VICTIM = Path(__file__).with_name("victim.py")

Kill = Callable[..., list[Aftermath]]


@pytest.fixture
def kill(tmp_path: Path) -> Kill:
    """Run the victim once for each job, kill it as the job says, and return what is left of each."""

    def run(*jobs: dict[str, Any]) -> list[Aftermath]:
        filled = []
        for number, job in enumerate(jobs):
            directory = tmp_path / f"job{number}"
            directory.mkdir()
            defaults = {"dir": str(directory), "point": None, "nth": 1, "delay": None, "under_way": False}
            defaults |= {"threads": 0, "rounds": 3}
            filled.append({"durability": "effects", **defaults, **job})
        (tmp_path / "jobs.json").write_text(json.dumps(filled))
        done = python(str(VICTIM), str(tmp_path / "jobs.json"))
        assert done.returncode == 0, done.stderr
        ends = json.loads(done.stdout)
        return [Aftermath(job, end, done.stderr) for job, end in zip(filled, ends, strict=True)]

    return run
