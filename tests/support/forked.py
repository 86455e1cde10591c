"""``python forked.py SOCKET SEED ARGUMENTS…`` is what ``python ARGUMENTS…`` is, forked from the warm interpreter that listens at
``SOCKET``. The interpreters that it starts itself with the hash ``SEED`` of that one are forked as well; none, if it is empty.

It hands its files, variables and directory on, waits, and ends as the fork does. It imports only what is built into the
interpreter, which halves what it costs, and is made for ``python -I -S``. When it is killed, so is the fork. See
:func:`tests.support.processes.command`.
"""

import marshal
import posix
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket


def is_open(number: int) -> bool:
    try:
        posix.fstat(number)
    except OSError:
        return False
    return True


def main(address: str, seed: str, *arguments: str) -> None:
    numbers = list(filter(is_open, map(int, posix.listdir("/dev/fd"))))  # not that of the list itself
    talk = socket(AF_UNIX)
    talk.connect(address)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)  # an array of C's int
    talk.sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, files)])
    told = {"arguments": arguments, "cwd": posix.getcwd(), "variables": posix.environ, "numbers": numbers}
    if seed:
        told |= {"nursery": True, "addresses": {seed: address}}
    talk.sendall(marshal.dumps(told))
    for number in numbers:
        posix.close(number)  # who reads at the other end is told when the fork has ended
    said = b""
    while more := talk.recv(4096):
        said += more
    status = int(said.split()[1])
    if posix.WIFSIGNALED(status):
        posix.kill(posix.getpid(), posix.WTERMSIG(status))
    posix._exit(posix.waitstatus_to_exitcode(status))


main(*sys.argv[1:])
