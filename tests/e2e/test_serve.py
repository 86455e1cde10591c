"""``tracekit serve`` in a process of its own, asked over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.support.place import Place
from tracekit import record, traced_tool


@traced_tool(side_effect="read_only")
def look(order: str) -> str:
    return order


class Served:
    def __init__(self, store: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tracekit", "serve", "--store", str(store), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        self.url = re.findall(r"http://\S+(?=/metrics)", self.said)[0]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, trust_env=False)

    def completed(self) -> float:
        families = {family.name: family for family in parse(self.get("/metrics").text)}
        (found,) = [one.value for one in families["tracekit_runs"].samples if one.labels["state"] == "complete"]
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    store = tmp_path_factory.mktemp("served") / "store"
    found = Served(store)
    yield found, store
    found.process.send_signal(signal.SIGINT)
    out, errors = found.process.communicate(timeout=60)
    assert (found.process.returncode, out, errors) == (0, "", "")


def test_metrics_move_when_runs_happen(served: tuple[Served, Path]) -> None:
    """From before the first run on; Prometheus' parser reads all of it. Ctrl-C ends it, with nothing printed and exit code 0."""
    found, store = served
    assert str(store) in found.said
    before = found.completed()
    for number in (1, 2):
        with record("shop", store=store):
            look("a")
        assert found.completed() == before + number
    assert found.get("/health").status_code == 200
    assert found.get("/elsewhere").status_code == 404


def test_only_this_machine_is_answered(served: tuple[Served, Path]) -> None:
    """Unless another address is asked for, nothing listens but on the loopback interface."""
    found, _ = served
    assert found.url.startswith("http://127.0.0.1:")
    port = int(found.url.rpartition(":")[2])
    with open(f"/proc/{found.process.pid}/net/tcp", encoding="ascii") as file:
        listening = {line.split()[1] for line in file if line.split()[3] == "0A"}
    assert {one for one in listening if one.endswith(f":{port:04X}")} == {f"0100007F:{port:04X}"}


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    """An address that is taken, a size that is none: one sentence, exit code 2, no traceback."""
    place = Place(tmp_path)
    taken = place.cli("serve", "--host", "192.0.2.1", "--port", "9")
    assert taken.returncode == 2
    assert "192.0.2.1:9 can't be listened on" in taken.stderr
    assert "Traceback" not in taken.stderr
    assert place.cli("serve", "--min-free", "much").returncode == 2
    assert not os.path.exists(place.store)


def test_an_early_interruption_ends_it_as_well(tmp_path: Path) -> None:
    """Ctrl-C before uvicorn handles it ends the command as later: exit code 0, and no warning of asyncio or uvicorn."""
    program = """
import signal, sys, uvicorn
serve = uvicorn.Server.serve

def interrupted(self, *arguments, **options):
    began = serve(self, *arguments, **options)
    signal.raise_signal(signal.SIGINT)
    return began

uvicorn.Server.serve = interrupted
from tracekit.cli import main
main(["serve", "--store", sys.argv[1], "--port", "0"])
"""
    command = [sys.executable, "-W", "always", "-c", program, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Serving http://")
