"""A program that has one of each thing that a replay can't control; ``tracekit doctor`` names every one of them by its line."""

import subprocess
import sys
import threading
from pathlib import Path

import pycurl

from tracekit import traced_tool

COMMAND = [sys.executable, "-S", "-c", "print(1)"]


@traced_tool(side_effect="read_only")
def search(query: str) -> str:
    return query.upper()


@traced_tool(side_effect="read_only")
def connect(host: str) -> object:
    return threading.Lock()  # no data: it can't be recorded


def topics() -> str:
    return " ".join({"kettle", "courier", "gate", "parcel", "invoice", "route"})


def counted() -> int:
    sys.setswitchinterval(1e-6)
    made: list[int] = []

    def work(number: int) -> None:
        while len(made) < 300_000:
            made.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(made[::7])


search(topics())  # the order of a set
search(f"{counted()}")  # threads that share a list
search(f"{id(object()) % 100_000_007}")  # an address
search(Path(sys.argv[1]).read_text())  # a file whose content is not kept
subprocess.run(COMMAND, check=True, capture_output=True)  # a process of which nobody says what it does
connect("example.com")
curl = pycurl.Curl()
curl.setopt(pycurl.URL, "http://127.0.0.1:9/")
try:
    curl.perform()  # a client below Python
except pycurl.error:
    pass
