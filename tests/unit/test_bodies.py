"""HTTP bodies in the log: readable where that costs no fidelity, and of one that begins like an earlier one only the rest is worked on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx2
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tracekit
from tests.support.depth import examples
from tracekit._capture.http import NOT_JSON, decode, encode, multipart, parsed
from tracekit._runtime.bodies import Bodies
from tracekit._runtime.encoding import Encoder
from tracekit._values import dumps_in_order
from tracekit.integration import Trace, to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def around(content: bytes, *, text: bool = True) -> bytes:
    return decode(*encode(content, parsed(content), text=text)[:2])


@given(st.binary())
def test_a_body_of_any_bytes_comes_back(content: bytes) -> None:
    """Whatever bytes a body consists of, the log gives the same bytes back, whether or not it is said to be text."""
    assert around(content) == content
    assert around(content, text=False) == content


@given(
    JSON,
    st.sampled_from([None, 2, 4]),
    st.booleans(),
    st.sampled_from([None, (",", ":")]),
    st.sampled_from(["", "\n", "\n\n"]),
)
def test_json(value: Any, indent: int | None, ascii_only: bool, separators: Any, end: str) -> None:
    """JSON comes back byte for byte, however it was written."""
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators) + end
    content = written.encode("utf-8", "surrogatepass")
    assert around(content) == content


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b'{"a":1.5,"b":"\xc3\xa4"}', "json"),
        (b'{\n  "a": 1\n}', "json:indent"),
        (b'{\n  "a": 1\n}\n', "json:indent+newline"),
        (b'{"a": 1, "b": "\xc3\xa4"}', "json:spaced"),
        (b'{"a":"\\u00e4"}', "json:ascii"),
        (b'{"a": "\\u00e4"}', "json:spaced-ascii"),
        (b'{"a":1,"a":2}', "text"),
        (b'{"a":1.0e5}', "text"),
        (b'{"n":NaN}', "text"),
        (b'{"cut', "text"),
        (b"", "text"),
        (b"\xff\xfe", "bytes"),
    ],
)
def test_format(content: bytes, format: str) -> None:
    """JSON is kept as JSON where one of the usual writers gives the same bytes, else as text, else as bytes."""
    value, found, _ = encode(content, parsed(content))
    assert found == format
    assert decode(value, found) == content
    assert isinstance(value, dict) == format.startswith("json")


def test_binary_stays_binary() -> None:
    """What is not text by its type is kept as bytes, even where it could be read as text."""
    assert encode(b"RIFF", parsed(b"RIFF"), text=False) == (b"RIFF", "bytes", None)


def test_multipart_without_boundary() -> None:
    """Two forms that differ in their boundary are equal; their parts are told."""

    def form(boundary: str) -> list[dict[str, Any]] | None:
        body = (
            (
                f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
                f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
                f"Content-Type: application/octet-stream\r\n\r\n"
            ).encode()
            + b"\xff\x00\r\n\r\nx\r\n--"
            + boundary.encode()
            + b"--\r\n"
        )
        return multipart(body, f"multipart/form-data; boundary={boundary}")

    assert form("abc") == form("0d9f-2") == [
        {"name": "purpose", "body": "assistants"},
        {"name": "file", "filename": "a.bin", "type": "application/octet-stream", "body": b"\xff\x00\r\n\r\nx"},
    ]  # fmt: skip


def test_not_multipart() -> None:
    """A body that only says that it is a form is kept as it is."""
    assert multipart(b"nothing", "multipart/form-data; boundary=b") is None
    assert multipart(b"nothing", "multipart/form-data") is None


def test_not_json() -> None:
    """``null`` is JSON only where something else could not be meant."""
    assert parsed(b"plain") is NOT_JSON
    assert parsed(b"") is NOT_JSON


@pytest.mark.parametrize(
    "content", [b'{"a":[1,2.5,null,"$5"],"b":{"c":"d"}}', b'{"a":{"price in $":1}}', b"[]", b'"text"']
)
def test_a_plain_body_is_written_as_it_came(content: bytes) -> None:
    """A body in which nothing can be taken for a tag stands in the log byte for byte; a dollar in a text, or inside a
    key, is no tag."""
    value = parsed(content)
    assert encode(content, value) == (value, "json", content)
    assert dumps_in_order(to_json(value)) == content


@given(JSON, st.booleans())
def test_the_json_beside_a_body_is_what_the_log_writes(value: Any, spaced: bool) -> None:
    """However it was written: where it is at hand, it is the encoding of the value."""
    content = json.dumps(value, separators=None if spaced else (",", ":")).encode()
    body, _, data = encode(content, parsed(content))
    assert data is None or data == dumps_in_order(to_json(body))


@pytest.mark.parametrize("content", [b'{"$t":"bytes","v":"YQ=="}', b'{"a":{"$":1}}', b"[" * 400 + b"]" * 400])
def test_a_body_that_could_be_taken_for_another_takes_the_long_way(content: bytes) -> None:
    """Keys that begin with a dollar and deep nesting are looked at value by value before they are told."""
    assert encode(content, parsed(content))[2] is None


# -- bodies that begin like an earlier one ------------------------------------------------------------------------------

KEY = "sk-proj-" + "A1b2C3d4" * 6
TOKEN = "tok-77aZ19bQ42xV"
LONG = "What do we know of this case, and who has to be asked about the password? " * 9

TOOLS = [{"type": "function", "function": {"name": name, "description": LONG}} for name in ("find", "ask", "send")]

texts = st.sampled_from(
    [
        "", "Yes.", LONG, f"{LONG} {LONG}", f"the key is {KEY}", f"it was {TOKEN}, {LONG}", "größer als 🙂 " * 40, '"},{"role":"user"',
        '],"model":"m"}', "REDACTED_ABCDEFGH", '{"$t":"bytes","v":"c2VjcmV0"}', "-p", "api_key=${KEY}", "\\ud83d\n\t\x7f",
    ]
)  # fmt: skip
messages = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), texts),
    st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}, {"n": 1.5}]}, texts),
    st.builds(lambda text: {"role": "tool", "name": "password", "content": text}, texts),
    st.builds(
        lambda text: {"role": "assistant", "tool_calls": [{"id": "c", "arguments": text}], "content": None}, texts
    ),
    st.builds(lambda text: {"content": text, "$t": "tuple"}, texts),
    st.builds(lambda text: {"api_key": text}, texts),
    st.builds(lambda depth: {"deep": json.loads("[" * depth + "]" * depth)}, st.sampled_from([3, 140, 160])),
)
#: How a body is written: as orjson does it, with spaces, with one, with a field twice.
WRITTEN: Final = {
    "plainly": orjson.dumps,
    "spaced": lambda body: json.dumps(body).encode(),
    "odd": lambda body: b": ".join(orjson.dumps(body).rsplit(b":", 4)),
    "twice": lambda body: orjson.dumps(body).replace(b'"model":"m"', b'"model":"m","model":"m"'),
}
#: What a program does to its history before it sends it again.
says = st.tuples(st.just("say"), st.lists(messages, min_size=1, max_size=3))
moves = st.one_of(
    says,
    says,
    says,
    st.tuples(st.just("edit"), messages),
    st.tuples(st.just("drop"), st.integers(0, 4)),
    st.tuples(st.just("first"), st.integers(1, 4)),
    st.tuples(st.just("options"), st.dictionaries(st.sampled_from(["aa", "tools", "zz"]), st.lists(messages, max_size=2))),
    st.tuples(st.just("before"), st.booleans()),
    st.tuples(st.just("written"), st.sampled_from(list(WRITTEN))),
    st.tuples(st.just("credential"), st.just(TOKEN)),
    st.tuples(st.just("other"), st.integers(0, 1)),
)  # fmt: skip


def converse(client: httpx2.Client, plan: list[tuple[str, Any]]) -> None:
    """Send two conversations, each whole each time."""
    system = {"role": "system", "content": LONG * 2}
    histories: list[list[Any]] = [[system], [system, {"role": "user", "content": LONG}]]
    history, options, first, written = histories[0], dict[str, Any](), False, "plainly"
    headers = {"content-type": "application/json"}
    for move, about in plan:
        if move == "say":
            history += about
        elif move == "edit":
            history[-1:] = [about]
        elif move == "drop":
            del history[max(len(history) - about, 0) :]
        elif move == "first":
            del history[1:about]
        elif move == "options":
            options = about
        elif move == "before":
            first = about
        elif move == "written":
            written = about
        elif move == "credential":
            headers["authorization"] = f"Bearer {about}"
        else:
            history = histories[about]
        said = {"messages": history, "model": "m"}
        body = {**options, **said} if first else {**said, **options}
        client.post("http://model.test/v1/chat/completions", content=WRITTEN[written](body), headers=headers)


@pytest.fixture(scope="module")
def captured() -> Iterator[None]:
    tracekit.instrument("httpx", "openai")
    yield
    tracekit.uninstrument()


@contextmanager
def recording(store: Path, **options: Any) -> Iterator[tuple[httpx2.Client, tracekit.Run]]:
    answer = {"id": "c", "model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json=answer))
    with (
        tracekit.record("talk", store=store, durability="none", **options) as run,
        httpx2.Client(transport=transport) as client,
    ):
        yield client, run


def entries(path: Path) -> list[bytes]:
    """The lines of a trace, without what is another one in each run."""
    found = []
    for line in path.read_bytes().splitlines():
        entry = json.loads(line)
        if entry["type"] in ("blob", "llm.request", "http.request"):
            found.append(
                orjson.dumps({key: item for key, item in entry.items() if key not in ("ts_ns", "hash", "run_id")})
            )
    return found


def say(*said: str) -> tuple[str, Any]:
    return "say", [{"role": "user", "content": text} for text in said]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@example([say(f"the key is {KEY}"), say(LONG), say("Yes."), say(LONG, LONG), say("Yes.")], ())
@example([say(LONG), say("Yes."), ("options", {"aa": []}), say("Yes."), say("Yes.")], ())
@example(
    [say(LONG), ("options", {"tools": TOOLS}), say("Yes."), say(LONG), ("options", {"tools": TOOLS[1:]}), say("Yes.")],
    (),
)
@example([say(LONG), say("Yes."), ("options", {"zz": [{"api_key": KEY}]}), say("Yes."), say(LONG)], ())
@settings(max_examples=examples(120), deadline=None)
@given(plan=st.lists(moves, min_size=4, max_size=16), pattern=st.sampled_from([(), ("who has to [a-z]+",)]))
@pytest.mark.usefixtures("captured")
def test_same_trace(plan: list[tuple[str, Any]], pattern: tuple[str, ...]) -> None:
    """Whatever is said, edited, left out and branched, secrets and credentials that are learned meanwhile included."""
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory)
        with recording(store, redact=pattern) as (client, run):
            converse(client, plan)
        with patch.object(Bodies, "continued", lambda *_: None), recording(store, redact=pattern) as (client, whole):
            converse(client, plan)
        found = entries(Path(run.path))
        assert found == entries(Path(whole.path))
        with Trace(Path(run.path)) as trace:
            asked = [trace.expand(entry["input"]) for entry in trace.entries() if entry["type"].endswith(".request")]
        with Trace(Path(whole.path)) as trace:
            assert asked == [
                trace.expand(entry["input"]) for entry in trace.entries() if entry["type"].endswith(".request")
            ]


@pytest.mark.usefixtures("captured")
def test_only_what_is_new() -> None:
    """Of a conversation that goes on, each request but the first two is encoded by its new messages."""
    taken = list[int]()
    inner = Encoder.encode_continued

    def counting(self: Encoder, *args: Any) -> Any:
        found = inner(self, *args)
        taken.append(args[2].count if found is not None else -1)
        return found

    plan = [say(f"{n} {LONG}") for n in range(12)]
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.object(Encoder, "encode_continued", counting),
        recording(Path(directory)) as (client, _),
    ):
        converse(client, plan)
    assert taken == [*range(3, 13)]


def test_bounded() -> None:
    """What is remembered of requests has a bound, however many are sent, and however large they are."""
    bodies = Bodies()
    for size in (2_000, 300_000, 3_000_000, 300_000, 2_000):
        for number in range(40):
            value = {"messages": [{"role": "user", "content": f"{number} {'x' * size}"}]}
            for _ in range(2):
                bodies.remember(orjson.dumps(value), value)
            assert sum(body.size for body in bodies._recent) <= 8 << 20
            assert 1 <= len(bodies._recent) <= 16
    for number in range(10_000):
        bodies.remember(orjson.dumps({"messages": [{"role": "user", "content": f"{number} {'x' * 2_000}"}]}), {})
    assert len(bodies._begun) <= 1024


def test_a_conversation_of_an_own_model_costs_each_message_once() -> None:
    """What a traced model is given again is not written again: a trace grows with what is said, and not with the square of it."""

    @tracekit.traced_model(model="own")
    def chat(messages: list[dict[str, str]]) -> str:
        return f"{len(messages)}: " + "an answer " * 90

    def program() -> list[dict[str, str]]:
        said: list[dict[str, str]] = []
        for turn in range(60):
            said.append({"role": "user", "content": f"{turn}: " + "a question " * 80})
            said.append({"role": "assistant", "content": chat(said)})
        return said

    with tempfile.TemporaryDirectory() as directory:
        with tracekit.record("own", store=directory) as run:
            said = program()
        assert Path(run.path).stat().st_size < 2 * len(orjson.dumps(said))
        with tracekit.replay(run) as session:
            assert program() == said
        assert session.report.exact


def test_of_what_never_goes_on_nothing_is_kept() -> None:
    """A request is kept once another one has begun like it."""
    bodies = Bodies()
    for number in range(20):
        value = {"messages": [{"role": "user", "content": f"{number} {'x' * 2_000}"}]}
        bodies.remember(orjson.dumps(value), value)
    assert not bodies._recent


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("captured")
def test_learned_later() -> None:
    """A credential that becomes known in the middle of a conversation is taken out of the messages that were sent before, too."""
    plan = [say(f"{LONG} {TOKEN}"), say(LONG), ("credential", TOKEN), say("And now?")]
    with tempfile.TemporaryDirectory() as directory:
        with recording(Path(directory)) as (client, run):
            converse(client, plan)
        with Trace(Path(run.path)) as trace:
            asked = [trace.expand(entry["input"]) for entry in trace.entries() if entry["type"] == "llm.request"]
    assert [TOKEN in str(one) for one in asked] == [True, True, False, False]
