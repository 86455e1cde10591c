"""A placeholder for a secret stands for one value: in the recording, in its replays, and in all runs of a store."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support.tracing import entries
from tracekit import record, replay, traced_tool

pytestmark = pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")

ONE, TWO, THREE = (f"sk-proj-{word}Zx9Kq3Lm7Rt2Vb8Nc4Pw6" for word in ("One", "Two", "Three"))
#: What the outside gives; a replay must not ask for it.
GIVEN: list[str] = []


@traced_tool(side_effect="read_only")
def issued(account: str) -> str:
    return GIVEN.pop(0)


@traced_tool(side_effect="irreversible")
def pay(key: str, amount: int) -> str:
    return "paid"


def recorded(store: Path, program: Any) -> Any:
    with record("run", store=store) as run:
        program()
    text = Path(run.path).read_text()
    assert not any(secret in text for secret in (ONE, TWO, THREE))
    return run


def placeholders(run: Any) -> list[str]:
    """Those of the inputs of ``pay``, in order."""
    return [entry["input"]["key"] for entry in entries(run) if entry["type"] == "tool.call" and entry["name"] == "pay"]


def two_accounts() -> None:
    first, second = issued("a"), issued("b")
    pay(first, 1)
    pay(second, 2)


def test_two_secrets_are_two(tmp_path: Path) -> None:
    """A program that gets two keys and uses each in its place replays exactly, and the placeholders look like the keys."""
    GIVEN[:] = [ONE, TWO]
    run = recorded(tmp_path, two_accounts)
    one, two = placeholders(run)
    assert one != two
    assert one.startswith("sk-")
    with replay(run.id, store=tmp_path) as session:
        two_accounts()
    assert session.report.exact
    assert session.report.verdict.line == "exact, 2 redacted"


def test_another_account_is_a_divergence(tmp_path: Path) -> None:
    """The key of one account in the place of another account's is a divergence, though both are redacted."""
    GIVEN[:] = [ONE, TWO]
    run = recorded(tmp_path, two_accounts)

    def exchanged() -> None:
        first, second = issued("a"), issued("b")
        pay(second, 1)
        pay(first, 2)

    with pytest.raises(tracekit.DivergenceError), replay(run.id, store=tmp_path):
        exchanged()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_value_that_the_replay_brings(tmp_path: Path, elsewhere: bool) -> None:
    """A key given to the replay is bound to the recorded one where they first meet, with the store's secret or without
    it; from then on it must be the same, and two keys are never taken for one."""

    def program(first: str, second: str, again: str) -> None:
        pay(first, 1)
        pay(second, 2)
        pay(again, 3)

    run = recorded(tmp_path / "store", lambda: program(ONE, TWO, ONE))
    path = Path(run.path)
    if elsewhere:
        path = tmp_path / "alone.jsonl"
        shutil.copy(run.path, path)
    for good in ((ONE, TWO, ONE), (THREE, TWO, THREE), ("my own key", "another one", "my own key")):
        with replay(path) as session:
            program(*good)
        assert session.report.exact, good
    for other in ((ONE, TWO, TWO), (ONE, TWO, THREE), (THREE, TWO, ONE), (THREE, THREE, THREE), ("a", "b", "b")):
        with pytest.raises(tracekit.DivergenceError), replay(path):
            program(*other)


def test_what_was_handed_on_stands_for_itself(tmp_path: Path) -> None:
    """If the replay gave the program a placeholder, another value in its place is a divergence."""

    def program(key: str | None = None) -> None:
        given = issued("a")
        pay(key or given, 1)

    GIVEN[:] = [ONE]
    run = recorded(tmp_path, program)
    with replay(run.id, store=tmp_path):
        program()
    with replay(run.id, store=tmp_path):
        program(ONE)
    with pytest.raises(tracekit.DivergenceError), replay(run.id, store=tmp_path):
        program(TWO)


def test_the_same_in_every_run_of_a_store(tmp_path: Path) -> None:
    """A secret has the same placeholder in all recordings of a store, and another one in another store."""
    first, second = (placeholders(recorded(tmp_path / "a", lambda: pay(ONE, 1))) for _ in range(2))
    assert first == second
    assert placeholders(recorded(tmp_path / "b", lambda: pay(ONE, 1))) != first


@pytest.mark.parametrize("text", ["[REDACTED:openai]", "REDACTED_ABCDEFGH22345678", "sk-REDACTEDABC"])
def test_a_literal_stands_for_nothing(tmp_path: Path, text: str) -> None:
    """Text that only looks like a placeholder is compared like any other text, also beside real ones."""

    def program(literal: str) -> None:
        pay(ONE, 1)
        pay(f"say {literal}", 2)

    run = recorded(tmp_path, lambda: program(text))
    with replay(run.id, store=tmp_path) as session:
        program(text)
    assert session.report.exact
    with pytest.raises(tracekit.DivergenceError), replay(run.id, store=tmp_path):
        program("something else")


def test_marks(tmp_path: Path) -> None:
    """An entry marks each placeholder by pointer and start, in inputs, outputs, field names and bytes."""

    @traced_tool(side_effect="read_only")
    def echo(value: dict[str, Any]) -> dict[str, Any]:
        return {**value}

    with record("run", store=tmp_path) as run:
        echo({"a/b": [f"use {ONE} now"], TWO: 1, "raw": f"={THREE}".encode()})
    found = {}
    for entry in entries(run):
        meta = entry.get("meta") or {}
        for pointer, start, text in [*meta.get("redacted", ()), *(meta.get("info") or {}).get("redacted", ())]:
            found[pointer] = (start, text)
    (named,) = (text for pointer, (_, text) in found.items() if pointer.startswith("#/output"))
    assert found["/input/value/a~1b/0"][0] == found["/output/a~1b/0"][0] == 4
    assert found["/output/raw"][0] == 1
    assert f"#/output/{named}" in found
    assert len({text for _, text in found.values()}) == 3
    stored = json.dumps([entry for entry in entries(run) if entry["type"] == "tool.return"])
    assert f"use {found['/output/a~1b/0'][1]} now" in stored


def test_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    """If a replay of a part is recorded, it stores the placeholder of the first run, and its own replay takes that."""
    GIVEN[:] = [ONE, TWO]
    run = recorded(tmp_path, two_accounts)
    with replay(run.id, store=tmp_path, live={"tool:pay"}) as session:
        two_accounts()
    with replay(session.new_run_id, store=tmp_path) as again:
        two_accounts()
    assert again.report.exact


@pytest.mark.parametrize(
    "token", ["trusted=token-71", "trusted\0token-71", "trusted\x7ftoken-71", "tr%75sted!token-71"]
)
def test_what_is_no_token_stands_for_none(tmp_path: Path, token: str) -> None:
    """A program that refuses a token for its characters also refuses it in the replay."""
    allowed = re.compile(r"[A-Za-z0-9._~+/-]+=*")

    @traced_tool(side_effect="read_only")
    def sign_in() -> dict[str, str]:
        return {"access_token": token}

    def agent() -> str:
        return "taken" if allowed.fullmatch(sign_in()["access_token"]) else "refused"

    with record(store=tmp_path) as run:
        assert agent() == "refused"
    assert token.encode() not in Path(run.path).read_bytes()
    with replay(run) as session:
        assert agent() == "refused"
    assert session.report.verdict.line == "exact, 1 redacted"
