"""Seals: signatures of what a run holds, so that who verifies it needs no secret, and no edit by anybody else passes."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from tests.support.plain_writer import RUN, lines, small_run, write
from tracekit import record, traced_tool
from tracekit.cli import main
from tracekit.errors import LogWriteError, RunStateError, TraceError
from tracekit.integration import Store, Trace


@traced_tool(side_effect="irreversible")
def pay(who: str, cents: int) -> str:
    return f"paid {cents} to {who}"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def verified(path: Path, *keys: Path) -> tuple[int, str, str]:
    """Exit code, state of the chain and state of the seal."""
    done = call("verify", path, "--json", *(part for key in keys for part in ("--key", key)))
    found = json.loads(done.stdout)
    return done.exit_code, found["state"], (found["seal"] or {}).get("state")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    assert call("keygen", tmp_path / "seal.key").exit_code == 0
    return tmp_path / "seal.key"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A complete run of eight entries, in a store."""
    return write(Path(Store(tmp_path / "store").path(RUN)), small_run(), run_id=RUN)


@pytest.fixture
def sealed(run: Path, key: Path) -> Path:
    done = call("seal", run, "--key", key)
    assert done.exit_code == 0, done.output
    return run


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def test_a_run_is_sealed_as_it_ends(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``TRACEKIT_SEAL_KEY_FILE`` is set a run ends with a seal, in a store and at a path; the public key verifies it."""
    monkeypatch.setenv("TRACEKIT_SEAL_KEY_FILE", str(key))
    with record("in a store") as one:
        pay("ann", 4200)
    with record("at a path", path=tmp_path / "kept.jsonl"):
        pay("bob", 1700)
    assert call("verify", one.path).exit_code == 0  # the public key is that of the key that seals here
    monkeypatch.delenv("TRACEKIT_SEAL_KEY_FILE")
    for path in (Path(one.path), tmp_path / "kept.jsonl"):
        assert verified(path, public(key)) == (0, "complete", "valid")


def test_a_program_that_leaves_its_surroundings_is_sealed_all_the_same(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is the one that was named when the run began, also if the program has changed its directory and its environment since."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEKIT_SEAL_KEY_FILE", os.path.relpath(key, tmp_path))
    with record(path=tmp_path / "run.jsonl"):
        os.chdir(tmp_path / "elsewhere")
        os.environ.pop("TRACEKIT_SEAL_KEY_FILE")
    assert (tmp_path / "run.seal").exists()


def test_a_run_that_can_not_be_sealed_is_not_sealed_in_silence(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its tip can't be kept, a run that is to be sealed says that it is complete and has no seal."""
    monkeypatch.setenv("TRACEKIT_SEAL_KEY_FILE", str(key))
    store = tmp_path / "store"
    with pytest.raises(LogWriteError, match="is complete, but has no seal"), record("job", store=store) as run:
        (store / "heads").write_text("in the way")
    (store / "heads").unlink()
    assert Store(store).verify(run.id).state == "complete"


def test_who_verifies_is_told_by_which_key(sealed: Path, key: Path, tmp_path: Path) -> None:
    """The fingerprint is that of the public key; a seal of another key, or none, is exit code 1, whatever the chain says."""
    call("keygen", tmp_path / "other")
    assert verified(sealed, public(key)) == (0, "complete", "valid")
    fingerprint = call("keygen", tmp_path / "third").stdout.split()[-1]
    call("seal", sealed, "--key", tmp_path / "third")
    assert fingerprint in call("verify", sealed, "--key", tmp_path / "third.pub").stdout
    assert verified(sealed, tmp_path / "other.pub") == (1, "complete", "untrusted")
    sealed.with_suffix(".seal").unlink()
    assert verified(sealed, public(key)) == (1, "complete", "none")


def test_without_a_public_key_nothing_is_called_verified(sealed: Path) -> None:
    """A seal that nobody checked is said not to be checked."""
    assert verified(sealed) == (0, "complete", "unchecked")
    assert "not checked" in call("verify", sealed).stdout


def _rewritten(path: Path, count: int = 8) -> None:
    """The run with another name in it, cut to ``count`` entries, every hash computed anew, the kept tip too."""
    edited = small_run()[:count]
    edited[4]["name"] = "edited"
    path.write_bytes(b"".join(lines(edited)))


def _extended(path: Path) -> None:
    whole = small_run()
    path.write_bytes(b"".join(lines([*whole, whole[4]])))


def _seal(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    seal = path.with_suffix(".seal")
    facts = json.loads(seal.read_bytes())
    change(facts)
    seal.write_bytes(json.dumps(facts, separators=(",", ":")).encode() + b"\n")


def _reseal_by_hand(path: Path) -> None:
    """What somebody does who has no key: the seal says what the rewritten file says."""
    _rewritten(path)
    with Trace(path) as trace:
        head = trace.status.head
    _seal(path, lambda facts: facts.update(head=head))


@pytest.mark.parametrize(
    ("tamper", "state", "seal"),
    [
        (lambda path: _rewritten(path), "broken", "wrong"),
        (lambda path: _rewritten(path, 7), "broken", "wrong"),
        (lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6])), "broken", "wrong"),
        (_reseal_by_hand, "broken", "wrong"),
        (lambda path: _seal(path, lambda facts: facts.update(sealed_at=1)), "broken", "wrong"),
        (lambda path: _seal(path, lambda facts: facts.update(signature="AAAA")), "broken", "wrong"),
        (lambda path: path.with_suffix(".seal").write_bytes(b"junk\n"), "broken", "wrong"),
        (lambda path: path.with_suffix(".seal").write_bytes(b""), "broken", "wrong"),
        (_extended, "incomplete", "extended"),
        (lambda path: path.with_suffix(".seal").unlink(), "complete", "none"),
    ],
)
def test_tampering_is_told(tamper: Callable[[Path], None], state: str, seal: str, sealed: Path, key: Path) -> None:
    """A run that was rewritten, cut, extended, or has another seal than its own is exit code 1, though its chain holds."""
    tamper(sealed)
    assert verified(sealed, public(key)) == (1, state, seal)


def test_a_changed_seal_is_not_blamed_on_the_trace(sealed: Path, key: Path) -> None:
    """With the key it is known which of the two was changed; without, that either may have been."""
    _seal(sealed, lambda facts: facts.update(count=7))
    assert (
        "a seal was changed: it was not made with the key"
        in (done := call("verify", sealed, "--key", public(key))).stdout
    )
    assert "rewritten" not in done.stdout
    assert "entry 7: it was rewritten, or the seal was changed" in call("verify", sealed).stdout


def test_a_seal_of_another_run(sealed: Path, key: Path, tmp_path: Path) -> None:
    """A seal is of one run: beside another it is wrong."""
    other = write(sealed.with_name("other.jsonl"), [{**one, "run_id": "other"} for one in small_run()], run_id="other")
    other.with_suffix(".seal").write_bytes(sealed.with_suffix(".seal").read_bytes())
    assert verified(other, public(key)) == (1, "broken", "wrong")


def test_a_run_without_end_can_be_sealed(run: Path, key: Path) -> None:
    """What died is evidence as it is: once sealed, it can't be cut unnoticed, which no chain detects."""
    whole = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join(whole[:6]))
    assert call("seal", run, "--key", key).exit_code == 0
    assert verified(run, public(key)) == (3, "incomplete", "valid")
    run.write_bytes(b"".join(whole[:5]))
    assert verified(run, public(key)) == (1, "broken", "wrong")


def test_child_processes_are_sealed_with_their_run(run: Path, key: Path) -> None:
    """The seal of a run covers the files of its processes: one that is removed or cut afterwards is told."""
    whole = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join(whole[:6]))  # nothing in it lists the file of the process
    child = run.with_name(f"{RUN}.{'a' * 16}.jsonl")
    child.write_bytes(b"".join(lines(small_run()[:4])))
    assert call("seal", run, "--key", key).exit_code == 0
    sealed = child.read_bytes()
    for tampered in (sealed[: sealed.rindex(b"\n", 0, -1) + 1], None):
        child.unlink() if tampered is None else child.write_bytes(tampered)
        assert verified(run, public(key))[:2] == (1, "broken")
    child.write_bytes(b"".join(lines(small_run()[:5])))
    assert verified(run, public(key)) == (1, "incomplete", "extended")


def test_keys_change(sealed: Path, key: Path, tmp_path: Path) -> None:
    """What was sealed with the old key is sealed for who trusts it; sealed again with the new one, for who trusts only that."""
    call("keygen", tmp_path / "new.key")
    trusted = tmp_path / "trusted"
    trusted.write_bytes(public(key).read_bytes() + b"# since 2027\n" + (tmp_path / "new.key.pub").read_bytes())
    assert verified(sealed, trusted) == (0, "complete", "valid")
    assert verified(sealed, tmp_path / "new.key.pub")[0] == 1
    assert call("seal", sealed, "--key", tmp_path / "new.key").exit_code == 0
    assert verified(sealed, tmp_path / "new.key.pub") == (0, "complete", "valid")
    assert verified(sealed, public(key)) == (0, "complete", "valid")


def test_keys_of_openssh(run: Path, tmp_path: Path) -> None:
    """Keys in the form of ``ssh-keygen -t ed25519`` seal and verify as well."""
    private = Ed25519PrivateKey.generate()
    (tmp_path / "id").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "id.pub").write_bytes(line + b" auditor@acme.example\n")
    assert call("seal", run, "--key", tmp_path / "id").exit_code == 0
    assert verified(run, tmp_path / "id.pub") == (0, "complete", "valid")


def test_a_seal_verifies_without_tracekit(sealed: Path, key: Path) -> None:
    """The signature is of the line's bytes before it, under the public key in its PEM file."""
    line = sealed.with_suffix(".seal").read_bytes().splitlines()[-1]
    signed, _, rest = line.partition(b',"signature":"')
    loaded = load_pem_public_key(public(key).read_bytes())
    assert isinstance(loaded, Ed25519PublicKey)
    loaded.verify(base64.b64decode(rest[:-2]), signed)  # raises if it is not
    with Trace(sealed) as trace:
        assert json.loads(signed + b"}")["head"] == trace.status.head


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        (b'"seal":1', b'"seal":2', "it has version 2, and this tracekit reads 1"),
        (b'"sealed_at":', b'"made_at":', "it has no 'sealed_at'"),
        (b'"count":', b'"count":"8","n":', "its 'count' is text, not a number"),
        (b"{", b"[", "it is not JSON"),
    ],
)
def test_a_seal_of_another_form_is_not_taken_for_none(sealed: Path, was: bytes, now: bytes, what: str) -> None:
    """Another version's seal, or a damaged one, is reported with what is there in its place."""
    seal = sealed.with_suffix(".seal")
    seal.write_bytes(seal.read_bytes().replace(was, now, 1))
    done = call("verify", sealed)
    assert done.exit_code == 1
    assert f"line 1 of {seal} is not a seal: {what}" in done.output


def test_a_key_that_cannot_be_used_is_an_error(
    tmp_path: Path, key: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal is never left out because its key is missing, and no key is passed over when one verifies."""
    (tmp_path / "junk").write_bytes(b"x" * 32)
    for name in ("no", "junk", public(key).name):
        monkeypatch.setenv("TRACEKIT_SEAL_KEY_FILE", str(tmp_path / name))
        with pytest.raises(TraceError, match="key"), record("never begun"):
            pytest.fail("it was begun")
    monkeypatch.delenv("TRACEKIT_SEAL_KEY_FILE")
    (tmp_path / "half").write_bytes(public(key).read_bytes() + b"and more\n")
    for name in ("no", "junk", "half", key.name):
        assert call("verify", sealed, "--key", tmp_path / name).exit_code == 2
    assert call("keygen", key).exit_code == 2
    said = call("verify", sealed, "--key", tmp_path / "gone.pub").stderr
    assert f"the public key file {tmp_path / 'gone.pub'} can't be read: No such file or directory\n" in said
    assert os.stat(key).st_mode & 0o077 == 0


def test_what_is_damaged_or_goes_on_is_not_sealed(run: Path, key: Path) -> None:
    """Nobody signs what does not verify, nor what a process still writes."""
    with record("goes on") as going:
        assert call("seal", going.path, "--key", key).exit_code == 2
    run.write_bytes(run.read_bytes().replace(b'"seq":3', b'"seq":4', 1))
    assert call("seal", run, "--key", key).exit_code == 1
    assert not run.with_suffix(".seal").exists()


def test_a_process_is_not_sealed_apart_from_its_run(run: Path, key: Path) -> None:
    """Its file is covered by the seal of the run, and named so."""
    child = run.with_name(f"{RUN}.{'a' * 16}.jsonl")
    child.write_bytes(b"".join(lines(small_run()[:4])))
    assert call("seal", child, "--key", key).exit_code == 2
    assert not child.with_suffix(".seal").exists()


def test_sealing_again_covers_what_the_first_seal_did_not(sealed: Path, key: Path) -> None:
    """A process that no seal names is told; the run sealed again, with as many entries of its own, covers it, rewritten or not."""
    child = sealed.with_name(f"{RUN}.{'a' * 16}.jsonl")
    child.write_bytes(b"".join(lines(small_run()[:4])))
    assert verified(sealed, public(key))[::2] == (1, "extended")
    assert call("seal", sealed, "--key", key).exit_code == 0
    assert verified(sealed, public(key))[2] == "valid"
    edited = small_run()[:4]
    edited[2]["name"] = "edited"
    child.write_bytes(b"".join(lines(edited)))
    assert verified(sealed, public(key))[:2] == (1, "broken")


def test_a_seal_of_a_trace_that_is_gone(tmp_path: Path, key: Path) -> None:
    """It is not left beside a new trace at the same path, which would be broken by it: that is said before anything is recorded."""
    path = tmp_path / "kept.jsonl"
    with record("one", path=path):
        pass
    assert call("seal", path, "--key", key).exit_code == 0
    path.unlink()
    with pytest.raises(RunStateError, match="trace that is gone"), record("two", path=path):
        pytest.fail("it was begun")
    assert not path.exists()


def test_a_contradiction_counts_whoever_sealed(sealed: Path, tmp_path: Path) -> None:
    """A file that contradicts a seal is broken also for who trusts another key."""
    call("keygen", tmp_path / "other")
    _rewritten(sealed)
    assert verified(sealed, tmp_path / "other.pub")[:2] == (1, "broken")


def test_a_removed_run_leaves_no_seal(sealed: Path) -> None:
    """``tracekit rm`` removes a run with its seal."""
    assert CliRunner().invoke(main, ["rm", "--store", str(sealed.parents[1]), RUN]).exit_code == 0
    assert list(sealed.parent.iterdir()) == []
