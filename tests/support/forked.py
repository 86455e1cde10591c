"""``python forked.py SOCKET ARGUMENTS…`` is what ``python ARGUMENTS…`` is, forked from the warm interpreter that listens at ``SOCKET``.

It hands its standard streams, variables and directory on, waits, and ends as the fork does. It imports only what is built into the
interpreter, which halves what it costs, and is made for ``python -I -S``. When it is killed, so is the fork. See
:func:`tests.support.processes.command`.
"""

import marshal
import posix
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket


def main(address: str, *arguments: str) -> None:
    talk = socket(AF_UNIX)
    talk.connect(address)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))  # an array of C's int
    talk.sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, streams)])
    talk.sendall(marshal.dumps({"arguments": arguments, "cwd": posix.getcwd(), "variables": posix.environ}))
    for number in range(3):
        posix.close(number)  # who reads at the other end is told when the fork has ended
    said = b""
    while more := talk.recv(4096):
        said += more
    status = int(said.split()[1])
    if posix.WIFSIGNALED(status):
        posix.kill(posix.getpid(), posix.WTERMSIG(status))
    posix._exit(posix.waitstatus_to_exitcode(status))


main(*sys.argv[1:])
