"""The oldest and the newest ``aiohttp``, with the wheel: recorded, and replayed with the servers gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.web import Servers
from tests.support.wheel import build, installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("aiohttp==3.9.5",),
    "3.10": ("aiohttp==3.10.11",),
    "3.12": ("aiohttp==3.12.15",),
    "newest": ("aiohttp",),
}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_library(name: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    environment = installed(tmp_path / "env", wheel, *ENVIRONMENTS[name])
    servers = Servers(tmp_path)
    command = ("-m", "tests.integrations.aiohttp_programs", str(tmp_path / "store"))
    try:
        recording = environment.run(*command, "record", json.dumps(servers.roots))
    finally:
        servers.stop()
    assert recording.returncode == 0, recording.stderr[-3000:]
    told = json.loads(recording.stdout)
    print(name, told["versions"], f"{len(told['runs'])} programs")
    replay = environment.run(*command, "replay", json.dumps(servers.roots), json.dumps(told["runs"]))
    assert replay.returncode == 0, replay.stderr[-3000:]
    assert json.loads(replay.stdout)["saw"] == told["saw"]
    assert len(told["runs"]) > 12
