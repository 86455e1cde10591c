"""A real headless Chromium, driven over its DevTools protocol: what a page shows, asks the network for, and complains of."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

__all__ = ["Page", "chromium"]

_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_KEYS: Final = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}


class Page:
    """The one page of a browser. ``requested`` has every address that it asked for, ``complaints`` errors of its script and console."""

    def __init__(self, connection: ClientConnection, session: str) -> None:
        self._connection: Final = connection
        self._session: Final = session
        self._sent = 0
        self.requested: Final[list[str]] = []
        self.complaints: Final[list[str]] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **about: Any) -> Any:
        """Call a method of the protocol, and take what the browser reports meanwhile."""
        self._sent += 1
        self._connection.send(
            json.dumps({"id": self._sent, "sessionId": self._session, "method": method, "params": about})
        )
        while True:
            found = json.loads(self._connection.recv(timeout=60))
            if found.get("id") == self._sent:
                assert "error" not in found, found["error"]
                return found["result"]
            self._take(found)

    def _take(self, found: dict[str, Any]) -> None:
        about = found.get("params", {})
        match found.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                found = about["exceptionDetails"]
                self.complaints.append(found.get("exception", {}).get("description", found["text"]))
            case "Log.entryAdded":
                self.complaints.append(about["entry"]["text"])
            case "Runtime.consoleAPICalled" if about["type"] == "error":
                self.complaints.append(json.dumps(about["args"]))

    def open(self, path: Path | str) -> float:
        """Open a file; returns the milliseconds from the request for it until the page's own script was through and drawn."""
        self.go(path)
        painted = (
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
        )
        return float(self.value(painted))

    def go(self, path: Path | str) -> None:
        """The same, until it is loaded; nothing is asked of a script."""
        self._loaded = False
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while not self._loaded:
            self._take(json.loads(self._connection.recv(timeout=60)))

    def until(self, script: str) -> None:
        """Wait until a script in the page evaluates to something true; ``AssertionError`` after a minute."""
        late = time.monotonic() + 60
        while not self.value(script):
            assert time.monotonic() < late, f"never true: {script}"
            time.sleep(0.02)

    def value(self, script: str) -> Any:
        """What a script in the page evaluates to; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that a CSS selector finds, as it is laid out."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str, number: int = 0) -> None:
        """Click an element that a CSS selector finds."""
        self.value(f"document.querySelectorAll({json.dumps(selector)})[{number}].click()")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            about: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": _KEYS.get(key, 0)}
            if len(key) == 1:
                about["text"] = key
            self.call("Input.dispatchKeyEvent", type="keyDown", **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and whether its user likes it dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path | str) -> None:
        """Write what it looks like as a PNG."""
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one empty page, its profile thrown away afterwards. ``CHROMIUM`` names another program than ``chromium``."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "there is no chromium here: apt-get install chromium, or set CHROMIUM"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                address = next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on"))
                with connect(address, max_size=None) as connection:
                    connection.send(json.dumps({"id": 0, "method": "Target.getTargets"}))
                    targets = json.loads(connection.recv(timeout=60))["result"]["targetInfos"]
                    target = next(one["targetId"] for one in targets if one["type"] == "page")
                    about = {"targetId": target, "flatten": True}
                    connection.send(json.dumps({"id": 0, "method": "Target.attachToTarget", "params": about}))
                    while (found := json.loads(connection.recv(timeout=60))).get("id") != 0:
                        pass
                    yield Page(connection, found["result"]["sessionId"])
            finally:
                process.kill()
