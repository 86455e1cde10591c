"""A server that records one run, its work done by ``@on_task`` handlers: replayed, verified and resumed without listening."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.place import Place

#: Says its port in a file; ends when it is asked to. ``die`` in the directory kills it between two effects of a task.
_HEAD = """
import asyncio, json, os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tracekit import record, traced_tool
from tracekit.agents import extract, inject, on_task

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore Ctrl-C

@traced_tool(side_effect="irreversible")
def book(city):
    with open("effects", "a") as file:
        file.write(city + "\\n")
    return "booked " + city

@traced_tool(side_effect="read_only")
def look(city):
    if city == "Rome" and os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return city

@on_task("worker")
def handle(task):
    return book(look(task.payload))

def says(port):
    with open("port.new", "w") as file:
        file.write(str(port))
    os.replace("port.new", "port")

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = handle(extract(self.headers, body)) if body != "quit" else None
        data = json.dumps(None if answer is None else answer.payload).encode()
        self.send_response(200)
        for name, value in inject({}, answer).items() if answer is not None else ():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if answer is None:
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *about):
        pass
"""

SERVERS = {
    "in the block": """
with record("worker"):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        says(server.server_address[1])
        server.serve_forever()
print("after the server")
""",
    "decorated": """
@record("worker")
def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    says(server.server_address[1])
    server.serve_forever()
    server.server_close()

main()
print("after the server")
""",
    "in a loop": """
async def main():
    done = asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\\r\\n")[1:] if ": " in line)
        body = json.loads(await reader.readexactly(int({k.lower(): v for k, v in fields.items()}["content-length"])))
        if body == "quit":
            done.set()
            data = b"null"
        else:
            data = json.dumps(handle(extract(fields, body)).payload).encode()
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(data) + data)
        await writer.drain()
        writer.close()

    async with record("worker"):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        says(server.sockets[0].getsockname()[1])
        await done.wait()
        server.close()
    print("after the server")

asyncio.run(main())
""",
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def serve(place: Place, kind: str, *asked: str, die: bool = False, stop: str = "quit") -> int:
    """Record a server that is asked for these cities, and then is told to end; how its process ended."""
    (place.directory / "server.py").write_text(_HEAD + SERVERS[kind])
    (place.directory / "port").unlink(missing_ok=True)
    if die:
        (place.directory / "die").write_text("")
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store)}
    process = subprocess.Popen(
        [sys.executable, "server.py"], cwd=place.directory, env=environment, stdout=subprocess.PIPE
    )
    try:
        while not (place.directory / "port").exists():
            assert process.poll() is None
            time.sleep(0.01)
        port = int((place.directory / "port").read_text())
        for city in asked:
            try:
                assert post(port, city) == f"booked {city}"
            except (http.client.HTTPException, ConnectionError):
                assert die
        if not die and stop == "quit":
            post(port, "quit")
        elif not die:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        return process.returncode
    finally:
        process.kill()
        process.wait()
        (place.directory / "die").unlink(missing_ok=True)


def python(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store)}
    return processes.python("server.py", *arguments, cwd=place.directory, env=environment)


def post(port: int, body: str) -> object:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/", json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def effects(place: Place) -> list[str]:
    return (place.directory / "effects").read_text().split()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_of_tasks_is_replayed_without_listening(place: Place, kind: str) -> None:
    """Its handlers get what they got, the program goes on as if its server had been stopped, and two replays are identical."""
    assert serve(place, kind, "Oslo", "Rome") == 0
    done = place.cli("replay", "last")
    assert done.returncode == 0, done.stderr
    assert "after the server" in done.stdout
    assert "8 steps matched" in done.stderr
    done = place.cli("verify-determinism", "last", seeds=("0", "1", "2"))
    assert done.returncode == 0, done.stderr
    assert effects(place) == ["Oslo", "Rome"]


SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n * 2

def work(n):
    with record("request", input={"n": n}) as run:
        run.set_result(look(n))

class Handler(BaseHTTPRequestHandler):
    pass

if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(1)  # as a request's handler would call it
    else:
        try:
            HTTPServer(("127.0.0.1", 8765), Handler).serve_forever()
        except BaseException:
            raise SystemExit("the server's own words")
"""


def test_the_run_of_a_request_is_replayed_by_its_function(place: Place) -> None:
    """Replayed with its server, that is ended where it begins to serve, with the function to name and what it gets;
    in a corpus such a run is one that can't be replayed so, and no difference."""
    place.program(SERVER, "server.py")
    assert place.cli("run", "server.py", "now").returncode == 0
    done = place.cli("replay", "last", "--", "server.py")
    assert done.returncode == 2, done.stderr
    assert "begins to serve on 127.0.0.1:8765" in done.stderr
    assert "(it gets n): tracekit replay last --entry module:function" in done.stderr
    assert "the server's own words" not in done.stderr
    assert place.cli("replay", "last", "--entry", "server:work").returncode == 0
    corpus = place.cli("regress", "last", "--", "server.py")
    assert (corpus.returncode, "1 not replayable" in corpus.stdout) == (3, True), corpus.stdout


def test_a_server_that_was_interrupted(place: Place) -> None:
    """Stopped by Ctrl-C, as servers are: so is its replay."""
    serve(place, "decorated", "Oslo", stop="interrupt")
    done = place.cli("replay", "last")
    assert "4 steps matched" in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_was_killed_in_a_task_finishes_it(place: Place, kind: str) -> None:
    """``recovery resume`` gives its handlers the tasks that it had got: the finished ones answer from the log, the other one goes on."""
    assert serve(place, kind, "Oslo", "Rome", die=True) == -signal.SIGKILL
    assert effects(place) == ["Oslo"]
    (run,) = [path.name.removesuffix(".jsonl") for path in place.runs]
    decision = json.loads(place.cli("recovery", "scan", "--json").stdout)
    assert (decision["run_id"], decision["decision"]) == (run, "resume")
    done = place.cli("recovery", "resume", run)
    assert done.returncode == 0, done.stderr
    assert effects(place) == ["Oslo", "Rome"]
    assert place.cli("verify", run).returncode == 0
    done = place.cli("replay", run)
    assert done.returncode == 0, done.stderr
    assert effects(place) == ["Oslo", "Rome"]


def test_a_task_that_comes_after_those_that_a_resumed_run_had(place: Place) -> None:
    """``replay_tasks`` works in ``resume``; a task that comes then is a later one, in each replay."""
    program = """
import sys
from tracekit import replay, resume
from tracekit.agents import replay_tasks

if sys.argv[1] == "record":
    with record("worker") as run:
        print(run.id, flush=True)
        for city in ("Oslo", "Rome"):
            handle(extract({}, city))
elif sys.argv[1] == "resume":
    with resume(sys.argv[2]):
        print([answer.payload for answer in replay_tasks(handle)])
        print(handle(extract({}, "Bern")).payload)
else:
    with replay(sys.argv[2]):
        print([answer.payload for answer in replay_tasks(handle)])
"""
    (place.directory / "server.py").write_text(_HEAD + program)
    (place.directory / "die").write_text("")
    done = python(place, "record")
    assert done.returncode == -signal.SIGKILL
    run = done.stdout.split()[0]
    (place.directory / "die").unlink()
    done = python(place, "resume", run)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['booked Oslo', 'booked Rome']\nbooked Bern\n"
    done = python(place, "replay", run)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['booked Oslo', 'booked Rome', 'booked Bern']\n"
    assert effects(place) == ["Oslo", "Rome", "Bern"]
