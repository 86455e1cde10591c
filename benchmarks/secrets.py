"""What the search for secrets costs, in texts of 10 KB that speak of them and in others, as ratios to bare prose; and in a small call.

Run ``python -m benchmarks.secrets`` (``--json FILE``). Each text is looked through as it stands in the log (encoded JSON), and
redacted, which is done only where the quick look says that there may be one. All texts take turns in one process, and the least
of their rounds counts: the ratios hold on a loaded machine, too. No text has a secret in it, which the benchmark checks, but for two
with a key, which is taken out. ``TRACEKIT_PURE=1`` takes the search in Python where it is compiled, too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from tracekit import _reality, record, traced_tool
from tracekit._native import FORM
from tracekit.integration import Redactor

SIZE = 10_000
PROSE = (
    "The invoice of October came late, so that we paid it in the second week, and the clerk wrote back the same day. "
)
PROSE_OF_SECRETS = (
    "The password of October came late, so that the token expired, and the secret key was renewed. A cookie and "
    "the credentials: whoever has a passphrase signs in. "
)
CODE = '''
def total(items: list[Item], rate: float = 0.19) -> Decimal:
    """The sum of all items, with tax."""
    found = [item.price * item.count for item in items if not item.cancelled]
    return Decimal(sum(found)) * Decimal(1 + rate)

'''
CODE_OF_SECRETS = '''
def login(user: str, password: str, token: str | None = None) -> Session:
    """Sign in with a password, or with the token of an earlier session."""
    api_key = os.environ["SERVICE_API_KEY"]
    secret = get_secret(f"{user}/password")
    return Session(user, token=token or issue(secret, api_key=api_key), auth=(user, password))

'''
LOGS = (
    '10.0.0.17 - - [03/Nov/2026:12:00:01 +0000] "GET /api/v1/items?page=3&size=20 HTTP/1.1" 200 5120 "-" "client/2.1"\n'
)
#: A name that says little of its value, and values that are no keys.
LOGS_OF_TOKENS = '10.0.0.17 - - [03/Nov/2026:12:00:01 +0000] "GET /api/v1/items?page=3&token=17b20 HTTP/1.1" 200 5120 "-" "client/2.1"\n'
LOGS_OF_SECRETS = '10.0.0.17 - - [03/Nov/2026:12:00:01] "GET /login?next=/home&token=&auth=none HTTP/1.1" 302 0 "-" "password reset"\n'
JSON = {"id": 4711, "name": "invoice", "lines": [{"sku": "A-17", "count": 3, "price": 19.5, "note": "three weeks"}] * 3}
JSON_OF_SECRETS = {
    "user": "bob", "password": None, "token_count": 17, "api_key": "${API_KEY}", "secret": {"type": "string"},
    "fields": [{"name": "password", "type": "hidden", "label": "Your password"}] * 2,
}  # fmt: skip


def filled(piece: str) -> str:
    return (piece * (SIZE // len(piece) + 1))[:SIZE]


def texts() -> dict[str, Any]:
    """By name: values of some 10 KB without a secret."""
    return {
        "prose": filled(PROSE),
        "prose that speaks of secrets": filled(PROSE_OF_SECRETS),
        "code": filled(CODE),
        "code that speaks of secrets": filled(CODE_OF_SECRETS),
        "a log": filled(LOGS),
        "a log with &token=": filled(LOGS_OF_TOKENS),
        "a log that speaks of secrets": filled(LOGS_OF_SECRETS),
        "password=password=…": filled("password="),
        "JSON": [JSON] * (SIZE // len(orjson.dumps(JSON))),
        "JSON that speaks of secrets": [JSON_OF_SECRETS] * (SIZE // len(orjson.dumps(JSON_OF_SECRETS))),
        "JSON in a text": filled(orjson.dumps(JSON).decode()),
    }


def with_a_key() -> dict[str, str]:
    """By name: some of the texts with a key in the middle."""
    key = "sk-proj-aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
    return {
        f"{name}, with a key": f"{text[: SIZE // 2]} {key} {text[SIZE // 2 :]}"
        for name, text in texts().items()
        if name in ("prose", "code that speaks of secrets")
    }


def least(rounds: int, calls: dict[str, Callable[[], object]], inner: int) -> dict[str, float]:
    """Microseconds of each call, the best round of all; they take turns."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            started = _reality.perf_counter_ns()
            for _ in range(inner):
                call()
            found[name] = min(found[name], (_reality.perf_counter_ns() - started) / inner / 1e3)
    return found


def searched(redactor: Redactor, value: Any) -> Callable[[], object]:
    """What is done with a value before it is written, its encoding apart."""
    data = orjson.dumps(value)

    def call() -> None:
        if redactor.suspicious(data):
            redactor.redact(value)

    return call


@traced_tool(side_effect="read_only")
def small(customer: str, amount: float, text: str) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "ok": True}


def recorded(rounds: int) -> dict[str, float]:
    """Microseconds of a small recorded call, with the search and without: the best hundred calls of all."""
    found = {"with": float("inf"), "without": float("inf")}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            for name in found:
                with record("small", store=Path(directory) / name, durability="none") as run:
                    if name == "without":
                        run._session.redactor.look = lambda data: False  # type: ignore[attr-defined]
                    for _ in range(20):
                        started = _reality.perf_counter_ns()
                        for n in range(100):
                            small(f"customer {n % 50}", 12.5, PROSE)
                        found[name] = min(found[name], (_reality.perf_counter_ns() - started) / 100 / 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--quick", action="store_true", help="a look, in a second")
    options = parser.parse_args()
    rounds = 100 if options.quick else 500
    redactor = Redactor()
    values = texts()
    for name, value in values.items():
        if redactor.redact(value)[1]:
            raise SystemExit(f"{name}: something in it was taken for a secret")
    values |= with_a_key()
    figures = least(rounds, {name: searched(redactor, value) for name, value in values.items()}, 2)
    bare = figures["prose"]
    print(f"the search through {SIZE // 1000} KB of prose, in {FORM}: {bare:.1f} µs")
    for name, figure in figures.items():
        print(f"  {name:32} {figure / bare:6.2f} × prose   ({figure:.1f} µs)")
    call = recorded(3 if options.quick else 15)
    print(f"a small recorded call: {call['with']:.2f} µs, of which the search {call['with'] - call['without']:.2f} µs")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"texts": figures, "call": call, "load": os.getloadavg()[0]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
