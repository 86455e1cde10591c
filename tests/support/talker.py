"""A websocket server on loopback that does what it is told by the messages it gets; and one that speaks OpenAI's Realtime protocol."""

from __future__ import annotations

import http
import json
import ssl
import threading
import time
from collections import Counter
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

__all__ = ["Talker"]


class Talker:
    """``url`` is its root; ``hits`` counts connections by path, ``heard`` keeps the messages."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.hits: Counter[str] = Counter()
        self.heard: list[Any] = []
        self._server = serve(self._talk, "127.0.0.1", 0, ssl=context, process_request=self._asked)
        scheme = "ws" if context is None else "wss"
        self.port: int = self._server.socket.getsockname()[1]
        self.url = f"{scheme}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._stopped = False

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._server.shutdown()
            self._thread.join()

    def _asked(self, connection: ServerConnection, request: Any) -> Any:
        path = request.path.partition("?")[0]
        self.hits[path] += 1
        if path == "/forbidden":
            return connection.respond(http.HTTPStatus.FORBIDDEN, "not you\n")
        if path == "/moved":
            answer = connection.respond(http.HTTPStatus.FOUND, "over there\n")
            answer.headers["Location"] = "/talk"
            return answer
        return None

    def _talk(self, connection: ServerConnection) -> None:
        try:
            if connection.request is not None and connection.request.path.startswith(("/v1/realtime", "/v1/responses")):
                self._realtime(connection)
            else:
                for message in connection:
                    self.heard.append(message)
                    self._obey(connection, message)
        except ConnectionClosed:
            pass

    def _obey(self, connection: ServerConnection, message: Any) -> None:
        if message == "burst":
            for i in range(5):
                connection.send(f"{i}" * 300)
        elif message == "drip":
            for i in range(5):
                time.sleep(0.01)
                connection.send(f"drop {i}")
        elif message == "slow":
            time.sleep(0.3)
            connection.send("at last")
        elif message == "ping":
            connection.ping().wait(10)
            connection.send("ponged")
        elif message == "split":
            connection.send(iter(["one ", "message, ", "three frames"]))
        elif message == "big":
            connection.send("0123456789" * 20_000)
        elif message == "close":
            connection.close(4001, "because")
        elif message == "kill":
            connection.socket.close()
        elif message == "nonsense":
            connection.socket.sendall(b"\xff\xff\xff")
        else:
            connection.send(message)

    def _realtime(self, connection: ServerConnection) -> None:
        connection.send(
            json.dumps({"type": "session.created", "event_id": "e0", "session": {"id": "s", "type": "realtime"}})
        )
        for message in connection:
            event = json.loads(message)
            self.heard.append(event)
            if event["type"] == "session.update":
                connection.send(json.dumps({"type": "session.updated", "event_id": "e1", "session": event["session"]}))
            elif event["type"] == "response.create":
                ids = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
                for i, word in enumerate(("Hel", "lo ", "world")):
                    time.sleep(0.005)
                    delta = {"type": "response.output_text.delta", "event_id": f"d{i}", "delta": word, **ids}
                    connection.send(json.dumps(delta))
                usage = {
                    "total_tokens": 15,
                    "input_tokens": 10,
                    "output_tokens": 5,
                    "input_token_details": {"cached_tokens": 4},
                }
                answer = {"id": "r", "object": "realtime.response", "status": "completed", "output": [], "usage": usage}
                done = "response.done"
                if connection.request is not None and connection.request.path.startswith("/v1/responses"):
                    answer, done = {**answer, "model": "gpt-5-mini"}, "response.completed"
                connection.send(json.dumps({"type": done, "event_id": "e9", "response": answer}))
