"""Every example runs against its scripted model, as the README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(("name", "says"), [("support", "refunded"), ("research", "waggle dance")])
def test_without_a_key_and_a_network(name: str, says: str) -> None:
    command = [sys.executable, str(HERE / "offline.py"), name, "--", sys.executable, str(HERE / name / "agent.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert says in done.stdout, done.stderr
