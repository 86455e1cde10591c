"""The oldest and the newest ``requests``, ``urllib3`` and ``boto3``, with the wheel: recorded, and replayed with the servers gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.web import Servers

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("requests==2.28.0", "urllib3==1.26.5", "boto3==1.34.116", "botocore==1.34.116"),
    "last urllib3 1": ("requests", "urllib3<2", "boto3"),
    "first urllib3 2": ("requests==2.32.3", "urllib3==2.0.7", "boto3==1.36.0"),
    "newest": ("requests", "urllib3", "boto3"),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_libraries(name: str, replayed: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    servers = Servers(tmp_path)
    assert replayed("tests.integrations.web_programs", ENVIRONMENTS[name], json.dumps(servers.roots), servers.stop) > 15
