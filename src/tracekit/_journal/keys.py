"""The keys of a store, which make a call happen only once across all of its runs.

A key is a small file, ``keys/<64 hex digits>``. Its first line, ``{"run_id", "segment"?, "created", "by"}``, names the
run that makes the call; once the call's intent record is in that run's log, a second line ``{"seq"}`` is added. The
digits are an HMAC-SHA-256 of what identifies the call, under the store's ``secret`` (32 random bytes, in no trace), so
that nobody can test guessed inputs against a trace without it. ``by`` identifies the secret: under another secret all
keys differ, and every call would count as the first.

A file in this directory exists completely or not at all, and is on the device before the call that it stands for
starts.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import orjson

from .. import _reality
from .._lazy import NamedTuple, expression
from .._reality import system
from ..errors import ContractViolationError, LogWriteError, TraceError
from .durable import facts_in, make_directory

__all__ = ["Keys", "Owner", "settlement_in"]

_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_KEY: Final = 4096
_MAX_SETTLEMENT: Final = 64 << 20
_KEY: Final = expression("[0-9a-f]{64}")
_CLAIM: Final = {"run_id": str, "segment": (str, type(None)), "created": int, "by": str}
_SETTLEMENT: Final = {
    "run_id": str,
    "segment": (str, type(None)),
    "seq": int,
    "hash": str,
    "done": bool,
    "by": str,
    "reason": str,
    "at": int,
}
#: The message from which the fingerprint of a secret is computed.
_SAMPLE: Final = b"tracekit: the secret of a store"
#: Errors of a file system without hard links.
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


class Owner(NamedTuple):
    """The run (or segment) that owns a key, and the ``seq`` of its intent record (0: unknown)."""

    run_id: str
    segment: str | None = None
    seq: int = 0

    @property
    def shown(self) -> str:
        return self.run_id if self.segment is None else f"{self.run_id} (segment {self.segment})"


class Keys:
    """The secret and the key files of the store at ``root``. Without ``sync`` nothing waits for the device.

    Thread-safe and safe across processes. Methods raise ``LogWriteError`` if a file can't be written or belongs to
    another user.
    """

    def __init__(self, root: str, *, sync: bool = True) -> None:
        self.root: Final = root
        self.directory: Final = os.path.join(root, "keys")
        self._sync: Final = sync
        self._secret: bytes | None = None
        self._looked_at = False
        #: Inodes of the directories whose own entries are known to be on the device.
        self._certain: Final[set[int]] = set()

    # -- the secret ------------------------------------------------------------------------------------------------------

    def digest(self, *material: bytes) -> str:
        """Return the key of ``material``, as hex digits."""
        import hmac

        framed = b"".join(b"%d:%b" % (len(part), part) for part in material)
        return hmac.digest(self._the_secret(), framed, "sha256").hex()

    def fingerprint(self) -> str:
        """Return a fingerprint of the secret, as 16 hex digits."""
        return _fingerprint(self._the_secret())

    @_reality.off_loop()
    def known_by(self) -> str | None:
        """The fingerprint of the store's secret; ``None`` if it has none (none is created)."""
        if self._secret is None and not _reality.there(os.path.join(self.root, "secret"), link=True):
            return None
        return self.fingerprint()

    def _the_secret(self) -> bytes:
        secret = self._secret
        if secret is None:
            secret = self._secret = self._read_secret()
        return secret

    @_reality.off_loop()
    def _read_secret(self) -> bytes:
        with self._opened(self.root, "secret") as directory:
            found = self._content(directory, "secret")
            if found is None:
                if self._any_key() is not None and self._content(directory, "secret") is None:
                    raise self._other_secret("is missing")
                self._place(directory, "secret", _reality.urandom(32))
                found = self._content(directory, "secret")  # another process may have been first
        if found is None or len(found) != 32:
            raise self._error("secret", f"{os.path.join(self.root, 'secret')} does not hold 32 bytes")
        return found

    def _any_key(self) -> str | None:
        """Return some key of the store, or ``None``."""
        try:
            with system.scandir(self.directory) as files:
                return next((file.name for file in files if _KEY.fullmatch(file.name)), None)
        except OSError:
            return None  # there is no such directory, or it will turn out not to be writable

    def _check_secret(self, directory: int) -> None:
        """Check that the existing keys were made under the existing secret; one key stands for all."""
        name = self._any_key()
        found = None if name is None else self._content(directory, name)
        try:
            by = None if found is None else facts_in(found.split(b"\n")[0], _CLAIM)["by"]
        except ValueError:
            by = None  # an attempt to use that key raises the error
        if by is not None and by != self.fingerprint():
            raise self._other_secret("is another one")
        self._looked_at = True

    # -- keys ------------------------------------------------------------------------------------------------------------

    @_reality.off_loop()
    def claim(self, digest: str, run_id: str, segment: str | None = None) -> Owner | None:
        """Claim the key; return ``None`` once the claim is on the device, or the owner if the key is taken."""
        with self._opened(self.directory, digest) as directory:
            if not self._looked_at:
                self._check_secret(directory)
            while True:
                if self._place(directory, digest, self._claimed(run_id, segment)):
                    return None
                owner = self._owner(directory, digest)
                if owner is not None:  # else it was released just now
                    return owner

    @_reality.off_loop()
    def restore(self, digest: str, run_id: str, segment: str | None, seq: int) -> None:
        """Restore a key that the store has lost, for a run whose log says that it owns it."""
        with self._opened(self.directory, digest) as directory:
            if self._content(directory, digest) is None:
                self._place(directory, digest, self._claimed(run_id, segment) + b'{"seq":%d}\n' % seq)

    @_reality.off_loop()
    def take_over(self, digest: str, before: Owner, run_id: str, segment: str | None = None) -> bool:
        """Take over the key from ``before``, which never used it; return false if ``before`` no longer owns it."""
        with self._opened(self.directory, digest) as directory, self._alone(directory):
            if self._owner(directory, digest) != before:
                return False
            temporary = self._temporary(directory, digest, self._claimed(run_id, segment))
            system.replace(temporary, digest, src_dir_fd=directory, dst_dir_fd=directory)
            if self._sync:
                system.fsync(directory)
            return True

    @_reality.off_loop()
    def used(self, digest: str, seq: int) -> None:
        """Note that the call's intent record is entry ``seq`` of the owner's log, where later readers will expect it.

        Neither synced nor required: the log itself is authoritative.
        """
        with suppress(LogWriteError), self._opened(self.directory, digest) as directory:
            fd = system.open(digest, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            try:
                system.write(fd, b'{"seq":%d}\n' % seq)
            finally:
                system.close(fd)

    @_reality.off_loop()
    def release(self, digest: str, run_id: str, segment: str | None = None) -> None:
        """Release a key of ours whose call was not made."""
        with (
            suppress(LogWriteError, OSError),
            self._opened(self.directory, digest) as directory,
            self._alone(directory),
        ):
            if self._owner(directory, digest) == (run_id, segment, 0):
                system.unlink(digest, dir_fd=directory)

    @_reality.off_loop()
    def settle(self, digest: str, of: Owner, statement: Mapping[str, Any]) -> bool:
        """Store a person's statement about the call of ``of``, whose run has ended; return false if the key is not
        theirs (any more), or already settled."""
        with self._opened(self.directory, digest) as directory, self._alone(directory):
            has = self._owner(directory, digest)
            if has is None or has[:2] != of[:2] or has.seq not in (0, of.seq):
                return False
            if self._settlement(directory, digest, of) is not None:
                return False
            facts = {"run_id": of.run_id, "segment": of.segment, "seq": of.seq, **statement}
            temporary = self._temporary(directory, digest, orjson.dumps(facts) + b"\n")
            system.replace(temporary, f"{digest}.settled", src_dir_fd=directory, dst_dir_fd=directory)
            if self._sync:
                system.fsync(directory)
            return True

    @_reality.off_loop()
    def settled(self, digest: str, of: Owner) -> Mapping[str, Any] | None:
        """Return a person's statement about the call of ``of``, or ``None``."""
        with self._opened(self.directory, digest) as directory:
            return self._settlement(directory, digest, of)

    def _settlement(self, directory: int, digest: str, of: Owner) -> Mapping[str, Any] | None:
        name = f"{digest}.settled"
        content = self._content(directory, name, _MAX_SETTLEMENT)
        if content is None:
            return None
        try:
            facts = settlement_in(content)
        except ValueError as error:
            raise self._damaged(name, f"is not a settlement ({error})") from None
        # otherwise it is about an earlier call, which was not made
        return facts if (facts["run_id"], facts.get("segment"), facts["seq"]) == of else None

    def _claimed(self, run_id: str, segment: str | None) -> bytes:
        facts: dict[str, Any] = {"run_id": run_id}
        if segment is not None:
            facts["segment"] = segment
        return orjson.dumps({**facts, "created": _reality.time_ns(), "by": self.fingerprint()}) + b"\n"

    def _owner(self, directory: int, digest: str) -> Owner | None:
        found = self._content(directory, digest)
        if found is None:
            return None
        lines = found.split(b"\n")
        try:
            facts = facts_in(lines[0], _CLAIM)
            seqs = [facts_in(line, {"seq": int})["seq"] for line in lines[1:-1]]
        except ValueError as error:
            raise self._damaged(digest, f"is not a key ({error})") from None
        return Owner(facts["run_id"], facts.get("segment"), max(seqs, default=0))

    # -- files -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, path: str, name: str) -> Iterator[int]:
        """Open the directory at ``path`` as a descriptor, creating it if needed. Errors inside become
        ``LogWriteError``."""
        fd = -1
        try:
            fd = self._known(path)
            if fd < 0:
                for above in (self.root, path):
                    make_directory(above, sync=self._sync)
                fd = system.open(path, _DIRECTORY)
                self._certain.add(system.fstat(fd).st_ino)
            yield fd
        except OSError as error:
            raise self._error(name, f"{os.path.join(path, name)} can't be written: {error}") from error
        finally:
            if fd >= 0:
                system.close(fd)

    def _known(self, path: str) -> int:
        """Return a descriptor of the directory at ``path`` if its entry is known to be on the device, else -1."""
        try:
            fd = system.open(path, _DIRECTORY)
        except FileNotFoundError:
            return -1
        if system.fstat(fd).st_ino in self._certain:
            return fd
        system.close(fd)
        return -1

    def _content(self, directory: int, name: str, most: int = _MAX_KEY) -> bytes | None:
        """Return the content of a file, or ``None`` if it does not exist. Links and special files are refused."""
        try:
            fd = system.open(name, _READ | os.O_NONBLOCK, dir_fd=directory)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(system.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
            return system.read(fd, most)
        finally:
            system.close(fd)

    def _place(self, directory: int, name: str, content: bytes) -> bool:
        """Create a complete file atomically unless one exists; return whether this call created it. On the device on
        return."""
        temporary = self._temporary(directory, name, content)
        try:
            placed = self._link(directory, temporary, name)
        finally:
            with suppress(FileNotFoundError):
                system.unlink(temporary, dir_fd=directory)
        if self._sync:  # also another's file: conclusions from it must not be lost with it
            system.fsync(directory)
        return placed

    def _link(self, directory: int, temporary: str, name: str) -> bool:
        try:
            system.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        with self._alone(directory):
            try:
                system.stat(name, dir_fd=directory, follow_symlinks=False)
                return False
            except FileNotFoundError:
                system.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                return True

    def _temporary(self, directory: int, name: str, content: bytes) -> str:
        temporary = f".{name[:16]}.{_reality.urandom(8).hex()}.tmp"
        fd = system.open(temporary, _NEW, 0o600, dir_fd=directory)
        try:
            try:
                if system.write(fd, content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if self._sync:
                    _reality.fdatasync(fd)
            finally:
                system.close(fd)
        except BaseException:
            with suppress(OSError):
                system.unlink(temporary, dir_fd=directory)
            raise
        return temporary

    @contextmanager
    def _alone(self, directory: int) -> Iterator[None]:
        """Exclude other threads and processes from this directory."""
        import fcntl

        fd = system.open(".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            system.close(fd)

    # -- errors ----------------------------------------------------------------------------------------------------------

    def _error(self, name: str, what: str) -> LogWriteError:
        return LogWriteError(
            f"{what}; the call that must happen once was not made",
            path=os.path.join(self.root, name),
            executed=False,
            next_action="free space, make the directory writable, or name another store with TRACEKIT_DIR",
        )

    def _other_secret(self, how: str) -> ContractViolationError:
        path = os.path.join(self.root, "secret")
        return ContractViolationError(
            f"{path} {how}, and the store has keys that were made under the one it had: which calls were made can't be known, so this "
            "one was not executed",
            path=path,
            contract="exactly_once",
            next_action=f"bring {path} back; or, where every call may be made again, remove {self.directory}",
        )

    def _damaged(self, name: str, how: str) -> TraceError:
        path = os.path.join(self.directory, name)
        return TraceError(
            f"{path} {how}: it can't be known whether the call was made, so it was not",
            path=path,
            next_action="find out what was done, then remove that file if the call may be made again",
        )


def settlement_in(content: bytes) -> dict[str, Any]:
    """Parse a person's statement about a step whose run had ended. Raises ``ValueError`` if the content is something
    else."""
    return facts_in(content, _SETTLEMENT)


def _fingerprint(secret: bytes) -> str:
    import hmac

    return hmac.digest(secret, _SAMPLE, "sha256").hex()[:16]
