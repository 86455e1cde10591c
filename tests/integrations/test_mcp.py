"""MCP servers used through the official SDK are recorded, and replayed without starting a process or connecting."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

import tracekit
from tests.integrations.mcp_programs import run, session, text, transport
from tests.support.cut import cut
from tests.support.processes import command, python, started
from tests.support.tracing import entries, of_type, recorded, replayed
from tracekit import record, recovery, replay, resume

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


SERVER = str(ROOT / "tests" / "support" / "mcp_server.py")
#: What a warm interpreter has imported that servers are forked from, and programs that ask them.
IMPORTS = ",".join(
    [
        "mcp.server.mcpserver" if find_spec("mcp.server.mcpserver") else "mcp.server.fastmcp",
        "mcp.client.sse", "mcp.client.stdio", "mcp.client.streamable_http", "uvicorn.protocols.http.auto",
    ]
)  # fmt: skip


@pytest.fixture
def stdio(ledger: Path) -> list[str]:
    """A server by standard input and output: the arguments of its process."""
    return ["stdio", *command(SERVER, str(ledger), imports=IMPORTS)[1:]]


def asked(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


@contextmanager
def served(kind: str, ledger: Path) -> Iterator[list[str]]:
    """A server over HTTP on loopback, that is gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started("-m", "tests.support.mcp_server", str(ledger), kind, str(port), cwd=ROOT, imports=IMPORTS):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        yield [kind, f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"]


def tracekit_of(store: Path, *arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "TRACEKIT_DIR": str(store), "PYTHONPATH": str(ROOT)}
    return python("-m", "tracekit", *arguments, cwd=ROOT, env=variables, fresh=fresh, imports=IMPORTS)


PROGRAM = "tests.integrations.mcp_programs"


@pytest.mark.parametrize("kind", ["sse", "streamable-http"])
def test_over_http(kind: str, ledger: Path, tmp_path: Path) -> None:
    """A program replays in a process of its own, and asks nothing of the server, whether it is running or not."""
    with served(kind, ledger) as server:
        recording = tracekit_of(tmp_path, "run", "-m", PROGRAM, "everything", *server)
        assert recording.returncode == 0, recording.stderr
        assert "not captured" not in recording.stderr
        before = asked(ledger)
        assert len(before) == 9
        there = tracekit_of(tmp_path, "replay", "last")
    gone = tracekit_of(tmp_path, "replay", "last")
    for one in (there, gone):
        assert (one.returncode, one.stdout) == (0, recording.stdout), one.stderr
        assert "exact" in one.stderr
    assert asked(ledger) == before


def test_over_standard_input(stdio: list[str], ledger: Path, tmp_path: Path) -> None:
    """The same holds if the program imports the SDK during the run and starts the server as a process: no process is
    started, and its command need not exist."""
    script = next(argument for argument in stdio if argument.endswith(".py"))
    copy = tmp_path / "server.py"
    copy.write_text(Path(script).read_text())
    arguments = ("everything", *(str(copy) if argument == script else argument for argument in stdio))
    recording = tracekit_of(tmp_path, "run", "-m", PROGRAM, *arguments, fresh=True)
    assert recording.returncode == 0, recording.stderr
    assert "not captured" not in recording.stderr
    before = asked(ledger)
    assert sorted(before) == sorted(
        ["started", "look_up river", "book 0A", "book 1A", "book 2A", "refuse full", "travel", "rules", "greeting Ada"]
    )
    copy.unlink()
    again = tracekit_of(tmp_path, "replay", "last", fresh=True)
    assert (again.returncode, again.stdout) == (0, recording.stdout), again.stderr
    assert asked(ledger) == before


@pytest.mark.usefixtures("instrumented")
def test_steps(stdio: list[str]) -> None:
    """Each request is one step with OpenTelemetry's name for it; what transports it, the server's process included,
    makes no step."""
    made, saw = recorded(lambda: run("everything", stdio))
    steps = of_type(made, "tool.call")
    assert [entry["name"] for entry in steps if entry["lane"] == 0 or "book" in entry["name"]] == [
        "mcp/connect", "initialize", "tools/list", "resources/list", "prompts/list", "tools/call look_up",
        *["tools/call book"] * 3, "tools/call refuse", "tools/call travel", "resources/read", "prompts/get greeting",
        "prompts/get none", "ping", "mcp/close",
    ]  # fmt: skip
    [look_up] = [entry for entry in steps if entry["name"] == "tools/call look_up"]
    assert look_up["input"] == {"word": "river"}
    assert look_up["meta"]["info"] == {
        "mcp.method.name": "tools/call",
        "network.transport": "pipe",
        "gen_ai.tool.name": "look_up",
        "gen_ai.operation.name": "execute_tool",
    }
    assert not of_type(made, "boundary", "http.request", "tool.skipped")
    outcomes = {entry["step"]: entry for entry in of_type(made, "tool.return", "tool.error")}
    [refused] = [outcomes[entry["seq"]] for entry in steps if entry["name"] == "tools/call refuse"]
    assert refused["output"]["isError"] is True
    assert refused["meta"]["error.type"] == "tool_error"
    report, again = replayed(made, lambda: run("everything", stdio))
    assert report.exact
    assert again == saw


@pytest.mark.parametrize(
    ("trust", "classes"),
    [
        ([], {"look_up": "irreversible", "draft": "irreversible", "book": "irreversible"}),
        (["*mcp_server.py *"], {"look_up": "read_only", "draft": "reversible", "book": "irreversible"}),
        (["https://*"], {"look_up": "irreversible", "draft": "irreversible", "book": "irreversible"}),
    ],
)
def test_what_a_server_says_of_its_tools(trust: list[str], classes: dict[str, str], stdio: list[str]) -> None:
    """A tool is irreversible whatever its server declares, unless the user trusts that server."""

    async def program() -> None:
        async with session(stdio) as desk:
            await desk.list_tools()
            for tool, arguments in (("look_up", {"word": "a"}), ("draft", {"text": "b"}), ("book", {"seat": "c"})):
                await desk.call_tool(tool, arguments)

    tracekit.instrument(mcp_trust=trust)
    try:
        made, _ = recorded(lambda: asyncio.run(program()))
        report, _ = replayed(made, lambda: asyncio.run(program()))
    finally:
        tracekit.uninstrument()
    assert report.exact
    found = {entry["name"]: entry["meta"]["side_effect"] for entry in of_type(made, "tool.call")}
    assert {tool: found[f"tools/call {tool}"] for tool in classes} == classes
    assert {found[name] for name in ("mcp/connect", "initialize", "tools/list", "mcp/close")} == {"read_only"}


def test_trust_is_a_list() -> None:
    """A plain string in place of a list of trusted servers is refused, since each letter would be a pattern."""
    with pytest.raises(ValueError, match="list of servers"):
        tracekit.instrument(mcp_trust="*")
    tracekit.uninstrument()


@pytest.mark.usefixtures("instrumented")
def test_asked_back(stdio: list[str], ledger: Path) -> None:
    """What the server asks of the program's model or user comes back at the same place, and the program's answers are
    compared."""
    made, saw = recorded(lambda: run("asked_back", stdio))
    assert [one for one in saw if type(one) is str] == [
        "thought: done thinking",
        "accept True",
        "thought: done thinking",
    ]
    before = asked(ledger)
    report, again = replayed(made, lambda: run("asked_back", stdio))
    assert report.exact
    assert again == saw
    with pytest.raises(tracekit.DivergenceError, match="mcp/answer sampling/createMessage"):
        replayed(made, lambda: run("asked_back", stdio, thought="something else"))
    assert asked(ledger) == before


@pytest.mark.usefixtures("instrumented")
def test_ended_while_it_was_asked(stdio: list[str]) -> None:
    """A session that ends while its server waits for the user's answer ends in the trace and in a replay, too."""

    async def program() -> list[str]:
        asked = asyncio.Event()

        async def elicit(*_: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        async with session(stdio, elicitation_callback=elicit) as desk:
            call = asyncio.create_task(desk.call_tool("confirm", {}))
            await asked.wait()
            call.cancel()
            return [type(one).__name__ for one in await asyncio.gather(call, return_exceptions=True)]

    made, saw = recorded(lambda: asyncio.run(program()))
    assert saw == ["CancelledError"]
    assert {e["seq"] for e in of_type(made, "tool.call")} == {
        e["step"] for e in of_type(made, "tool.return", "tool.error")
    }
    [failure] = of_type(made, "tool.error")
    assert failure["meta"]["in_doubt"] is True
    report, again = replayed(made, lambda: asyncio.run(program()))
    assert report.exact
    assert again == saw


CRASHING = """
import asyncio, sys
import tracekit
from tests.integrations.mcp_programs import session

async def main():
    async with session(sys.argv[1:]) as desk:
        await desk.call_tool("book", {"seat": "1A"})
        await desk.call_tool("book", {"seat": "fatal"})
        await desk.call_tool("book", {"seat": "2A"})

tracekit.instrument()
with tracekit.record("crashing"):
    asyncio.run(main())
"""


def test_killed_in_a_call(ledger: Path, tmp_path: Path) -> None:
    """After SIGKILL between a tool's effect and its answer, the log has the intention, the call is in doubt, and the
    run is not resumed."""
    (tmp_path / "crashing.py").write_text(CRASHING)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TRACEKIT_DIR": str(tmp_path)}
    line = (str(tmp_path / "crashing.py"), "stdio", SERVER, str(ledger))
    killed = python(*line, cwd=ROOT, env=variables, imports=IMPORTS, seeds=("0",))  # a fork is the server's parent
    assert killed.returncode == -9, killed.stderr
    [decision] = recovery.scan(tmp_path)
    [path] = (tmp_path / "runs").glob("*.jsonl")
    [step] = [e["seq"] for e in entries(str(path)) if e["type"] == "tool.call" and e["input"] == {"seat": "fatal"}]
    assert (decision.decision, decision.in_doubt) == ("abort", (step,))
    assert asked(ledger) == ["started", "book 1A", "book fatal"]


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("how", ["the SDK's limit", "anyio", "asyncio"])
def test_too_late(how: str, stdio: list[str]) -> None:
    """A call that timed out is in doubt, and a replay times out at the same place."""

    async def program() -> str:
        async with session(stdio) as desk:
            try:
                if how == "the SDK's limit":
                    limit: Any = 0.2
                    if "mcp_types" not in sys.modules:
                        from datetime import timedelta

                        limit = timedelta(seconds=0.2)
                    await desk.call_tool("travel", {"seconds": 60}, limit)
                elif how == "anyio":
                    with anyio.fail_after(0.2):
                        await desk.call_tool("travel", {"seconds": 60})
                else:
                    async with asyncio.timeout(0.2):
                        await desk.call_tool("travel", {"seconds": 60})
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        raise AssertionError("it came in time")

    made, saw = recorded(lambda: asyncio.run(program()))
    report, again = replayed(made, lambda: asyncio.run(program()))
    assert report.exact
    assert again == saw
    [failure] = of_type(made, "tool.error")
    assert failure["meta"]["in_doubt"] is True


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize(
    "server", [["stdio", "/nowhere/server"], ["sse", "http://127.0.0.1:9/sse"], ["http", "http://127.0.0.1:9/mcp"]]
)
def test_no_server(server: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable server raises the SDK's own error, in a replay as well."""
    if server[0] == "stdio":
        monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def program() -> list[str]:
        found: list[str] = []

        def names(error: BaseException) -> None:
            for one in error.exceptions if isinstance(error, BaseExceptionGroup) else [error]:
                names(one) if isinstance(one, BaseExceptionGroup) else found.append(f"{type(one).__name__}: {one}")

        try:
            async with session(server):
                pass
        except BaseException as error:
            names(error)
        return found

    made, saw = recorded(lambda: asyncio.run(program()))
    assert len(saw) == 1
    report, again = replayed(made, lambda: asyncio.run(program()))
    assert report.exact
    assert again == saw


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("kind", ["stdio", "streamable-http"])
def test_the_programs_own_error(kind: str, stdio: list[str], ledger: Path) -> None:
    """An error that passes through a session is wrapped in the same exception groups in a replay."""

    async def program(server: list[str]) -> None:
        async with session(server) as desk:
            await desk.call_tool("look_up", {"word": "a"})
            raise KeyError("mine")

    def shape(error: BaseException) -> Any:
        return [error.message, *map(shape, error.exceptions)] if isinstance(error, BaseExceptionGroup) else repr(error)

    def seen(server: list[str]) -> Any:
        try:
            asyncio.run(program(server))
        except BaseException as error:
            return shape(error)

    if kind == "stdio":
        made, saw = recorded(lambda: seen(stdio))
        server = stdio
    else:
        with served(kind, ledger) as server:
            made, saw = recorded(lambda: seen(server))
    assert "mine" in str(saw)
    report, again = replayed(made, lambda: seen(server))
    assert report.exact
    assert again == saw


@pytest.mark.usefixtures("instrumented")
def test_another_call_is_a_divergence(stdio: list[str], ledger: Path) -> None:
    """A call with other arguments, or to another server, gets no recorded answer."""

    async def program(seat: str, server: list[str]) -> None:
        async with session(server) as desk:
            await desk.call_tool("book", {"seat": seat})

    made, _ = recorded(lambda: asyncio.run(program("1A", stdio)))
    before = asked(ledger)
    with pytest.raises(tracekit.DivergenceError, match="1B"):
        replayed(made, lambda: asyncio.run(program("1B", stdio)))
    with pytest.raises(tracekit.DivergenceError, match="elsewhere"):
        replayed(made, lambda: asyncio.run(program("1A", [*stdio, "elsewhere"])))
    assert asked(ledger) == before


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("kind", ["stdio", "streamable-http"])
def test_resumed(kind: str, stdio: list[str], ledger: Path, tmp_path: Path) -> None:
    """A resumed run does not repeat answered calls, and makes the rest on a server that it connects anew."""

    async def program(server: list[str]) -> list[str]:
        async with session(server) as desk:
            await desk.list_tools()
            return [text(await desk.call_tool("book", {"seat": f"{n}A"})).partition(" by")[0] for n in range(3)]

    def check(server: list[str]) -> None:
        made, saw = recorded(lambda: asyncio.run(program(server)))
        booked = [e["step"] for e in of_type(made, "tool.return") if "booked" in str(e["output"])]
        for count in (1, 2):
            ledger.write_text("")
            end = next(e["seq"] for e in entries(made) if e.get("step") == booked[count - 1])
            path = cut(made, end, tmp_path / str(count))
            with resume(path, store=tmp_path / str(count)):
                assert asyncio.run(program(server)) == saw
            assert [line for line in asked(ledger) if line != "started"] == [f"book {n}A" for n in range(count, 3)]
            report, replay_saw = replayed(path, lambda: asyncio.run(program(server)))
            assert report.exact
            assert replay_saw == saw

    if kind == "stdio":
        check(stdio)
    else:
        with served(kind, ledger) as server:
            check(server)


def test_patches_are_taken_away(stdio: list[str], ledger: Path) -> None:
    """A transport function imported by name before is captured, stays the same object, and is unpatched afterwards."""
    inside = [cell.cell_contents for cell in stdio_client.__closure__]  # type: ignore[attr-defined]
    sent = vars(ClientSession).get("send_request")

    async def program() -> None:
        async with session(stdio) as desk:
            await desk.call_tool("look_up", {"word": "a"})

    tracekit.instrument()
    made, _ = recorded(lambda: asyncio.run(program()))
    tracekit.uninstrument()
    assert any(entry["name"] == "mcp/connect" for entry in of_type(made, "tool.call"))
    assert [cell.cell_contents for cell in stdio_client.__closure__] == inside  # type: ignore[attr-defined]
    assert vars(ClientSession).get("send_request") is sent
    before = len(asked(ledger))
    asyncio.run(program())
    assert len(asked(ledger)) == before + 2


@pytest.mark.usefixtures("instrumented")
def test_outside_a_run(stdio: list[str], ledger: Path) -> None:
    """Without an active run a session is the SDK's own; a run begun while it is open records its calls."""

    async def program(recording: bool) -> list[str]:
        async with transport(stdio) as streams, ClientSession(*streams[:2]) as desk:
            await desk.initialize()
            found = [text(await desk.call_tool("look_up", {"word": "a"}))]
            if recording:
                with record("within") as made:
                    found.append(text(await desk.call_tool("look_up", {"word": "b"})))
                assert [e["name"] for e in of_type(made, "tool.call")] == ["tools/call look_up"]
                assert not of_type(made, "boundary")
                with replay(made) as again:
                    found.append(text(await desk.call_tool("look_up", {"word": "b"})))
                assert again.report.exact
            return found

    found = asyncio.run(program(True))
    assert found[1] == found[2]
    assert asked(ledger) == ["started", "look_up a", "look_up b"]


@pytest.mark.usefixtures("instrumented")
def test_no_server_is_started_for_a_command_that_is_gone(stdio: list[str]) -> None:
    """A replay needs nothing that the parameters of a server name."""

    async def program() -> str:
        parameters = StdioServerParameters(command=sys.executable, args=stdio[1:], env={"DESK_TOKEN": "hush-hush"})
        async with stdio_client(parameters) as streams, ClientSession(*streams[:2]) as desk:
            await desk.initialize()
            return text(await desk.call_tool("look_up", {"word": "a"}))

    made, saw = recorded(lambda: asyncio.run(program()))
    assert "hush-hush" not in Path(made.path).read_text()
    assert json.loads(Path(made.path).read_text().splitlines()[1])["meta"]["info"]["environment"] == ["DESK_TOKEN"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/" + Path(sys.executable).name)
        report, again = replayed(made, lambda: asyncio.run(program()))
    assert report.exact
    assert again == saw
