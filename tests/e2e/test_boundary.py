"""Whatever leaves the process outside every captured step is reported with its line when the run is recorded."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tests.support.terminal import on_a_terminal

#: What each program begins with; its servers are there before it.
BEGIN = """
import asyncio, os, socket, subprocess, sys, threading
from tracekit import record, traced_tool
PORT = int(sys.argv[1])
URL = f"http://127.0.0.1:{PORT}/"

@traced_tool(side_effect="read_only")
def look(n):
    return n

def post():
    with socket.create_connection(("127.0.0.1", PORT)) as found:
        found.sendall(b"POST / HTTP/1.1\\r\\nHost: here\\r\\nContent-Length: 1\\r\\nConnection: close\\r\\n\\r\\nx")
        while found.recv(4096):
            pass

@traced_tool(side_effect="read_only")
def visit(address):
    socket.create_connection(address).close()

look(1)
"""
#: The line of the connection that ``post()`` makes.
POST = f"agent.py:{BEGIN[: BEGIN.index('create_connection')].count(chr(10)) + 1}"


class Server:
    """An HTTP server on loopback: how many requests it has had, and what it does when one comes."""

    def __init__(self) -> None:
        self.requests = 0
        self.heard: Callable[[], None] = lambda: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.requests += 1
                outer.heard()
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def entries(place: Place, kind: str = "boundary") -> list[dict[str, Any]]:
    (path,) = place.runs
    return [entry for line in path.read_bytes().splitlines() if (entry := json.loads(line))["type"] == kind]


def why(place: Place) -> Any:
    done = place.cli("show", "last", "--why", "--json")
    return json.loads(done.stdout)


#: By name: the program after ``BEGIN``, its first line the one that reaches outside; the kind of the first entry.
PROGRAMS = {
    "a raw socket": ("s = socket.create_connection(('127.0.0.1', PORT)); s.close()\n", "connect"),
    "connect_ex": ("s = socket.socket(); s.connect_ex(('127.0.0.1', PORT)); s.close()\n", "connect"),
    "a Unix socket": ("s = socket.socket(socket.AF_UNIX); s.connect_ex('nowhere.sock'); s.close()\n", "connect"),
    "a datagram": ("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', PORT)); s.close()\n", "send"),
    "listening": ("s = socket.create_server(('127.0.0.1', 0)); visit(s.getsockname()); s.accept()\n", "listen"),
    "a Unix datagram socket": ("s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('here.sock'); s.close()\n", "listen"),
    "a look-up": ("socket.gethostbyname('localhost')\n", "lookup"),
    "a name of an address": ("socket.getnameinfo(('127.0.0.1', 9), 0)\n", "lookup"),
    "asyncio": ("asyncio.run(asyncio.wait_for(asyncio.open_connection('127.0.0.1', PORT), None))\n", "connect"),
    "uvloop": ("__import__('uvloop').run(asyncio.open_connection('127.0.0.1', PORT))\n", "connect"),
    "a thread's socket": ("threading.Thread(target=lambda: socket.create_connection(('127.0.0.1', PORT)).close()).start()\n", "connect"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_captured_is_named_when_it_is_recorded(name: str, place: Place, server: Server) -> None:
    """It is named on stderr at the end of ``tracekit run``, in the log with its line, and in the verdict, which then
    never says yes."""
    if name == "uvloop":
        pytest.importorskip(name)
    text, kind = PROGRAMS[name]
    place.program(BEGIN + text)
    done = place.cli("run", "agent.py", str(server.port), fresh=name == "uvloop")
    assert done.returncode == 0, done.stderr
    where = f"agent.py:{BEGIN.count(chr(10)) + 1}"
    told = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert 1 <= len(told) <= 5
    assert where in told[0]
    first = entries(place)[0]
    assert (first["name"], first["input"]["status"]) == (kind, "noted")
    assert first["input"]["where"].endswith(where)
    answers = why(place)
    replayed, safe = answers["can_be_replayed"], answers["safe_to_retry"]
    assert replayed["answer"] is (None if kind == "listen" else False)
    assert [where in one["text"] for one in replayed["reasons"] if one["code"] == "uncaptured"] == [True] * len(told)
    effect = kind not in ("fork", "listen", "lookup")
    assert safe["answer"] is None
    assert any(one["code"] == "uncaptured_effect" and where in one["text"] for one in safe["reasons"]) == effect
    replay = place.cli("replay", "last")
    assert replay.returncode == 1
    assert "live-call-blocked" in replay.stderr


def test_asking_for_the_files_of_a_running_process(place: Place) -> None:
    """When a file that a process makes while it runs is there is a matter of chance: the recording names the lines that saw
    it, and the verdict does not know. What the program or its tools make meanwhile, what is read once, and what was there, is
    not named."""
    place.program(
        BEGIN.replace("int(sys.argv[1])", "1")
        + """
@traced_tool(side_effect="reversible")
def write(name):
    open(name, "w").close()

process = subprocess.Popen("touch out; mkdir more; echo made; read more; touch late", shell=True, stdin=-1, stdout=-1)
process.stdout.readline()
write("by a tool")
open("mine", "w").close()
os.mkdir("my own")
for name in ("agent.py", "by a tool", "mine", "my own", "not there"):
    os.path.exists(name)
found = [os.listdir("."), open("out").read()]
saw = os.path.exists("out")  # seen
os.stat("more")  # seen
process.communicate(b"x")
os.path.exists("out")
os.listdir(".")
"""
    )
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    text = (place.directory / "agent.py").read_text().splitlines()
    lines = [at for at, line in enumerate(text, 1) if line.endswith("# seen")]
    told = [line for line in done.stderr.splitlines() if "which a process changes while it runs" in line]
    assert [line.rpartition(":")[2] for line in told] == [f"{at})" for at in lines], done.stderr
    assert all("a replay may differ: looking at " in line for line in told)
    answer = why(place)["can_be_replayed"]
    assert (answer["answer"], {one["code"] for one in answer["reasons"]}) == (None, {"uncaptured"})


def test_what_is_captured_or_accounted_for_is_not_in_the_list(place: Place, server: Server) -> None:
    """The list leaves out the sockets of captured model and HTTP calls, whatever a traced tool does, socket pairs, and
    processes that join the run."""
    place.program("import tracekit\n", "child.py")
    place.program(
        BEGIN
        + """
import http.client, httpx, requests, urllib.request

@traced_tool(side_effect="irreversible")
def pay():
    post()
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=lambda: socket.create_connection(("127.0.0.1", PORT)).close())
    thread.start(); thread.join()

async def ask():
    async with httpx.AsyncClient() as client:
        return (await client.post(URL)).text

pay()
client = httpx.Client()
for _ in range(2):
    client.post(URL, content=b"x")
asyncio.run(ask())
pool = requests.Session()
for _ in range(2):
    pool.post(URL, data=b"x")
urllib.request.urlopen(URL).read()
warm = http.client.HTTPConnection("127.0.0.1", PORT)
warm.connect()
warm.request("GET", "/")
warm.getresponse().read()
a, b = socket.socketpair()
a.send(b"x")
subprocess.run([sys.executable, "child.py"], check=True)
"""
    )
    done = place.cli("run", "agent.py", str(server.port))
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    (path,) = [path for path in place.runs if path.stem.count(".") == 0]
    last = json.loads(path.read_bytes().splitlines()[-1])
    noted = [json.loads(line) for line in path.read_bytes().splitlines() if b'"type":"boundary"' in line]
    assert (noted, last["meta"].get("boundary")) == ([], None)
    assert [one["code"] for one in why(place)["can_be_replayed"]["reasons"]] == ["nothing_lacking"]


@pytest.mark.parametrize("options", [[], ["--isolate", "off"]], ids=["isolated", "guarded in Python"])
def test_a_free_port_is_the_recorded_one(options: list[str], place: Place, server: Server) -> None:
    """Binding a socket to find a free or taken port, and looking up this host's name, give the recorded result in a
    replay; so does listening there."""
    place.program("""
import asyncio, socket, sys
def free(kind):
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
print(free(socket.SOCK_STREAM), free(socket.SOCK_DGRAM))
try:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(sys.argv[1])))
except OSError as error:
    print(type(error).__name__, error)
print(socket.gethostbyaddr("127.0.0.1"), socket.getfqdn())
try:
    socket.gethostbyaddr("host.invalid")
except OSError as error:
    print(type(error), error)
if len(sys.argv) > 2:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("listening on", listener.getsockname())
""")
    recording = place.cli("run", "agent.py", str(server.port))
    assert recording.returncode == 0, recording.stderr
    assert "not captured" not in recording.stderr
    assert "Address already in use" in recording.stdout
    server.close()
    replay = place.cli("replay", "last", *options)
    assert (replay.returncode, replay.stdout) == (0, recording.stdout), replay.stderr
    recording = place.cli("run", "agent.py", str(server.port), "listen")
    assert recording.returncode == 0
    replay = place.cli("replay", "last", *options)
    assert (replay.returncode, replay.stdout) == (0, recording.stdout), replay.stderr


def test_a_connection_from_before_the_run_counts_when_it_is_used(place: Place, server: Server) -> None:
    """A pooled connection from before the run is named when the run first uses it, and not for merely being open."""
    program = (
        BEGIN.replace("look(1)\n", "")
        + """
used, idle = (socket.create_connection(("127.0.0.1", PORT)) for _ in range(2))

def ask(found):
    found.sendall(b"POST / HTTP/1.1\\r\\nHost: here\\r\\nContent-Length: 0\\r\\n\\r\\n")
    assert found.recv(4096)

ask(used), ask(idle)
"""
    )
    place.program(
        program
        + """with record("r") as run:
    for _ in range(3):
        ask(used)
print(run.warnings)
"""
    )
    done = place.python("agent.py", str(server.port))
    assert done.returncode == 0, done.stderr
    (one,) = entries(place)
    assert (one["name"], one["input"]["target"]) == ("send", f"127.0.0.1:{server.port}")
    assert one["input"]["where"].endswith(
        f"agent.py:{program[: program.rindex('    found.sendall')].count(chr(10)) + 1}"
    )
    assert "RuntimeWarning: tracekit: run" in done.stderr


def test_killed_right_after_an_uncaptured_post_it_is_not_made_again(place: Place, server: Server) -> None:
    """The log has the connection before it is made, so ``recovery`` does not resume the run, and the POST is not made
    again."""
    text = "post()\nlook(2)\n"
    place.program(BEGIN + "open('pid', 'w').write(str(os.getpid()))\n" + text)
    server.heard = lambda: os.kill(int((place.directory / "pid").read_text()), signal.SIGKILL)
    assert place.cli("run", "agent.py", str(server.port)).returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    server.heard = lambda: None
    assert server.requests == 1
    scan = place.cli("recovery", "scan", "--json")
    (decision,) = map(json.loads, scan.stdout.splitlines())
    (reason,) = [one for one in decision["reasons"] if one["code"] == "uncaptured_effect"]
    assert (decision["decision"], f"127.0.0.1:{server.port}" in reason["text"]) == ("abort", True)
    resumed = place.cli("recovery", "resume", place.run)
    assert (resumed.returncode, server.requests) == (4, 1), resumed.stderr
    assert "uncaptured_effect" in resumed.stdout + resumed.stderr
    assert why(place)["safe_to_retry"]["answer"] is None


@pytest.mark.parametrize("flags", [("-W", "error"), ()])
def test_a_note_never_becomes_an_error(place: Place, server: Server, flags: tuple[str, ...]) -> None:
    """All notes together are one RuntimeWarning; where a filter turns warnings into errors, they are a line on stderr,
    and the program goes on."""
    text = """
with record("r") as run:
    for _ in range(2):
        post()
    socket.socket(socket.AF_UNIX).connect_ex("nowhere.sock")
print(len(run.warnings), "after")
"""
    place.program(BEGIN.replace("look(1)\n", "") + text)
    done = place.python(*flags, "agent.py", str(server.port))
    assert (done.returncode, done.stdout) == (0, "2 after\n"), done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert (told.count("not captured"), f"{POST}, 2 times" in told) == (2, True)
    assert ("RuntimeWarning" in told) == (not flags)


def test_what_instrument_would_have_captured_is_told_with_that_cure(place: Place, server: Server) -> None:
    """If an HTTP client is used without ``instrument()``, the warnings of the recording and of the replay recommend
    that call."""
    url = f"http://127.0.0.1:{server.port}/"
    place.program(f"""
import urllib.request
from tracekit import record
with record("r"):
    urllib.request.urlopen({url!r}).read()
""")
    done = place.python("agent.py")
    (told,) = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert "Call tracekit.instrument() before the run" in told
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, server.requests) == (1, 1)
    assert "which was not captured when it was recorded" in replayed.stderr
    assert f"is a connection to 127.0.0.1:{server.port}" in replayed.stderr
    (advice,) = [line for line in replayed.stderr.splitlines() if line.startswith("  next:")]
    assert "record again, with tracekit.instrument() called before the run" in advice


def test_a_library_that_instrument_was_not_asked_for_is_told_by_name(place: Place, server: Server) -> None:
    """If only ``instrument("openai")`` was called and a request is made by ``http.client``, that library is named."""
    place.program(f"""
import http.client, tracekit
tracekit.instrument("openai")
with tracekit.record("r"):
    connection = http.client.HTTPConnection("127.0.0.1", {server.port})
    connection.request("GET", "/")
    connection.getresponse().read()
""")
    done = place.python("agent.py")
    (told,) = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert "Name 'http_client'" in told
    assert "in tracekit.instrument() as well" in told


def test_an_exception_of_the_program_comes_out_as_it_is(place: Place, server: Server) -> None:
    """An exception of the program is raised unchanged, with the note beside it."""
    text = "with record('r'):\n    post()\n    raise KeyError('mine')\n"
    place.program(BEGIN.replace("look(1)\n", "") + text)
    done = place.python("-W", "error", "agent.py", str(server.port))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "KeyError: 'mine'")
    assert "not captured" in done.stderr


def test_at_most_five_lines(place: Place) -> None:
    """At most five lines are printed and the rest counted; ``show --why`` has all of them, and one source line with a
    thousand targets does not fill the log."""
    lines = "".join(f"socket.socket(socket.AF_UNIX).connect_ex('nowhere{number}.sock')\n" for number in range(7))
    many = "for port in range(20000, 20300):\n    socket.socket().connect_ex(('127.0.0.1', port))\n"
    place.program(BEGIN + lines + many)
    done = place.cli("run", "agent.py", "1")
    told = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert (len(told), "103 more" in told[-1] or "104 more" in told[-1]) == (5, True)
    assert len(why(place)["can_be_replayed"]["reasons"]) == 7 + 101
    assert len(entries(place)) == 7 + 101
    (last,) = entries(place, "run.completed")
    assert sum(one["count"] for one in last["meta"]["boundary"].values()) == 7 + 300


def test_what_belongs_to_no_run_is_every_open_ones(place: Place, server: Server) -> None:
    """A connection made by a thread from before the run is listed as one whose owner is unknown, and the verdict is
    unknown."""
    place.program(
        BEGIN.replace("look(1)\n", "")
        + """
go, done = threading.Event(), threading.Event()

def beside():
    go.wait()
    post()
    done.set()

threading.Thread(target=beside).start()
with record("r") as run:
    look(1)
    go.set()
    done.wait()
"""
    )
    done = place.python("agent.py", str(server.port))
    assert done.returncode == 0, done.stderr
    (one,) = entries(place)
    assert (one["input"]["unattributed"], one["lane"], one["parent"]) == (True, 0, 1)
    answers = why(place)
    assert answers["can_be_replayed"]["answer"] is None
    assert "unattributed" in [one["code"] for one in answers["can_be_replayed"]["reasons"]]


def test_a_connection_of_nobody_is_the_runs_once_the_run_uses_it(place: Place, server: Server) -> None:
    """If a thread from before the run connects and the run then sends, the connection counts as the run's."""
    place.program(
        BEGIN.replace("look(1)\n", "")
        + """
go, done, found = threading.Event(), threading.Event(), []

def beside():
    go.wait()
    found.append(socket.create_connection(("127.0.0.1", PORT)))
    done.set()

threading.Thread(target=beside).start()
with record("r") as run:
    go.set()
    done.wait()
    for _ in range(2):
        found[0].sendall(b"GET / HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n")
"""
    )
    done = place.python("agent.py", str(server.port))
    assert done.returncode == 0, done.stderr
    noted = [(one["name"], one["input"].get("unattributed", False)) for one in entries(place)]
    assert noted == [("connect", True), ("send", False)]
    assert why(place)["can_be_replayed"]["answer"] is False


def test_a_captured_library_in_a_thread_of_nobody_is_every_open_runs(place: Place, server: Server) -> None:
    """The run's own requests by a captured library are not listed; one that a thread from before the run sends is
    listed, and goes ahead unchanged."""
    place.program(
        BEGIN.replace("look(1)\n", "")
        + """
import requests, tracekit
tracekit.instrument()
go, done, found = threading.Event(), threading.Event(), []

def beside():
    go.wait()
    found.append(requests.post(URL, data=b"x").text)
    done.set()

threading.Thread(target=beside).start()
with record("r") as run:
    found.append(requests.post(URL, data=b"x").text)
    go.set()
    done.wait()
print(found)
"""
    )
    done = place.python("agent.py", str(server.port))
    assert (done.returncode, done.stdout) == (0, "['ok', 'ok']\n"), done.stderr
    assert [one["input"].get("unattributed") for one in entries(place)] == [True]
    assert len(entries(place, "http.request")) == 1


def test_what_a_server_of_the_same_process_answers_is_nothing_of_the_runs(place: Place) -> None:
    """Connections that a server in the same process accepts are not listed, and the run's requests to it are captured."""
    place.program(
        """
import http.server, threading, httpx
from tracekit import instrument, record

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *args): pass

instrument()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with record("r") as run:
    print(httpx.get(f"http://127.0.0.1:{server.server_port}/").text)
print(run.warnings)
"""
    )
    done = place.python("agent.py")
    assert (done.returncode, done.stdout) == (0, "ok\n[]\n"), done.stderr
    assert entries(place) == []


def test_telemetry_is_ambient(place: Place, server: Server) -> None:
    """Telemetry is sent while recording and listed with its origin, and does not change the verdict."""
    place.program(
        BEGIN
        + """
import httpx
httpx.post(f"{URL}telemetry/api/public/ingestion", content=b"x")
"""
    )
    telemetry = {"LANGFUSE_HOST": f"http://127.0.0.1:{server.port}/telemetry"}
    done = place.cli("run", "agent.py", str(server.port), **telemetry)
    assert done.returncode == 0, done.stderr
    assert ("not captured" in done.stderr, server.requests) == (False, 1)
    (one,) = entries(place)
    assert one["input"] | {"where": ""} == {
        "status": "ambient", "operation": "http", "target": f"http://127.0.0.1:{server.port}", "where": "",
    }  # fmt: skip
    assert "uncaptured" not in json.dumps(why(place))
    assert (place.cli("replay", "last", **telemetry).returncode, server.requests) == (0, 1)


def test_what_a_process_of_the_run_does_is_said_at_its_end(place: Place, server: Server) -> None:
    """A child process that joined has a list of its own, which the run mentions at its end."""
    child = "import socket, sys, tracekit\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()\n"
    place.program(child, "child.py")
    place.program(BEGIN + "subprocess.run([sys.executable, 'child.py', str(PORT)], check=True)\n")
    done = place.cli("run", "agent.py", str(server.port))
    told = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert ([("child.py:2" in line) for line in told], done.returncode) == ([True], 0)
    (reason,) = [one for one in why(place)["can_be_replayed"]["reasons"] if one["code"] == "uncaptured"]
    assert ("child.py:2" in reason["text"], ":" in str(reason["entries"][0])) == (True, True)


def test_what_a_forked_copy_does_is_its_own(place: Place, server: Server) -> None:
    """A forked child belongs to the run, and what it does outside every step is reported as the child's."""
    place.program(
        BEGIN + "if not os.fork():\n    look(2)\n    post()\n    os._exit(0)\nos.wait()\n",
    )
    done = place.cli("run", "agent.py", str(server.port))
    told = [line for line in done.stderr.splitlines() if "not captured" in line]
    assert [POST in line for line in told] == [True]
    answers = why(place)
    assert answers["can_be_replayed"]["answer"] is False
    assert [
        POST in one["text"] for one in answers["safe_to_retry"]["reasons"] if "entries" in one and one.get("kind")
    ] == [True]


def test_nothing_was_captured_is_said_whatever_crossed(place: Place, server: Server) -> None:
    """A run says that nothing was captured even if there is a list of what was not captured."""
    place.program("import socket, sys\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()\n")
    done = place.cli("run", "agent.py", str(server.port))
    assert "no model call, tool or HTTP call was captured" in done.stderr
    assert "nothing_captured" in [one["code"] for one in why(place)["can_be_replayed"]["reasons"]]


def test_calls_to_an_allowed_host_are_counted(place: Place, server: Server) -> None:
    """A replay counts each connection to an allowed host once, in its line."""
    place.program(BEGIN + "for _ in range(2):\n    post()\n")
    place.cli("run", "agent.py", str(server.port))
    done = place.cli("replay", "last", "--allow-host", f"127.0.0.1:{server.port}")
    assert (done.returncode, server.requests) == (0, 4), done.stderr
    assert "exact but for 2 connections to allowed hosts" in done.stderr


def test_the_entry_is_there_before_it_goes_ahead(place: Place) -> None:
    """By the time the other side accepts a connection, the log has its entry."""
    seen: list[list[str]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with listener.accept()[0]:
                seen.append([entry["name"] for entry in entries(place)])

        thread = threading.Thread(target=accept)
        thread.start()
        place.program(BEGIN + "s = socket.create_connection(('127.0.0.1', PORT)); s.recv(1)\n")
        place.cli("run", "agent.py", str(listener.getsockname()[1]))
        thread.join()
    assert seen == [["connect"]]


def test_what_can_not_be_written_down_goes_on(place: Place, server: Server) -> None:
    """If the log can't be written, an uncaptured call still goes ahead; the run reports missing entries, and the next
    one is there."""
    place.program(
        BEGIN.replace("look(1)\n", "")
        + """
import resource
with record("r") as run:
    size = os.path.getsize(run.path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    post()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    post()
print("went on")
"""
    )
    done = place.python("agent.py", str(server.port))
    assert (done.returncode, done.stdout, server.requests) == (0, "went on\n", 2), done.stderr
    assert "could not be written" in done.stderr
    (one,) = entries(place)
    assert f"{POST}, 2 times" in done.stderr
    assert "lost_entries" in [reason["code"] for reason in why(place)["can_be_replayed"]["reasons"]]
    assert one["name"] == "connect"


def test_show_has_it_in_text_and_json(place: Place) -> None:
    """``show`` prints a line with count and place for each entry, and the entry itself as JSON."""
    place.program(
        BEGIN + "for _ in range(2):\n    __import__('subprocess').run(['true'], stdout=__import__('os').pipe()[1])\n"
    )
    place.cli("run", "agent.py", "1")
    shown = [json.loads(line) for line in place.cli("show", "last", "--json").stdout.splitlines()]
    assert [one["name"] for one in shown if one["type"] == "boundary"] == ["process"]
    tree, _ = on_a_terminal("show", "last", "--store", str(place.store))
    (row,) = [line for line in tree.splitlines() if "boundary" in line]
    assert ("the process true" in row, "2 times" in row, row.endswith("noted")) == (True, True, True)
