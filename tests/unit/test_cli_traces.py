"""``list``, ``show``, ``verify`` and ``schema``: data on stdout, messages on stderr, exit codes that scripts can rely on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import tracekit
from tests.support.processes import python
from tests.support.terminal import on_a_terminal
from tracekit import ContractViolationError, decision, errors, record, traced, traced_tool
from tracekit.cli import main, output
from tracekit.integration import Trace

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")


@traced_tool(side_effect="read_only")
def look(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id, "cents": 500}


@traced_tool(side_effect="reversible")
def reserve(sku: str) -> str:
    return sku.lower()


@traced_tool(side_effect="irreversible")
def charge(cents: int) -> int:
    if cents < 0:
        raise ValueError("a negative charge")
    return cents


@traced(name="billing")
def bill() -> None:
    look("A-1")
    charge(500)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def recorded(*bodies: Any) -> str:
    with record("billing") as run:
        for body in bodies:
            body()
    return run.path


def killed(path: Path) -> str:
    """The trace of a program that was killed inside an irreversible tool."""
    program = path / "killed.py"
    program.write_text(
        "import os, signal\n"
        "from tracekit import record, traced_tool\n"
        "@traced_tool(side_effect='irreversible')\n"
        "def launch(where: str) -> None:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with record('rocket') as run:\n"
        "    launch('moon')\n"
    )
    done = python(str(program))
    assert done.returncode == -signal.SIGKILL
    listed = json.loads(call("list", "--limit", "1").stdout)
    assert listed["end"] is None
    return str(listed["path"])


def without_last_line(path: str, to: Path) -> str:
    """A copy outside the store, where no tip is kept."""
    to.write_bytes(b"".join(Path(path).read_bytes().splitlines(keepends=True)[:-1]))
    return str(to)


# -- all commands --------------------------------------------------------------------------------------


def test_every_command_is_there() -> None:
    """Each command in the help can be loaded, and has help of its own."""
    text = call("--help").stdout
    for name in main.list_commands(click.Context(main)):
        assert name in text
        told = call(name, "--help")
        assert told.exit_code == 0
        assert "Usage" in told.stdout


def test_help_imports_no_command() -> None:
    """``tracekit --help`` loads neither rich nor the engine, so that it is quick."""
    code = (
        "import sys\nfrom tracekit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('rich', 'tracekit._runtime', 'orjson'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_exit_codes() -> None:
    """Every error has its exit code: a difference or damage 1, wrong use 2, a refusal 4."""
    expected = {
        "divergence": 1,
        "trace-exhausted": 1,
        "unconsumed-steps": 1,
        "inexact-replay": 1,
        "live-call-blocked": 1,
        "trace-integrity": 1,
        "trace-version": 2,
        "run-not-found": 2,
        "run-state": 2,
        "log-write": 2,
        "recovery-refused": 4,
        "budget-exceeded": 4,
        "unknown-price": 2,
        "contract-violation": 4,
    }
    kinds = [getattr(errors, name) for name in errors.__all__]
    found = {kind.code: output.exit_code(kind("what")) for kind in kinds}
    assert expected.items() <= found.items()


def test_version() -> None:
    """``--version`` prints the version of the package."""
    assert call("--version").stdout == f"tracekit {tracekit.__version__}\n"


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_run_that_is_not_there(command: str) -> None:
    """A run that does not exist is told so on stderr with exit code 2; nothing is invented in its place."""
    for name in ("nothing-like-it", "last", "/nowhere/run.jsonl"):
        done = call(command, name)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert "[run-not-found]" in done.stderr


def test_wrong_use() -> None:
    """Unknown commands and options, and a head that is none, are exit code 2."""
    path = recorded(bill)
    assert call("nonsense").exit_code == 2
    assert call("show").exit_code == 2
    assert call("verify", path, "--head", "abc").exit_code == 2


# -- list ----------------------------------------------------------------------------------------------


def test_list() -> None:
    """Each run is one JSON line, the newest first, with how it ended; an empty store is no error."""
    os.mkdir(os.environ["TRACEKIT_DIR"])
    assert (call("list").stdout, call("list").exit_code) == ("", 0)
    first, second = recorded(bill), recorded(bill)
    with pytest.raises(ValueError, match="negative"):
        recorded(lambda: charge(-1))
    runs = [json.loads(line) for line in call("list").stdout.splitlines()]
    assert [run["end"] for run in runs] == ["run.failed", "run.completed", "run.completed"]
    assert [run["path"] for run in runs[1:]] == [second, first]
    assert len(call("list", "--limit", "2").stdout.splitlines()) == 2
    shown, status = on_a_terminal("list")
    assert status == 0
    assert all(run["run_id"] in shown for run in runs)
    assert "failed" in shown


# -- verify --------------------------------------------------------------------------------------------


def test_verify_a_sealed_run() -> None:
    """A run that ended cleanly is complete: exit code 0, by path, id, beginning of the id, and ``last``."""
    path = recorded(bill)
    run_id = Path(path).stem
    for name in (path, run_id, run_id[:13], "last"):
        done = call("verify", name)
        told = json.loads(done.stdout)
        assert (done.exit_code, told["state"], told["run_id"]) == (0, "complete", run_id)
    assert call("verify", path, "--head", told["head"]).exit_code == 0
    shown, status = on_a_terminal("verify", path)
    assert status == 0
    assert "complete" in shown


def test_verify_a_damaged_run(tmp_path: Path) -> None:
    """One changed byte is exit code 1, and the line is named."""
    path = recorded(bill)
    lines = Path(path).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"A-1", b"A-2", 1)
    copy = tmp_path / "damaged.jsonl"
    copy.write_bytes(b"".join(lines))
    done = call("verify", str(copy))
    told = json.loads(done.stdout)
    assert (done.exit_code, told["state"], told["line"], told["last_good_seq"]) == (1, "broken", 3, 2)


def test_verify_an_unsealed_run(tmp_path: Path) -> None:
    """A run without an end and a torn last line are exit code 3, never 0."""
    cut = without_last_line(recorded(bill), tmp_path / "cut.jsonl")
    assert call("verify", cut).exit_code == 3
    Path(cut).write_bytes(Path(cut).read_bytes()[:-5])
    done = call("verify", cut)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["torn_bytes"] > 0
    assert call("verify", killed(tmp_path)).exit_code == 3


def test_verify_against_a_kept_tip_hash(tmp_path: Path) -> None:
    """A tip hash that was kept in another place detects a run that was cut or rewritten with a chain that holds."""
    path = recorded(bill)
    head = json.loads(call("verify", path).stdout)["head"]
    cut = without_last_line(path, tmp_path / "cut.jsonl")
    assert call("verify", cut, "--head", head).exit_code == 1


def test_verify_against_the_schema() -> None:
    """``--schema`` checks each entry; what tracekit writes keeps to it."""
    done = call("verify", recorded(bill), "--schema")
    assert (done.exit_code, json.loads(done.stdout)["schema"], done.stderr) == (0, [], "")


# -- show ----------------------------------------------------------------------------------------------


def test_show_prints_the_entries() -> None:
    """Piped, each entry is a JSON line as it stands in the file; ``--from`` begins later."""
    path = recorded(bill)
    done = call("show", path)
    assert done.exit_code == 0
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert entries == [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    assert json.loads(call("show", path, "--from", str(len(entries))).stdout) == entries[-1]


def test_show_can_expand() -> None:
    """``--expand`` puts values in place of references."""
    path = recorded(lambda: look("A-1" * 1000))
    assert "$ref" in call("show", path).stdout
    expanded = [json.loads(line) for line in call("show", path, "--expand").stdout.splitlines()]
    assert [entry["input"] for entry in expanded if entry["type"] == "tool.call"] == [{"order_id": "A-1" * 1000}]


def test_show_draws_a_tree() -> None:
    """On a terminal: a line for each step with arguments, class and outcome, indented under the step that it belongs to."""
    shown, status = on_a_terminal("show", recorded(bill))
    assert status == 0
    span, tool, charged = (
        next(line for line in shown.splitlines() if mark in line) for mark in ("span ", "look(", "charge(")
    )
    assert tool.index("tool") > span.index("span")
    assert "order_id=A-1" in tool
    assert "irreversible" in charged
    assert "→ 500" in charged
    assert "complete" in shown


def test_show_says_where_more_is() -> None:
    """A long tree is cut, and the command that shows the rest is printed."""
    shown, _ = on_a_terminal("show", recorded(bill), "--limit", "2")
    assert "--from" in shown
    assert "charge" not in shown


def test_show_of_a_broken_or_unsealed_run(tmp_path: Path) -> None:
    """What verifies is shown, the problem stands on stderr, and the exit code says 1 or 3."""
    path = recorded(bill)
    cut = without_last_line(path, tmp_path / "cut.jsonl")
    done = call("show", cut)
    assert done.exit_code == 3
    assert "incomplete" in done.stderr
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(cut).write_bytes(b"".join(lines[:3] + lines[4:]))
    done = call("show", cut)
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, 3)
    assert "line 4" in done.stderr


def test_show_does_not_steer_the_terminal() -> None:
    """Control characters of a trace do not reach the terminal."""
    shown, _ = on_a_terminal("show", recorded(lambda: look("\x1b]0;owned\x07\x1b[2J")))
    assert "\x07" not in shown
    assert "\x1b]" not in shown
    assert "owned" in shown


#: Each class of characters that steer a terminal: C0, DEL, C1 (CSI in one character), bidirectional controls, invisible ones.
STEERING = "\x07\x1b]0;owned\x1b[2J\x7f\x85\x9b2J\x9d\u061c\u200b\u200e\u200f\u2028\u202a\u202d\u202e\u2066\u2069\ufeff\U000e0041"


def hostile() -> str:
    """A run in which whatever a program can choose holds those characters: names, inputs, results, errors, agents, threads."""

    @traced_tool(side_effect="irreversible", name=f"tool{STEERING}", version=f"v{STEERING}")
    def tool(argument: Any, fail: bool = False) -> Any:
        if fail:
            raise ValueError(f"no {STEERING}")
        return argument

    def work() -> None:
        tool({STEERING: [STEERING], "deep": {"text": STEERING}})
        decision(f"choice{STEERING}", input=STEERING, output=STEERING)
        with suppress(ValueError):
            tool(STEERING, fail=True)

    with record(f"run{STEERING}", agent=f"agent{STEERING}", metadata={STEERING: STEERING}, input={STEERING: 1}) as run:
        traced(name=f"span{STEERING}")(work)()
        thread = threading.Thread(target=work, name=f"thread{STEERING}")
        thread.start()
        thread.join()
        run.set_result(STEERING)
    return run.path


COMMANDS_THAT_SHOW = (
    ["show"], ["show", "--why"], ["show", "--expand"], ["list"], ["failures"], ["verify"], ["recovery", "scan", "--all"],
    ["executions", "show"], ["executions", "trace"],
)  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_nothing_that_steers_a_terminal_is_printed(as_json: bool) -> None:
    """Not as text, and not as JSON, where such characters are escapes: for whoever parses it the values are the same."""
    path = hostile()
    for command in COMMANDS_THAT_SHOW:
        named = [path] if command[0] in ("show", "verify", "executions") else []
        options = ["--json"] if as_json and command[-1] != "trace" else []  # that is JSON anyway
        shown, code = on_a_terminal(*command, *options, *named)
        assert code in (0, 1), (command, shown)
        ours = re.sub(r"\x1b\[[0-9;]*m", "", shown)  # the styles of our own text
        steering = {
            char for char in ours if char not in "\n\r\t" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")
        }
        assert not steering, (command, ours)
    entries = [json.loads(line) for line in call("show", "--json", path).stdout.splitlines()]
    with Trace(path) as trace:
        assert entries == [*trace.entries()]
    assert STEERING in entries[-1]["output"]


# -- why -----------------------------------------------------------------------------------------------


def why(path: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(call("show", path, "--why").stdout)
    return told


def test_why_has_five_answers() -> None:
    """What happened, why this path, which fallback, safe to retry, replayable: each with its entries, on a terminal too."""
    path = recorded(bill)
    told = why(path)
    assert set(told) == {
        "run_id", "what_happened", "why_this_path", "which_fallback", "safe_to_retry", "can_be_replayed"
    }  # fmt: skip
    count = len(Path(path).read_bytes().splitlines())
    assert told["what_happened"]["entries"] == [1, count]
    assert "2 tool calls" in told["what_happened"]["text"]
    shown, status = on_a_terminal("show", path, "--why")
    assert status == 0
    assert [line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")] == [
        "what happened", "why this path", "which fallback", "safe to retry", "can be replayed"
    ]  # fmt: skip


def test_why_a_run_can_be_retried() -> None:
    """Only reading, and reversible: nobody knows what else it did, so never yes. Irreversible and done, failed, or in doubt: no,
    naming the step's entry."""
    reads = why(recorded(lambda: look("A-1")))["safe_to_retry"]
    assert reads["answer"] is None
    assert "only reads" in reads["text"]
    assert "not observed" in reads["text"]
    care = why(recorded(lambda: reserve("X")))["safe_to_retry"]
    assert (care["answer"], care["entries"]) == (None, [2])
    done = why(recorded(lambda: charge(5)))["safe_to_retry"]
    assert (done["answer"], done["entries"]) == (False, [2])
    with pytest.raises(ValueError, match="negative"):
        recorded(lambda: charge(-1))
    failed = why("last")
    assert (failed["safe_to_retry"]["answer"], failed["safe_to_retry"]["entries"]) == (False, [2])
    assert "ValueError: a negative charge" in failed["what_happened"]["text"]


def test_why_after_a_crash(tmp_path: Path) -> None:
    """Killed inside an irreversible step: it has no end, the step is in doubt, retrying is not safe, the rest replays."""
    told = why(killed(tmp_path))
    assert "has no end" in told["what_happened"]["text"]
    assert "launch" in told["what_happened"]["text"]
    assert told["safe_to_retry"]["answer"] is False
    assert "may or may not" in told["safe_to_retry"]["text"]
    assert told["can_be_replayed"]["answer"] is None


def test_why_tells_who_was_asked_instead() -> None:
    """From whom to whom, why, and where that can't be undone; a call that was refused is no fallback."""

    @traced_tool(name="buy", side_effect="irreversible")
    def buy(what: str) -> str:
        return what

    @traced_tool(name="book", side_effect="reversible", fallback=buy)
    def book(what: str) -> str:
        raise ConnectionError("away")

    path = recorded(lambda: book("trip"))
    told = why(path)["which_fallback"]
    said = "book failed (network), and buy was asked instead, an escalation from reversible to irreversible"
    assert said in told["text"]

    @traced_tool(name="dear", side_effect="read_only", max_cost_units=1, cost_units=lambda what: 2)
    def dear(what: str) -> str:
        return what

    def refused() -> None:
        with pytest.raises(ContractViolationError):
            dear("x")

    answers = why(recorded(refused))
    assert answers["which_fallback"]["text"].startswith("None")
    assert "1 call refused, the last one contract.violated dear" in answers["what_happened"]["text"]
    assert 2 in answers["what_happened"]["entries"]


def test_why_this_path() -> None:
    """Recorded decisions are named with their outcome; without any the answer says so."""
    path = recorded(lambda: tracekit.decision("route", input={"size": 3}, output="express"))
    told = why(path)["why_this_path"]
    assert "route → express" in told["text"]
    assert told["entries"] == [2]
    assert why(recorded(bill))["why_this_path"]["entries"] == []


def test_why_an_empty_run_is_no_replay() -> None:
    """A run in which nothing was captured is not said to be replayable."""
    assert why(recorded())["can_be_replayed"]["answer"] is False


# -- schema --------------------------------------------------------------------------------------------


def test_schema() -> None:
    """The schema that is printed is the published one, of draft 2020-12, under its public name."""
    printed = json.loads(call("schema").stdout)
    assert printed["$id"] == tracekit.SCHEMA_URI
    assert printed["$schema"].endswith("2020-12/schema")
