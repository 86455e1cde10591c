"""Secrets stay out of what is stored, whole or split, wherever they stand."""

from __future__ import annotations

import re
from base64 import b64encode

import orjson
import pytest

from tracekit._canonical import from_json, to_json
from tracekit._engine.redaction import Redactor

_BODY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4"
_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nq0+/x==\n-----END RSA PRIVATE KEY-----"

#: By kind: a text with a planted secret, and the secret.
PLANTED = {
    "openai": "sk-" + _BODY,
    "openai-project": "sk-proj-" + _BODY,
    "anthropic": "sk-ant-api03-" + _BODY,
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aws-session": "ASIAIOSFODNN7EXAMPLE",
    "google": "AIza" + _BODY[:35],
    "github": "ghp_" + _BODY[:36],
    "github-oauth": "gho_" + _BODY[:36],
    "github-user": "ghu_" + _BODY[:36],
    "github-server": "ghs_" + _BODY[:36],
    "github-fine": "github_pat_" + _BODY[:22] + "_" + _BODY,
    "gitlab": "glpat-" + _BODY[:20],
    "slack": "xoxb-123456789012-" + _BODY[:20],
    "slack-app": "xapp-1-" + _BODY[:20],
    "stripe": "sk_live_" + _BODY[:24],
    "stripe-restricted": "rk_live_" + _BODY[:24],
    "stripe-webhook": "whsec_" + _BODY[:32],
    "huggingface": "hf_" + _BODY[:34],
    "npm": "npm_" + _BODY[:36],
    "groq": "gsk_" + _BODY,
    "xai": "xai-" + _BODY,
    "perplexity": "pplx-" + _BODY,
    "digitalocean": "dop_v1_" + "0a1b2c3d" * 8,
    "pypi": "pypi-" + _BODY,
    "sendgrid": "SG." + _BODY[:22] + "." + _BODY[:43],
    "replicate": "r8_" + _BODY[:37],
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "pem": _PEM,
}
IN_CONTEXT = {
    "bearer": ("Authorization: Bearer ", "q1w2e3r4t5y6u7i8o9p0", ""),
    "basic": ("Authorization: Basic ", "dXNlcjpwYXNzd29yZA==", " x"),
    "header": ('{"Authorization": "token ', "q1w2e3r4t5y6u7i8o9p0", '"}'),
    "url-password": ("connect to postgres://bob:", "hunter2!x", "@db.example/x"),
    "query": ("GET https://api.example/v1?b=1&api_key=", "q1w2e3r4", "&c=2"),
    "query-key": ("https://maps.example/?key=", "q1w2e3r4", " ok"),
}
ALL = [("see ", secret, " there") for secret in PLANTED.values()] + list(IN_CONTEXT.values())
IDS = [*PLANTED, *IN_CONTEXT]
INNOCENT = [
    "Authorization: the documentation; Basic understanding. Bearer authentication-scheme",
    "a risk-based task-list at 2026-01-01 with snake_case_names and disk-usage-statistics",
    "http://localhost:8000/path?page=2&page_token=abcdef&sort_key=name",
    "Bearer of news; Basic English; a half_open range; whisk_live_now",
    '{"id": "0198c0de-7a5b-7cde-8f01-23456789abcd", "max_tokens": 5}',
    "mail to bob@example.com, see https://example.com",
]


def _stored(value: object) -> bytes:
    return orjson.dumps(Redactor().redact(to_json(value))[0])


@pytest.mark.parametrize(("before", "secret", "after"), ALL, ids=IDS)
class TestEveryKind:
    """What holds for each kind of secret."""

    def test_is_replaced_in_text(self, before: str, secret: str, after: str) -> None:
        """A secret in a text is replaced, and what stands around it is kept."""
        text, count = Redactor().redact_text(before + secret + after)
        assert count == 1
        assert secret not in text
        assert text.startswith(before)
        assert text.endswith(after)
        assert re.search(r"\[REDACTED:[a-z-]+\]", text)

    def test_twice_is_once(self, before: str, secret: str, after: str) -> None:
        """Redacting what was redacted changes nothing."""
        text, _ = Redactor().redact_text(before + secret + after)
        assert Redactor().redact_text(text) == (text, 0)

    def test_is_found_wherever_it_stands(self, before: str, secret: str, after: str) -> None:
        """In values, keys, tuples, nested texts of JSON, bytes and texts with lone surrogates."""
        text = before + secret + after
        inner = orjson.dumps({"x": "a\n" + text}).decode()
        for value in (
            {"a": [text]},
            {text: 1},
            (text,),
            {1: text},
            inner,
            text.encode(),
            bytearray(text.encode()),
            "\ud800" + text,
        ):
            stored = _stored(value)
            plain = secret.splitlines()[-1].encode()
            assert plain not in stored
            assert b64encode(secret.encode())[4:-4] not in stored
            assert Redactor().suspicious(orjson.dumps(to_json(value)))

    def test_quick_look_never_misses(self, before: str, secret: str, after: str) -> None:
        """The look at the encoded line says yes wherever the full search finds something."""
        for text in (
            before + secret + after,
            "é" + before + secret + after,
            '"' + before + secret + after,
            secret,
            before + secret,
        ):
            found = Redactor().redact_text(text)[1]
            assert found or before != "see "
            assert not found or Redactor().suspicious(orjson.dumps({"input": {"q": text}}))

    def test_split_at_every_index(self, before: str, secret: str, after: str) -> None:
        """Split in two at any place, in text or bytes, the secret never lands whole."""
        text = before + secret + after
        for index in range(1, len(text)):
            chunks = (text[:index], text[index:])
            stream = Redactor().stream()
            landed = "".join(stream.feed(chunk)[0] for chunk in chunks)
            assert secret not in landed, index
            stream = Redactor().stream()
            assert secret.encode() not in b"".join(stream.feed(chunk.encode())[0] for chunk in chunks), index

    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    def test_split_in_many(self, before: str, secret: str, after: str, size: int) -> None:
        """Split in pieces of any size, it does not either, and each chunk comes out at once."""
        text, stream, count, landed = before + secret + after, Redactor().stream(), 0, ""
        for index in range(0, len(text), size):
            out, found = stream.feed(text[index : index + size])
            landed, count = landed + out, count + found
        assert secret not in landed
        assert secret not in re.sub(r"\[REDACTED:[a-z-]+\]", "", landed)
        assert count
        assert landed.startswith(before[:-1])


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_is_left_alone(text: str) -> None:
    """Words that resemble secrets stay, whole and in chunks of any size."""
    assert Redactor().redact_text(text) == (text, 0)
    for size in (1, 4, 9):
        stream = Redactor().stream()
        assert "".join(stream.feed(text[i : i + size])[0] for i in range(0, len(text), size)) == text


def test_plain_entries_are_not_suspicious() -> None:
    """The quick look says no to an ordinary line, so that nothing is searched."""
    line = orjson.dumps({"customer_id": "c1", "amount": 12, "when": "2026-01-01", "text": "the lazy dog. " * 25})
    assert not Redactor().suspicious(line)


def test_what_holds_no_secret_is_returned_itself() -> None:
    """Nothing is copied where nothing is found."""
    tree = {"a": ["b", {"c": 1}]}
    assert Redactor().redact(tree) == (tree, 0)
    assert Redactor().redact(tree)[0] is tree


def test_redacted_bytes_stay_bytes() -> None:
    """Bytes with a secret come back as bytes, replaced whole."""
    tree, count = Redactor().redact(to_json({"body": b"key=" + PLANTED["openai"].encode()}))
    assert count == 1
    assert from_json(tree) == {"body": b"[REDACTED:openai]"}
    assert Redactor().redact(tree) == (tree, 0)


def test_two_keys_stay_two() -> None:
    """Two keys that held different secrets do not fall together."""
    tree, count = Redactor().redact({PLANTED["groq"]: 1, PLANTED["groq"] + "x": 2})
    assert count == 2
    assert list(tree.values()) == [1, 2]


@pytest.mark.parametrize("pattern", [r"\d{4}-\d{4}", re.compile(r"card \w+"), r"\w+", r".{5}", r"", r"a|"])
def test_user_patterns(pattern: str | re.Pattern[str]) -> None:
    """The user's patterns are replaced too, however greedy; doing it twice changes nothing more."""
    redactor = Redactor([pattern])
    assert redactor.suspicious(b"{}")
    text, _ = redactor.redact_text("pay 1234-5678 with card visa, " + PLANTED["openai"])
    assert "1234-5678" not in text or not re.search(pattern, "1234-5678") or not re.search(pattern, "1234-5678")[0]  # type: ignore[index]
    assert PLANTED["openai"] not in text
    assert redactor.redact_text(text) == (text, 0)


def test_user_pattern_across_chunks() -> None:
    """What a user's pattern matches does not land whole when it is split."""
    for index in range(1, 12):
        stream = Redactor([r"\d{4}-\d{4}"]).stream()
        text = "a 1234-5678 b"
        assert "1234-5678" not in stream.feed(text[:index])[0] + stream.feed(text[index:])[0]


def test_headers() -> None:
    """Credential headers and cookies are left out; others stay in order, redacted."""
    headers = [
        ("Authorization", "x"),
        ("X-Api-Key", "x"),
        ("set-cookie", "a=b"),
        ("Cookie", "x"),
        ("X-Amz-Security-Token", "x"),
    ]
    headers += [("content-type", "text/plain"), ("x-note", PLANTED["xai"]), ("x-ratelimit-limit-tokens", "5")]
    kept = Redactor().redact_headers(headers)
    assert kept == [("content-type", "text/plain"), ("x-note", "[REDACTED:xai]"), ("x-ratelimit-limit-tokens", "5")]


def test_urls() -> None:
    """A URL loses its password and its secret parameters, and keeps the rest."""
    url, count = Redactor().redact_url("https://bob:pw@api.example/v1?api_key=abc&page=2&access_token=d#f")
    assert count == 3
    assert (
        url
        == "https://bob:[REDACTED:url-password]@api.example/v1?api_key=[REDACTED:query]&page=2&access_token=[REDACTED:query]#f"
    )


def test_arguments() -> None:
    """Command-line words lose the values of secret options, in both spellings, and twice is once."""
    words = [
        "app.py",
        "--api-key",
        "abc",
        "--password=pw",
        "TOKEN=x=y",
        "--max-tokens",
        "5",
        "--verbose",
        PLANTED["npm"],
    ]
    told = Redactor().redact_argv(words)
    assert told == [
        *("app.py", "--api-key", "[REDACTED:argument]", "--password=[REDACTED:argument]", "TOKEN=[REDACTED:argument]"),
        *("--max-tokens", "5", "--verbose", "[REDACTED:npm]"),
    ]
    assert Redactor().redact_argv(told) == told


def test_environment() -> None:
    """Variables of secret names lose their values, others what looks like a key."""
    told = Redactor().redact_environment(
        [("OPENAI_API_KEY", "x"), ("HOME", "/root"), ("DB", "pg://u:pw@h"), ("SSH_KEY", "k")]
    )
    assert told == {
        "OPENAI_API_KEY": "[REDACTED:environment]",
        "HOME": "/root",
        "DB": "pg://u:[REDACTED:url-password]@h",
        "SSH_KEY": "[REDACTED:environment]",
    }


def test_long_streams_keep_little() -> None:
    """A secret that never ends is followed without keeping it."""
    stream = Redactor().stream()
    stream.feed("x -----BEGIN PRIVATE KEY-----\n")
    for _ in range(200):
        out, count = stream.feed("ABCDEFGHIJ" * 20)
        assert out == "[REDACTED:private-key]"
        assert count == 1
    assert len(stream._tail) <= stream.OPEN
    out, _ = stream.feed("==\n-----END PRIVATE KEY----- and on")
    assert out.endswith(" and on")
