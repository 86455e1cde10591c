"""As much of Docker's daemon as the client asks for, on a Unix socket beside the program."""

import json
import os
import secrets
import socket
import socketserver
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

NAME = secrets.token_hex(32)


def frame(text):
    return struct.pack(">BxxxI", 1, len(text)) + text


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return ""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        with open(sys.argv[2], "a") as ledger:
            ledger.write(f"{self.path}\n")
        path = self.path.partition("?")[0].removeprefix("/v1.47")
        said = secrets.token_hex(6)
        if path.endswith("/_ping"):
            self.send(b"OK", "text/plain")
        elif path.endswith("/version"):
            self.send({"Version": f"27.{said}", "ApiVersion": "1.47", "MinAPIVersion": "1.24"})
        elif path.endswith("/images/create"):
            self.stream(json.dumps({"status": f"{step} {said}"}).encode() + b"\r\n" for step in ("Pulling", "Done"))
        elif path.endswith("/containers/create"):
            self.send({"Id": NAME, "Warnings": []}, status=201)
        elif path.endswith("/logs"):
            self.stream(frame(f"{secrets.token_hex(4)} m\n".encode()) for _ in range(3))
        elif path.endswith("/wait"):
            self.send({"StatusCode": 0, "Error": None})
        elif "/gone/" in path:
            self.send({"message": f"No such container: gone {said}"}, status=404)
        elif path.endswith("/json"):
            self.send({"Id": NAME, "State": {"Status": "running"}, "Config": {"Tty": False, "Image": "depths:1"}})
        else:
            self.send(b"", status=204)

    do_POST = do_DELETE = do_GET

    def send(self, body, kind="application/json", status=200):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces):
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


place = Path(sys.argv[2]).with_name("docker.sock")
if place.exists():
    os.unlink(place)
threading.Thread(target=Server(str(place), Handler).serve_forever, daemon=True).start()
ready = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    ready.accept()[0].close()
