"""The oldest and the newest ``websockets``, with the wheel: recorded, and replayed with the server gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.talker import Talker

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("websockets==13.1",),
    "15": ("websockets==15.0.1",),
    "16": ("websockets==16.0",),
    "newest": ("websockets",),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_library(name: str, replayed: Callable[..., int]) -> None:
    """Every program sees in a replay, in a process of its own, what it saw when it was recorded."""
    talker = Talker()
    assert replayed("tests.integrations.websocket_programs", ENVIRONMENTS[name], talker.url, talker.stop) > 8
