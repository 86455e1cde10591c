"""What every suite shares; each directory adds its own fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout, sees the user's runs, or has a key that could pay for a call."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / ".tracekit"))
    for name in os.environ:
        if name.endswith("_API_KEY") or (name.startswith("TRACEKIT_") and name != "TRACEKIT_DIR"):
            monkeypatch.delenv(name)
