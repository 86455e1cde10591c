"""What the matrix of versions shares: the wheel, and programs that one process records and another replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.wheel import Installed, build, installed


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def replayed(wheel: Path, tmp_path: Path) -> Callable[..., int]:
    """``replayed(module, packages, argument, stop)``: the programs of ``module``, in an environment with ``packages``, recorded, the server
    stopped, and replayed in a process of its own, where each has to see what it saw. How many there are."""

    def same(module: str, packages: tuple[str, ...], argument: str, stop: Callable[[], object]) -> int:
        environment: Installed = installed(tmp_path / "env", wheel, *packages)
        command = ("-m", module, str(tmp_path / "store"))
        try:
            recording = environment.run(*command, "record", argument)
        finally:
            stop()
        assert recording.returncode == 0, recording.stderr[-3000:]
        recorded = json.loads(recording.stdout)
        print(packages, recorded["versions"], f"{len(recorded['runs'])} programs")
        replay = environment.run(*command, "replay", argument, json.dumps(recorded["runs"]))
        assert replay.returncode == 0, replay.stderr[-3000:]
        assert json.loads(replay.stdout)["saw"] == recorded["saw"]
        return len(recorded["runs"])

    return same
