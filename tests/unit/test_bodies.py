"""HTTP bodies in the log: readable where that costs no fidelity."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit._capture.http import NOT_JSON, decode, encode, multipart, parsed
from tracekit._values import dumps_in_order
from tracekit.integration import to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def around(content: bytes, *, text: bool = True) -> bytes:
    return decode(*encode(content, parsed(content), text=text)[:2])


@given(st.binary())
def test_bytes(content: bytes) -> None:
    """Any bytes come back."""
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


@pytest.mark.parametrize("content", [b'{"a":[1,2.5,null,"$5"],"b":{"c":"d"}}', b"[]", b'"text"'])
def test_a_plain_body_is_written_as_it_came(content: bytes) -> None:
    """A body in which nothing can be taken for a tag stands in the log byte for byte; a dollar in a text is no tag."""
    value = parsed(content)
    assert encode(content, value) == (value, "json", content)
    assert dumps_in_order(to_json(value)) == content


@given(JSON, st.booleans())
def test_the_json_beside_a_body_is_what_the_log_writes(value: Any, spaced: bool) -> None:
    """However it was written: where it is at hand, it is the encoding of the value."""
    content = json.dumps(value, separators=None if spaced else (",", ":")).encode()
    body, _, data = encode(content, parsed(content))
    assert data is None or data == dumps_in_order(to_json(body))


@pytest.mark.parametrize("content", [b'{"$t":"bytes","v":"YQ=="}', b'{"a":{"price in $":1}}', b"[" * 400 + b"]" * 400])
def test_a_body_that_could_be_taken_for_another_takes_the_long_way(content: bytes) -> None:
    """Keys with a dollar and deep nesting are looked at value by value before they are told."""
    assert encode(content, parsed(content))[2] is None
