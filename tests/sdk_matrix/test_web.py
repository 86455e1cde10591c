"""The oldest and the newest ``requests``, ``urllib3`` and ``boto3``, with the wheel: recorded, and replayed with the servers gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.web import Servers
from tests.support.wheel import build, installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("requests==2.28.0", "urllib3==1.26.5", "boto3==1.34.116", "botocore==1.34.116"),
    "last urllib3 1": ("requests", "urllib3<2", "boto3"),
    "first urllib3 2": ("requests==2.32.3", "urllib3==2.0.7", "boto3==1.36.0"),
    "newest": ("requests", "urllib3", "boto3"),
}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_libraries(name: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    environment = installed(tmp_path / "env", wheel, *ENVIRONMENTS[name])
    servers = Servers(tmp_path)
    command = ("-m", "tests.integrations.web_programs", str(tmp_path / "store"))
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
    assert len(told["runs"]) > 15
