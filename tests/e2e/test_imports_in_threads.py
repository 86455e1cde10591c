"""What an installed module does while it is imported belongs to the module, whichever thread or task imports it first."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.place import Place

PRICES = """
import time, urllib.request

with urllib.request.urlopen(ADDRESS) as answer:
    prices = int(answer.read())
at = time.time()
"""
#: A package that imports the other one, too, so that either of them may be the first.
SHOP = "import prices\n"
#: A package that reads the clock, and imports one that only prints.
CLOCK = "import time, talking\nat = time.time()\n"
TALKING = "print('hello')\n"
PROGRAM = """
import asyncio, os, sys, threading, time, urllib.request
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(what):
    return what

def use():
    import prices

def shop():
    import shop

def ask():
    with urllib.request.urlopen(sys.argv[1]) as answer:
        return answer.read()

# Whether the first or the second thread imports it first: no input of the run.
first, second = threading.Thread(target=use, name="use"), threading.Thread(target=shop, name="shop")
order = [first, second] if os.environ.get("PYTHONORDER") == "1" else [second, first]
look("begin"), ask()
for thread in order:
    thread.start()
    thread.join()

async def later():
    import prices
    return look(prices.prices), look(prices.at), ask()

print(asyncio.run(later()), ask(), look("end"), time.time())
"""


class Numbers(http.server.BaseHTTPRequestHandler):
    """Each answer is the next number."""

    count = 0

    def do_GET(self) -> None:
        Numbers.count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % Numbers.count)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Numbers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def place(tmp_path: Path, address: str) -> Place:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "prices.py").write_text(f"ADDRESS = {address!r}\n{PRICES}")
    (packages / "shop.py").write_text(SHOP)
    here = tmp_path / "here"
    here.mkdir()
    return Place(here)


@pytest.mark.parametrize("recorded", ["1", "2"])
@pytest.mark.parametrize("replayed", ["1", "2"])
def test_who_imports_a_module_first_does_not_matter(place: Place, address: str, recorded: str, replayed: str) -> None:
    """Two threads import a module that asks a server and reads the clock; a replay in which the other thread imports it
    gets the recorded answers."""
    place.program(PROGRAM)
    packages = str(place.directory.parent / "site-packages")
    done = place.cli("run", "agent.py", address, PYTHONPATH=packages, PYTHONORDER=recorded)
    assert done.returncode == 0, done.stderr
    again = place.cli("replay", "last", PYTHONPATH=packages, PYTHONORDER=replayed)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "exact" in again.stderr


def test_what_a_module_prints_while_it_is_imported_is_compared_with_the_same(place: Place) -> None:
    """A module that only prints while it is imported prints the same in a replay: the report finds no other output, though
    the log has nothing of the module."""
    packages = place.directory.parent / "site-packages"
    (packages / "talking.py").write_text(TALKING)
    (packages / "clock.py").write_text(CLOCK)
    place.program("import clock\nprint(clock.at)\n")
    done = place.cli("run", "agent.py", PYTHONPATH=str(packages))
    assert done.returncode == 0, done.stderr
    again = place.cli("replay", "last", "--strict", "output", PYTHONPATH=str(packages))
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "other output" not in again.stderr
