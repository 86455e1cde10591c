"""The vault of a run: the values replaced by placeholders, encrypted, in a file beside the run's.

A vault is written if ``TRACEKIT_VAULT_KEY_FILE`` names a key while the run is recorded: ``<the trace's name without
.jsonl>.vault``. Its first line is JSON, ``{"vault": 1, "salt", "check"}``; each further line is base64 of a 12-byte
nonce and of ``[placeholder, value]``, as JSON padded with spaces to a multiple of 64 bytes, encrypted with AES-256-GCM.
The file's key is HKDF-SHA256 of the key file's bytes and the salt; ``check`` is an empty text encrypted with it, which
distinguishes a wrong key from damage.

A value is in the file before the entry with its placeholder is in the log, and on the device before that entry is. So
if one survives ``kill -9`` or a power loss, so does the other. A last line truncated by a kill belongs to no entry. The
cryptography library is imported only where a vault is written or read.
"""

from __future__ import annotations

import binascii
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from .. import _reality
from .._reality import open_file, system
from ..errors import TraceError
from .durable import sync_directory

__all__ = ["KEY_VARIABLE", "Vault", "has_vault", "vault_key"]

KEY_VARIABLE: Final = "TRACEKIT_VAULT_KEY_FILE"
_ABOUT: Final = b"tracekit-vault-v1"
_MAX_SIZE: Final = 256 << 20
_LONGEST_KEY: Final = 64 << 10
_STEP: Final = 64
_SALT, _NONCE = 16, 12


def vault_key() -> bytes | None:
    """Return the key from the file that ``TRACEKIT_VAULT_KEY_FILE`` names; ``None`` if that is not set.

    Raises ``TraceError`` if the file can't be read or has less than 16 bytes: the user wants the values kept.
    """
    where = os.environ.get(KEY_VARIABLE)
    if not where:
        return None
    _cipher()
    next_action = f"make one with `head -c 32 /dev/urandom > FILE`, or unset {KEY_VARIABLE}"
    try:
        with open_file(where, "rb") as file:
            key = file.read(_LONGEST_KEY)
    except OSError as error:
        raise TraceError(f"the vault's key file {where} can't be read: {error}", next_action=next_action) from error
    if len(key) < 16:
        raise TraceError(f"the vault's key file {where} holds less than 16 bytes", next_action=next_action)
    return key


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise TraceError(
            f"{KEY_VARIABLE} is set, and the package that encrypts the vault is not installed",
            next_action=f"pip install cryptography, or unset {KEY_VARIABLE}",
        ) from error
    return AESGCM


def _under(key: bytes, salt: bytes) -> Any:
    """Return the cipher of one file."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return _cipher()(HKDF(SHA256(), 32, salt, _ABOUT).derive(key))


def vault_of(trace: str) -> str:
    """Return the path of the vault of the trace at this path, existing or not."""
    return f"{trace.removesuffix('.jsonl')}.vault"


@_reality.off_loop()
def has_vault(trace: str) -> bool:
    return _reality.there(vault_of(trace))


class Vault:
    """The vault beside one trace, under a key. Raises ``TraceError`` if it was made with another key, or is damaged.

    Only the process that writes the log writes to it; ``keep`` may be called from any of its threads.
    """

    def __init__(self, trace: str, key: bytes, unwritten: Callable[[str], object] | None = None) -> None:
        self.path: Final = vault_of(trace)
        self._unwritten: Final = unwritten
        self._lock: Final = _reality.OwnLock()
        self._values: Final[dict[str, str]] = {}
        #: The size of the complete lines in the file.
        self._size = 0
        #: The first line, while it has not been written yet.
        self._head = b""
        self._cipher: Any = None
        self._silent = False
        #: Whether data was written that may not be on the device.
        self._unsynced = False
        self._read(key)

    @classmethod
    def of_process(cls, trace: str, unwritten: Callable[[str], object] | None = None) -> Vault | None:
        """Open the vault of ``trace`` with the key named by the environment; return ``None`` if it names none."""
        key = vault_key()
        return None if key is None else cls(trace, key, unwritten)

    @property
    def values(self) -> Mapping[str, str]:
        """The values, by placeholder."""
        return self._values

    @_reality.off_loop()
    def keep(self, placeholder: str, value: str) -> None:
        """Write a value, unless the vault has it already."""
        if self._values.get(placeholder) == value:
            return
        with self._lock:
            if self._values.get(placeholder) != value:
                self._values[placeholder] = value
                self._append(self._encrypted(json.dumps([placeholder, value]).encode()))

    def sync(self) -> None:
        """Sync what was written to the device; the log does this before it syncs entries, which may contain the
        placeholders."""
        if self._unsynced:
            self._sync()

    # -- the file --------------------------------------------------------------------------------------------------------

    @_reality.off_loop()
    def _sync(self) -> None:
        with self._lock:
            self._unsynced = False
            try:
                fd = system.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    system.fsync(fd)
                finally:
                    system.close(fd)
                sync_directory(os.path.dirname(self.path))
            except OSError as error:
                self._failed(error)

    @_reality.off_loop()
    def _read(self, key: bytes) -> None:
        try:
            with open_file(self.path, "rb") as file:
                data = file.read(_MAX_SIZE + 1)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise TraceError(
                f"the vault {self.path} can't be read: {error}",
                path=self.path,
                next_action="let this user read it; or move it away, and a replay passes on placeholders",
            ) from error
        if len(data) > _MAX_SIZE:
            raise self._damaged(f"it is larger than {_MAX_SIZE >> 20} MiB")
        head, *lines = data.split(b"\n")
        if not lines:  # there is no vault, or a kill truncated its first line
            salt, nonce = _reality.urandom(_SALT), _reality.urandom(_NONCE)
            self._cipher = _under(key, salt)
            check = nonce + self._cipher.encrypt(nonce, b"", _ABOUT)
            self._head = json.dumps({"vault": 1, "salt": salt.hex(), "check": check.hex()}).encode() + b"\n"
            return
        self._cipher = self._opened(head, key)
        self._size = len(data) - len(lines.pop())
        for number, line in enumerate(lines, 2):
            try:
                placeholder, value = json.loads(self._decrypted(line))
            except Exception as error:
                raise self._damaged(f"line {number} does not decrypt") from error
            self._values[placeholder] = value

    def _opened(self, head: bytes, key: bytes) -> Any:
        from cryptography.exceptions import InvalidTag

        try:
            about = json.loads(head)
            version, salt, check = about["vault"], bytes.fromhex(about["salt"]), bytes.fromhex(about["check"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged("its first line is malformed") from error
        if version != 1:
            raise self._damaged(f"it has version {version!r}, and this tracekit reads 1")
        cipher = _under(key, salt)
        try:
            cipher.decrypt(check[:_NONCE], check[_NONCE:], _ABOUT)
        except InvalidTag:
            raise TraceError(
                f"the vault {self.path} was made with another key than the one in {os.environ.get(KEY_VARIABLE)}",
                path=self.path,
                next_action=f"name the file of its key in {KEY_VARIABLE}, or unset it: a replay then has placeholders",
            ) from None
        return cipher

    def _encrypted(self, text: bytes) -> bytes:
        """Return an encrypted line; padding hides the length of the text."""
        nonce, padded = _reality.urandom(_NONCE), text.ljust(-(-len(text) // _STEP) * _STEP)
        return binascii.b2a_base64(nonce + self._cipher.encrypt(nonce, padded, _ABOUT))

    def _decrypted(self, line: bytes) -> bytes:
        data = binascii.a2b_base64(line, strict_mode=True)
        text: bytes = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], _ABOUT)
        return text

    def _append(self, line: bytes) -> None:
        """Write a complete line, or leave the file unchanged and report it once: the run continues without."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = system.open(self.path, flags, 0o600)
            try:
                data = self._head + line
                if system.pwrite(fd, data, self._size) != len(data):
                    system.ftruncate(fd, self._size)
                    raise OSError(f"only a part of {len(data)} bytes was written")
                system.ftruncate(fd, self._size + len(data))  # a partial line left by a kill may be longer
            finally:
                system.close(fd)
        except OSError as error:
            self._failed(error)
        else:
            self._size, self._head, self._unsynced = self._size + len(data), b"", True

    def _failed(self, error: OSError) -> None:
        if self._unwritten is not None and not self._silent:
            self._silent = True
            self._unwritten(f"the vault {self.path} can't be written, so the redacted values are lost: {error}")

    def _damaged(self, how: str) -> TraceError:
        return TraceError(
            f"the vault {self.path} is damaged: {how}",
            path=self.path,
            next_action=f"bring it back as it was, or unset {KEY_VARIABLE}: a replay then has placeholders",
        )
