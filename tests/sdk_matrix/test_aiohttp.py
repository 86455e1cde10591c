"""The oldest and the newest ``aiohttp``, with the wheel: recorded, and replayed with the servers gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.web import Servers

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("aiohttp==3.9.5",),
    "3.10": ("aiohttp==3.10.11",),
    "3.12": ("aiohttp==3.12.15",),
    "newest": ("aiohttp",),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_library(name: str, replayed: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    servers = Servers(tmp_path)
    assert (
        replayed("tests.integrations.aiohttp_programs", ENVIRONMENTS[name], json.dumps(servers.roots), servers.stop)
        > 12
    )
