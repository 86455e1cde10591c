"""``list``, ``show``, ``verify`` and ``schema``: data on stdout, messages on stderr, exit codes that scripts can rely on."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import threading
import unicodedata
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import tracekit
from tests.support.processes import python
from tests.support.terminal import on_a_terminal
from tracekit import ContractViolationError, decision, errors, record, traced, traced_model, traced_tool
from tracekit.cli import main, output
from tracekit.integration import Request, Trace, perform

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
    listed = json.loads(call("list", "--json", "--limit", "1").stdout)
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
    """``--version`` prints the version of the package, and in which form its functions are."""
    said = call("--version").stdout
    assert re.fullmatch(rf"tracekit {re.escape(tracekit.__version__)} \(with(out)? its C extension\)\n", said)


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
    runs = [json.loads(line) for line in call("list", "--json").stdout.splitlines()]
    assert [run["end"] for run in runs] == ["run.failed", "run.completed", "run.completed"]
    assert [run["path"] for run in runs[1:]] == [second, first]
    assert len(call("list", "--json", "--limit", "2").stdout.splitlines()) == 2
    shown, status = on_a_terminal("list", columns=56)
    assert status == 0
    assert all(run["run_id"] in shown for run in runs)
    assert "failed" in shown
    assert "no room for age, took, entries (--json)" in shown
    assert max(map(len, shown.splitlines())) <= 56


def listed(*options: str) -> list[dict[str, Any]]:
    done = call("list", "--json", *options)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_list_says_how_each_run_stands(tmp_path: Path) -> None:
    """Complete, failed, running while its process has it open, and died when that is gone: with age, duration and what it took."""
    recorded(bill)
    with pytest.raises(ValueError, match="negative"):
        recorded(lambda: charge(-1))
    killed(tmp_path)
    with record("open"):
        text = call("list").stdout
        assert [run["state"] for run in listed()] == ["running", "died", "failed", "complete"]
        assert [run["name"] for run in listed("--state", "died", "--state", "running")] == ["open", "rocket"]
    heads, *lines = text.splitlines()
    assert heads.split() == ["run", "name", "state", "age", "took", "entries"]
    assert [line.split()[1:3] for line in lines] == [
        ["open", "running"], ["rocket", "died"], ["billing", "failed"], ["billing", "complete"],
    ]  # fmt: skip
    assert [run["name"] for run in listed("--name", "r*", "--name", "open")] == ["open", "rocket"]
    assert listed("--before", "1h") == listed("--since", "2999-01-01") == []
    assert len(listed("--since", "1h")) == 4


def spend(tokens: int, usd: float) -> None:
    took = {"usage": {"input_tokens": tokens, "output_tokens": 1}, "cost_usd": usd}
    perform(Request.of("llm", "m", {"prompt": "?"}, side_effect="read_only"), lambda: "!", lambda _: took)


def test_list_has_what_runs_cost_and_can_be_sorted() -> None:
    """Tokens and dollars of the model calls, as the log has them; the dearest, longest, largest first."""
    for name, tokens, usd in (("cheap", 10, 0.001), ("dear", 30, 2.5), ("free", 0, 0.0)):
        with record(name):
            if tokens:
                spend(tokens, usd)
    assert {run["name"]: (run["calls"], run["input_tokens"], run["cost_usd"]) for run in listed()} == {
        "cheap": (1, 10, 0.001), "dear": (1, 30, 2.5), "free": (0, 0, 0.0),
    }  # fmt: skip
    assert [run["name"] for run in listed("--sort", "cost")] == ["dear", "cheap", "free"]
    assert [run["name"] for run in listed("--sort", "tokens", "--reverse")] == ["free", "cheap", "dear"]
    assert [run["name"] for run in listed("--sort", "name")] == ["cheap", "dear", "free"]
    assert "$2.50" in call("list").stdout
    assert "cost" not in call("list", "--quick").stdout
    assert call("list", "--quick", "--sort", "cost").exit_code == 2


# -- verify --------------------------------------------------------------------------------------------


def test_verify_a_sealed_run() -> None:
    """A run that ended cleanly is complete: exit code 0, by path, id, beginning of the id, and ``last``."""
    path = recorded(bill)
    run_id = Path(path).stem
    for name in (path, run_id, run_id[:13], "last"):
        done = call("verify", "--json", name)
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
    done = call("verify", "--json", str(copy))
    told = json.loads(done.stdout)
    assert (done.exit_code, told["state"], told["line"], told["last_good_seq"]) == (1, "broken", 3, 2)


def test_verify_an_unsealed_run(tmp_path: Path) -> None:
    """A run without an end and a torn last line are exit code 3, never 0."""
    cut = without_last_line(recorded(bill), tmp_path / "cut.jsonl")
    assert call("verify", cut).exit_code == 3
    Path(cut).write_bytes(Path(cut).read_bytes()[:-5])
    done = call("verify", "--json", cut)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["torn_bytes"] > 0
    assert call("verify", killed(tmp_path)).exit_code == 3


def test_verify_against_a_kept_tip_hash(tmp_path: Path) -> None:
    """A tip hash that was kept in another place detects a run that was cut or rewritten with a chain that holds."""
    path = recorded(bill)
    head = json.loads(call("verify", "--json", path).stdout)["head"]
    cut = without_last_line(path, tmp_path / "cut.jsonl")
    assert call("verify", cut, "--head", head).exit_code == 1


def test_verify_against_the_schema() -> None:
    """``--schema`` checks each entry; what tracekit writes keeps to it."""
    done = call("verify", "--json", recorded(bill), "--schema")
    assert (done.exit_code, json.loads(done.stdout)["schema"], done.stderr) == (0, [], "")


# -- show ----------------------------------------------------------------------------------------------


def test_show_prints_the_entries() -> None:
    """With ``--json`` each entry is a line as it stands in the file; ``--from`` begins later."""
    path = recorded(bill)
    done = call("show", "--json", path)
    assert done.exit_code == 0
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert entries == [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    assert json.loads(call("show", "--json", path, "--from", str(len(entries))).stdout) == entries[-1]


def test_show_can_expand() -> None:
    """``--expand`` puts values in place of references."""
    path = recorded(lambda: look("A-1" * 1000))
    assert "$ref" in call("show", "--json", path).stdout
    expanded = [json.loads(line) for line in call("show", "--json", path, "--expand").stdout.splitlines()]
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
    """A tree that is cut says which command shows the rest; without a limit it is whole."""
    path = recorded(bill)
    shown, _ = on_a_terminal("show", path, "--limit", "2")
    assert "--from" in shown
    assert "charge" not in shown
    assert "charge" in call("show", path).stdout


def test_show_is_text_in_a_pipe() -> None:
    """Whoever pipes it into less or grep reads text, one line a step, without escapes; JSON is asked for."""
    done = call("show", recorded(bill))
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "charge(" in line]
    assert "charge(cents=500)" in line
    assert "→ 500" in line
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout.splitlines()[0])


def test_lines_fit_the_terminal() -> None:
    """However long arguments and results are, a step is one line."""
    shown, _ = on_a_terminal("show", recorded(lambda: look("A" * 5000), bill), columns=70)
    steps = [line for line in shown.splitlines() if "look(" in line or "charge(" in line]
    assert len(steps) == 3
    assert max(map(len, steps)) <= 70
    assert all("µs" in line or "ms" in line or "…" in line for line in steps)


@traced_model(model="gpt-x")
def ask(messages: list[Any], tools: list[Any], temperature: float = 0.0) -> Any:
    return {
        "choices": [
            {
                "message": {
                    "content": "Let me look.",
                    "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"order_id": "A-1"}'}}],
                }
            }
        ]
    }


TOOLS = [{"type": "function", "function": {"name": "look"}}]


def conversation() -> None:
    """Two turns of one conversation, the second one with another temperature and one message changed."""
    messages = [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": "Where is A-1?"}]
    ask(messages, TOOLS)
    now = datetime.now()
    messages = [
        {"role": "system", "content": "Be brief.\nBe exact."},
        *messages[1:],
        {"role": "assistant", "content": "Hm."},
    ]
    ask(messages, [], temperature=0.5)
    assert now


def test_show_says_what_a_model_asked_for() -> None:
    """The tools that it requested with their arguments, beside the text that it was asked and gave."""
    done = call("show", recorded(conversation))
    first, second = (line for line in done.stdout.splitlines() if "gpt-x" in line)
    assert "“Where is A-1?”" in first
    assert "asks for look(order_id=A-1)" in first
    assert "Hm." in second


@traced_model(model="gpt-y")
def ask_for_many(messages: list[Any]) -> Any:
    names = ["look", "look", "look", "reserve"]
    calls = [
        {"id": f"c{n}", "function": {"name": name, "arguments": json.dumps({"order_id": "A" * 30 + str(n)})}}
        for n, name in enumerate(names)
    ]
    return {"choices": [{"message": {"content": None, "tool_calls": calls}}]}


def test_all_tools_that_a_model_asked_for_are_named() -> None:
    """Where their arguments don't fit, their names do; the step itself has the arguments."""
    path = recorded(lambda: ask_for_many([{"role": "user", "content": "Where are they?"}]))
    (line,) = (one for one in call("show", path).stdout.splitlines() if "gpt-y" in one)
    assert "asks for look (3 times), reserve" in line
    assert call("show", path, line.split()[0]).stdout.count("asks for look(order_id=") == 3


def test_the_first_line_fits_the_terminal() -> None:
    """In a narrow one its figures are on a second line."""
    path = recorded(conversation)
    shown, _ = on_a_terminal("show", path, columns=80)
    lines = shown.splitlines()
    assert max(map(len, lines[:2])) <= 80, lines
    assert "complete" in lines[0]
    assert "2 model calls" in lines[1]


def test_clocks_and_bookkeeping_are_shown_on_request() -> None:
    """A clock read is no line of the tree until it is asked for, and the tree says how many such entries there are."""
    path = recorded(conversation)
    assert "datetime.now" not in call("show", path).stdout
    assert "bookkeeping (--all)" in call("show", path).stdout
    for options in (["--all"], ["--kind", "clock"]):
        assert "datetime.now" in call("show", path, *options).stdout


def numbered(text: str) -> list[str]:
    """The numbers of the steps in a tree."""
    return re.findall(r"^[│├└─ ]*(\d+) ", text, re.MULTILINE)


def test_one_step_is_shown_whole() -> None:
    """A model call with its prompt as messages, and what changed since the previous turn; a tool with all of its values."""
    path = recorded(conversation, lambda: look("A" * 5000))
    first, second, tool = numbered(call("show", path).stdout)
    begins = call("show", path, first).stdout
    for text in (
        "no turn before it",
        "system",
        "Be kind.",
        "tools: look",
        "asks for look(order_id=A-1)",
        "Let me look.",
    ):
        assert text in begins
    shown = call("show", path, second).stdout
    assert f"since step {first}: 1 added; 1 changed; tools -look; temperature 0.0 -> 0.5" in shown
    assert "-Be kind." in shown
    assert "+Be exact." in shown
    assert "+ assistant" in shown
    assert "A" * 5000 in call("show", path, tool).stdout.replace("\n", "")
    entries = [json.loads(line) for line in call("show", path, second, "--json").stdout.splitlines()]
    assert [entry["type"] for entry in entries] == ["llm.request", "llm.response"]
    assert call("show", path, "9999").exit_code == 2


def test_show_can_be_narrowed() -> None:
    """By kind, lane, agent, and by what failed; in JSON too."""

    def crew() -> None:
        with tracekit.agent("buyer"):
            reserve("X")
        decision("route", input=1, output="express")
        with suppress(ValueError):
            charge(-1)
        thread = threading.Thread(target=look, args=("A-7",), name="finder")
        thread.start()
        thread.join()

    path = recorded(crew)

    def names(*options: str) -> set[str]:
        text = call("show", path, *options).stdout
        return {name for name in ("reserve", "route", "charge", "look") if re.search(rf" {name}\b", text)}

    assert names() == {"reserve", "route", "charge", "look"}
    assert names("--kind", "tool") == {"reserve", "charge", "look"}
    assert names("--kind", "decision") == {"route"}
    assert names("--kind", "error") == names("--failed") == {"charge"}
    assert names("--agent", "buyer") == {"reserve"}
    with Trace(path) as trace:
        lane = next(entry["input"]["name"] for entry in trace.entries() if entry["type"] == "lane")
    assert names("--lane", f"{lane}#1") == names("--lane", lane) == {"look"}
    assert names("--lane", "0", "--kind", "tool") == {"reserve", "charge"}
    entries = [json.loads(line) for line in call("show", path, "--failed", "--json").stdout.splitlines()]
    assert [entry["type"] for entry in entries] == ["tool.call", "tool.error"]


def test_a_limit_is_one_of_steps() -> None:
    """At most so many steps are shown, of whatever a filter leaves, with how many more there are; in JSON with all their entries."""

    def crew() -> None:
        for cents in (1, -1, 2, -2, 3):
            with suppress(ValueError):
                charge(cents)
            look("A-7")

    path = recorded(crew)

    def shown(*options: str) -> list[str]:
        return re.findall(r"(?:charge|look)\(.*?\)|\d+ more", call("show", path, *options).stdout)

    look_up = "look(order_id=A-7)"
    assert shown("--limit", "3") == ["charge(cents=1)", look_up, "charge(cents=-1)", "7 more"]
    assert shown("--limit", "1", "--failed") == ["charge(cents=-1)", "1 more"]
    assert shown("--limit", "1", "--from", "8", "--kind", "tool") == [look_up, "6 more"]
    for options, steps in (("", 2), ("--failed", 2), ("--kind tool", 2), ("--kind error", 2), ("--lane 1", 0)):
        lines = call("show", path, "--json", "--limit", "2", *options.split()).stdout.splitlines()
        assert len({entry.get("step", entry["seq"]) for entry in map(json.loads, lines)}) == steps
        assert len(lines) == 2 * steps


def test_a_filter_that_matches_nothing_names_what_there_is() -> None:
    """A misspelled kind, lane or agent is answered with those of the run; with --failed, that nothing failed."""

    def crew() -> None:
        with tracekit.agent("buyer"):
            reserve("X")
        look("A-7")

    path = recorded(crew)
    assert "no step matches; kinds of this run: tool (2)" in call("show", path, "--kind", "tools").stdout
    assert "no step matches; agents: buyer" in call("show", path, "--agent", "byuer").stdout
    assert "no step matches; lanes: 0" in call("show", path, "--lane", "worker").stdout
    assert "no step failed, was cut off or is in doubt\n" in call("show", path, "--failed").stdout


def test_a_value_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like an emoji's name or like a style is neither: in the line of a step, its arguments and its result."""
    text = "a :x: b :fire: [bold]c[/bold] [/]"
    monkeypatch.setenv("COLUMNS", "200")
    assert call("show", recorded(lambda: look(text)), "2").stdout.count(text) == 4


def test_a_failed_step_is_shown_with_the_line_that_raised() -> None:
    """The recorded traceback is listed, without tracekit's own frames."""
    with pytest.raises(ValueError, match="negative"):
        recorded(lambda: charge(-1))
    (number,) = numbered(call("show", "last", "--failed").stdout)
    shown = call("show", "last", number).stdout
    assert re.search(r'at  .*test_cli_traces\.py:\d+ in charge: raise ValueError\("a negative charge"\)', shown)
    assert f"{os.sep}_capture{os.sep}" not in shown


LIVE = """
import sys
from tracekit import record, traced_tool
@traced_tool(side_effect="read_only")
def look(order): return order
with record("live", run_id="live"):
    look("A-1")
    print("begun", flush=True)
    sys.stdin.readline()
    look("A-2")
"""


def test_a_live_run_is_followed_until_its_end(tmp_path: Path) -> None:
    """Each step is printed when it ends, and the command ends with the run; of a process that is gone it says so."""
    (tmp_path / "live.py").write_text(LIVE)
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    follow = [sys.executable, "-c", "from tracekit.cli import main; main()", "show", "live", "--follow"]
    with subprocess.Popen([sys.executable, str(tmp_path / "live.py")], **piped) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "begun\n"
        assert "running" in call("show", "live").stdout
        with subprocess.Popen(follow, **piped) as followed:
            assert followed.stdout is not None
            assert "look(order=A-1)" in followed.stdout.readline()
            program.stdin.write("\n")
            program.stdin.close()
            rest = followed.stdout.read()
    assert "look(order=A-2)" in rest
    assert rest.splitlines()[-1] == "run.completed"
    assert (followed.returncode, program.returncode) == (0, 0)
    gone = call("show", without_last_line(call_path("live"), tmp_path / "gone.jsonl"), "--follow")
    assert gone.exit_code == 3
    assert "is gone" in gone.stderr


def call_path(run: str) -> str:
    return str(Path(os.environ["TRACEKIT_DIR"]) / "runs" / f"{run}.jsonl")


def test_colors_in_a_pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """less is told to show them; a pager that may print their codes gets plain text; with NO_COLOR there are none."""
    for pager in ("less", "other"):
        (tmp_path / pager).write_text("#!/bin/sh\necho LESS=$LESS\nexec cat\n")
        (tmp_path / pager).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("LESS", "PAGER", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path, red = recorded(bill), re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    shown, _ = on_a_terminal("show", path, lines=3)
    assert shown.startswith("LESS=-R\n")
    assert red.search(shown)
    monkeypatch.setenv("NO_COLOR", "1")
    shown, _ = on_a_terminal("show", path, lines=3)
    assert shown.startswith("LESS=-R\n")
    assert not red.search(shown)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("PAGER", "other")
    shown, _ = on_a_terminal("show", path, lines=3)
    assert shown.startswith("LESS=\n")
    assert "\x1b" not in shown


def test_show_of_a_broken_or_unsealed_run(tmp_path: Path) -> None:
    """What verifies is shown, the problem once, with what to do, and the exit code says 1 or 3."""
    path = recorded(bill)
    cut = without_last_line(path, tmp_path / "cut.jsonl")
    done = call("show", "--json", cut)
    assert done.exit_code == 3
    assert "incomplete" in done.stderr
    done = call("show", cut)
    assert (done.output.count("has no end"), done.stderr) == (1, "")
    assert f"next:  `tracekit recovery resume {cut} --check` says" in done.stdout
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(cut).write_bytes(b"".join(lines[:3] + lines[4:]))
    done = call("show", "--json", cut)
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, 3)
    assert "line 4" in done.stderr
    done = call("show", cut)
    assert (done.output.count("line 4"), done.stderr) == (1, "")


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
    ["show"], ["show", "--all"], ["show", "--why"], ["show", "--expand"], ["in-doubt"],
    ["list"], ["failures"], ["verify"], ["recovery", "scan", "--all"],
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
    told: dict[str, Any] = json.loads(call("show", path, "--why", "--json").stdout)
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
    piped = call("show", path, "--why").stdout
    assert piped.splitlines() == [line.rstrip() for line in piped.splitlines()]
    shown, status = on_a_terminal("show", path, "--why")
    assert status == 0
    assert [line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")] == [
        "what happened", "why this path", "which fallback", "safe to retry", "can be replayed"
    ]  # fmt: skip
    asked = re.findall(r"<summary>(.+?)\?</summary><p>(.+?)</p>", call("report", path, "-o", "-").stdout)
    assert [one for one, _ in asked] == ["What happened", "Why this path", "Which fallback"]
    assert [html.unescape(text) for _, text in asked] == [
        told[one.lower().replace(" ", "_")]["text"] for one, _ in asked
    ]


def test_why_a_run_can_be_retried() -> None:
    """Only reading: yes. Reversible: nobody knows. Irreversible and done, failed, or in doubt: no, naming the step's entry."""
    reads = why(recorded(lambda: look("A-1")))["safe_to_retry"]
    assert reads["answer"] is True
    assert "only reads" in reads["text"]
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
    said = "book failed (network), and buy was called instead, an escalation from reversible to irreversible"
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


def test_why_this_path_names_what_the_model_asked_for() -> None:
    """A tool that a model asked for is named, whether or not the function that the program runs for it is a traced tool."""
    path = recorded(conversation)
    told = why(path)["why_this_path"]
    assert told["text"] == "The model chose the tools: entry 2 asked for look; 5 asked for look."
    assert told["entries"] == [2, 5]
    turning = why(recorded(*[conversation] * 3))["why_this_path"]
    assert turning["text"].endswith("and 2 more did; in all look (6 times).")
    assert why(recorded(lambda: ask([], TOOLS), bill))["why_this_path"]["entries"] == [2]


def test_why_an_empty_run_is_no_replay() -> None:
    """A run in which nothing was captured is not said to be replayable."""
    assert why(recorded())["can_be_replayed"]["answer"] is False


# -- schema --------------------------------------------------------------------------------------------


def test_schema() -> None:
    """The schema that is printed is the published one, of draft 2020-12, under its public name."""
    printed = json.loads(call("schema").stdout)
    assert printed["$id"] == tracekit.SCHEMA_URI
    assert printed["$schema"].endswith("2020-12/schema")
