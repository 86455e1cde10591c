"""``tracekit failures``: what went wrong over many runs, on stdout as JSON lines, for people as a table."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tracekit
from tests.support.processes import python
from tests.support.terminal import on_a_terminal
from tracekit import agent, record, recorded_failures, recovery, replay, traced_tool
from tracekit.cli import main
from tracekit.errors import RunNotFoundError, TraceIntegrityError
from tracekit.integration import Store


@traced_tool(side_effect="read_only")
def search(query: str) -> str:
    if query == "slow":
        raise TimeoutError("no answer")
    if query == "gone":
        raise ConnectionRefusedError("nobody there")
    return query


@traced_tool(side_effect="read_only")
def hear(text: str) -> None:
    raise ConnectionError(text)


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> int:
    if cents < 0:
        raise ValueError("a negative payment")
    return cents


def run(*queries: str, cents: int | None = None, who: str = "scout") -> str:
    """A run in which a program goes on after its failures."""
    with record("shop") as made, agent(who):
        for query in queries:
            try:
                search(query)
            except OSError:
                pass
        if cents is not None:
            try:
                pay(cents)
            except ValueError:
                pass
    return made.id


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["failures", *arguments])


def found(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = call("--json", *arguments)
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_line_is_wider_than_a_narrow_terminal() -> None:
    """A reason that has no room behind its columns is in a line of its own; columns without room are left out and named."""
    reason = " ".join(f"word{number:02}" for number in range(40))
    with record("shop") as made, suppress(ConnectionError):
        hear(reason)
    for columns, left_out in ((100, ""), (60, "strategy")):
        shown, status = on_a_terminal("failures", columns=columns)
        lines = shown.splitlines()
        assert status == 0
        assert max(map(len, lines)) <= columns
        assert [line.split()[0] for line in lines[:3]] == ["run", "reason", made.id]
        assert lines[3][: columns - 4] == f"  {reason}"[: columns - 4]
        assert lines[4:] == ([f"no room for {left_out} (--json)"] if left_out else [])
    shown, _ = on_a_terminal("failures", columns=56)
    assert shown.splitlines()[-1] == "no room for name, strategy (--json)"


def test_a_reason_is_as_long_as_the_line_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wide terminal a long reason is whole; in a narrow one so much of it is left that it says something."""
    reason = " ".join(f"word{number:02}" for number in range(40))
    with record("shop"), suppress(ConnectionError):
        hear(reason)
    monkeypatch.setenv("COLUMNS", "500")
    assert reason in call().stdout
    monkeypatch.setenv("COLUMNS", "30")
    assert f"{reason[:65]}" in call().stdout
    assert reason[:95] not in call().stdout


def types(*arguments: str) -> list[str]:
    return [each["failure"]["type"] for each in found(*arguments)]


@pytest.fixture
def shop() -> list[str]:
    """Four runs, the oldest first: one in order, then a timeout, two network errors, a payment in doubt."""
    return [run("fine"), run("slow"), run("gone", "fine", "gone", who="buyer"), run(cents=-1)]


def test_every_run_of_the_store_is_read_the_newest_first(shop: list[str]) -> None:
    """JSON lines with run, step, name, agent and the whole failure; a run without a failure has none."""
    lines = found()
    assert [line["run_id"] for line in lines] == [shop[3], shop[2], shop[2], shop[1]]
    assert [line["failure"]["type"] for line in lines] == ["irreversible_step_failed", "network", "network", "timeout"]
    last = lines[-1]
    assert (last["name"], last["agent"], last["family"], last["at"]) == ("search", "scout", "tool", "tool.error")
    assert last["failure"]["run_id"] == last["run_id"]
    assert last["failure"]["step"] == last["step"] == last["entry"] - 1


def test_what_is_asked_for(shop: list[str]) -> None:
    """By run, type, tool, agent, strategy, whether there is a way out, and time; all together."""
    assert types(shop[1]) == ["timeout"]
    assert types(shop[2], shop[1]) == ["network", "network", "timeout"]
    assert types("last") == ["irreversible_step_failed"]
    assert types("--type", "network") == ["network"] * 2
    assert types("--type", "agent_error") == ["irreversible_step_failed"]  # what the payment failed by
    assert types("--tool", "pay") == ["irreversible_step_failed"]
    assert types("--agent", "buyer") == ["network"] * 2
    assert types("--recoverable") == ["network", "network", "timeout"]
    assert types("--not-recoverable") == ["irreversible_step_failed"]
    assert types("--strategy", "retry") == ["timeout"]
    assert len(found("--since", "1h")) == 4
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert found("--since", tomorrow.isoformat()) == []
    assert len(found("--since", "2020-01-01")) == 4
    assert types("--type", "network", "--tool", "pay") == []


def test_wrong_use_is_said(shop: list[str]) -> None:
    """An unknown type, strategy, time or run: exit code 2, and what there is instead."""
    for arguments in (["--type", "tired"], ["--strategy", "pray"], ["--since", "yesterday"], ["no-such-run"]):
        done = call(*arguments)
        assert done.exit_code == 2, arguments
        assert arguments[-1] in done.stderr
    with pytest.raises(RunNotFoundError):
        list(recorded_failures("no-such-run"))


def test_a_broken_trace_hides_no_other(shop: list[str]) -> None:
    """It is told on stderr and read as far as it verifies; all others are read; the exit code is 1."""
    path = Path(Store().path(shop[2]))
    lines = path.read_bytes().splitlines(keepends=True)
    broken = next(number for number, line in enumerate(lines) if b'"fine"' in line)
    lines[broken] = lines[broken].replace(b'"fine"', b'"fake"')
    path.write_bytes(b"".join(lines))
    done = call("--json")
    assert done.exit_code == 1
    assert [json.loads(line)["failure"]["type"] for line in done.stdout.splitlines()] == [
        "irreversible_step_failed", "network", "timeout",
    ]  # fmt: skip
    assert f"line {broken + 1}" in done.stderr
    assert shop[2] in done.stderr
    told = []
    with pytest.raises(TraceIntegrityError):
        told += list(recorded_failures())
    damage: list[Exception] = []
    assert len(list(recorded_failures(on_damage=damage.append))) == 3
    assert [type(error) for error in damage] == [TraceIntegrityError]


def test_a_trace_without_its_failure_is_not_one_without_failures() -> None:
    """A run from which the line of its only failure was taken, or in which it is a junk line, is reported as damaged, by
    its id, its path and in a list of all runs: never as a run in which nothing failed."""
    run_id = run("slow")
    path = Path(Store().path(run_id))
    lines = path.read_bytes().splitlines(keepends=True)
    [failed] = [number for number, line in enumerate(lines) if b'"error":{' in line]
    for instead in ([], [b"junk\n"]):
        path.write_bytes(b"".join([*lines[:failed], *instead, *lines[failed + 1 :]]))
        for arguments in ([], [run_id], [str(path)]):
            done = call(*arguments)
            assert (done.exit_code, done.stdout) == (1, ""), arguments
            assert f"line {failed + 1}" in done.stderr


def rewritten(run_id: str, change: Any) -> None:
    """The run's file with ``change`` applied to each entry, chained anew: as an older or another writer left it."""
    from hashlib import sha256

    import orjson

    path = Path(Store().path(run_id))
    head, out = b"0" * 64, []
    for line in path.read_bytes().splitlines():
        entry = orjson.loads(line)
        del entry["hash"]
        change(entry)
        text = orjson.dumps(entry)[:-1]
        head = sha256(head + text).hexdigest().encode()
        out.append(text + b',"hash":"' + head + b'"}\n')
    path.write_bytes(b"".join(out))
    (Path(Store().tips) / run_id).unlink()


def test_a_trace_without_recorded_failures_is_classified(shop: list[str]) -> None:
    """Runs of an older writer hold the exceptions alone; the answer is the same."""
    before = found()
    for run_id in shop:
        rewritten(run_id, lambda entry: entry.get("meta", {}).pop("failure", None))
    after = found()
    for each in (*before, *after):
        del each["failure"]["exception"], each["entry"]
    assert after == before


@pytest.mark.parametrize("told", [{"type": "tired", "reason": "x"}, [], 5, {"type": "timeout"}])
def test_a_recorded_failure_that_makes_no_sense_is_passed_over(told: Any) -> None:
    """A trace is not trusted: what it says of a failure is read, or worked out from the exception."""
    run_id = run("gone")

    def change(entry: dict[str, Any]) -> None:
        if "failure" in entry.get("meta", {}):
            entry["meta"]["failure"] = told

    rewritten(run_id, change)
    assert types() == ["network"]
    Path(Store().path(run_id)).unlink()  # no other test is to take it for a trace of ours


def test_a_run_that_died_is_a_crash(tmp_path: Path) -> None:
    """A run without an end that nobody writes any more: agent_crashed, with the steps that are in doubt; a live one is none."""
    with record("live"):
        search("fine")
        assert found() == []
    program = tmp_path / "dies.py"
    program.write_text(
        "import os, signal, tracekit\n"
        "@tracekit.traced_tool(side_effect='irreversible')\n"
        "def pay():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with tracekit.record('dies'):\n"
        "    pay()\n"
    )
    assert python(str(program)).returncode == -9
    (crash,) = found()
    assert crash["failure"]["type"] == "agent_crashed"
    assert crash["failure"]["recovery_strategy"] == "manual_intervention"
    assert (crash["name"], crash["family"]) == ("pay", "run")
    assert crash["failure"]["details"]["in_doubt"] == [crash["step"]]
    assert crash["failure"]["reason"] == "the run has no end, and step 2 no outcome: it may have taken effect"


LOSES = """
import os, sys, tracekit

@tracekit.traced_tool(side_effect="irreversible")
def pay(order):
    raise ConnectionResetError("the bank went away")

with tracekit.record("shop"):
    for order in ("o-1", "o-2"):
        try:
            pay(order)
        except ConnectionResetError:
            pass
    if sys.argv[1] == "dies":
        os._exit(1)
"""


@pytest.mark.parametrize("how", ["ends", "dies"])
def test_a_failure_that_a_person_has_settled_says_so(how: str, tmp_path: Path) -> None:
    """What a person has found out about a failed step is listed with it, whether its run ended or died; others stay open."""
    program = tmp_path / "loses.py"
    program.write_text(LOSES)
    assert python(str(program), how).returncode == (how == "dies")
    first, second = (one.step for one in recorded_failures(tool="pay", settled=False))
    (run_id,) = {one.run_id for one in recorded_failures()}
    assert call("--settled").stderr == "No failure.\n"
    assert type(first) is int
    recovery.settle(run_id, first, not_done=True, reason="the bank says no", by="ann")
    (settled,) = found("--settled", "--tool", "pay")
    assert settled["step"] == first
    assert (settled["settled"]["done"], settled["settled"]["by"]) == (False, "ann")
    assert settled["settled"]["reason"] == "the bank says no"
    assert [one["step"] for one in found("--not-settled", "--tool", "pay")] == [second]
    table = call("--tool", "pay").stdout
    assert table.count("irreversible_step_failed  settled: not done ") == 1
    assert table.count("irreversible_step_failed  manual_intervention ") == 1


def table_of(*arguments: str) -> str:
    text, status = on_a_terminal("failures", *arguments, columns=200)
    assert status == 0
    return text


def test_a_table_for_people(shop: list[str]) -> None:
    """One line a failure, with its run, step, type and strategy; nothing found is said."""
    table = table_of().splitlines()
    assert table[0].split() == ["run", "step", "name", "type", "strategy", "reason"]
    assert len(table) == 5
    assert shop[3] in table[1]
    for word in ("pay", "irreversible_step_failed", "manual_intervention", "ValueError: a negative payment"):
        assert word in table[1]
    assert table_of("--type", "no_agent_found").strip() == "No failure."
    piped = call().stdout.splitlines()
    assert len(piped) == 5
    assert piped == [line.rstrip() for line in piped]
    with pytest.raises(ValueError, match="negative"), record("ends", run_id="ends"):
        pay(-1)  # the end of the run has the same failure
    assert (len(found("ends")), len(call("ends").stdout.splitlines()[1:])) == (2, 1)


def test_a_hostile_name_does_not_reach_the_terminal() -> None:
    """Control characters of a trace are not passed on."""

    @traced_tool(side_effect="read_only", name="x\x1b[2Jy")
    def tool() -> None:
        raise ValueError("z\x1b[2Jz")

    with pytest.raises(ValueError, match="z"), record():
        tool()
    assert "\x1b[2J" not in table_of()


calls: list[str] = []


@traced_tool(side_effect="read_only")
def nearby(query: str) -> str:
    calls.append("nearby")
    raise ConnectionRefusedError("nobody there either")


@traced_tool(side_effect="read_only", fallback=(nearby,), max_retries=1)
def far(query: str) -> str:
    calls.append("far")
    raise TimeoutError("no answer")


@traced_tool(side_effect="irreversible", idempotent_required=True, idempotency_key=lambda item: None)
def order(item: str) -> None:
    calls.append("order")


def test_refused_calls_retries_and_fallbacks_are_failures() -> None:
    """Each attempt, the fallback's own failure, that nothing is left, and the call that a contract forbids; replay calls nothing."""

    def program() -> None:
        for tool in (far, order):
            try:
                tool("owls")
            except (TimeoutError, tracekit.ContractViolationError):
                pass

    calls.clear()
    with record("contracts") as made:
        program()
    assert calls == ["far", "far", "nearby"]
    told = [(line["failure"]["type"], line["name"], line["at"]) for line in found(made.id)]
    assert told == [
        ("timeout", "far", "tool.error"),
        ("timeout", "far", "tool.error"),
        ("network", "nearby", "tool.error"),
        ("fallback_exhausted", "far", "fallback.exhausted"),
        ("contract_violation", "order", "contract.violated"),
    ]
    assert types("--tool", "order") == ["contract_violation"]
    with replay(made.id) as session:
        program()
    assert session.report.exact
    assert calls == ["far", "far", "nearby"]


def test_a_request_that_no_agent_takes_is_a_failure() -> None:
    """What routing says stands in the answer's entry, and is listed with the intent's name."""
    from tracekit.agents import AgentRegistry, IntentRouter

    with record("routing"):
        answer = IntentRouter(AgentRegistry()).route({"intent": "book.table"})
    assert answer.status == "error"
    assert [(line["failure"]["type"], line["name"]) for line in found()] == [("no_agent_found", "book.table")]


def test_the_store_is_named(tmp_path: Path) -> None:
    """``tracekit failures --store`` and ``recorded_failures(store=…)`` list the failures of that store, and not of the usual one."""
    with pytest.raises(TimeoutError), record(store=tmp_path / "other"):
        search("slow")
    (tmp_path / ".tracekit").mkdir()
    assert found() == []
    assert len(found("--store", str(tmp_path / "other"))) == 2
    assert len(list(tracekit.recorded_failures(store=tmp_path / "other"))) == 2


@pytest.mark.parametrize(("status", "kinds"), [(None, []), (0, []), (3, ["agent_crashed"]), ("no", ["agent_crashed"])])
def test_a_program_that_exits_in_order_has_not_failed(status: Any, kinds: list[str]) -> None:
    """``sys.exit()`` and ``sys.exit(0)`` end a run by an exception, and are no failure; another status is."""
    with pytest.raises(SystemExit), record("exits"):
        sys.exit(status)
    assert types() == kinds
