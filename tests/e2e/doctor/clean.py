"""The same program, mended: ``tracekit doctor`` finds nothing in it."""

import queue
import subprocess
import sys
import threading

import tracekit
from tracekit import traced_tool
from tracekit.tools import read_file


@traced_tool(side_effect="read_only")
def search(query: str) -> str:
    return query.upper()


@traced_tool(side_effect="read_only")
def connect(host: str) -> str:
    return f"connected to {host}"


def topics() -> str:
    return " ".join(sorted({"kettle", "courier", "gate", "parcel", "invoice", "route"}))


def counted() -> int:
    made: queue.Queue[int] = queue.Queue()

    def work(number: int) -> None:
        made.put(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(place * made.get() for place in range(3))


tracekit.instrument(processes={f"{sys.executable} -S -c*": "read_only"})
search(topics())
search(f"{counted()}")
search(read_file(sys.argv[1]))
subprocess.run([sys.executable, "-S", "-c", "print(1)"], check=True, capture_output=True)
connect("example.com")
