"""``python forked.py SOCKET ARGUMENTS…`` is what ``python ARGUMENTS…`` is, forked from the warm interpreter that listens at ``SOCKET``.

It hands its standard streams, variables and directory on, waits, and ends as the fork does. It imports next to nothing, and is made
for ``python -I -S``. When it is killed, so is the fork. See :func:`tests.support.processes.command`.
"""

import array
import json
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket


def main(address: str, *arguments: str) -> None:
    talk = socket(AF_UNIX)
    talk.connect(address)
    talk.sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", range(3)))])
    request = {"arguments": arguments, "cwd": os.getcwd(), "variables": dict(os.environ)}
    talk.sendall(json.dumps(request).encode() + b"\n")
    for number in range(3):
        os.close(number)  # who reads at the other end is told when the fork has ended
    said = b""
    while more := talk.recv(4096):
        said += more
    status = int(said.split()[1])
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


main(*sys.argv[1:])
