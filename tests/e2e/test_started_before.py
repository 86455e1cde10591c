"""What was there before a run is reached by its recording only, and the recording says so: processes, their pipes, other interpreters."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tracekit import Run, record, replay, traced_tool
from tracekit.errors import LiveCallBlockedError
from tracekit.testing import no_network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="who has started whom is known on Linux")


@traced_tool(side_effect="read_only")
def look(n: int) -> int:
    return n


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes what it is sent to its standard output, started before any run."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as found:
        try:
            yield found
        finally:
            found.kill()


def noted(run: Run) -> list[str]:
    """What the recording says of its boundary: kind, target and line."""
    entries = [json.loads(line) for line in Path(run.path).read_text().splitlines()]
    found = [(entry["name"], entry["input"]) for entry in entries if entry["type"] == "boundary"]
    return [f"{name} {about['target']} at {about['where']}" for name, about in found]


def plain(shell: subprocess.Popen[bytes], text: bytes) -> None:
    assert shell.stdin is not None
    shell.stdin.write(text)
    shell.stdin.flush()


def left_in_its_buffer(shell: subprocess.Popen[bytes], text: bytes) -> None:
    assert shell.stdin is not None
    shell.stdin.write(text)


def as_text(shell: subprocess.Popen[bytes], text: bytes) -> None:
    assert shell.stdin is not None
    with open(os.dup(shell.stdin.fileno()), "w") as file:
        file.write(text.decode())


def below(shell: subprocess.Popen[bytes], text: bytes) -> None:
    assert shell.stdin is not None
    os.write(shell.stdin.fileno(), text)


@pytest.mark.parametrize("way", [plain, left_in_its_buffer, as_text, below])
def test_a_process_that_was_there_hears_nothing_of_a_replay(
    way: Callable[[subprocess.Popen[bytes], bytes], None], shell: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """What a program writes into the pipe of a shell from before is not captured: a replay refuses it, buffered or not."""

    def program() -> None:
        look(1)
        way(shell, b"told\n")

    with pytest.warns(RuntimeWarning, match="not captured"), record(store=tmp_path) as run:
        program()
    assert any(one.startswith("send cat ") and __file__ in one for one in noted(run))
    with pytest.raises(LiveCallBlockedError, match="send to cat"), replay(run):
        program()
    assert shell.communicate()[0] == b"told\n"


def test_what_was_exchanged_is_put_back(shell: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Also where a run has captured what goes through the descriptor of a pipe of its own."""
    before = os.read, os.write
    with record(store=tmp_path):
        look(1)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
            assert own.stdin is not None
            os.write(own.stdin.fileno(), b"x")
            own.stdin.close()
    assert (os.read, os.write) == before


def test_in_a_tool_it_is_answered(shell: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A traced tool may write there: the replay answers it, and is exact."""

    @traced_tool(side_effect="irreversible")
    def tell(text: str) -> None:
        plain(shell, text.encode())

    with record(store=tmp_path) as run:
        tell("told\n")
    with replay(run) as again:
        tell("told\n")
    assert again.report.exact
    assert shell.communicate()[0] == b"told\n"


def test_a_process_that_was_there_gets_no_signal_of_a_replay(shell: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Neither by ``os.kill`` nor by its ``Popen``; and a process with a number that was read somewhere gets none either."""

    def program() -> None:
        look(1)
        os.kill(shell.pid, signal.SIGCONT)
        shell.send_signal(signal.SIGSTOP)

    with pytest.warns(RuntimeWarning, match="not captured"), record(store=tmp_path) as run:
        program()
    assert len([one for one in noted(run) if f"process {shell.pid}, signal" in one]) == 2
    for signalled in (program, lambda: os.kill(os.getppid(), signal.SIGCONT)):
        os.kill(shell.pid, signal.SIGCONT)
        with (
            pytest.raises(LiveCallBlockedError, match="send to process") as refused,
            replay(run, on_divergence="warn"),
        ):
            signalled()
        assert "allow_hosts" not in str(refused.value), "a process is no host"
        assert "guard='off'" in str(refused.value)
    plain(shell, b"it goes on\n")
    assert shell.communicate()[0] == b"it goes on\n"


def test_a_signal_goes_over_no_network(shell: subprocess.Popen[bytes]) -> None:
    """Where a test's network is blocked, processes are free, and so are signals to them."""
    with no_network():
        os.kill(shell.pid, signal.SIGCONT)


def test_its_own_signals_are_the_programs(tmp_path: Path) -> None:
    """A program may send itself a signal, and ask whether a process is there."""
    heard = []

    def program() -> None:
        look(1)
        before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getppid(), 0)
        finally:
            signal.signal(signal.SIGUSR1, before)

    with record(store=tmp_path) as run:
        program()
    with replay(run) as again:
        program()
    assert again.report.exact
    assert heard == [1, 1]


def test_another_interpreter_reaches_nothing(tmp_path: Path) -> None:
    """What runs in a sub-interpreter is not captured: a recording names it, a replay does not run it."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = importlib.import_module(name)
    mark = tmp_path / "mark"
    other = interpreters.create()

    def program() -> None:
        look(1)
        interpreters.run_string(other, f"open({str(mark)!r}, 'a').write('x')")

    try:
        with pytest.warns(RuntimeWarning, match="not captured"), record(store=tmp_path / "store") as run:
            program()
        assert any("a sub-interpreter" in one for one in noted(run))
        with pytest.raises(LiveCallBlockedError, match="sub-interpreter"), replay(run):
            program()
        assert mark.read_text() == "x"
    finally:
        interpreters.destroy(other)
