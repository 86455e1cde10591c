"""``tracekit dap``: a recorded run in an editor, by the Debug Adapter Protocol. The editor is played by debugpy's own client."""

from __future__ import annotations

import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from debugpy.common import messaging

from tests.support.processes import python
from tracekit.cli.dap import Wire

PROGRAM = """\
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    if n == 3:
        raise ValueError("there is no third")
    return {"n": n, "more": [n, n + 1]}

@traced_tool(side_effect="irreversible")
def send(to):
    return f"sent to {to}"

def visit(n):
    seen = 0
    try:
        found = look(n)
    except ValueError:
        return seen
    seen = found["n"]
    print("seen", seen)
    return seen

for number in range(1, 4):
    visit(number)
send("acme")
"""
CALL = PROGRAM.splitlines().index("        found = look(n)") + 1
AFTER = PROGRAM.splitlines().index('    seen = found["n"]') + 1
SEND = PROGRAM.splitlines().index('send("acme")') + 1
#: What an import of debugpy comes to where there is none.
NO_DEBUGPY = "raise ImportError('no debugpy here')\n"


class Editor:
    """One session of an editor."""

    def __init__(self, stream: messaging.JsonIOStream) -> None:
        self.events: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self.printed: list[str] = []
        self.channel = messaging.JsonMessageChannel(stream, self)
        self.channel.start()

    def event(self, event: messaging.Event) -> None:
        """Called by the channel."""
        self.events.put((event.event, dict(event.body or {})))

    def disconnect(self) -> None:
        """Called by the channel, at its end."""
        self.events.put(("gone", {}))

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.channel.request(command, arguments)

    def refused(self, command: str, **arguments: Any) -> str:
        with pytest.raises(messaging.MessageHandlingError) as error:
            self.ask(command, **arguments)
        return str(error.value)

    def until(self, name: str) -> dict[str, Any]:
        while True:
            event, body = self.events.get(timeout=60)
            if event == "output":
                self.printed.append(body["output"])
            if event == name:
                return body
            assert event in ("output", "exited"), (event, body)

    def launch(self, directory: Path, *breakpoints: str, lines: dict[int, str] | None = None, **arguments: Any) -> Any:
        assert self.ask("initialize", adapterID="tracekit")["supportsStepBack"]
        self.ask("launch", cwd=str(directory), **arguments)
        self.until("initialized")
        wanted = [{"line": line, **({"condition": text} if text else {})} for line, text in (lines or {}).items()]
        self.ask("setBreakpoints", source={"path": str(directory / "program.py")}, breakpoints=wanted)
        known = self.ask("setFunctionBreakpoints", breakpoints=[{"name": name} for name in breakpoints])
        self.ask("configurationDone")
        return known["breakpoints"]

    def go(self, command: str) -> tuple[str, str, int]:
        """Why it stops then, at what, and in which line."""
        self.ask(command, threadId=1)
        return self.stopped()

    def stopped(self) -> tuple[str, str, int]:
        found = self.until("stopped")
        ended = found.get("description", "").partition("the end of the replay ")[2]
        assert ended in ("", "(exit code 0)"), "".join(self.printed)
        frame = self.ask("stackTrace", threadId=found["threadId"])["stackFrames"][0]
        return found["reason"], re.sub(r" \(.*", "", found.get("description", "")), frame["line"]

    def inside(self, reference: int) -> dict[str, str]:
        return {one["name"]: one["value"] for one in self._variables(reference)}

    def _variables(self, reference: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("variables", variablesReference=reference)["variables"]
        return found

    def reference(self, reference: int, name: str) -> int:
        return next(int(one["variablesReference"]) for one in self._variables(reference) if one["name"] == name)

    def scopes(self) -> dict[str, int]:
        frame = self.ask("stackTrace", threadId=1)["stackFrames"][0]["id"]
        return {one["name"]: one["variablesReference"] for one in self.ask("scopes", frameId=frame)["scopes"]}

    def evaluate(self, expression: str, **arguments: Any) -> str:
        frame = self.ask("stackTrace", threadId=1)["stackFrames"][0]["id"]
        return str(self.ask("evaluate", expression=expression, frameId=frame, **arguments)["result"])

    def evaluate_for_ever(self) -> None:
        expression = "[print('it goes on', flush=True), any(iter(int, 1))]"
        self.channel.send_request("evaluate", {"expression": expression, "frameId": 1})
        while "it goes on" not in "".join(self.printed):
            self.printed.append(self.until("output")["output"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a program, and a run of it."""
    place = tmp_path_factory.mktemp("editor")
    (place / "program.py").write_text(PROGRAM)
    done = python("-m", "tracekit", "run", "--store", str(place / ".tracekit"), "program.py", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(autouse=True)
def _store(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_DIR", str(recorded / ".tracekit"))


@contextmanager
def adapter(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tracekit", "dap", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_editor_goes_back_and_forth(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, breakpoints by line, kind and failure, back over them, what a step was given and answered, and every bad request refused."""
    (tmp_path / "debugpy.py").write_text(NO_DEBUGPY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    with adapter() as process:
        editor = Editor(messaging.JsonIOStream.from_process(process))
        assert "no replay was launched; send launch first" in editor.refused("next", threadId=1)
        known = editor.launch(recorded, "tool:send", "12345", "n", "failed", lines={CALL: "n > 1"}, stopOnEntry=True)
        assert [one["verified"] for one in known] == [True, False, False, True]
        assert "entry 12345 is past the last one" in known[1]["message"]
        assert "no step of this run is n; there are tool:look, tool:send" in known[2]["message"]
        assert editor.stopped() == ("entry", "step 2", CALL)
        frames = editor.ask("stackTrace", threadId=1)["stackFrames"]
        assert [frame["name"] for frame in frames] == ["visit", "<module>"]
        assert frames[0]["source"]["path"] == str(recorded / "program.py")

        step, local = [editor.scopes()[name] for name in ("Step 2: tool look", "Locals")]
        assert editor.inside(step) | {"took": ""} == {
            "kind": "tool", "name": "look", "state": "done", "side_effect": "read_only", "took": "",
            "input": '{"n": 1}', "answer": '{"n": 1, "more": [1, 2]}',
        }  # fmt: skip
        assert editor.inside(editor.reference(step, "answer")) == {"n": "1", "more": "[1, 2]"}
        assert editor.inside(local) == {"n": "1", "seen": "0"}
        assert {one["name"]: one["type"] for one in editor._variables(step)}["kind"] == "str"
        assert [one["name"] for one in editor.ask("threads")["threads"]] == ["main"]
        assert editor.evaluate("[n + 41]") == "[42]"
        assert "ZeroDivisionError" in editor.refused("evaluate", expression="1/0", frameId=1)

        assert editor.go("next") == ("step", "step 4", CALL)
        assert editor.go("stepBack") == ("step", "step 2", CALL)
        assert "this is the first step" in editor.refused("stepBack", threadId=1)
        assert editor.go("continue")[:2] == ("breakpoint", "step 4")
        assert editor.go("continue")[:2] == ("function breakpoint", "step 6")
        assert editor.ask("exceptionInfo", threadId=1)["description"] == "ValueError: there is no third"
        assert editor.go("continue") == ("function breakpoint", "step 8", SEND)
        editor.ask("setFunctionBreakpoints", breakpoints=[])
        assert editor.go("continue")[:2] == ("pause", "the end of the replay")
        assert editor.go("reverseContinue")[:2] == ("breakpoint", "step 6")
        assert editor.go("reverseContinue")[:2] == ("breakpoint", "step 4")
        target = editor.ask("gotoTargets", source={"path": str(recorded / "program.py")}, line=SEND)["targets"]
        assert [one["label"].partition("(")[0] for one in target] == ["8 tool send"]
        assert editor.evaluate("until failed", context="repl") == ""
        assert editor.stopped()[:2] == ("goto", "step 6")

        refusal = editor.refused("stepIn", threadId=1)
        assert "debugpy" in refusal
        assert "no debugpy here" in refusal
        assert "pip install debugpy" in refusal
        for command, arguments, reason in (
            ("evaluate", {}, "KeyError: 'expression'"),
            ("variables", {"variablesReference": 4711}, "there is no variablesReference 4711"),
            ("variables", {"variablesReference": "x"}, "ValueError"),
            ("goto", {"targetId": 99}, "there is no target 99"),
            ("setBreakpoints", {"source": 7}, "AttributeError"),
            ("evaluate", {"expression": "until n", "context": "repl"}, "no step of this run is n"),
            ("launch", {}, "a replay was launched already"),
            ("teleport", {}, "there is no request 'teleport'"),
        ):
            assert reason in editor.refused(command, **arguments)
        assert "seen 1\n" in "".join(editor.printed)
        child = int(editor.evaluate("__import__('os').getpid()"))
        editor.evaluate_for_ever()
        editor.ask("disconnect")
        assert process.wait(60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_run_without_debugging(recorded: Path) -> None:
    """The replay stops nowhere, not at its end either, and the session ends with its exit code; an editor that counts
    lines from 0 is refused."""
    with adapter() as process:
        editor = Editor(messaging.JsonIOStream.from_process(process))
        assert "lines begin at 1" in editor.refused("initialize", adapterID="tracekit", linesStartAt1=False)
        editor.launch(recorded, "tool:send", stopOnEntry=True, noDebug=True)
        assert editor.until("exited") == {"exitCode": 0}
        editor.until("terminated")
        assert "seen 1\n" in "".join(editor.printed)
        editor.ask("disconnect")
        assert process.wait(60) == 0


def test_line_by_line_between_steps(recorded: Path) -> None:
    """Over a port: debugpy goes from line to line up to the next step, which goes back as any; the replay stays exact, and nothing of it
    is left where the server is killed. What is no editor is not listened to."""
    with adapter("--port", "0") as server:
        assert server.stderr is not None
        port = int(server.stderr.readline().rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as browser:
            body = b'{"seq": 1, "type": "request", "command": "initialize"}'
            browser.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            with suppress(ConnectionResetError):
                assert browser.recv(100) == b""
        connection = socket.create_connection(("127.0.0.1", port))
        editor = Editor(messaging.JsonIOStream.from_socket(connection))
        editor.launch(recorded, lines={SEND: ""}, run="last", at=4)
        assert editor.stopped() == ("entry", "step 4", CALL)
        assert editor.go("stepIn") == ("step", "after step 4", AFTER)
        assert editor.inside(editor.scopes()["Locals"])["found"] == "{'n': 2, 'more': [2, 3]}"
        assert editor.go("next") == ("step", "after step 4", AFTER + 1)
        assert editor.evaluate("seen + n") == "4"
        assert editor.go("stepOut")[0] == "step"
        assert editor.go("stepBack") == ("step", "step 4", CALL)
        assert editor.go("stepIn")[2] == AFTER
        assert [editor.go("next")[2] for _ in range(2)] == [AFTER + 1, AFTER + 2]
        assert editor.go("continue") == ("breakpoint", "step 8", SEND)
        assert editor.go("continue")[:2] == ("pause", "the end of the replay")
        assert "exact (4 steps matched)" in "".join(editor.printed)
        assert editor.go("reverseContinue")[:2] == ("breakpoint", "step 8")
        child, session = eval(editor.evaluate("(__import__('os').getpid(), __import__('os').getppid())"))
        watched = os.pidfd_open(child)
        editor.evaluate_for_ever()
        os.kill(session, signal.SIGKILL)
        try:
            end = select.poll()
            end.register(watched, select.POLLIN)
            assert end.poll(60_000), "the replay goes on"
        finally:
            os.close(watched)
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_a_replay_that_cannot_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The editor is told why it stands nowhere, and not that the replay has come to its end; it may try again."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / ".tracekit"))
    (place := tmp_path / "place").mkdir()
    (place / "program.py").write_text(PROGRAM)
    done = python("-m", "tracekit", "run", "program.py", cwd=place)
    assert done.returncode == 0, done.stderr
    with adapter() as process:
        editor = Editor(messaging.JsonIOStream.from_process(process))
        editor.launch(tmp_path, stopOnEntry=True)
        assert editor.stopped()[0] == "entry"
        place.rename(tmp_path / "away")
        reason, text, line = editor.go("restart")
        assert (reason, line) == ("pause", 0)
        assert text.startswith("the replay was ended: FileNotFoundError: ")
        assert str(place) in "".join(editor.printed)
        (tmp_path / "away").rename(place)
        assert editor.go("restart")[0] == "entry"
        editor.ask("disconnect")
        assert process.wait(60) == 0


FAMILY = """\
import multiprocessing
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

def worker(n):
    mine = look(n)
    then = mine + 1
    look(then)

if __name__ == "__main__":
    look(0)
    child = multiprocessing.get_context("spawn").Process(target=worker, args=(7,))
    child.start()
    child.join()
    look(1)
"""
IN_CHILD = FAMILY.splitlines().index("    mine = look(n)") + 1


@pytest.mark.timeout(300)  # it begins the program five times, and a process below it
def test_a_child_process_is_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines stop, its variables are seen, it goes line by line, and steps lead from the program into it, back, and out of it."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / ".tracekit"))
    (tmp_path / "program.py").write_text(FAMILY)
    done = python("-m", "tracekit", "run", "program.py", cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    with adapter() as process:
        editor = Editor(messaging.JsonIOStream.from_process(process))
        editor.launch(tmp_path, lines={IN_CHILD: ""}, stopOnEntry=True)
        assert editor.stopped()[0] == "entry"
        (own,) = editor.ask("threads")["threads"]
        reason, step, line = editor.go("continue")
        assert (reason, line) == ("breakpoint", IN_CHILD)
        (thread,) = editor.ask("threads")["threads"]
        assert thread["id"] != own["id"]
        assert "worker#1" in thread["name"]
        assert editor.evaluate("n") == "7"
        assert editor.go("stepIn") == ("step", f"after {step}", IN_CHILD + 1)
        assert editor.evaluate("mine") == "7"
        assert editor.go("next")[2] == IN_CHILD + 2
        assert editor.evaluate("then") == "8"
        second = editor.go("continue")
        assert second[:2] == ("pause", "the end of the replay")
        assert editor.go("stepBack")[2] == FAMILY.splitlines().index("    look(1)") + 1
        assert editor.go("reverseContinue") == ("breakpoint", step, IN_CHILD)
        assert editor.go("next")[2] == IN_CHILD + 2
        assert editor.go("stepBack") == ("step", step, IN_CHILD)
        pid = int(editor.evaluate("__import__('os').getpid()"))
        editor.ask("disconnect")
        assert process.wait(60) == 0
    while (stat := Path(f"/proc/{pid}/stat")).exists() and ") Z " not in stat.read_text():
        time.sleep(0.05)


def test_a_message_that_is_none(tmp_path: Path) -> None:
    """What is framed as a message and is none is said to be so, and the next one is read; what is no frame is the end."""
    path = tmp_path / "messages"
    path.write_bytes(
        b"Content-Length: 2\r\n\r\n{}Content-Length: 3\r\n\r\n[1]Content-Length: 1\r\n\r\n{GET / HTTP/1.1\r\n\r\n"
    )
    with open(path, "rb") as file, open(os.devnull, "wb") as nowhere:
        wire = Wire(file, nowhere)
        assert wire.read() == {}
        for _ in range(2):
            with pytest.raises(Exception, match=r"the message is not (a )?JSON"):
                wire.read()
        assert wire.read() is None
