"""Seals: Ed25519 signatures of a run's file, which can be verified without a secret.

A seal is one line of ``<the trace's name without .jsonl>.seal``, beside the trace: ``{"seal": 1, "run_id", "segment"?,
"count", "head", "segments"?, "sealed_at", "key", "signature"}``. ``signature`` covers the line's bytes up to, not
including, ``,"signature":"``, so that it can be checked without this code. ``head`` is the hash of entry ``count``, and
so covers the whole chain before it; ``segments`` has the same for the files of child processes. ``key`` is the
fingerprint of the public key, as ``ssh-keygen -l`` prints it.

A file has several seals if its run was resumed, or sealed again with another key; after a change of keys, old seals
remain valid. The cryptography library is imported only where a seal is made or checked.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from .. import _reality
from .._lazy import NamedTuple
from .._native import sha256_hex
from .._reality import open_file, system
from ..errors import TraceError
from .durable import facts_in, replacing
from .entry import meta_of
from .tip import SEAL_KEY_VARIABLE, seal_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from .reader import Trace, Verdict

__all__ = [
    "PublicKeys",
    "Seal",
    "SigningKey",
    "add_seal",
    "check_seal",
    "new_key",
]

_LONGEST_KEY: Final = 1 << 20
_MAX_SIZE: Final = 64 << 20
_SIGNED: Final = b',"signature":"'
_SSH: Final = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
_SHAPE: Final = {
    "seal": int, "run_id": str, "segment": (str, type(None)), "count": int, "head": str, "segments": (dict, type(None)),
    "sealed_at": int, "key": str, "signature": str,
}  # fmt: skip


# -- keys --------------------------------------------------------------------------------------------------------------


class SigningKey:
    """The private key for sealing: PEM (PKCS #8, as written by ``tracekit keygen`` and openssl) or OpenSSH format;
    without a passphrase."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private: Final = private
        self.id: Final = _fingerprint(private.public_key())

    @classmethod
    @_reality.off_loop()
    def of(cls, path: str | os.PathLike[str] | None = None) -> SigningKey | None:
        """Load the key from ``path`` or from ``TRACEKIT_SEAL_KEY_FILE``; return ``None`` if neither is set.

        Raises ``TraceError`` if the key can't be read or the cryptography library is missing: a seal must not be
        omitted unnoticed.
        """
        where = path or os.environ.get(SEAL_KEY_VARIABLE)
        if not where:
            return None
        _library(f"{SEAL_KEY_VARIABLE} is set" if path is None else "this seals")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

        data = _read(where, "key")
        load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
        try:
            found = load(data, None)
        except Exception as error:  # the library raises many kinds of errors
            raise _unusable(where, f"holds no private key that can be read: {error}") from None
        if not isinstance(found, Ed25519PrivateKey):
            raise _unusable(where, f"holds no Ed25519 key ({type(found).__name__})")
        return cls(found)

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    @property
    def public(self) -> PublicKeys:
        """The matching public key."""
        return PublicKeys({self.id: self._private.public_key()})


class PublicKeys:
    """Public keys that a reader trusts, by fingerprint."""

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys: Final = dict(keys)

    @classmethod
    @_reality.off_loop()
    def of(cls, paths: Iterable[str | os.PathLike[str]]) -> PublicKeys:
        """Load the keys from these files, any number in each: PEM (SPKI), or lines ``ssh-ed25519 …`` as in
        ``authorized_keys``.

        Raises ``TraceError`` for a file that can't be read, has no key, or contains anything else: a key must not be
        ignored unnoticed.
        """
        _library("checking a seal")
        found: dict[str, Ed25519PublicKey] = {}
        for path in paths:
            keys = list(_public_keys(_read(path, "public key"), path))
            if not keys:
                raise _unusable(path, "holds no public key")
            found |= {_fingerprint(key): key for key in keys}
        return cls(found)

    @property
    def ids(self) -> list[str]:
        return [*self._keys]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def verifies(self, seal: Seal) -> bool:
        """Return whether the seal was made with the key that it names."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._keys[seal.key].verify(seal.signature, seal.signed)
        except InvalidSignature:
            return False
        return True


def new_key(path: str) -> str:
    """Write a new private key to ``path`` (0600) and its public key to ``path`` + ``.pub``; return the fingerprint.

    Raises ``TraceError`` if one of the files exists: nothing is overwritten.
    """
    _library("making a key")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    texts = {
        path: (private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600),
        f"{path}.pub": (private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644),
    }
    if there := [one for one in texts if _reality.there(one, link=True)]:
        raise TraceError(f"there is a file {there[0]} already", next_action="name another file")
    try:
        for one, (text, mode) in texts.items():
            fd = system.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            with open_file(fd, "wb") as file:
                file.write(text)
    except OSError as error:
        raise TraceError(f"the key can't be written: {error}", next_action="name another file") from error
    return _fingerprint(private.public_key())


def _public_keys(data: bytes, path: str | os.PathLike[str]) -> Iterable[Ed25519PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    block: list[bytes] = []
    for line in data.splitlines():
        word = line.strip()
        if block or word.startswith(b"-----BEGIN"):
            block.append(word)
            if not word.startswith(b"-----END"):
                continue
            text, load = b"\n".join(block) + b"\n", load_pem_public_key
            block = []
        elif not word or word.startswith(b"#"):
            continue
        else:
            text, load = word, load_ssh_public_key
        if b"PRIVATE KEY" in text:
            raise _unusable(path, "holds a private key: name the file of its public key")
        try:
            key = load(text)
        except Exception as error:
            raise _unusable(path, f"holds something that is not a public key: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise _unusable(path, f"holds a key that is not an Ed25519 key ({type(key).__name__})")
        yield key
    if block:
        raise _unusable(path, "ends in the middle of a key")


def _fingerprint(key: Ed25519PublicKey) -> str:
    return "SHA256:" + b64encode(bytes.fromhex(sha256_hex(_SSH + key.public_bytes_raw()))).decode().rstrip("=")


def _library(why: str) -> None:
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise TraceError(
            f"{why}, and the package that signs is not installed",
            next_action="pip install cryptography",
        ) from error


def _read(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        with open_file(path, "rb") as file:
            return file.read(_LONGEST_KEY)
    except OSError as error:
        raise _unusable(path, f"can't be read: {error.strerror or error}", what) from error


def _unusable(path: str | os.PathLike[str], how: str, what: str = "key") -> TraceError:
    return TraceError(
        f"the {what} file {os.fspath(path)} {how}", next_action="`tracekit keygen FILE` makes a pair of keys"
    )


# -- seals -------------------------------------------------------------------------------------------------------------


class Seal(NamedTuple):
    """One seal, not checked yet: the run, the number of entries and the hash of the last one, the same for its
    segments, the time, the key.

    ``signed`` are the bytes that ``signature`` covers.
    """

    run_id: str
    segment: str | None
    count: int  # type: ignore[assignment]  # hides tuple.count
    head: str
    segments: Mapping[str, Mapping[str, Any]]
    sealed_at: int
    key: str
    signature: bytes
    signed: bytes


def add_seal(
    trace: str, key: SigningKey, run_id: str, count: int, head: str, *, segment: str | None = None,
    segments: Mapping[str, Mapping[str, Any]] | None = None, sync: bool = True,
) -> None:  # fmt: skip
    """Seal a run's file: ``count`` entries, the last with the hash ``head``. On the device on return if ``sync``."""
    facts: dict[str, Any] = {"seal": 1, "run_id": run_id}
    if segment is not None:
        facts["segment"] = segment
    facts |= {"count": count, "head": head}
    if segments:
        facts["segments"] = segments
    signed = orjson.dumps({**facts, "sealed_at": _reality.time_ns(), "key": key.id})[:-1]
    line = signed + _SIGNED + b64encode(key.sign(signed)) + b'"}\n'
    path = seal_of(trace)
    try:
        with open_file(path, "rb") as file:
            before = file.read(_MAX_SIZE)
    except FileNotFoundError:
        before = b""
    with replacing(path, sync=sync) as fd:
        data = before + line
        while data:
            data = data[system.write(fd, data) :]


def read_seals(trace: str) -> list[Seal]:
    """Return the seals beside a trace; none if there is no such file. Raises ``ValueError`` for a malformed file."""
    path = seal_of(trace)
    try:
        with open_file(path, "rb") as file:
            data = file.read(_MAX_SIZE + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"the seal {path} can't be read: {error}") from None
    if len(data) > _MAX_SIZE or not data.endswith(b"\n"):
        raise ValueError(f"the seal {path} is damaged: it does not end where it should")
    return [_parsed(line, path, number) for number, line in enumerate(data.splitlines(), 1)]


def _parsed(line: bytes, path: str, number: int) -> Seal:
    signed, mark, rest = line.rpartition(_SIGNED)
    try:
        facts = facts_in(line, _SHAPE)
        if facts["seal"] != 1:
            raise ValueError(f"it has version {facts['seal']}, and this tracekit reads 1")
        if not mark or rest != orjson.dumps(facts["signature"])[1:] + b"}":
            raise ValueError("its signature is not at its end")
        segments = facts.get("segments") or {}
        for name, one in segments.items():
            if not isinstance(one, dict) or type(one.get("count")) is not int or not isinstance(one.get("head"), str):
                raise ValueError(f"it does not say what the segment {name} holds")
        signature = b64decode(facts["signature"], validate=True)
    except ValueError as error:
        raise ValueError(f"line {number} of {path} is not a seal: {error}") from None
    return Seal(
        facts["run_id"],
        facts.get("segment"),
        facts["count"],
        facts["head"],
        segments,
        facts["sealed_at"],
        facts["key"],
        signature,
        signed,
    )


# -- checking ----------------------------------------------------------------------------------------------------------
#
# ``Verdict.seal``, of one file: {"state", "text"} and, if there is a seal, {"key", "count", "sealed_at", "segments"?}.
#
#   valid      made with a trusted key, covering every entry
#   extended   made with a trusted key, covering the first ``count`` entries; others were added later
#   unchecked  there is a seal, and no public key was given to check it with
#   untrusted  there are only seals that name other keys
#   none       there is no seal
#   wrong      it contradicts the file, or was not made with the key that it names: the file counts as broken


def check_seal(trace: Trace, verdict: Verdict, keys: PublicKeys | None = None) -> Verdict:
    """Return the verdict on one file, taking the seals beside it and the trusted keys into account.

    Without keys a seal is worth as much as a kept tip: it reveals changes by somebody who did not change the seal as
    well.
    """
    try:
        seals = read_seals(trace.path)
    except ValueError as error:
        return _wrong(verdict, str(error))
    if not seals:
        return verdict if keys is None else verdict._replace(seal={"state": "none", "text": "there is no seal"})
    mine = seals if keys is None else [seal for seal in seals if seal.key in keys]
    for seal in mine:
        if keys is not None and not keys.verifies(seal):  # checked first: a changed seal says nothing about the trace
            text = f"a seal was changed: it was not made with the key {seal.key} that it names"
            return _wrong(verdict, text, **_facts(seal))
    for seal in seals:  # whoever made the seal: a contradiction between a trace and its seal is never ignored
        if (problem := _differs(trace, verdict, seal, checked=keys is not None and seal.key in keys)) is not None:
            return _wrong(verdict, problem, min(seal.count, verdict.count) or None, **_facts(seal))
    if keys is not None and not mine:
        by = ", ".join(dict.fromkeys(seal.key for seal in seals))
        text = f"by its own account the seal was made with another key: {by}"
        return verdict._replace(seal={"state": "untrusted", "text": text, **_facts(seals[-1])})
    last = max(
        reversed(mine), key=lambda seal: seal.count
    )  # of two over the same entries the later one, which may name more segments
    if keys is None:
        state, text = (
            "unchecked",
            f"there is one, of {last.key} by its own account; it was not checked, since no public key was given",
        )
    elif last.count == verdict.count:
        state, text = "valid", f"made with {last.key}"
    else:
        state, text = "extended", f"made with {last.key}, over the first {last.count} of {verdict.count} entries"
    return verdict._replace(seal={"state": state, "text": text, **_facts(last)})


def _facts(seal: Seal) -> dict[str, Any]:
    found: dict[str, Any] = {"key": seal.key, "count": seal.count, "sealed_at": seal.sealed_at}
    return {**found, "segments": dict(seal.segments)} if seal.segments else found


def _wrong(verdict: Verdict, problem: str, line: int | None = None, **facts: Any) -> Verdict:
    verdict = verdict._replace(seal={"state": "wrong", "text": problem, **facts}, lost_tail=False)
    if verdict.state == "broken":
        return verdict
    return verdict._replace(state="broken", problem=problem, line=line)


def _differs(trace: Trace, verdict: Verdict, seal: Seal, *, checked: bool) -> str | None:
    """Return how the file contradicts a seal; ``None`` if everything that was sealed is unchanged.

    ``checked``: whether a trusted key has made the seal. Otherwise it may be the seal that was changed.
    """
    or_the_seal = "" if checked else ", or the seal was changed"
    if seal.run_id != verdict.run_id:
        return f"the seal is of run {seal.run_id}"
    first = trace.entry(1) if verdict.count else {}
    if seal.segment != meta_of(first).get("segment"):
        return "the seal is of another process of the run"
    if verdict.count < seal.count:
        return (
            f"it was sealed with {seal.count} entries; {verdict.count} verify: its last lines were cut off or changed"
            + or_the_seal
        )
    if trace.hash_of(seal.count) != seal.head:
        return f"it was sealed with another hash at entry {seal.count}: it was rewritten{or_the_seal}"
    return None


def uncovered(verdict: Verdict, processes: Mapping[str, Verdict], listed: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a child process whose file is not covered by a valid seal of the run's own file; ``None`` if all are.

    Covered are the processes that the run's last entry lists with their ends, those named by the seal itself, and those
    with a valid seal of their own.
    """
    sealed = (verdict.seal or {}).get("segments", {})
    ends = {str(one.get("segment")): one for one in listed if not one.get("open")}
    for name, found in processes.items():
        stated = [one.get(name, {}) for one in (sealed, ends)]
        if (found.seal or {}).get("state") == "valid":
            continue
        if all((one.get("count"), one.get("head")) != (found.count, found.head) for one in stated):
            return name
    return None
