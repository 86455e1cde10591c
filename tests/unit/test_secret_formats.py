"""Formats and names of secrets: what other scanners know is found, and what only resembles a secret is left."""

from __future__ import annotations

import importlib
import random
import string
from typing import Any

import orjson
import pytest

from tracekit._runtime.secrets import FORMATS, SECRETS, Format
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
]


def test_ordinary_values_stay() -> None:
    """Of values that only resemble secrets (words, forms, translations, paths, identifiers, code, opaque data) none is changed."""
    assert len(ORDINARY) >= 100
    changed = [value for value in ORDINARY if Redactor().redact(value)[1]]
    assert changed == []


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
    text = unit * (200_000 // len(unit))
    clean, _ = Redactor().redact_text(text)
    assert type(clean) is str
    stream = Redactor().stream()
    for at in range(0, 20_000, 1000):
        stream.feed(text[at : at + 1000])


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
