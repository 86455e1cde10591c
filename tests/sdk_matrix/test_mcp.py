"""The oldest and the newest ``mcp``, of both major versions, with the wheel: recorded, and replayed with the servers gone."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, Installed, installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

#: What is installed beside the wheel.
ENVIRONMENTS = {
    "oldest": ("mcp==1.9.0", "pydantic<2.12", "starlette<1", "uvicorn<0.40"),
    "last of the first": ("mcp<2",),
    "first of the second": ("mcp==2.0.0",),
    "newest": ("mcp",),
}
PROGRAM = ("-m", "tests.integrations.mcp_programs", "everything")


def served(environment: Installed, kind: str, ledger: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [environment.python, "-m", "tests.support.mcp_server", str(ledger), kind, str(port)]
    server = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert server.poll() is None, "the server has ended"
            time.sleep(0.05)
    return server, f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"


@pytest.mark.parametrize("kind", ["stdio", "sse", "streamable-http"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_everything(name: str, kind: str, wheel: Path, tmp_path: Path) -> None:
    """A program sees in a replay, in a process of its own and with no server there, what it saw when it was recorded."""
    environment = installed(tmp_path / "env", wheel, *ENVIRONMENTS[name])
    variables, ledger = {"TRACEKIT_DIR": str(tmp_path / "store")}, tmp_path / "ledger"
    if kind == "stdio":
        script = tmp_path / "server.py"
        script.write_text((ROOT / "tests" / "support" / "mcp_server.py").read_text())
        recording = environment.run("-m", "tracekit", "run", *PROGRAM, kind, str(script), str(ledger), env=variables)
        script.unlink()
    else:
        server, url = served(environment, kind, ledger)
        try:
            recording = environment.run("-m", "tracekit", "run", *PROGRAM, kind, url, env=variables)
        finally:
            server.kill()
            server.wait()
    assert recording.returncode == 0, recording.stderr[-3000:]
    asked = ledger.read_text()
    replay = environment.run("-m", "tracekit", "replay", "last", env=variables)
    assert (replay.returncode, replay.stdout) == (0, recording.stdout), replay.stderr[-3000:]
    assert ledger.read_text() == asked
