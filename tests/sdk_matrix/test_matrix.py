"""The oldest and the newest SDKs, on ``httpx`` and ``httpx2``, with the wheel: recorded, and replayed with the server gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.wheel import installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

OLD_OPENAI, OLD_ANTHROPIC = "openai==2.20.0", "anthropic==0.78.0"
OLD_GOOGLE = "google-genai==1.8.0"  # it asks for a newer httpx than the others allow
OLD_OTHERS = ("ollama==0.4.0", "cohere==5.17.0", "mistralai==1.1.0", "boto3==1.35.0")
#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": (OLD_OPENAI, OLD_ANTHROPIC),
    "newest": ("openai", "anthropic"),
    "newest, and httpx": ("openai", "anthropic", "httpx"),
    "old openai, new anthropic": (OLD_OPENAI, "anthropic"),
    "new openai, old anthropic": ("openai", OLD_ANTHROPIC),
    "oldest, and httpx2": (OLD_OPENAI, OLD_ANTHROPIC, "httpx2"),
    "oldest of every provider but Google": (OLD_OPENAI, OLD_ANTHROPIC, *OLD_OTHERS),
    "old google-genai": (OLD_OPENAI, OLD_ANTHROPIC, OLD_GOOGLE),
    "newest of every provider": ("openai", "anthropic", *(one.partition("==")[0] for one in (OLD_GOOGLE, *OLD_OTHERS))),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_scenarios(name: str, wheel: Path, tmp_path: Path) -> None:
    """Every scenario (sync, async, streams, tool loops, retries, errors) sees in a replay what it saw when it was recorded."""
    environment = installed(tmp_path / "env", wheel, *ENVIRONMENTS[name])
    store = tmp_path / "store"
    recording = environment.run("-m", "tests.sdk_matrix.record", str(store))
    assert recording.returncode == 0, recording.stderr[-3000:]
    told = json.loads(recording.stdout)
    print(name, told["versions"], f"{len(told['runs'])} scenarios, without {told['left_out']}")
    replay = environment.run(
        "-m", "tests.integrations.scenarios", str(store), told["url"], input=json.dumps(told["runs"])
    )
    assert replay.returncode == 0, replay.stderr[-3000:]
    replayed = json.loads(replay.stdout)
    failed = {scenario: answer["error"][-1500:] for scenario, answer in replayed.items() if "error" in answer}
    assert not failed, failed
    assert {scenario: answer["result"] for scenario, answer in replayed.items()} == told["saw"]
    assert [scenario for scenario, answer in replayed.items() if not answer["exact"]] == []
    assert len(told["runs"]) > 35
