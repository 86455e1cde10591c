"""A network namespace for a replayed program: the second wall, for what connects below Python.

On Linux a process can move itself into a network of its own that holds nothing, not even a loopback device that is
up. It can't leave it again, so this is for ``tracekit replay``, which starts nothing else in its process; it must come
before the first thread. Sockets in the file system (Unix sockets) are not part of the network and stay the guard's.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

__all__ = ["available", "enter"]

_NEW_USER: Final = 0x10000000
_NEW_NET: Final = 0x40000000


def available() -> bool:
    """Whether :func:`enter` would work here and now: tried in a child process, which ends at once."""
    if not sys.platform.startswith("linux") or not _alone():
        return False
    child = os.fork()
    if child == 0:
        worked = False
        with suppress(BaseException):
            worked = _unshare()[0]
        os._exit(0 if worked else 1)
    return os.waitpid(child, 0)[1] == 0


def enter(*, loopback: bool = False) -> str:
    """Move this process into an empty network; says what is in force, or ``"not isolated: …"`` and why.

    ``loopback`` brings the new network's own loopback device up. It is not the host's: no server outside is reached
    through it, so a replay with ``allow_hosts`` wants no isolation.
    """
    if not sys.platform.startswith("linux"):
        return f"not isolated: network namespaces are Linux's, and this is {sys.platform}"
    if not _alone():
        return "not isolated: the process has several threads already"
    worked, how = _unshare()
    if not worked:
        return f"not isolated: {how}"
    up = loopback and _loopback_up()
    reach = "nothing reachable but its own loopback" if up else "nothing reachable"
    return f"network namespace of its own ({how}), {reach}"


def _alone() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _unshare() -> tuple[bool, str]:
    """Try with the rights that the process has, since a user namespace hides other users' files; then with such a namespace."""
    uid, gid = os.geteuid(), os.getegid()
    reason = _call_unshare(_NEW_NET)
    if not reason:
        return True, "privileged"
    reason = _call_unshare(_NEW_USER | _NEW_NET)
    if reason:
        return False, reason
    for file, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with suppress(OSError), open(f"/proc/self/{file}", "w") as stream:
            stream.write(content)
    return True, "unprivileged"


def _call_unshare(flags: int) -> str:
    """Empty when it worked, else the system's reason."""
    import ctypes

    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):
        return "this C library has no unshare"
    return os.strerror(ctypes.get_errno()) if unshare(flags) else ""


def _loopback_up() -> bool:
    import fcntl
    import socket
    import struct

    get, put, up = 0x8913, 0x8914, 0x1
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, get, struct.pack("16sH14s", b"lo", 0, b""))
        flags = struct.unpack("16sH14s", request)[1]
        fcntl.ioctl(sock, put, struct.pack("16sH14s", b"lo", flags | up, b""))
        return True
    return False
