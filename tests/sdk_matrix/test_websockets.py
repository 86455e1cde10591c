"""The oldest and the newest ``websockets``, with the wheel: recorded, and replayed with the server gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.talker import Talker
from tests.support.wheel import build, installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("websockets==13.1",),
    "15": ("websockets==15.0.1",),
    "16": ("websockets==16.0",),
    "newest": ("websockets",),
}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_library(name: str, wheel: Path, tmp_path: Path) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    environment = installed(tmp_path / "env", wheel, *ENVIRONMENTS[name])
    talker = Talker()
    command = ("-m", "tests.integrations.websocket_programs", str(tmp_path / "store"))
    try:
        recording = environment.run(*command, "record", talker.url)
    finally:
        talker.stop()
    assert recording.returncode == 0, recording.stderr[-3000:]
    told = json.loads(recording.stdout)
    print(name, told["versions"], f"{len(told['runs'])} programs")
    replay = environment.run(*command, "replay", talker.url, json.dumps(told["runs"]))
    assert replay.returncode == 0, replay.stderr[-3000:]
    assert json.loads(replay.stdout)["saw"] == told["saw"]
    assert len(told["runs"]) > 8
