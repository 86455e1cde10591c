"""Formats and names of secrets: what other scanners know is found, and what only resembles a secret is left."""

from __future__ import annotations

import base64
import importlib
import json
import random
import re
import string
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson
import pytest

from tracekit._runtime import secrets
from tracekit._runtime.secrets import CREDENTIALS, FORMATS, KEYS, SECRETS, TOKENS, Format
from tracekit.integration import Redactor

_ALPHABETS = {
    "n": string.ascii_letters + string.digits,
    "t": string.ascii_letters + string.digits,
    "h": string.hexdigits[:16],
    "u": string.ascii_uppercase + "234567",
    "d": string.ascii_letters + string.digits,
    "b": string.ascii_letters + string.digits,
    "l": string.ascii_lowercase + string.digits,
}


def made(rng: random.Random, row: Format) -> str:
    """A key with a letter and a digit among its first characters, as nearly every one has."""
    rest = "".join(rng.choice(_ALPHABETS[row.alphabet]) for _ in range(row.least - 2))
    return row.prefix + ("A2" if row.alphabet == "u" else "a2") + rest


def random_text(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize("row", FORMATS.values(), ids=FORMATS)
def test_every_format(row: Format) -> None:
    """A key of each format is found in the middle of a text, as a value and after an escape; the quick look sees it."""
    rng = random.Random(row.prefix)
    for _ in range(20):
        key = "x1y2z3" * 3 * (row.prefix[0] == ".") + made(rng, row)
        for text in (f"use {key} now", key, f'{{"a":"\\n{key}"}}', f"?x={key}&y=1", f"({key})."):
            clean, count = Redactor().redact_text(text)
            assert len(count) == 1, text
            assert key[len(row.prefix) + 4 :] not in clean
            assert Redactor().suspicious(orjson.dumps([text]))


ALNUM = string.ascii_letters + string.digits
HEX = string.hexdigits[:16]
#: By plugin of detect-secrets: how its secrets look.
ORACLE: dict[str, Any] = {
    "artifactory.ArtifactoryDetector": lambda r: f"AKCp{random_text(r, ALNUM, 69)}",
    "aws.AWSKeyDetector": lambda r: f"AKIA{random_text(r, string.ascii_uppercase + '234567', 16)}",
    "azure_storage_key.AzureStorageKeyDetector": lambda r: f"AccountKey={random_text(r, ALNUM, 86)}==",
    "basic_auth.BasicAuthDetector": lambda r: f"https://user:{random_text(r, ALNUM, 12)}@host.example",
    "discord.DiscordBotTokenDetector": lambda r: (
        f"M{random_text(r, ALNUM, 23)}.{random_text(r, ALNUM, 6)}.{random_text(r, ALNUM, 27)}"
    ),
    "github_token.GitHubTokenDetector": lambda r: f"ghp_{random_text(r, ALNUM, 36)}",
    "gitlab_token.GitLabTokenDetector": lambda r: f"glpat-{random_text(r, ALNUM, 20)}",
    "jwt.JwtTokenDetector": lambda r: "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + random_text(r, ALNUM, 43),
    "mailchimp.MailchimpDetector": lambda r: f"{random_text(r, HEX, 32)}-us17",
    "npm.NpmDetector": lambda r: f"//packages.example/:_authToken=npm_{random_text(r, ALNUM, 36)}",
    "openai.OpenAIDetector": lambda r: f"sk-{random_text(r, ALNUM, 20)}T3BlbkFJ{random_text(r, ALNUM, 20)}",
    "private_key.PrivateKeyDetector": lambda r: f"-----BEGIN RSA PRIVATE KEY-----\n{random_text(r, ALNUM, 64)}",
    "pypi_token.PypiTokenDetector": lambda r: f"pypi-AgEIcHlwaS5vcmc{random_text(r, ALNUM, 80)}",
    "sendgrid.SendGridDetector": lambda r: f"SG.{random_text(r, ALNUM, 22)}.{random_text(r, ALNUM, 43)}",
    "slack.SlackDetector": lambda r: (
        f"https://hooks.slack.com/services/T{random_text(r, ALNUM, 8)}/B{random_text(r, ALNUM, 8)}/{random_text(r, ALNUM, 24)}"
    ),
    "square_oauth.SquareOAuthDetector": lambda r: f"sq0csp-{random_text(r, ALNUM, 43)}",
    "stripe.StripeDetector": lambda r: f"sk_live_{random_text(r, ALNUM, 24)}",
    "telegram_token.TelegramBotTokenDetector": lambda r: f"110201543:AA{random_text(r, ALNUM, 33)}",
    "twilio.TwilioKeyDetector": lambda r: f"SK{random_text(r, HEX, 32)}",
}


@pytest.mark.parametrize("name", ORACLE)
def test_what_another_scanner_finds(name: str) -> None:
    """What detect-secrets takes for a secret of a known format is one here, and it finds none in what is left."""
    module, _, plugin = name.partition(".")
    detector = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), plugin)()
    rng = random.Random(name)
    for _ in range(30):
        text = ORACLE[name](rng)
        assert [*detector.analyze_string(text)], text
        clean, count = Redactor().redact_text(text)
        assert len(count) >= 1, text
        for _, _, placeholder in count:
            clean = clean.replace(placeholder, "")
        assert not [*detector.analyze_string(clean)], clean
        assert Redactor().suspicious(orjson.dumps({"q": text}))


CANARY = "Zx9Kq3Lm7Rt2Vb8Nc4Pw6"
#: Places of a secret that a name gives away, and the values that they need.
PLACES = [
    {"api_key": CANARY},
    {"clientSecret": CANARY},
    {"X-Api-Key": CANARY},
    {"auth_header": f"Bearer {CANARY}"},
    {"pass": CANARY},
    {"passphrase": CANARY},
    {"name": "password", "value": CANARY},
    {"key": "DB_PASSWORD", "value": CANARY},
    {"value": CANARY, "name": "x-api-key"},
    [["authorization", f"Bearer {CANARY}"]],
    ["mysql", "--password", CANARY],
    ["tool", "--api-key", CANARY],
    [f"--token={CANARY}"],
    f"mysql --password {CANARY} db",
    f"tool --api-key {CANARY}",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={CANARY * 4}==;",
    f"https://x.example/?sig={CANARY}&a=1",
    f"https://x.example/a?x=1&access_token={CANARY}",
    f"grant_type=password&client_secret={CANARY}&a=1",
    f"DB_PASSWORD={CANARY}\nOTHER=1",
    f"export API_KEY='{CANARY}'",
    f"password: {CANARY}",
    f"Authorization: token {CANARY}",
    f'Content-Disposition: form-data; name="password"\r\n\r\n{CANARY}\r\n--x',
    f"https://hooks.slack.com/services/T00000000/B00000000/{CANARY}ab1",
    f"https://api.telegram.org/bot110201543:AA{CANARY}abcdefghijkl/sendMessage",
    f'{{"a": "{{\\"client_secret\\": \\"{CANARY}\\"}}"}}',
    f"Login(password='{CANARY}')",
    {"cookie": f"session={CANARY}"},
    {"token": CANARY},
    {"credentials": CANARY},
    {"args": ["-H", f"Authorization: Bearer {CANARY}"]},
    f"curl -u bob:{CANARY} http://x",
    ["/usr/bin/curl", "-u", f"bob:{CANARY}", "http://x"],
    f"GET / HTTP/1.1\r\nCookie: theme=dark; session={CANARY}; b=2\r\n",
    f"Set-Cookie: sid={CANARY}; Path=/",
    {"SecretString": CANARY},
    {"pw": CANARY},
]


@pytest.mark.parametrize("value", PLACES, ids=map(str, range(len(PLACES))))
def test_every_place(value: Any) -> None:
    """A secret is found by its name in fields, pairs, headers, arguments, texts, forms, addresses and JSON inside a text."""
    tree, count = Redactor().redact(value)
    assert count
    assert CANARY.encode() not in orjson.dumps(tree)
    assert Redactor().suspicious(orjson.dumps(value))


ORDINARY: list[Any] = [
    "task-0a1b2c3d4e5f60718293a4b5",
    "disk-usage-of-sk-learn-contrib-2024",
    "sk-learn-contrib-extension",
    "risk-sk-based-management",
    "flask-restful-swagger-2024-01-01",
    {"pwd": "/srv/project"},
    {"pwd": "~/work"},
    {"password": "text"},
    {"password": "password"},
    {"password": "Mot de passe"},
    {"password": "Passwort vergessen?"},
    {"password": "Enter your new password"},
    {"password": "forgot-password"},
    {"password": "auth.login.password"},
    {"password": "passwordField"},
    {"password": "required"},
    {"password": "密码"},
    {"password": "Contraseña"},
    {"secret": "santa"},
    {"secret": "A secret between us."},
    {"token": "0198c0de-7a5b-7cde-8f01-23456789abcd"},
    {"token": " world"},
    {"token": "Hello"},
    {"tokens": 17},
    {"max_tokens": "4096"},
    {"next_token": "b7c1d2e3f4a5b6c7d8e9f0a1"},
    {"page_token": "CAUQAA0123456789abcdef"},
    {"token": "https://example.com/oauth2/token"},
    {"api_key": "config.settings.api_key"},
    {"api_key": "os.environ['API_KEY']"},
    {"api_key": "${API_KEY}"},
    {"api_key": "<your key>"},
    {"private_key": "/etc/ssl/key1.pem"},
    {"private_key": "~/.ssh/id_rsa"},
    {"access_key": "none"},
    {"cookie": "chocolate"},
    {"cookies": "accepted"},
    {"authorization": "granted"},
    {"auth": "basic"},
    {"auth": "oauth2"},
    {"credentials": "include"},
    {"credential": "password"},
    {"signature": "EqQBCgIYAhIkOGFiYzEyMzQ1Njc4OWFiY2RlZg" * 4},
    {"encrypted_content": "gAAAAABm0a1b2c3d4e5f6A7B8C9D0" * 4},
    {"thought_signature": "AbCd01" * 20},
    {"b64_json": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 4},
    {"cache_key": "user:0a1b2c3d4e5f6071"},
    {"sort_key": "created_at"},
    {"primary_key": "id"},
    {"key": "user:42"},
    "https://example.com/?key=settings",
    "https://example.com/?key=user_settings&x=1",
    "https://example.com/a?page_token=abc&sort_key=name",
    "https://localhost:8080/x",
    "http://h:80/a@b",
    "git@github.com:org/repo.git",
    "password: required",
    "The password: choose a long one.",
    "password=password",
    "secret = get_secret('db')",
    "api_key = os.environ['OPENAI_API_KEY']",
    "api_key=config.key(2)",
    "token = tokens[0]",
    "def login(user: str, password: str) -> None:",
    "password: Optional[str] = None",
    "self._token = token",
    "if token: return",
    "The token is a word; a secret is kept.",
    "Bearer of news",
    "Basic understanding",
    "Authorization: the documentation",
    "docker run -u 1000:1000 -p 8080:80 app",
    "PWD=/srv/x1",
    "max_tokens=4096, token_count: 17",
    "call_Zx9Kq3Lm7Rt2Vb8Nc4Pw6ab",
    "chatcmpl-Zx9Kq3Lm7Rt2Vb8Nc4Pw6abcd",
    "resp_0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071",
    "msg_01AbCdEfGhIjKlMnOpQrStUv",
    "toolu_01AbCdEfGhIjKlMnOpQrStUv",
    "req_011CQabcdefghijklmnopqr",
    "0198c0de-7a5b-7cde-8f01-23456789abcd",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "file_search_results_for_2024_11_03",
    "/usr/lib/python3.11/site-packages/secret_storage",
    "v1.0.0-rc.1+build.20241103",
    "arn:aws:iam::123456789012:role/service-role/token-rotator",
    "2026-11-03T12:00:00.000Z",
    "snake_case_name_of_a_function_that_is_long",
    "xoxo, your friend",
    "hf_hub_download and hf_transfer_enabled_by_default",
    "npm_config_registry_and_cache_directory",
    "gsk_learning_rate_schedule_warmup",
    {"properties": {"password": {"type": "string"}}, "required": ["password", "email"]},
    {"password": None, "secret": True, "api_key": 5},
    ["password", "email"],
    ["token", "world"],
    {"name": "password", "type": "hidden"},
    {"name": "token", "value": "Hello"},
    {"field": "password", "text": "Your password"},
    {"password": ""},
    {"token": "NextContinuationToken"},
    {"output_token": "CloudFrontOriginAccessIdentityList.NextMarker"},
    {"secret": "n/a"},
    {"authorization": "Proxy-Authorization"},
    "if password > 5: pass",
    "<password>required</password>",
    "cookie: consent=accepted",
    {"cookie": ")\n\n# Not persisted; a = b\n"},
]


def test_ordinary_values_stay() -> None:
    """Of values that only resemble secrets (words, forms, translations, paths, identifiers, code, opaque data) none is changed."""
    assert len(ORDINARY) >= 100
    changed = [value for value in ORDINARY if Redactor().redact(value)[1]]
    assert changed == []


def test_random_data_stays() -> None:
    """Images, hashes, commits, certificates, public keys and identifiers are no keys, whatever their characters are."""
    rng = random.Random(11)
    for _ in range(60):
        raw = rng.randbytes(rng.choice((30, 300, 3000)))
        data, digest = base64.b64encode(raw).decode(), random_text(rng, HEX, 64)
        for value in (
            data,
            f"data:image/png;base64,{data}",
            base64.urlsafe_b64encode(raw).decode(),
            {
                "image": data,
                "sha256": digest,
                "etag": digest[:32],
                "request_id": f"req_{digest[:24]}",
                "cursor": data[:32],
            },
            f"commit {digest[:40]}\nAuthor: Bob <bob@x.example>\n",
            f"integrity sha512-{data[:86]}==",
            f"ssh-rsa AAAAB3NzaC1yc2E{data}",
            f"-----BEGIN CERTIFICATE-----\n{data}\n-----END CERTIFICATE-----",
            f"see {digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}",
        ):
            assert Redactor().redact(value)[1] == [], value


def test_the_beginning_of_a_key_in_the_middle_of_data_is_none() -> None:
    """Megabytes of base64 have the prefix of a key in them by chance; the same text outside of them is one."""
    rng = random.Random(12)
    for sign, encoded in (("/", base64.b64encode), ("-", base64.urlsafe_b64encode)):
        data = encoded(rng.randbytes(3000)).decode()
        for prefix in ("ABSK", "AIza", "LTAI"):
            text = f"{data[:2000]}{sign}{prefix}{data[2000:]}"
            assert Redactor().redact(text)[1] == [], prefix
            assert Redactor().redact({"image": f"data:image/png;base64,{text}"})[1] == [], prefix
            assert len(Redactor().redact(f"{data[:2000]}\n{prefix}{data[2000:2200]}")[1]) == 1, prefix


@pytest.mark.parametrize(
    "unit",
    [
        "password='",
        'token":"',
        "sk-",
        "eyJ",
        "eyJa.",
        "://a:",
        "curl -u a",
        "-----BEGIN PRIVATE KEY-----",
        "Bearer ",
        "a=b&key=",
        "ghp_a",
        "api_key: ",
        "--a-b-c-",
        "\\n",
        "SG.",
    ],
)
def test_texts_of_an_attacker(unit: str) -> None:
    """The search ends on texts that are made of beginnings: a step of it looks at a bounded piece."""
    text = unit * (60_000 // len(unit))
    clean, _ = Redactor().redact_text(text)
    assert type(clean) is str
    stream = Redactor().stream()
    for at in range(0, 20_000, 1000):
        stream.feed(text[at : at + 1000])


#: What texts about secrets are made of, and what stands between a name and its value in texts, URLs, code and JSON.
PIECES = """
    password passwd pwd pw pass passphrase passcode client_secret token access_token api_key x-api-key key secretkey jwt auth authorization
    cookie cookies set-cookie credential credentials mytoken _old prod 1 __ . - backup s usage staging , ; & ? # > < { } [ ] ( ' "
    = : == := => ": "," "} \\":\\" \\n \\t ${API_KEY} *** [] {"$t" null whoever abc 17b20 hunter2!x AbCd1234EfGh5678
    a=b;c=0123456789abcdefgh bearer
""".split()  # noqa: SIM905
BLANKS = [" ", "  ", "\t", "\n", '"\r\n\r\n', ' value="', '" value="', ',"value":"']


def test_what_is_asked_first_of_a_name_lets_every_secret_through() -> None:
    """The quick question at a name is no only where the whole expression has nothing."""
    rng = random.Random(7)
    named = [
        (re.compile(one.quick), re.compile(one.pattern), one.first or "auth") for one in secrets._ANCHORS if one.quick
    ]
    seen = dict.fromkeys((first for _, _, first in named), 0)
    for _ in range(4000):
        text = "".join(rng.choice(PIECES if rng.random() < 0.8 else BLANKS) for _ in range(rng.randint(2, 12)))
        for quick, whole, first in named:
            for match in whole.finditer(text):
                assert quick.match(text, match.start()), (text, match)
                seen[first] += 1
    assert min(seen.values()) > 20, seen


def test_every_name_is_a_name() -> None:
    """The words of the table are found in small letters, capitals and humps, with a number or a stage behind them."""
    for word in sorted(SECRETS):
        for name in (
            word,
            word.upper(),
            f"my_{word}",
            f"my{word.title()}",
            f"{word}_2",
            f"{word}_prod",
            f"X-{word.title()}",
        ):
            assert len(Redactor().redact({name: CANARY})[1]) == 1, name
            assert Redactor().suspicious(orjson.dumps({name: CANARY})), name


# -- every kind in every place ----------------------------------------------------------------------------------------------
#
# The default run takes a sample; all of it: ``pytest -m secrets_full tests/unit/test_secret_formats.py``.


_UPPER = string.ascii_uppercase + "234567"
_LOWER = string.ascii_lowercase + string.digits
_CHARACTERS = {"n": ALNUM, "t": ALNUM + "_-", "h": HEX, "u": _UPPER, "d": ALNUM, "b": ALNUM + "+/", "l": _LOWER}


def text(rng: random.Random, alphabet: str, length: int) -> str:
    """A random text that begins and ends with a letter or digit, and has both of them."""
    ends = [one for one in alphabet if one.isalnum()]
    inner = "".join(rng.choice(alphabet) for _ in range(length - 4))
    head = "a2" if "a" in alphabet else "A2"
    return head + inner + rng.choice(ends) + head[1]


class Planted(NamedTuple):
    """A secret: the whole, what of it may not be stored, and the name that gives it away (``None``: its format does)."""

    kind: str
    whole: str
    body: str
    name: str | None = None


# -- what ------------------------------------------------------------------------------------------------------------------


def of_format(prefix: str) -> Callable[[random.Random], Planted]:
    row = FORMATS[prefix]

    def made(rng: random.Random) -> Planted:
        body = text(
            rng, _CHARACTERS[row.alphabet], row.least + (0 if row.alphabet in "uh" else rng.choice((8, 11, 24)))
        )
        head = text(rng, ALNUM, 14) if prefix.startswith(".") else ""
        return Planted(prefix, head + prefix + body, body)

    return made


def _shaped(kind: str, make: Callable[[random.Random], tuple[str, str]]) -> Callable[[random.Random], Planted]:
    return lambda rng: Planted(kind, *make(rng))


def _with(before: str, alphabet: str, length: int, after: str = "") -> Callable[[random.Random], tuple[str, str]]:
    def make(rng: random.Random) -> tuple[str, str]:
        body = text(rng, alphabet, length)
        return before + body + after, body

    return make


SHAPED: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "jwt": _with("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.", ALNUM + "_-", 43),
    "bearer": _with("Bearer ", ALNUM + "._-", 24),
    "basic": _with("Basic ", ALNUM, 22, "=="),
    "slack webhook": _with("https://hooks.slack.com/services/T0000AAAA/B0000AAAA/", ALNUM, 24),
    "discord webhook": _with("https://discord.com/api/webhooks/123456789012345678/", ALNUM + "_-", 68),
    "telegram": _with("110201543:AA", ALNUM + "_-", 33),
    "azure": _with("a1B8Q~", ALNUM + "_-", 34),
    "mailchimp": _with("", HEX, 32, "-us17"),
    "mailgun": _with("key-", HEX, 32),
    "mailgun, of today": _with("", HEX, 32, "-0a1b2c3d-4e5f6a7b"),
    "airtable": _with("patAbCdEfGh012345.", HEX, 64),
    "cloudflare": _with("v1.0-0123456789abcdef01234567-", HEX, 146),
    "url password": _with("postgres://bob:", ALNUM, 12, "@db.example/shop"),
}

NAMES = sorted(
    {
        *SECRETS,
        *(f"{word}_key" for word in KEYS),
        *(f"{word}_token" for word in CREDENTIALS),
        *TOKENS,
    }
)


def of_name(name: str) -> Callable[[random.Random], Planted]:
    def made(rng: random.Random) -> Planted:
        body = text(rng, ALNUM, rng.choice((20, 24, 40)))
        return Planted(name, body, body, _spelled(rng, name))

    return made


def _spelled(rng: random.Random, name: str) -> str:
    """The name as programs write it."""
    words = name.split("_")
    spelled = rng.choice(
        [
            name,
            name.upper(),
            "-".join(words),
            "X-" + "-".join(word.title() for word in words),
            words[0] + "".join(word.title() for word in words[1:]),
            "my_" + name,
            "DB_" + name.upper(),
        ]
    )
    after = rng.choice(["", "", "", "_2", "_prod", "_backup", "_old_2", "_default", "_string", "_dev", "_test_header"])
    if spelled.isupper():
        after = after.upper()
    return spelled + after.replace("_", "-" if "-" in spelled else "_")


WHAT: dict[str, Callable[[random.Random], Planted]] = {
    **{f"format {prefix}": of_format(prefix) for prefix in FORMATS},
    **{f"shape {kind}": _shaped(kind, make) for kind, make in SHAPED.items()},
    **{f"name {name}": of_name(name) for name in NAMES},
}

# -- where -----------------------------------------------------------------------------------------------------------------


def _raised(message: str) -> str:
    try:
        raise ValueError(message)
    except ValueError:
        return traceback.format_exc()


def _tagged(data: bytes) -> dict[str, str]:
    return {"$t": "bytes", "v": base64.b64encode(data).decode()}


#: A text in which the secret stands as it is.
TEXTS: dict[str, Callable[[str], Any]] = {
    "alone": lambda s: s,
    "in prose": lambda s: f"Der Schlüssel ist {s}, wie du weißt",
    "at the end of a sentence": lambda s: f"The key is {s}.",
    "in parentheses": lambda s: f"({s})",
    "in quotes": lambda s: f"it said '{s}' and \"{s}\"",
    "in backquotes": lambda s: f"`{s}`",
    "on a line": lambda s: f"one\n{s}\ntwo",
    "after a tab": lambda s: f"key\t{s}\tok",
    "in a list of words": lambda s: f"a,{s},b;{s}",
    "in an element": lambda s: f"<value>{s}</value>",
    "in an attribute": lambda s: f'<a value="{s}"/>',
    "in YAML": lambda s: f"a:\n  b: {s}\n",
    "in TOML": lambda s: f'a = "{s}"\n',
    "in dotenv": lambda s: f"A={s}\nB=1\n",
    "in a field": lambda s: {"note": s},
    "deep": lambda s: {"a": [{"b": [1, {"c": s}]}]},
    "a name of a field": lambda s: {s: 1},
    "in JSON": lambda s: json.dumps({"a": s}),
    "in JSON in JSON": lambda s: json.dumps({"a": json.dumps({"b": [s]})}),
    "in JSON in JSON in JSON": lambda s: json.dumps({"a": json.dumps({"b": json.dumps({"c": s})})}),
    "in a repr": lambda s: repr({"a": [s]}),
    "in a repr of bytes": lambda s: repr(s.encode()),
    "an exception": lambda s: _raised(f"401: {s} is not valid"),
    "an exception of a field": lambda s: _raised(repr(KeyError(s))),
    "bytes": lambda s: _tagged(s.encode()),
    "bytes that are no text": lambda s: _tagged(b"\xff\xfe\x00" + s.encode() + b"\x00\xff"),
    "a tuple": lambda s: {"$t": "tuple", "v": [1, s]},
    "a dictionary with other keys": lambda s: {"$t": "dict", "v": [[1, s]]},
    "a word of a command": lambda s: ["tool", "--note", s],
    "an option with its value": lambda s: ["tool", f"--note={s}"],
    "a server-sent event": lambda s: f"event: message\ndata: {json.dumps({'text': s})}\n\n",
    "an MCP message": lambda s: {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": s}]}},
    "a frame of a websocket": lambda s: json.dumps({"type": "event", "delta": f"… {s} …"}, ensure_ascii=False),
    "a log line": lambda s: f"2026-11-03T12:00:00Z INFO app: got {s} from 10.0.0.1",
    "a diff": lambda s: f"@@ -1 +1 @@\n-A=\n+A={s}\n",
    "Markdown": lambda s: f"| name | value |\n|---|---|\n| a | {s} |\n",
    "a multipart body": lambda s: f'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n{s}\r\n--b--\r\n',
    "twice": lambda s: [s, {"a": s}],
}
#: Texts of URLs: what has ``/`` in it would be another path.
URLS: dict[str, Callable[[str], Any]] = {
    "a parameter": lambda s: f"https://x.example/a?b={s}&c=1",
    "an encoded parameter": lambda s: f"https://x.example/a?b=1&{urlencode({'c': s})}",
    "a redirect": lambda s: {"headers": [["location", f"https://x.example/cb#state=1&x={s}"]]},
    "a form": lambda s: f"a=1&b={s}&c=2",
    "in an encoded address": lambda s: f"https://x.example/?next={quote('https://y.example/?a=' + s, safe='')}",
}
#: What the name gives away.
NAMED: dict[str, Callable[[str, str], Any]] = {
    "a field": lambda n, s: {n: s},
    "a field, deep": lambda n, s: {"a": [{"b": {n: s, "c": 1}}]},
    "a field of bytes": lambda n, s: {n: _tagged(s.encode())},
    "a list in a field": lambda n, s: {n: [s, s]},
    "a tuple in a field": lambda n, s: {n: {"$t": "tuple", "v": [s]}},
    "a header": lambda n, s: {"headers": {n: s}},
    "headers in pairs": lambda n, s: {"$t": "dict", "v": [[n, s]]},
    "name and value": lambda n, s: {"name": n, "value": s},
    "value and name": lambda n, s: {"value": s, "name": n},
    "key and value": lambda n, s: [{"key": n, "type": "text", "value": s}],
    "in JSON": lambda n, s: json.dumps({n: s, "b": 1}),
    "in JSON without blanks": lambda n, s: orjson.dumps({"a": 1, n: s}).decode(),
    "in indented JSON": lambda n, s: json.dumps({"a": {n: s}}, indent=2),
    "in JSON in JSON": lambda n, s: json.dumps({"a": json.dumps({n: s})}),
    "in JSON in JSON in JSON": lambda n, s: json.dumps({"a": json.dumps({"b": json.dumps({n: s})})}),
    "in a repr": lambda n, s: repr({n: s}),
    "a call": lambda n, s: f"Client({n.replace('-', '_')}='{s}', timeout=3)",
    "an exception": lambda n, s: _raised(f"can't sign in with {n}={s}"),
    "an exception with JSON": lambda n, s: _raised(f"400: {json.dumps({n: s})}"),
    "a parameter": lambda n, s: f"https://x.example/a?b=1&{n}={s}",
    "the first parameter": lambda n, s: f"https://x.example/a?{n}={s}&b=1",
    "a fragment": lambda n, s: f"https://x.example/cb#{n}={s}&state=1",
    "a form": lambda n, s: f"a=1&{n}={s}&b=2",
    "a multipart body": lambda n, s: f'--b\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{s}\r\n--b--\r\n',
    "dotenv": lambda n, s: f"A=1\n{n}={s}\nB=2\n",
    "dotenv in quotes": lambda n, s: f"export {n}='{s}'\n",
    "YAML": lambda n, s: f"a:\n  {n}: {s}\n  b: 1\n",
    "YAML in quotes": lambda n, s: f'a:\n  {n}: "{s}"\n',
    "TOML": lambda n, s: f'[a]\n{n} = "{s}"\n',
    "INI": lambda n, s: f"[a]\n{n} = {s}\n",
    "a connection string": lambda n, s: f"Server=a;Database=b;{n}={s};Timeout=3",
    "a header in a text": lambda n, s: f"GET / HTTP/1.1\r\n{n}: {s}\r\nAccept: */*\r\n",
    "curl": lambda n, s: f"curl -H '{n}: {s}' https://x.example",
    "an option": lambda n, s: ["tool", f"--{n}", s],
    "an option with its value": lambda n, s: ["tool", f"--{n}={s}"],
    "the repr of a command": lambda n, s: repr(["tool", f"--{n}", s, "-v"]),
    "the JSON of a command": lambda n, s: json.dumps(["tool", f"--{n}", s]),
    "an element of XML": lambda n, s: f"<a><{n}>{s}</{n}></a>",
    "an attribute of XML": lambda n, s: f'<add key="{n}" value="{s}" />',
    "Python": lambda n, s: f'{n.replace("-", "_")} = "{s}"\n',
    "JavaScript": lambda n, s: f"const c = {{ {n.replace('-', '_')}: '{s}' }};",
    "a server-sent event": lambda n, s: f"data: {json.dumps({'x': {n: s}})}\n\n",
    "an MCP message": lambda n, s: {"method": "tools/call", "params": {"name": "login", "arguments": {n: s}}},
    "a log line": lambda n, s: f"INFO signing in ({n}={s})",
}

COMBINATIONS: list[tuple[str, str]] = [
    (what, f"{group} {place}")
    for what in WHAT
    for group, places in (("text", TEXTS), ("url", URLS), ("named", NAMED))
    for place in places
    if (group == "named") == what.startswith("name ")
]

# -- what is documented to stay ---------------------------------------------------------------------------------------------


#: What has a sign in it by which it is known, and which an address encodes.
_BY_A_SIGN = {
    f"shape {kind}" for kind in ("bearer", "basic", "slack webhook", "discord webhook", "telegram", "url password")
} | {"format 1//0"}


def stays(what: str, where: str) -> bool:
    """The combinations that docs/how-to/secrets.md says are not found."""
    return what in _BY_A_SIGN and where in ("url an encoded parameter", "url in an encoded address")


# -- the promise -----------------------------------------------------------------------------------------------------------


def planted(what: str, where: str, rng: random.Random) -> tuple[Any, Planted]:
    found = WHAT[what](rng)
    group, _, place = where.partition(" ")
    if group == "named":
        assert found.name is not None
        return NAMED[place](found.name, found.whole), found
    return (TEXTS if group == "text" else URLS)[place](found.whole), found


def left(what: str, where: str, rng: random.Random) -> str | None:
    """What of the secret would be stored, or why it is not looked for; ``None`` where nothing is."""
    value, secret = planted(what, where, rng)
    data = orjson.dumps(value)
    after, marks = Redactor().redact(value)
    kept = orjson.dumps(after).decode()
    kept += "".join(base64.b64decode(piece).decode("latin-1") for piece in _data(after))
    if secret.body in kept or quote(secret.body, safe="") in kept:
        return f"{what} {where}: {value!r} stays {after!r}"
    if not marks:
        return f"{what} {where}: nothing is marked in {after!r}"
    if not Redactor().suspicious(data):
        return f"{what} {where}: the quick look misses {value!r}"
    return None


def _data(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        if tree.get("$t") == "bytes":
            return [tree["v"]]
        return [piece for item in tree.values() for piece in _data(item)]
    return [piece for item in tree for piece in _data(item)] if isinstance(tree, list) else []


def check(combinations: list[tuple[str, str]], seed: int) -> None:
    wrong = []
    for what, where in combinations:
        found = left(what, where, random.Random(f"{seed} {what} {where}"))
        if (found is not None) != stays(what, where):
            wrong.append(found or f"{what} {where}: found, and documented not to be")
    assert not wrong, f"{len(wrong)} of {len(combinations)} (seed {seed}):\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("seed", range(2))
def test_a_sample_of_all_places(seed: int) -> None:
    """A secret of any kind is replaced wherever it stands, and the quick look sees that there is one."""
    check(random.Random(seed).sample(COMBINATIONS, 300), seed)


@pytest.mark.secrets_full
@pytest.mark.parametrize("seed", range(3))
def test_all_places(seed: int) -> None:
    """A secret of every kind is found in every place where one can stand."""
    check(COMBINATIONS, seed)
