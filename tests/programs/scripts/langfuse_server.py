"""Prompts as Langfuse serves them, another version each time; whatever else is sent is taken."""

import json
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

versions = iter(range(1, 1000))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        found = "/prompts/" in self.path and "missing" not in self.path
        if self.command == "GET":
            with open(sys.argv[2], "a") as ledger:
                ledger.write(f"{self.path}\n")
        prompt = {
            "type": "text",
            "name": "depth",
            "version": next(versions) if found else 0,
            "prompt": f"How deep is the {{{{place}}}}? {secrets.token_hex(4)}",
            "config": {},
            "labels": ["production"],
            "tags": [],
        }
        body = json.dumps(prompt if found else {"message": "not found"}).encode()
        self.send_response(200 if found or self.command == "POST" else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
