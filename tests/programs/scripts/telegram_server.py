"""What a bot of Telegram's asks: messages come one after another; a line of its ledger for each request."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

ledger = Path(sys.argv[2])
texts = ["/start", "How deep is the fjord?", "And the sea?", "And the lake?", "And the well?", "And the pond?", "Why?"]
lock = threading.Lock()
sent = 0
USER = {"id": 7, "is_bot": False, "first_name": "Ada"}
BOT = {"id": 123, "is_bot": True, "first_name": "Depths", "username": "depths_bot"}
CHAT = {"id": 7, "type": "private", "first_name": "Ada"}


def answer(method: str, given: dict) -> object:
    global sent
    if method == "getMe":
        return BOT
    if method == "getUpdates":
        offset = int(given.get("offset", ["0"])[0] or 0)
        first = max(offset - 100, 0)
        if first >= len(texts):
            time.sleep(0.2)
        entities = [{"type": "bot_command", "offset": 0, "length": 6}]
        return [
            {"update_id": 100 + n, "message": {
                "message_id": 1000 + n, "date": int(time.time()), "chat": CHAT, "from": USER, "text": texts[n],
                **({"entities": entities} if texts[n][0] == "/" else {}),
            }}
            for n in range(first, min(first + 2, len(texts)))
        ]  # fmt: skip
    if method == "sendMessage":
        with lock:
            sent += 1
            return {"message_id": sent, "date": int(time.time()), "chat": CHAT, "from": BOT, "text": given["text"][0]}
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        method = self.path.rpartition("/")[2]
        with ledger.open("a") as file:
            file.write(f"{method}\n")
        body = json.dumps({"ok": True, "result": answer(method, parse_qs(raw))}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # whoever polled has been stopped
            self.close_connection = True

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A bot that is stopped lets go of its connections."""


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
