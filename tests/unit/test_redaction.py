"""Secrets stay out of what is stored, whole or split, wherever they stand."""

from __future__ import annotations

import dataclasses
import random
import re
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import attrs
import orjson
import pydantic
import pytest

from tracekit._runtime.redaction import Placeholders
from tracekit._runtime.secrets import CREDENTIALS, FORMATS, KEYS, SECRETS, SHAPES, TOKENS
from tracekit.integration import Redactor, from_json, message, to_json

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
    "named": ("login with password=", "CANARYpw999", " ok"),
    "named-colon": ("password: ", "CANARYpw997", ""),
    "named-quoted": ("export DB_PASSWORD='", "correct h0rse-7", "'; ls"),
    "named-variable": ("GITHUB_TOKEN=", "q1w2e3r4", " ./deploy"),
    "named-in-code": ("Client(api_key='", "CANARYrepr", "', x=1)"),
    "named-in-json": ('{"user": "bob", "password": "', "hunter-two-three", '"}'),
    "named-in-json-in-json": (r'{"a": "{\"clientSecret\": \"', "hunter-two-three", r'\"}"}'),
    "named-fragment": ("https://h/cb#access_token=", "CANARYfrag0001", ""),
    "named-header": ("-H 'X-API-Key: ", "CANARYcurl2", "' http://x"),
    "connection": ("Server=db;User Id=sa;Password=", "CANARYado", ";"),
    "curl": ("curl -u bob:", "CANARYcurl-one-two", " http://x"),
    "curl-user": ("curl -s --user bob:", "CANARYcurl-one-two", " http://x"),
    "query-key": ("https://maps.example/?key=", "q1w2e3r4t5y6u7i8", " ok"),
}
ALL = [("see ", secret, " there") for secret in PLANTED.values()] + list(IN_CONTEXT.values())
IDS = [*PLANTED, *IN_CONTEXT]
INNOCENT = [
    "Authorization: the documentation; Basic understanding. Bearer authentication-scheme",
    "a risk-based task-list at 2026-01-01 with snake_case_names and disk-usage-statistics",
    "http://localhost:8000/path?page=2&page_token=abcdef&sort_key=name",
    "Bearer of news; Basic English; a half_open range; whisk_live_now",
    '{"id": "0198c0de-7a5b-7cde-8f01-23456789abcd", "max_tokens": 5}',
    "the password: must be chosen, password=password, secret = os.environ[3], api_key=config.key(2)",
    "max_tokens=4096, token_count: 17, sort_key=date, next_token: b, PWD=/srv/x1, docker run -u 1000:1000",
    '{"password": null, "api_key": "${API_KEY}", "secret": "<your secret>", "tokens": "a b", "key": "user:42"}',
    "risk-based-management-strategies-2024, task-ant-colony-optimization, task_test_configuration",
    "mail to bob@example.com, see https://example.com",
]


def _stored(value: object) -> bytes:
    return orjson.dumps(Redactor().redact(to_json(value))[0])


@pytest.mark.parametrize(("before", "secret", "after"), ALL, ids=IDS)
class TestEveryKind:
    """What holds for each kind of secret."""

    def test_is_replaced_in_text(self, before: str, secret: str, after: str) -> None:
        """A secret in a text is replaced, and what stands around it is kept."""
        text, marks = Redactor().redact_text(before + secret + after)
        assert len(marks) == 1
        assert secret not in text
        assert text.startswith(before)
        assert text.endswith(after)
        ((_, start, placeholder),) = marks
        assert text[start : start + len(placeholder)] == placeholder

    def test_twice_is_once(self, before: str, secret: str, after: str) -> None:
        """Redacting what was redacted changes nothing."""
        redactor = Redactor()
        text, marks = redactor.redact_text(before + secret + after)
        assert redactor.redact_text(text) == (text, marks)

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
        text, stream, marks, landed = before + secret + after, Redactor().stream(), [], ""
        for index in range(0, len(text), size):
            out, found = stream.feed(text[index : index + size])
            landed, marks = landed + out, marks + found
        assert secret not in landed
        for _, _, placeholder in marks:
            landed = landed.replace(placeholder, "", 1)
        assert secret not in landed
        assert marks
        assert landed.startswith(before[:-1])


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_is_left_alone(text: str) -> None:
    """Words that resemble secrets stay, whole and in chunks of any size."""
    assert Redactor().redact_text(text) == (text, [])
    for size in (1, 4, 9):
        stream = Redactor().stream()
        assert "".join(stream.feed(text[i : i + size])[0] for i in range(0, len(text), size)) == text


@pytest.mark.parametrize("form", ['{"bytes":"%s","p":"abc"}', '{"bytes": "%s"}'])
def test_wrapped_json_is_no_token(form: str) -> None:
    """JSON that a binary stream wraps as base64 begins as a token does; it stays as it is, wherever the stream is cut."""
    pieces = [
        {"type": "content_block_delta", "index": n, "delta": {"type": "text_delta", "text": "Hello"}} for n in (0, 1)
    ]
    data = "".join("\0\0\0\x99" + form % b64encode(orjson.dumps(piece)).decode() for piece in pieces).encode("latin-1")
    for index in range(1, len(data)):
        stream = Redactor().stream()
        assert [stream.feed(data[:index]), stream.feed(data[index:])] == [(data[:index], []), (data[index:], [])], index


def test_plain_entries_are_not_suspicious() -> None:
    """The quick look says no to an ordinary line, so that nothing is searched."""
    line = orjson.dumps({"customer_id": "c1", "amount": 12, "when": "2026-01-01", "text": "the lazy dog. " * 25})
    assert not Redactor().suspicious(line)


def test_what_holds_no_secret_is_returned_itself() -> None:
    """Nothing is copied where nothing is found."""
    tree = {"a": ["b", {"c": 1}]}
    assert Redactor().redact(tree) == (tree, [])
    assert Redactor().redact(tree)[0] is tree


def test_redacted_bytes_stay_bytes() -> None:
    """Bytes with a secret come back as bytes, with the placeholder that a text would have."""
    redactor = Redactor()
    tree, count = redactor.redact(to_json({"body": b"key=" + PLANTED["openai"].encode()}))
    assert len(count) == 1
    body = from_json(tree)["body"]
    assert body.startswith(b"key=sk-REDACTED")
    assert Redactor().redact_text(PLANTED["openai"])[0].encode() == body[4:]


def test_data_are_no_text() -> None:
    """Images, sounds and archives hold the names of secrets by chance: what follows them is none, whole or in a stream."""
    chance = random.Random(2)
    names = (b"pw=", b"Pw:", b"key=", b"pwd='", b'pass="', b"token=")
    data = b"".join(chance.randbytes(500) + chance.choice(names) for _ in range(200))
    assert Redactor().redact(to_json(data)) == (to_json(data), [])
    for size in (997, 4096):
        stream = Redactor().stream()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [stream.feed(piece) for piece in pieces] == [(piece, []) for piece in pieces]


@pytest.mark.parametrize("around", [b"\0%s\0", b"\n\x14%s\x12\x05", b"\xff\x80%s\x93\xe4\xb1", b"\x89PNG\x1a%s\xff"])
def test_a_secret_among_data_ends_where_the_text_does(around: bytes) -> None:
    """The value of a name, whatever it stands between: an environment (``NAME=value`` and a zero), a message of a protocol."""
    data = around % b"DB_PASSWORD=Hunter2!xyz9"
    redactor = Redactor()
    expected = data.replace(b"Hunter2!xyz9", redactor.placeholder("Hunter2!xyz9").encode())
    assert from_json(redactor.redact(to_json(data))[0]) == expected
    assert redactor.stream().feed(data)[0] == expected
    text = data.decode("latin-1")
    assert redactor.redact_text(text)[0].encode("latin-1") == expected


def test_two_keys_stay_two() -> None:
    """Two keys that held different secrets do not fall together."""
    tree, count = Redactor().redact({PLANTED["groq"]: 1, PLANTED["groq"] + "x": 2})
    assert len(count) == 2
    assert list(tree.values()) == [1, 2]


@pytest.mark.parametrize("pattern", [r"\d{4}-\d{4}", re.compile(r"card \w+"), r"\w+", r".{5}", r"", r"a|"])
def test_user_patterns(pattern: str | re.Pattern[str]) -> None:
    """The user's patterns are replaced too, however greedy; doing it twice changes nothing more."""
    redactor = Redactor([pattern])
    assert redactor.suspicious(b"{}")
    text, _ = redactor.redact_text("pay 1234-5678 with card visa, " + PLANTED["openai"])
    assert "1234-5678" not in text or not re.search(pattern, "1234-5678") or not re.search(pattern, "1234-5678")[0]  # type: ignore[index]
    assert PLANTED["openai"] not in text
    assert redactor.redact_text(text)[0] == text


def test_a_match_of_the_users_pattern_that_is_cut_in_two_is_redacted() -> None:
    """A text that matches a pattern of the user is not written whole when a stream delivers it in two pieces, wherever it is cut."""
    for index in range(1, 12):
        stream = Redactor([r"\d{4}-\d{4}"]).stream()
        text = "a 1234-5678 b"
        assert "1234-5678" not in stream.feed(text[:index])[0] + stream.feed(text[index:])[0]


def test_headers() -> None:
    """Credential headers and cookies of an answer are left out; others stay in order."""
    secret = """
        Authorization Proxy-Authorization Cookie set-cookie X-Api-Key api-key x-goog-api-key X-Amz-Security-Token x-auth-token
        x-csrf-token x-xsrf-token x-amz-signature ocp-apim-subscription-key x-stainless-api-key
    """
    headers = [(name.encode(), b"x") for name in secret.split()] + [
        (b"content-type", b"text/plain"),
        (b"x-ratelimit-limit-tokens", b"5"),
    ]
    kept = message(200, headers, b"")["headers"]
    assert [*kept.items()] == [("content-type", "text/plain"), ("x-ratelimit-limit-tokens", "5")]


def test_urls() -> None:
    """A URL loses its password and its secret parameters, and keeps the rest."""
    url, count = Redactor().redact_text("https://bob:pw@api.example/v1?api_key=abc123&page=2&access_token=d1e2f3a4#f")
    assert len(count) == 3
    assert re.fullmatch(
        r"https://bob:REDACTED_\w{16}@api.example/v1\?api_key=REDACTED_\w{16}&page=2&access_token=REDACTED_\w{16}#f",
        url,
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
    redactor = Redactor()
    told = redactor.redact_argv(words)
    hidden = [redactor.placeholder(value) for value in ("abc", "pw", "x=y", PLANTED["npm"])]
    assert told == [
        *("app.py", "--api-key", hidden[0], f"--password={hidden[1]}", f"TOKEN={hidden[2]}"),
        *("--max-tokens", "5", "--verbose", hidden[3]),
    ]
    assert len(set(hidden)) == 4
    assert redactor.redact_argv(told) == told


def test_environment() -> None:
    """Variables of secret names lose their values, others what looks like a key."""
    redactor = Redactor()
    told = redactor.redact_environment(
        [("OPENAI_API_KEY", "x9"), ("HOME", "/root"), ("DB", "pg://u:pw@h"), ("SORT_KEY", "created_at")]
    )
    assert told == {
        "OPENAI_API_KEY": redactor.placeholder("x9"),
        "HOME": "/root",
        "DB": f"pg://u:{redactor.placeholder('pw')}@h",
        "SORT_KEY": "created_at",
    }


@pytest.mark.parametrize(
    "value",
    """
    changeme change-me CHANGE_ME password PassW0rd None ******** xxxxxxxxxx ........ 000000000 <your-key> <secret> $API_KEY ${API_KEY} {key}
    put-your-token-here test-key test_api_key123 dummy FAKE-token no-key-needed sk-no-key-required without_key unused ollama
    tracekit-replay-no-key /run/secrets/key ~/key ./key ../key C:\\keys\\key https://example.com/key
    """.split(),  # noqa: SIM905
)
def test_what_stands_in_the_place_of_a_secret_is_kept(value: str) -> None:
    """Words that people write where no secret is, paths and addresses stay as they are, under a secret's name, too."""
    assert Redactor().redact_environment([("API_KEY", value)]) == {"API_KEY": value}


@pytest.mark.parametrize(
    "value",
    """
    changeme-4f9a02 nothing-is-here-77 xxxxxxxxxy x0x0x0x0x0 test-key-production-41 notasecret9 <begun your-own-name {open
    https://user:hunter2pass@example.com CC:\\keys
    """.split(),  # noqa: SIM905
)
def test_what_only_begins_like_that_is_a_secret(value: str) -> None:
    """A secret that begins as such a word does is taken out."""
    kept = Redactor().redact_environment([("API_KEY", value)])
    assert value not in kept["API_KEY"]


def test_long_streams_keep_little() -> None:
    """A secret that never ends is followed without keeping it."""
    stream = Redactor().stream()
    stream.feed("x -----BEGIN PRIVATE KEY-----\n")
    for _ in range(200):
        out, count = stream.feed("ABCDEFGHIJ" * 20)
        assert re.fullmatch(r"REDACTED_[A-Z2-7]{191}", out)
        assert len(count) == 1
    assert len(stream.tail) <= stream.OPEN
    out, _ = stream.feed("==\n-----END PRIVATE KEY----- and on")
    assert out.endswith(" and on")


class Login(pydantic.BaseModel):
    api_key: str
    secret: pydantic.SecretStr
    max_tokens: int = 5


@attrs.define
class Session:
    refresh_token: str
    user: str


@dataclasses.dataclass
class Credentials:
    password: str | bytes | tuple[str, str]
    user: str


FIELDS = [
    *sorted(SECRETS),
    *(f"{word}_key" for word in sorted(KEYS)),
    *(f"{word}_token" for word in sorted(CREDENTIALS)),
    "authorization",
    "cookies",
]


class TestFields:
    """A text under the name of a secret is one."""

    @pytest.mark.parametrize("name", FIELDS)
    def test_every_name(self, name: str) -> None:
        """Each documented name, alone or at the end of a longer one, in any spelling; the quick look sees it."""
        parts = name.split("_")
        camel = parts[0] + "".join(part.title() for part in parts[1:])
        for key in (
            name,
            name.upper(),
            name.replace("_", "-").title(),
            camel,
            camel[0].upper() + camel[1:],
            f"db_{name}",
        ):
            for value in ("hunter2x=1", "Tr0ub4dor&3=x"):
                redactor = Redactor()
                tree, marks = redactor.redact({"a": [{key: value}], "user": "bob"})
                assert marks == [[f"/a/0/{key}", 0, redactor.placeholder(value)]]
                assert tree == {"a": [{key: redactor.placeholder(value)}], "user": "bob"}
                assert redactor.redact(tree) == (tree, marks)
                assert Redactor().suspicious(orjson.dumps({key: value})), key

    @pytest.mark.parametrize(
        "value",
        [
            Credentials("CANARY7x", "bob"), Credentials(b"CANARY7x", "bob"), Credentials(("CANARY7x", "CANARY8y"), "bob"),
            Login(api_key="CANARY7x", secret=pydantic.SecretStr("CANARY7x")), Session("CANARY7x", "bob"), {1: 2, "password": "CANARY7x"},
            [["Authorization", "Bearer CANARY7x"]], [("x-api-key", "CANARY7x")], {"cookies": {"sid": "CANARY7x"}}, {"pwd": ["CANARY7x"]},
            {"token": "CANARY12345678901"}, {"secret": "CANARY7x\ud800"},
        ],
    )  # fmt: skip
    def test_values(self, value: object) -> None:
        """In data classes of any make, bytes, tuples, pairs, headers, cookies; the quick look sees it and twice is once."""
        redactor = Redactor()
        tree, count = redactor.redact(to_json(value))
        stored = orjson.dumps(tree)
        assert count
        assert b"CANARY" not in stored
        assert b64encode(b"CANARY")[:-2] not in stored
        assert Redactor().suspicious(orjson.dumps(to_json(value)))
        assert redactor.redact(tree) == (tree, count)

    @pytest.mark.parametrize(
        "value",
        [
            {"max_tokens": "5", "token_count": "7", "sort_key": "date", "key": "user:42", "token": "Hello", "tokens": "a"},
            {"password": "", "secret": True, "api_key": 5, "access_token": None, "private_key": "********", "passwd": "None"},
            {"authorization": "granted", "properties": {"password": {"type": "string"}}, "required": ["password", "email"]},
            {"password_hint": "dog", "secretary": "Ann", "cookies": {"type": "object"}, "session_id": "s1"},
        ],
    )  # fmt: skip
    def test_what_is_none(self, value: object) -> None:
        """Other names, numbers, empty texts and words that stand for a secret are kept."""
        assert Redactor().redact(to_json(value)) == (to_json(value), [])


@pytest.mark.parametrize(
    "form",
    [
        "token=%s", "?page=3&token=%s HTTP/1.1", "Token: %s", "token := '%s' # new", 'x.token = b"%s"', "token_new = %s\n",
        '{"id":7,"token": "%s"}', '{\\"token\\":\\"%s\\"}', "<token>%s</token>", "\ttoken\t=\t%s\t", "#token=%s&next=/",
    ],
)  # fmt: skip
def test_a_token_is_seen_by_its_length(form: str) -> None:
    """What stands under a bare ``token`` is a secret where it has the length of one, wherever that ends; what is shorter stays."""
    key = "m3N4o5P6q7R8s9T0"
    for value in (form % key, [form % key], {"text": form % key}):
        assert Redactor().suspicious(orjson.dumps(value)), value
        assert key not in str(Redactor().redact(value)[0])
    assert Redactor().redact(form % key[:9]) == (form % key[:9], [])


@pytest.mark.parametrize("value", ["m3N4o5P6q7R8s9T0", ["not this", "m3N4o5P6q7R8s9T0"], b"m3N4o5P6q7R8s9T0"])
def test_a_field_named_token_is_redacted(value: object) -> None:
    """The value of a field named ``token`` is replaced, be it a text, one of a list of texts, or bytes."""
    tree = to_json({"token": value, "page": 3})
    assert Redactor().suspicious(orjson.dumps(tree))
    assert "m3N4o5P6q7R8s9T0" not in str(Redactor().redact(tree)[0])


def test_quick_look_at_random_names() -> None:
    """Whatever mixture of names, cases and signs: what the full search replaces, the quick look has seen."""
    rng = random.Random(7)
    words = [
        "password",
        "apiKey",
        "SECRET",
        "access_token",
        "Private-Key",
        "cookie",
        "pwd",
        "authorization",
        "monkey",
        "X",
        "id",
    ]
    for _ in range(3000):
        text = "".join(rng.choice([*words, ":", "=", " ", '"', "'", "\\", "hunter2x", ";", ",", "é"]) for _ in range(8))
        text = rng.choice([text, text.upper(), text.swapcase()])
        for value in (text, {text: "hunter2x"}):
            if Redactor().redact(value)[1]:
                assert Redactor().suspicious(orjson.dumps(value)), value


class TestKnown:
    """Secrets whose text is known are replaced wherever they appear."""

    def test_environment(self) -> None:
        """The values of secret variables, and passwords in addresses, in values, keys, bytes, other encodings and argv."""
        names = [*SECRETS, *(f"{word}_key" for word in KEYS), *TOKENS, "authorization"]
        values = [f"CANARY-{i}/é" for i in range(len(names))]
        environment = {f"MY_{name.upper()}": value for name, value in zip(names, values, strict=True)}
        environment |= {
            "PGPASSWORD": "CANARYpgpass",
            "DATABASE_URL": "postgres://u:CANARYurlpw@h/db",
            "FERNET_KEY": "CANARY0123456789a",
        }
        environment["QUOTED_SECRET"] = 'CANARY"quo\\ted'
        redactor = Redactor(environment=environment)
        for value in [*values, "CANARYpgpass", "CANARYurlpw", "CANARY0123456789a", 'CANARY"quo\\ted']:
            for tree in (
                f"is {value}x",
                {value: 1},
                orjson.dumps({"a": value}).decode(),
                [f"x{value}".encode()],
                f"\ud800{value}",
            ):
                stored = orjson.dumps(redactor.redact(to_json(tree))[0])
                assert b"CANARY" not in stored
                assert b64encode(b"CANARY") not in stored
                assert redactor.suspicious(orjson.dumps(to_json(tree)))
            assert "CANARY" not in "".join(redactor.redact_argv(["app", "-x", value]))
            for index in range(1, len(value)):
                stream = redactor.stream()
                assert value not in stream.feed("a " + value[:index])[0] + stream.feed(value[index:] + " b")[0]

    def test_no_secret(self) -> None:
        """Short values, placeholders, paths and variables of other names are not looked for."""
        kept = {
            "A_TOKEN": "abc1234", "B_API_KEY": "your-api-key-here", "C_SECRET": "disabled", "GOOGLE_CREDENTIALS": "/etc/key1.json",
            "SORT_KEY": "created_at", "HOME": "/srv/hunter2", "PWD": "/srv/project", "OPENAI_API_KEY": "test-key", "TOKEN_URL": "https://x.example/t",
        }  # fmt: skip
        redactor = Redactor(environment=kept)
        assert not redactor.known
        assert redactor.redact_text(" ".join(kept.values())) == (" ".join(kept.values()), [])

    def test_learned(self) -> None:
        """A credential that was sent is replaced from then on, with and without its scheme, and nothing short."""
        redactor = Redactor(environment={"A_TOKEN": "CANARY-env"})
        before, data = redactor.state, orjson.dumps("the CANARY-sent")
        assert not redactor.look(data)
        for header in (
            "Bearer CANARY-sent",
            "Basic " + b64encode(b"bob:CANARY-basic").decode(),
            "x",
            "EMPTY",
            "CANARY-plain",
        ):
            redactor.learn(header)
        assert redactor.state is not before
        assert redactor.look(data)
        text = "CANARY-sent CANARY-basic CANARY-plain CANARY-env EMPTY x"
        clean, marks = redactor.redact_text(text)
        assert len({mark[2] for mark in marks}) == 4
        assert re.fullmatch(r"(REDACTED_\w{16} ){4}EMPTY x", clean)


def test_a_credential_whose_learning_was_interrupted_is_learned_the_next_time() -> None:
    """Wherever ``KeyboardInterrupt`` comes: what is looked for, and what is replaced, are the same."""
    text, n, again = "the CANARY-sent", 0, True
    while again:
        n, again, redactor, left = n + 1, False, Redactor(), n + 1

        def interrupts(frame: Any, event: str, arg: object) -> None:
            nonlocal left
            if event in ("call", "c_return") and frame.f_code.co_filename.endswith(("redaction.py", "secrets.py")):
                left -= 1
                if not left:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(interrupts)
        try:
            redactor.learn("Bearer CANARY-sent")
        except KeyboardInterrupt:
            again = True
        finally:
            sys.setprofile(None)
        redactor.learn("Bearer CANARY-sent")
        assert redactor.look(orjson.dumps(text)), n
        assert "CANARY" not in redactor.redact_text(text)[0], n
    assert n > 5


@pytest.mark.parametrize("secret", [PLANTED["openai"], PLANTED["anthropic"], PLANTED["github"], PLANTED["gitlab"]])
def test_a_key_begins_where_a_word_does(secret: str) -> None:
    """After a space, a sign, an escape of JSON or of a URL; within a word it is a part of that word."""
    for before in (" ", "=", "(", "_", "\\n", "%3D", "\n"):
        text, count = Redactor().redact_text(before + secret)
        assert len(count) == 1, before
        assert secret not in text
    for before in ("x", "ta", "9"):
        assert Redactor().redact_text(before + secret) == (before + secret, [])


def test_one_pattern_by_itself() -> None:
    """A text is one pattern, not one for each of its letters."""
    for given in ("acme-secret", re.compile("acme-secret"), ["acme-secret"]):
        assert re.fullmatch(r"the cat; REDACTED_\w{16}", Redactor(given).redact_text("the cat; acme-secret")[0])


@pytest.mark.parametrize("pattern", ["(", re.compile(b"x"), 5])
def test_no_pattern(pattern: Any) -> None:
    """A redaction pattern that is not a regular expression for texts is refused, and the error names it."""
    with pytest.raises((TypeError, ValueError), match=re.escape(repr(pattern))):
        Redactor([pattern])


def test_documentation_lists_what_is_redacted() -> None:
    """The table in the documentation is that of the code: no name or kind more or less."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "secrets.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| (`[^|]+) \|$", page, re.MULTILINE))
    kinds = {row.name for row in FORMATS.values()} | {*SHAPES} - {"field"}
    wanted = {
        "Last words of names": SECRETS,
        "Before `key`": KEYS,
        "Before `token`": CREDENTIALS,
        "Where the value looks like a key": {*TOKENS, "…token"},
        "Formats": kinds,
    }
    assert {name: set(re.findall(r"`([^`]+)`", row)) for name, row in rows.items()} == wanted


def test_a_placeholder_stands_for_one_value() -> None:
    """Two secrets have two, one secret has the same wherever it stands and however it was found; another process key makes others."""
    redactor = Redactor(environment={"MY_TOKEN": "hunter2-one"})
    tree, marks = redactor.redact(
        {
            "a": "hunter2-one",
            "password": "hunter2-one",
            "url": "pg://u:hunter2-one@h",
            "secret": "hunter2-two",
            "c": [b"=hunter2-one"],
        }
        | {"c": to_json([b"=hunter2-one"])}
    )
    one, two = redactor.placeholder("hunter2-one"), redactor.placeholder("hunter2-two")
    assert (tree["a"], tree["password"], tree["url"], tree["secret"]) == (one, one, f"pg://u:{one}@h", two)
    assert one != two
    assert [mark[2] for mark in marks].count(one) == 4
    other = Redactor(placeholders=Placeholders(lambda: b"another key")).placeholder("hunter2-one")
    assert other not in (one, two)


@pytest.mark.parametrize("name", ["openai-project", "anthropic", "github", "aws", "jwt", "stripe", "google"])
def test_a_placeholder_has_the_form_of_the_value(name: str) -> None:
    """A key's placeholder begins as the key does, is of characters of a key, and would be taken for one itself."""
    placeholder = Redactor().placeholder(PLANTED[name])
    prefix = {
        "openai-project": "sk-",
        "anthropic": "sk-ant-",
        "github": "ghp_",
        "aws": "AKIA",
        "jwt": "eyJ",
        "stripe": "sk_live_",
        "google": "AIza",
    }[name]
    assert placeholder.startswith(prefix)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", placeholder)
    assert Redactor(placeholders=Placeholders(lambda: b"k")).redact_text(placeholder)[1]


@pytest.mark.parametrize(
    "value",
    [
        *(f"{'x1' * 40}"[:size] for size in (17, 18, 24, 25, 26, 27, 33, 80)),
        "tröstlich-12345678",
        "sid=cookie-00aa11bb22cc33dd",
        "a b c d e f g h i j",
        "key " * 500,
        *(PLANTED[name] for name in ("openai-project", "anthropic", "github", "aws", "stripe", "google")),
        "eyJhbGciOiJIUzI1NiJ9." + "eyJ" * 60 + "." + "A" * 43,
    ],
)
def test_a_placeholder_has_as_many_bytes_as_the_value(value: str) -> None:
    """Messages whose length is sent before them can be read with it."""
    placeholder = Redactor().placeholder(value)
    assert len(placeholder) == len(value.encode())
    assert "REDACTED" in placeholder


def test_a_placeholder_does_not_say_how_short_the_value_is() -> None:
    """Those of short passwords are all equally long."""
    assert {len(Redactor().placeholder("x1y2z3a4b5c6d7e8"[:size])) for size in range(1, 17)} == {25}


def test_a_literal_is_a_literal() -> None:
    """What only looks like a placeholder is text like any other: it stays, and stands for nothing."""
    text = "REDACTED_ABCDEFGH22345678 and sk-REDACTED"
    assert Redactor().redact_text(text) == (text, [])
    redactor = Redactor()
    redactor.keep(["REDACTED_ABCDEFGH22345678"])
    assert redactor.redact_text(text) == (text, [["", 0, "REDACTED_ABCDEFGH22345678"]])
