"""Run a command against scripted servers on this machine, in the place of a model and of a search service: no key, no network.

python examples/offline.py support -- tracekit run examples/support/agent.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tracekit.testing import ScriptedModel, ToolUse

FIXED = '''"""Prices in cents."""


def with_tax(cents: int, percent: int = 19) -> int:
    return cents + cents * percent // 100
'''

#: What the model says in each example, request by request.
REPLIES = {
    "support": [
        ToolUse("look_up_order", {"order": "A-1042"}),
        ToolUse("refund", {"order": "A-1042"}),
        "Your parcel was lost. I have refunded the 42.00 EUR.",
    ],
    "support-large": [
        ToolUse("refund", {"order": "B-7"}),
        "A refund of that size has to be checked by a person; a colleague will write to you.",
    ],
    "research": [
        '["honey bee dance", "waggle dance direction", "Karl von Frisch"]',
        "Honey bees dance to tell others where food is. In the waggle dance the angle is the direction, the length the distance.",
    ],
    "coding": [
        ToolUse("run_tests", {}, text="I run the tests first."),
        ToolUse("read", {"path": "prices.py"}),
        ToolUse("write", {"path": "prices.py", "content": FIXED}, text="Percent means hundredths."),
        ToolUse("run_tests", {}),
        "The tax was ten times too high; the test passes now.",
    ],
}
PAGES = {
    "honey bee dance": ["Western honey bee", "species that communicates by dances"],
    "waggle dance direction": ["Waggle dance", "figure-eight dance whose angle shows the direction of food"],
    "Karl von Frisch": ["Karl von Frisch", "ethologist who decoded the dance of bees; Nobel Prize in 1973"],
}


class Search(BaseHTTPRequestHandler):
    """Answers as the search of a wiki does, from ``PAGES``."""

    def do_GET(self) -> None:
        (query,) = parse_qs(urlsplit(self.path).query)["q"]
        title, description = PAGES.get(query, [query, "nothing is known of it"])
        data = json.dumps({"pages": [{"title": title, "description": description}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(name: str) -> Iterator[dict[str, str]]:
    """The scripted servers of an example, and the environment variables that lead its agent to them."""
    search = ThreadingHTTPServer(("127.0.0.1", 0), Search)
    thread = threading.Thread(target=search.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        with ScriptedModel(*REPLIES[name]).served() as url:
            yield {
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "none",
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "MODEL": "scripted-1",
                "SEARCH_URL": f"http://127.0.0.1:{search.server_address[1]}/search",
            }
    finally:
        search.shutdown()
        thread.join()
        search.server_close()


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0] not in REPLIES or arguments[1] != "--":
        print(f"usage: offline.py {{{','.join(REPLIES)}}} -- COMMAND…", file=sys.stderr)
        return 2
    with serving(arguments[0]) as environment:
        return subprocess.run(arguments[2:], env=os.environ | environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
