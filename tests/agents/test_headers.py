"""Messages in headers: what is injected comes out again, other tools' headers stay, and nothing malformed is believed."""

from __future__ import annotations

import json
import re
import string
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tracing import of_type, recorded
from tracekit import record
from tracekit.agents import Message, agent, events, extract, inject, receive_task, respond, send_task, serialize
from tracekit.agents.ids import Origin
from tracekit.errors import InvalidMessageError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", fullmatch=True)
ORIGINS = st.builds(
    Origin, RUNS, st.none() | st.text("0123456789abcdef", min_size=16, max_size=16), st.integers(1, 2**53)
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["task_sent", "task_received", "response_sent", "state_transition"]),
    st.none() | NAMES,
    st.none() | NAMES,
    st.just("payload"),
    st.none() | NAMES,
    st.none() | ORIGINS,
)
#: Version, trace id (not all zeros), parent id (not all zeros), flags: as the W3C recommendation has it.
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")


@given(MESSAGES)
def test_what_is_injected_comes_out(message: Message) -> None:
    """Every message, whatever its names hold, in headers that keep to the W3C recommendations."""
    headers = inject({}, message)
    assert extract(headers, "payload") == message
    assert all(TOKEN.fullmatch(member) for member in headers["baggage"].split(","))
    assert ("traceparent" in headers) == (message.origin is not None)
    assert TRACEPARENT.fullmatch(headers.get("traceparent", "00-" + "1" * 32 + "-" + "1" * 16 + "-01"))


@given(MESSAGES)
def test_headers_are_found_however_a_framework_gives_them(message: Message) -> None:
    """Pairs or a mapping, text or bytes, any case, baggage on one line or on several."""
    headers = inject({}, message)
    members = headers["baggage"].split(",")
    rest = [(key, value) for key, value in headers.items() if key != "baggage"]
    forms: list[Any] = [
        {key.upper(): value for key, value in headers.items()},
        [(key.title().encode(), value.encode()) for key, value in headers.items()],
        [*rest, *(("Baggage", member) for member in members)],
        {**dict(rest), "baggage": members},
        {**headers, "baggage": " , ".join(f"{member} ; of=x" for member in members)},
    ]
    for form in forms:
        assert extract(form, "payload") == message


def test_what_others_put_there_stays() -> None:
    """Baggage and traceparent of other tools are left as they are; our own earlier members are replaced."""
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"Traceparent": theirs, "Baggage": "user=1;p=2, x=y"}
    first = Message("task_sent", "a", "b", None, None, Origin("r", None, 1))
    second = Message("task_sent", "a", "c", None, None, Origin("r", None, 2))
    inject(headers, first)
    assert headers["Traceparent"] == theirs
    assert headers["Baggage"].startswith("user=1;p=2,x=y,tracekit.run=r,")
    inject(headers, second)
    assert extract(headers) == second
    assert headers["Baggage"].count("tracekit.run") == 1
    assert len(headers) == 2
    ours = dict(inject({}, first))
    assert extract(inject(ours, second)) == second


@pytest.mark.parametrize(
    "headers", [{}, {"baggage": "a=b"}, {"traceparent": "garbage"}, {"baggage": "tracekitx=1, ;;,"}, {"baggage": ""}]
)
def test_headers_that_say_nothing_of_tracekit_are_from_outside(headers: dict[str, str]) -> None:
    """A request of somebody else is a task from outside every run; what others' headers hold is not judged."""
    assert extract(headers, 1) == Message("task_sent", None, None, 1)


RIGHT = dict(inject({}, Message("task_sent", "a", "b", None, "t", Origin("run", "0123456789abcdef", 12))))
BAGGAGE, PARENT = RIGHT["baggage"], RIGHT["traceparent"]


@pytest.mark.parametrize(
    "change",
    [
        {"baggage": BAGGAGE.replace("seq=12", "seq=0")},
        {"baggage": BAGGAGE.replace("seq=12", "seq=-1")},
        {"baggage": BAGGAGE.replace("seq=12", "seq=1e3")},
        {"baggage": BAGGAGE.replace("seq=12", "seq=99999999999999999")},
        {"baggage": BAGGAGE.replace("seq=12", "seq=٣")},
        {"baggage": BAGGAGE.replace("seq=12", "seq")},
        {"baggage": BAGGAGE.replace("run=run", "run=..%2Fup")},
        {"baggage": BAGGAGE.replace("run=run", "run=%2")},
        {"baggage": BAGGAGE.replace("run=run", "run=%FF")},
        {"baggage": BAGGAGE.replace("run=run", "other=run")},
        {"baggage": BAGGAGE.replace("segment=0123456789abcdef", "segment=xyz")},
        {"baggage": BAGGAGE.replace("type=sent", "type=unheard")},
        {"baggage": BAGGAGE + ",tracekit.seq=13"},
        {"baggage": 'tracekit.sender="a"'},
        {"baggage": "tracekit.segment=0123456789abcdef"},
        {"traceparent": "garbage"},
        {"traceparent": PARENT.upper()},
        {"traceparent": PARENT + "-more"},
        {"traceparent": "ff" + PARENT[2:]},
        {"traceparent": f"00-{'0' * 32}-{'1' * 16}-01"},
        {"traceparent": f"00-{'1' * 32}-{'0' * 16}-01"},
    ],
    ids=str,
)
def test_malformed_headers_of_ours_are_refused(change: dict[str, str]) -> None:
    """What was cut, changed or made up is an error, never another message."""
    with pytest.raises(InvalidMessageError):
        extract({**RIGHT, **change})


@pytest.mark.parametrize(
    "parent", [PARENT[:36] + "1" * 16 + "-00", f"00-{'1' * 32}-{'2' * 16}-01", PARENT[:36] + "1" * 16 + "-03"]
)
def test_a_hop_may_put_its_own_span_into_traceparent(parent: str) -> None:
    """A proxy that takes part in tracing, as the W3C has it, hands on baggage and names itself as the parent: the cause is as it was."""
    assert extract({**RIGHT, "traceparent": parent}) == extract(RIGHT)
    passed = {**RIGHT, "traceparent": parent}
    assert extract(inject(passed, extract(RIGHT))) == extract(RIGHT)


def test_two_traceparents_are_refused() -> None:
    """Which of them would be the one?"""
    with pytest.raises(InvalidMessageError):
        extract([*RIGHT.items(), ("traceparent", PARENT)])


def test_a_newer_traceparent_and_unknown_members_pass() -> None:
    """Later versions of both may add to what is there."""
    later = {"traceparent": "01" + PARENT[2:] + "-more", "baggage": BAGGAGE + ",tracekit.future=1"}
    assert extract(later) == extract(RIGHT)


@given(st.text(string.printable, max_size=60), st.text(string.printable, max_size=60))
def test_no_headers_do_harm(parent: str, baggage: str) -> None:
    """Whatever comes in: a message, or InvalidMessageError, and nothing else."""
    for prefix in ("", "tracekit.", "tracekit.run=r,tracekit.seq="):
        try:
            found = extract({"traceparent": parent, "baggage": prefix + baggage})
        except InvalidMessageError:
            continue
        assert isinstance(found, Message)


def test_names_too_long_for_headers_are_refused_when_they_are_sent() -> None:
    """More baggage than receivers must take is an error of the sender, not a loss on the way."""
    with pytest.raises(InvalidMessageError, match="8192"):
        inject({}, Message("task_sent", "a" * 9000, "b"))


def test_a_task_over_http_between_two_runs() -> None:
    """Planner and worker, a run each, over real HTTP: the events of both make one graph, every cause in it."""
    runs: list[Any] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            with record("worker", agent="worker", nested="link") as run:
                task = receive_task(extract(self.headers, body))
                answer = respond(task, task.payload.upper())
            runs.append(run)
            self.send_response(200)
            for key, value in inject({}, answer).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(answer.payload.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:

        def plan() -> str:
            with agent("planner"):
                message = send_task("worker", "hello")
                url = f"http://127.0.0.1:{server.server_port}/"
                request = urllib.request.Request(url, message.payload.encode(), dict(inject({}, message)))
                with urllib.request.urlopen(request) as response:
                    answer = extract(response.headers, response.read().decode())
                send_task("archive", answer.payload, causes=[answer])
                return str(answer.payload)

        run, said = recorded(plan)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert said == "HELLO"
    found = events(run.path, runs[0].path)
    lines = serialize(found)
    kinds = [one["event_type"] for one in map(json.loads, lines.splitlines())]
    assert kinds == ["task_sent", "task_received", "response_sent", "task_sent"]
    (cause,) = of_type(run, "task_sent")[1]["cause"]
    assert cause["run_id"] == runs[0].id
