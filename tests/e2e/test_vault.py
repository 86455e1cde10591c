"""The vault: what is redacted is kept encrypted beside the trace, and a replay that is given its key has the values themselves."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import after_each_sync
from tests.support.place import Place
from tracekit import record, replay, traced_tool
from tracekit.errors import DivergenceError, TraceError

pytestmark = pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted", "ignore:tracekit. replay of")

TAIL = "Zx9Kq3Lm7Rt2Vb8Nc4Pw6"
KEY = f"sk-proj-{TAIL}"
PINS = [r"\b\d{4}-\d{4}\b"]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key file that the process names."""
    path = tmp_path / "key"
    path.write_bytes(os.urandom(32))
    monkeypatch.setenv("TRACEKIT_VAULT_KEY_FILE", str(path))
    return path


@traced_tool(side_effect="read_only")
def account() -> dict[Any, Any]:
    return {
        "password": "s3cr3t!zz9",
        "key": KEY,
        "deep": [{"in a text": f"é use {KEY}, or {KEY}!"}, (f'json {{"token": "{TAIL}a1"}}',)],
        "raw": b"\xff\xfe " + KEY.encode(),
        "utf-8": f"ß {KEY}".encode(),
        KEY: "the name of a field",
        "a/b~c": {KEY + "x7": KEY},
        (1, 2): KEY,
    }


@traced_tool(side_effect="read_only")
def spelled(as_bytes: bool) -> Iterator[str | bytes]:
    whole = f"ä the key is {KEY}, as you know"
    for at in range(0, len(whole), 9):
        yield whole[at : at + 9].encode() if as_bytes else whole[at : at + 9]


@traced_tool(side_effect="read_only")
def refused(token: str) -> None:
    raise ValueError(f"401: {token} is not valid", {"password": token})


@traced_tool(side_effect="read_only", redact=PINS)
def pin() -> str:
    return "it is 4711-0815"


@traced_tool(side_effect="irreversible")
def post(signature: str, key: str) -> str:
    return "posted"


def agent() -> list[Any]:
    """Derives from every secret something that is compared."""
    found = account()
    seen = [found, pin(), "".join(spelled(False)), b"".join(spelled(True))]
    try:
        refused(found["key"])
    except ValueError as error:
        seen += [str(error), error.args]
    post(hashlib.sha256(repr(seen).encode()).hexdigest(), found["key"])
    post(hmac.new(found["key"].encode(), b"message", "sha256").hexdigest(), os.environ.get("MY_TOKEN", ""))
    return seen


def stored(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file())


def vault(store: Path) -> Path:
    (found,) = store.rglob("*.vault")
    return found


def test_a_replay_has_the_values(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures and keys that the program derives from secrets are the recorded ones, wherever the secrets stood; no value is in plain
    in the store, and the replay is exact without a remark."""
    store = tmp_path / "store"
    monkeypatch.setenv("MY_TOKEN", "t0ken-of-the-environment")
    with record("run", store=store, redact=PINS) as run:
        seen = agent()
        run.set_result(seen)
    data = stored(store)
    for secret in (TAIL, "s3cr3t!zz9", "4711-0815", "t0ken-of-the-environment"):
        assert secret.encode() not in data
    monkeypatch.setenv("MY_TOKEN", "of-another-environment-1")  # what was read is what was recorded
    with replay(run.id, store=store, redact=PINS) as session:
        assert agent() == seen
    assert session.report.verdict.line == "exact"
    assert not [warning for warning in [*run.warnings, *session.report.warnings] if "placeholder" in warning]
    assert session.result == seen
    assert stored(store) == data


def test_who_does_not_ask_needs_no_key(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the key a replay has placeholders, as ever, and says what would bring the values; one that compares what was derived from
    them is a divergence."""
    with record("run", store=tmp_path) as run:
        value = account()["key"]
        post("plain", value)
    with record("derived", store=tmp_path) as derived:
        agent()
    monkeypatch.delenv("TRACEKIT_VAULT_KEY_FILE")
    with replay(run.id, store=tmp_path) as session:
        post("plain", account()["key"])
    assert session.report.verdict.line == "exact, 1 redacted"
    assert "TRACEKIT_VAULT_KEY_FILE" in session.report.warnings[0]
    with pytest.raises(DivergenceError), replay(derived.id, store=tmp_path):
        agent()


def test_nothing_of_it_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run recorded without a key has no vault, and neither it nor its replay imports what encrypts."""
    monkeypatch.delenv("TRACEKIT_VAULT_KEY_FILE", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with record("run", store=tmp_path) as run:
        account()
    with replay(run.id, store=tmp_path):
        account()
    assert not [*tmp_path.rglob("*.vault")]


def test_a_run_without_secrets_has_none(tmp_path: Path, key: Path) -> None:
    """Where nothing was redacted nothing is kept, and a replay asks for no key, whichever is named."""
    with record("run", store=tmp_path) as run:
        post("plain", "text")
    assert not [*tmp_path.rglob("*.vault")]
    key.write_bytes(os.urandom(32))
    with replay(run.id, store=tmp_path) as session:
        post("plain", "text")
    assert session.report.verdict.line == "exact"


def test_the_wrong_key(tmp_path: Path, key: Path) -> None:
    """Another key than the vault's is an error before the program begins, which says what to name; so is one that is no key."""
    with record("run", store=tmp_path) as run:
        account()
    key.write_bytes(os.urandom(32))
    with pytest.raises(TraceError, match="made with another key") as wrong, replay(run.id, store=tmp_path):
        pytest.fail("it began")
    assert "TRACEKIT_VAULT_KEY_FILE" in str(wrong.value)
    key.write_bytes(b"short")
    with pytest.raises(TraceError, match="less than 16 bytes"), replay(run.id, store=tmp_path):
        pytest.fail("it began")
    key.unlink()
    with pytest.raises(TraceError, match="can't be read"), record("run", store=tmp_path):
        pytest.fail("it began")
    assert len([*(tmp_path / "runs").glob("*.jsonl")]) == 1


def test_without_the_library(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is named where the extra is not installed is an error with the line that installs it."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(TraceError, match="not installed") as error, record("run", store=tmp_path):
        pytest.fail("it began")
    assert "pip install cryptography" in str(error.value)


def test_a_damaged_vault(tmp_path: Path, key: Path) -> None:
    """A changed byte is an error that names the line; a last line that was cut off is none."""
    with record("run", store=tmp_path) as run:
        account()
        pin()
    data = vault(tmp_path).read_bytes()
    vault(tmp_path).write_bytes(data[:-9])
    with replay(run.id, store=tmp_path) as session:
        account()
        assert pin() != "it is 4711-0815"
    assert session.report.verdict.line == "exact, 1 redacted"
    lines = data.split(b"\n")
    vault(tmp_path).write_bytes(b"\n".join([lines[0], lines[2][:20] + b"AAAA" + lines[2][24:], *lines[2:]]))
    with pytest.raises(TraceError, match="line 2 does not decrypt"), replay(run.id, store=tmp_path):
        pytest.fail("it began")


def test_a_vault_that_can_not_be_written(tmp_path: Path, key: Path) -> None:
    """The program goes on as ever, nothing is in plain, and the run says what it lacks."""

    @record("run", store=tmp_path)
    def program() -> None:
        (path,) = tmp_path.rglob("*.jsonl")
        path.with_suffix(".vault").mkdir()
        assert account()["key"] == KEY

    with pytest.warns(RuntimeWarning, match="vault .* can't be written"):
        program()
    assert TAIL.encode() not in stored(tmp_path)


def test_a_value_is_on_the_device_before_its_placeholder(tmp_path: Path, key: Path) -> None:
    """Whatever of the log is on the device when the machine dies, the values of its placeholders are there, too."""
    values, lacking, redacted = 0, 0, 0

    def note(path: Path, data: bytes) -> None:
        nonlocal values, lacking, redacted
        if path.suffix == ".vault":
            values = data.count(b"\n") - 1
        elif path.suffix == ".jsonl":
            redacted = data.count(b"REDACTED")
            lacking += bool(redacted) and values < 1

    with after_each_sync(note), record("run", store=tmp_path):
        post("signed", secret())
        assert redacted
    assert not lacking


@traced_tool(side_effect="read_only")
def secret() -> str:
    return KEY


def forks() -> int:
    """The parent's secret, and in a forked process the same one once more; the status of that."""
    post(hashlib.sha256(secret().encode()).hexdigest(), "parent")
    pid = os.fork()
    if pid == 0:
        try:
            post(hashlib.sha256(secret().encode()).hexdigest(), "child")
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_each_process_has_a_vault_of_its_own(tmp_path: Path, key: Path) -> None:
    """A forked process keeps what it met, what its parent had met before, too: the replays of both have the values."""
    with record("run", store=tmp_path) as run:
        forks()
    assert len([*tmp_path.rglob("*.vault")]) == 2
    assert TAIL.encode() not in stored(tmp_path)
    with replay(run.id, store=tmp_path) as session:
        forks()
    assert session.report.verdict.line == "exact"


PROGRAM = """
import hashlib, os, signal, sys
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def issued():
    if os.path.exists("../issued"):
        return "asked twice"
    open("../issued", "w").close()
    return "sk-proj-%s" % os.environ["TAIL"]

@traced_tool(side_effect="irreversible")
def pay(token, amount):
    with open("ledger", "a") as file:
        print(hashlib.sha256(token.encode()).hexdigest(), amount, file=file)

with record("run"):
    token = issued()
    if not os.path.exists("../killed"):
        open("../killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    pay(token, hashlib.sha256(sys.argv[1].encode()).hexdigest())
"""


def test_a_killed_run_goes_on_with_the_value(tmp_path: Path, key: Path) -> None:
    """What was redacted before ``kill -9`` is in the vault: the run is resumed with the secret itself, and its program has the arguments
    that it had; without the key the same run is not resumed."""
    place = Place(tmp_path / "here")
    place.directory.mkdir()
    place.program(PROGRAM)
    secret = f"--password={TAIL}arg"
    died = place.cli("run", "agent.py", secret, TAIL=TAIL)
    assert died.returncode == -signal.SIGKILL
    assert TAIL.encode() not in stored(place.store)
    refused = place.cli("recovery", "resume", place.run, TAIL="", TRACEKIT_VAULT_KEY_FILE="")
    assert refused.returncode != 0
    assert not (place.directory / "ledger").exists()
    done = place.cli("recovery", "resume", place.run, TAIL="")
    assert done.returncode == 0, done.stderr
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (KEY, secret)]
    assert (place.directory / "ledger").read_text().split() == digests
    replayed = place.cli("replay", place.run, TAIL="")
    assert replayed.returncode == 0, replayed.stderr
    assert "redacted" not in replayed.stderr
