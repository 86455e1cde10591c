"""Responses that take their time: each is queued, then in progress for a while, then done; a line of its ledger for each request."""

import json
import random
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ledger = Path(sys.argv[2])
left: dict[str, int] = {}


def response(id: str, status: str) -> dict:
    text = f"{random.randrange(10_000)} m, says {uuid.uuid4()}"
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": f"msg_{id}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    return {
        "id": id, "object": "response", "created_at": 1.0, "status": status, "model": "o3", "background": True,
        "output": [message] if status == "completed" else [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        with ledger.open("a") as file:
            file.write(f"{self.command} {self.path}\n")
        id, _, action = self.path.partition("/responses")[2].strip("/").partition("/")
        if not id:
            id = f"resp_{uuid.uuid4().hex}"
            left[id] = random.randrange(1, 5)
            status = "queued"
        elif action == "cancel":
            status = "cancelled"
        else:
            left[id] -= 1
            status = "in_progress" if left[id] > 0 else "completed"
        body = json.dumps(response(id, status)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
