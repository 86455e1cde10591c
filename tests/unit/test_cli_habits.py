"""The command line teaches: help with examples, mistakes that are answered with what to do, Ctrl-C that is no answer."""

from __future__ import annotations

import io
import json
import os
import posix
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import tracekit
from tests.support.processes import python
from tracekit.cli import main, output


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), prog_name="tracekit")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one run, which the environment names."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    with tracekit.record("only"):
        tracekit.decision("turn", input=1, output="left")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("shwo", "did you mean show"),
        ("agent.py", "`tracekit run agent.py` records a program"),
        ("zzzzzz", "`tracekit --help` lists the commands"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_with_the_nearest(wrong: str, answer: str) -> None:
    """Exit code 2, and what was probably meant."""
    done = call(wrong)
    assert done.exit_code == 2
    assert answer in done.stderr


@pytest.mark.parametrize("command", ["show", "replay", "debug", "verify", "diff", "report", "text", "audit"])
def test_a_missing_run_is_asked_for_with_its_forms(command: str) -> None:
    """Who leaves RUN out learns of `last`, and of the command that lists the runs."""
    done = call(command)
    assert done.exit_code == 2
    assert "`last`" in done.stderr
    assert "`tracekit list`" in done.stderr


def test_a_directory_in_place_of_a_run(store: Path, tmp_path: Path) -> None:
    """It is said to be one; of a store, how to look into it."""
    (tmp_path / "empty").mkdir()
    for directory, answer in (("empty", "name the file of a trace in it"), ("store", "tracekit list --store")):
        for command in ("show", "verify", "text"):
            done = call(command, directory)
            assert done.exit_code == 2
            assert f"{directory} is a directory, not a run" in done.stderr
            assert answer in done.stderr


def test_a_file_that_is_no_trace(store: Path, tmp_path: Path) -> None:
    """It is broken, without a date or duration that nobody knows, and with exit code 1."""
    (tmp_path / "notes.txt").write_text("buy milk\n")
    for command in ("show", "audit", "verify"):
        done = call(command, "notes.txt")
        assert done.exit_code == 1
        assert "is not the first entry of a trace: this is another file" in done.stdout
        assert (done.output.count("another file"), done.stderr) == (2 if command == "audit" else 1, "")
        assert "1970" not in done.stdout
    done = call("failures", "notes.txt")
    assert done.exit_code == 1
    assert "No failure in what could be read." in done.stderr


def test_an_empty_store_says_how_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a directory without a store is not taken for one in which nothing failed."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "nothing"))
    done = call("show", "last")
    assert done.exit_code == 2
    assert "`tracekit run SCRIPT`" in done.stderr
    monkeypatch.delenv("TRACEKIT_DIR")
    monkeypatch.chdir(tmp_path)
    done = call("failures")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"There is no run in {tmp_path / '.tracekit'}." in done.stderr


def test_an_answer_without_a_run_says_why(store: Path, tmp_path: Path) -> None:
    """A filter that no run passes is not an empty store; the one names the command without it, the other how to record."""
    done = call("list", "--name", "nightly")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"No run in {store} matches; without these options, `tracekit list` shows all." in done.stderr
    (tmp_path / "other").mkdir()
    done = call("list", "--store", tmp_path / "other")
    assert "`tracekit run SCRIPT` records one" in done.stderr


def test_an_empty_store_has_no_run_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run is called, the answer names the command that records one, and how to name another store."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "nothing"))
    for run in ("last", "01a2"):
        done = call("show", run)
        assert done.exit_code == 2
        assert f"there is no run{'' if run == 'last' else f' {run!r}'} in {tmp_path / 'nothing'}" in done.stderr
        assert "`tracekit run SCRIPT` records one" in done.stderr


def test_a_file_that_does_not_exist_is_named_with_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script with the directory in which it was looked for; a subject of an estimate with the options for a history."""
    monkeypatch.chdir(tmp_path)
    done = call("run", "nope.py")
    assert done.exit_code == 2
    assert f"there is no script 'nope.py' in {tmp_path}" in done.stderr
    done = call("estimate", "nightly")
    assert done.exit_code == 2
    assert "nightly can't be read: No such file or directory" in done.stderr
    assert "--run-name" in done.stderr


def test_a_seal_without_a_key_says_where_keys_come_from(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, the variable, and the command that makes one."""
    monkeypatch.delenv("TRACEKIT_SEAL_KEY_FILE", raising=False)
    done = call("seal", "last")
    assert done.exit_code == 2
    for words in ("--key FILE", "TRACEKIT_SEAL_KEY_FILE", "`tracekit keygen FILE` makes one"):
        assert words in done.stderr


def test_the_run_before_the_only_one(store: Path) -> None:
    """``last~1`` of a store with one run: it is counted, and the list of runs named."""
    done = call("diff", "last~1", "last")
    assert done.exit_code == 2
    assert f"there is only one run in {store}" in done.stderr
    assert "`tracekit list`" in done.stderr


def test_what_may_not_be_read_is_a_message(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path and the reason on one line, exit code 2, and no traceback."""

    def refused(path: object) -> None:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(posix, "scandir", refused)
    done = call("list")
    assert done.exit_code == 2
    assert done.stderr == f"tracekit: {store / 'runs'}: Permission denied\n"


def test_a_run_that_may_not_be_read_is_listed_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has not died, as far as this user can know."""
    (path,) = (store / "runs").iterdir()
    really = open

    def refused(file: Any, *arguments: Any, **options: Any) -> Any:
        if os.fspath(file) == str(path):
            raise PermissionError(13, os.strerror(13), str(path))
        return really(file, *arguments, **options)

    def refused_too(file: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(file) == str(path):
            raise PermissionError(13, os.strerror(13), str(path))
        return opened(file, *arguments, **options)

    opened = posix.open
    monkeypatch.setattr("tracekit._journal.store.open_file", refused)
    monkeypatch.setattr(posix, "open", refused_too)
    (line,) = call("list", "--json", "--quick").stdout.splitlines()
    assert json.loads(line)["state"] == "unreadable"


def test_a_report_that_can_not_be_written(store: Path, tmp_path: Path) -> None:
    """The error names the file that was asked for, not one of tracekit's own."""
    done = call("report", "last", "-o", tmp_path / "nowhere" / "report.html")
    assert done.exit_code == 2
    assert "nowhere/report.html can't be written: No such file or directory" in done.stderr
    assert ".tmp" not in done.stderr


def test_a_directory_is_no_script(store: Path, tmp_path: Path) -> None:
    """``tracekit run DIRECTORY`` records nothing where Python would find nothing to run."""
    (tmp_path / "package").mkdir()
    done = call("run", tmp_path / "package")
    assert done.exit_code == 2
    assert "has no __main__.py" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["-c", "print(1)"], "write the code into a file"),
        (["python", "-c", "print(1)"], "write the code into a file"),
        (["-u", "a.py"], "python -u -m tracekit run"),
    ],
)
def test_an_option_of_python_is_no_script(store: Path, words: list[str], answer: str) -> None:
    """The answer is what works: an option goes before tracekit, and code on the command line into a file."""
    done = call("run", "--", *words)
    assert (done.exit_code, answer in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("command", [("list",), ("run", "agent.py"), ("replay", "last")])
def test_a_working_directory_that_was_removed(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command in a directory that was removed is a usage error with a next step, not a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        result = CliRunner().invoke(main, command)
    finally:
        os.chdir(tmp_path)
    assert result.exit_code == 2
    assert "the working directory does not exist any more; change to another one" in result.stderr


#: Files that are no trace, as they are named by mistake.
NO_TRACES: dict[str, bytes] = {
    "empty.jsonl": b"",
    "binary.jsonl": bytes(range(255, 0, -1)),
    "text.txt": b"to do: tea\n",
    "other.json": b'{"a": 1}\n',
    "cut.json": b'{"a": 1,\n',
    "list.json": b"[1]",
}
#: Every command that takes a file, and the exit codes with which it may answer one of these.
TAKING: dict[str, tuple[int, ...]] = {
    "show FILE": (1, 3),
    "show FILE --why": (1, 3),
    "show FILE --json": (1, 3),
    "verify FILE": (1, 3),
    "audit FILE": (1, 3),
    "text FILE": (0,),
    "report FILE -o page.html": (0, 1),
    "diff last FILE": (1,),
    "failures FILE": (0, 1),
    "replay FILE": (1, 2),
    "debug FILE": (1, 2),
    "verify-determinism FILE": (2,),
    "doctor --run FILE": (1, 2),
    "recovery resume FILE": (4,),
    "recovery settle FILE 1 --not-done --reason none": (1, 4),
    "recovery abort FILE --reason none": (1, 4),
    "seal FILE --key seal.key": (1, 2),
    "verify last --key FILE": (2,),
    "export FILE --to perfetto": (0, 1),
    "export FILE --to expanded": (0, 1),
    "export FILE --to inter-agent": (0, 1),
    "export FILE --to agentloom": (0, 1),
    "compress FILE": (2,),
    "executions trace FILE": (0, 1),
    "import vcr FILE": (2,),
    "import agentloom FILE": (2,),
    "import vcr other.json -o FILE": (2,),
    "estimate FILE": (2,),
    "route FILE --app nowhere:router": (2,),
    "demo --keep FILE": (2,),
    "list --store FILE": (2,),
    "in-doubt --store FILE": (2,),
    "prune --older-than 1d --store FILE": (2,),
    "keygen FILE": (2,),
}


@pytest.mark.parametrize("name", [*NO_TRACES, "directory", "missing.jsonl"])
def test_a_file_that_is_none_of_ours_is_told(store: Path, name: str) -> None:
    """Whatever is named in place of a trace, a key or an envelope: a message, no traceback, the documented exit code, and
    the file is as it was."""
    for file, content in NO_TRACES.items():
        Path(file).write_bytes(content)
    Path("directory").mkdir()
    assert call("keygen", "seal.key").exit_code == 0
    for command, codes in TAKING.items():
        if name in ("directory", "missing.jsonl") and codes != (2,):
            codes = (2,)
        if (command.split()[0], name) in (
            ("keygen", "missing.jsonl"),
            ("demo", "missing.jsonl"),
            ("demo", "directory"),
        ):
            continue  # as it should be
        if "--store FILE" in command and name == "directory":
            codes = (0, 2)
        if command.endswith("-o FILE") and (name.endswith(".jsonl") or name == "directory"):
            continue  # a name for the run
        done = call(*(name if one == "FILE" else one for one in command.split()))
        told = f"tracekit {command.replace('FILE', name)}: {done.output}"
        assert isinstance(done.exception, SystemExit | None), (told, done.exception)
        assert done.exit_code in codes, told
        assert done.output.strip(), told
        assert "Traceback" not in done.output, told
    assert {file: Path(file).read_bytes() for file in NO_TRACES} == NO_TRACES


def test_a_demo_on_no_provider() -> None:
    """An address that is none, or one beside the embedded server, is a usage error before anything is done."""
    assert "it as in http://" in call("demo", "--base-url", "nonsense").stderr
    assert "name one of them" in call("demo", "--embedded", "--base-url", "http://127.0.0.1:9").stderr


def test_interrupted_is_no_answer(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends any command with status 130: 1 would mean that a trace is damaged, or that something differs."""

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "readable", interrupted)
    for command in (("show", "last"), ("verify", "last"), ("diff", "last", "last"), ("executions", "trace", "last")):
        done = call(*command)
        assert done.exit_code == 130
        assert done.stderr == "interrupted\n"


def test_short_version() -> None:
    """``-V`` is ``--version``."""
    assert call("-V").stdout == call("--version").stdout != ""


def test_every_command_is_in_one_section_of_the_help() -> None:
    """``tracekit --help`` lists each command in exactly one section, by what it is for."""
    listed = [
        line.split()[0] for line in call("--help").stdout.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    for name in main.list_commands(click.Context(main)):
        assert listed.count(name) == 1, name


class Terminal(io.StringIO):
    """Standard error that is a terminal, and knows when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        found = super().write(text)
        if "verifying" in self.getvalue():
            self.written.set()
        return found


def test_what_takes_long_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, until it is over; what is quick says nothing, and neither does what goes into a pipe."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", quick := Terminal())
    with output.working("verifying", after=3600):
        pass
    assert quick.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", slow := Terminal())
    with output.working("verifying", after=0):
        assert slow.written.wait(60)
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with output.working("verifying", after=0):
        pass
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    "command",
    [
        ("show", "last"),
        ("text", "last"),
        ("diff", "last", "last"),
        ("audit", "last"),
        ("verify", "last"),
        ("seal", "last", "--key", "KEY"),
        ("report", "last", "-o", "-"),
        ("export", "last", "--to", "expanded", "-o", "out.jsonl"),
        ("failures", "last"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_read_a_whole_run_say_what_takes_long(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them says what it does while it lasts, and has done with that before it prints."""
    monkeypatch.chdir(tmp_path)
    with tracekit.record("long"):
        tracekit.decision("route", input=1, output=2)
    key = tmp_path / "seal.key"
    assert CliRunner().invoke(main, ["keygen", str(key)]).exit_code == 0
    said: list[str] = []
    open_now: list[str] = []

    @contextmanager
    def working(what: str, *, after: float = 2) -> Iterator[None]:
        said.append(what)
        open_now.append(what)
        yield
        open_now.remove(what)

    def echo(*values: object, **options: object) -> None:
        assert not open_now

    monkeypatch.setattr(output, "working", working)
    monkeypatch.setattr("click.echo", echo)
    CliRunner().invoke(main, [str(key) if word == "KEY" else word for word in command], catch_exceptions=False)
    assert said
    assert open_now == []


@pytest.mark.parametrize(
    "command", [("replay", "last"), ("regress",), ("verify-determinism", "last"), ("recovery", "resume", "last")]
)
def test_an_entry_without_a_function_is_refused_before_anything_runs(store: Path, command: tuple[str, ...]) -> None:
    """``--entry agent`` is a usage error that shows the form; the module would have run as a program."""
    done = CliRunner().invoke(main, [*command, "--entry", "agent"])
    assert done.exit_code == 2
    assert "write MODULE:FUNCTION, such as agent:main" in done.stderr


@pytest.mark.parametrize(
    ("file", "code", "answer"),
    [("empty", 3, "start it again, and delete the file"), ("other", 1, "or name the file of a trace")],
)
def test_show_of_a_file_without_an_entry_says_what_to_do(tmp_path: Path, file: str, code: int, answer: str) -> None:
    """The file is named, what is wrong with it, and what to do next."""
    path = tmp_path / f"{file}.jsonl"
    path.write_text("" if file == "empty" else "hello\nworld\n")
    done = call("show", path)
    assert done.exit_code == code
    assert path.name in done.stdout.splitlines()[0]
    assert answer in done.stdout.splitlines()[-1]


def test_show_of_a_damaged_run_says_what_to_do(store: Path, tmp_path: Path) -> None:
    """What verifies is shown; then the advice is not to trust the rest."""
    (path,) = (store / "runs").glob("*.jsonl")
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes().replace(b'"turn"', b'"tune"'))
    done = call("show", copy)
    assert done.exit_code == 1
    assert "take a copy that verifies" in done.stdout.splitlines()[-1]


def test_a_run_that_died_before_its_first_entry_is_a_failure(tmp_path: Path) -> None:
    """An empty file is never listed as a run without failures."""
    path = tmp_path / "empty.jsonl"
    path.touch()
    done = call("failures", path, "--json")
    (found,) = map(json.loads, done.stdout.splitlines())
    assert (found["run_id"], found["entry"], found["failure"]["type"]) == ("empty", 0, "agent_crashed")


@pytest.mark.parametrize("command", [["list"], ["failures"], ["serve"], ["prune", "--older-than", "1d"], ["in-doubt"]])
def test_a_store_is_neither_a_file_nor_an_empty_name(store: Path, tmp_path: Path, command: list[str]) -> None:
    """A trace in place of the store is told how to be named, and an unset variable is never the default store."""
    (path,) = (store / "runs").glob("*.jsonl")
    done = call(*command, "--store", path)
    assert done.exit_code == 2
    assert f"tracekit show {path}" in done.stderr
    done = call(*command, "--store", "")
    assert done.exit_code == 2
    assert "unset variable" in done.stderr


@pytest.mark.parametrize("command", [["list"], ["in-doubt"], ["recovery", "scan"]])
def test_a_run_in_place_of_a_store(store: Path, command: list[str]) -> None:
    """A command about all runs says so, and which one answers for a single run."""
    done = call(*command, "last")
    assert done.exit_code == 2
    assert "`tracekit show RUN --why`" in done.stderr


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_trace_is_no_program(store: Path, command: str) -> None:
    """Nothing is run: the commands for a trace are named."""
    (path,) = (store / "runs").glob("*.jsonl")
    done = call(command, path)
    assert done.exit_code == 2
    assert f"`tracekit replay {path}`" in done.stderr
    assert [*(store / "runs").glob("*.jsonl")] == [path]


@pytest.mark.parametrize(
    ("name", "answer"), [("", "name of the run is empty"), ("gone.jsonl", "no file gone.jsonl here")]
)
def test_a_run_that_can_not_be_named_so(store: Path, name: str, answer: str) -> None:
    """An unset variable, and a file that is not there, are told from an id that no run has."""
    done = call("show", name)
    assert done.exit_code == 2
    assert answer in done.stderr


@pytest.mark.parametrize("command", [["verify", "last"], ["list", "--json"], ["show", "last"]])
def test_an_output_that_can_not_be_written_is_no_answer(store: Path, command: list[str]) -> None:
    """A full disk behind the output is exit code 2 and one line, not the 1 of a damaged trace; a reader who left is no error."""
    code = f"import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from tracekit.cli import main; main({command!r})"
    done = python("-c", code)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    code = f"import os; r, w = os.pipe(); os.dup2(w, 1); os.close(w); os.close(r); from tracekit.cli import main; main({command!r})"
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["run", "agent.py"], ["replay", "last", "--live", "llm", "--", "agent.py"]])
def test_a_run_that_can_not_be_written_is_no_answer(store: Path, tmp_path: Path, command: list[str]) -> None:
    """The program does not begin, and exit code 2 says that nothing was judged."""
    (tmp_path / "agent.py").write_text(
        "import tracekit\ntracekit.decision('turn', input=1, output='left')\nprint('begun')\n"
    )
    done = python("-c", "import tracekit.cli; tracekit.cli.main(['run', 'agent.py'])", cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    runs = store / "runs"
    runs.rename(store / "elsewhere")
    shown = tmp_path / "shown.jsonl"
    shown.write_bytes(max((store / "elsewhere").glob("*.jsonl")).read_bytes())
    runs.touch()  # no directory, for root either
    command = [str(shown) if part == "last" else part for part in command]
    done = python("-c", f"import tracekit.cli; tracekit.cli.main({command!r})", cwd=tmp_path, fresh=True)
    assert (done.returncode, "begun" in done.stdout) == (2, False), done.stderr
    assert "can't be written" in done.stderr


@pytest.mark.parametrize("command", ["show last", "text last", "audit last", "show last 2", "diff last last", "--help"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_that_lacks_signs_gets_others(
    store: Path, monkeypatch: pytest.MonkeyPatch, command: str, encoding: str
) -> None:
    """Whatever the encoding of stdout, a trace can be shown: tracekit's own signs have plain ones in their place, and
    what was recorded is escaped."""
    with tracekit.record("größer als 日本"):
        tracekit.decision("Größe…", input="日本語", output="„a“ → 5 µs")
    into = io.BytesIO()
    stdout = io.TextIOWrapper(into, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as ended:
        main(command.split(), prog_name="tracekit")
    assert ended.value.code == 0
    stdout.flush()
    if command == "show last":
        printed = into.getvalue().decode(encoding)
        assert "\\u65e5\\u672c" in printed
        assert ("größer" in printed) is (encoding != "ascii")
