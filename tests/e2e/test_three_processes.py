"""A planner and two workers, three processes that talk over HTTP: one run, replayed with nobody listening."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import SDKS, python
from tracekit.agents import compare, events, ordered, serialize
from tracekit.integration import Store

WORKER = """
import json, os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tracekit import traced_tool
from tracekit.agents import extract, inject, on_task

name, port = sys.argv[1], int(sys.argv[2])


@traced_tool(side_effect="irreversible")
def book(what):
    with open("effects", "a") as file:
        file.write(f"{name}:{what}\\n")
    if what == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{what} by {name}"


@on_task(name)
def handle(task):
    return {"done": book(task.payload["what"])}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        if self.path == "/stop":
            self.do_GET()
            threading.Thread(target=self.server.shutdown).start()
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = handle(extract(self.headers, body))
        self.send_response(200)
        for header, value in inject({}, answer).items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer.payload).encode())

    def log_message(self, *arguments):
        pass


with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
    server.serve_forever()
"""

PLANNER = """
import subprocess, sys, time
import httpx
from tracekit import instrument, record
from tracekit.agents import agent, extract, inject, receive_task, send_task

instrument()
ports = dict(zip("ab", sys.argv[1:3]))
client = httpx.Client()


def ask(who, what, causes=()):
    task = send_task(who, {"what": what}, causes=causes)
    answer = client.post(f"http://127.0.0.1:{ports[who]}/", json=task.payload, headers=inject({}, task))
    return receive_task(extract(answer.headers, answer.json()))


def wait_for(who):
    while True:
        try:
            return client.get(f"http://127.0.0.1:{ports[who]}/")
        except httpx.TransportError:
            time.sleep(0.02)


with record("planner", agent="planner") as run:
    workers = {who: subprocess.Popen([sys.executable, "worker.py", who, ports[who]]) for who in sys.argv[3]}
    for who in "ab":
        wait_for(who)
    flat, car = ask("a", "flat"), ask("b", "car")
    found = [flat.payload, car.payload]
    try:
        found.append(ask("b", sys.argv[4], causes=[flat, car]).payload)
    except httpx.TransportError:
        found.append("no answer")
    for who in "ab":
        try:
            client.post(f"http://127.0.0.1:{ports[who]}/stop")
        except httpx.TransportError:
            found.append(f"{who} is gone")
    found.append([workers[who].wait() for who in "ab"])
    run.set_result(found)
print(found)
"""


class Flow:
    """The three programs in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "planner.py").write_text(PLANNER)
        (root / "worker.py").write_text(WORKER)
        with socket.socket() as one, socket.socket() as other:
            for free in (one, other):
                free.bind(("127.0.0.1", 0))
            self.ports = [str(free.getsockname()[1]) for free in (one, other)]

    def python(self, *arguments: str, store: str = "store") -> subprocess.CompletedProcess[str]:
        variables = {"TRACEKIT_DIR": str(self.root / store), "PYTHONHASHSEED": "0"}
        return python(*arguments, cwd=self.root, env={**os.environ, **variables}, imports=SDKS, seeds=("0",))

    def record(self, order: str, last: str, store: str = "store") -> str:
        done = self.python("planner.py", *self.ports, order, last, store=store)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def replay(self, order: str, last: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "tracekit", "replay", self.run_id(), "--", "planner.py", *self.ports, order, last)

    def store(self, name: str = "store") -> Store:
        return Store(self.root / name)

    def run_id(self, name: str = "store") -> str:
        (run,) = self.store(name).list()
        return run.run_id

    def view(self, name: str = "store") -> list[dict[str, object]]:
        return ordered(events(self.run_id(name), store=self.root / name))

    @property
    def effects(self) -> list[str]:
        return (self.root / "effects").read_text().split()


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path)


def test_three_processes_are_one_run(flow: Flow) -> None:
    """Recorded once, replayed twice with the workers started in any order: the same answers and bytes of the view, no effect again."""
    printed = flow.record("ab", "bike")
    assert flow.effects == ["a:flat", "b:car", "b:bike"]
    verdict = flow.store().verify(flow.run_id())
    assert (verdict.state, [segment["state"] for segment in verdict.segments]) == ("complete", ["complete", "complete"])
    view = serialize(flow.view())
    agents = {json.loads(line)["agent_id"] for line in view.splitlines()}
    assert agents == {"planner", "a", "b"}
    for order in ("ab", "ba"):
        replayed = flow.replay(order, "bike")
        assert (replayed.returncode, replayed.stdout) == (0, printed), replayed.stderr
        assert serialize(flow.view()) == view
    assert flow.effects == ["a:flat", "b:car", "b:bike"]


def test_two_recordings_are_the_same_graph(flow: Flow) -> None:
    """Recorded twice, the workers started in another order: the same events with the same causes."""
    flow.record("ab", "bike")
    flow.record("ba", "bike", store="other")
    assert compare(flow.view(), flow.view("other")) is None


def test_a_worker_that_is_killed_in_the_middle(flow: Flow) -> None:
    """Its segment is open; the replay comes to its end and says where, and the worker's last effect does not happen again."""
    printed = flow.record("ab", "death")
    assert "no answer" in printed
    assert "b is gone" in printed
    assert flow.effects == ["a:flat", "b:car", "b:death"]
    verdict = flow.store().verify(flow.run_id())
    assert verdict.state == "complete"
    assert sorted(segment["state"] for segment in verdict.segments) == ["complete", "incomplete"]
    for order in ("ab", "ba"):
        replayed = flow.replay(order, "death")
        assert (replayed.returncode, replayed.stdout) == (0, printed), replayed.stderr
        assert "did not end its segment: it was replayed up to its entry" in replayed.stderr
    assert flow.effects == ["a:flat", "b:car", "b:death"]


def test_a_worker_that_does_something_else_fails_the_replay(flow: Flow) -> None:
    """Nothing of it reaches the planner, whose replay fails all the same, with the worker's difference."""
    flow.record("ab", "bike")
    (flow.root / "worker.py").write_text(
        WORKER.replace('book(task.payload["what"])', 'book("the " + task.payload["what"])')
    )
    replayed = flow.replay("ab", "bike")
    assert replayed.returncode == 1
    assert "in the process /process:worker.py#" in replayed.stderr
    assert "is not the recorded step" in replayed.stderr
    assert flow.effects == ["a:flat", "b:car", "b:bike"]
