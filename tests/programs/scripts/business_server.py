"""What services of a business say: payments, a chat, repositories. Each answer has an id that no other has."""

import itertools
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ledger = Path(sys.argv[2])
numbers = itertools.count(1)
lock = threading.Lock()
URL = f"http://127.0.0.1:{sys.argv[1]}"


def answer(method: str, path: str) -> dict:
    number = next(numbers)
    made = f"{number}{random.randrange(10**8)}"
    if path.startswith("/slack/"):
        return {"ok": True, "channel": "C1", "ts": f"{time.time():.6f}", "message": {"text": made, "ts": made}}
    if path.startswith("/repos/"):
        name = path.split("/")[3]
        return {
            "id": number,
            "name": name,
            "full_name": f"o/{name}",
            "number": number,
            "title": made,
            "url": f"{URL}{path}",
        }
    kind = path.rstrip("/").rpartition("/")[2]
    return {"id": f"{kind[:3]}_{made}", "object": kind.rstrip("s"), "status": "succeeded", "created": int(time.time())}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        with lock, ledger.open("a") as file:
            file.write(f"{self.command} {self.path}\n")
        time.sleep(random.random() / 50)
        body = json.dumps(answer(self.command, self.path)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("request-id", f"req_{random.randrange(10**8)}")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = _any

    def log_message(self, format: str, *args: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
