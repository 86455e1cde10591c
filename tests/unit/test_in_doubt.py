"""What is in doubt in a store: every irreversible step of which nobody knows whether it happened, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from tests.support.cut import cut
from tests.support.processes import python
from tests.support.tracing import entries, of_type
from tracekit import record, recovery, traced_tool
from tracekit.cli import main
from tracekit.errors import RecoveryRefusedError, RunNotFoundError, StepTimeoutError, TraceError
from tracekit.monitoring import RunCollector
from tracekit.recovery import InDoubt


def doubts(store: Path) -> list[tuple[str, int, str]]:
    return [(one.run_id, one.step, one.code) for one in recovery.in_doubt(store).in_doubt]


@traced_tool(side_effect="irreversible", timeout_ms=20, exactly_once=True, idempotency_key="order")
async def transfer(order: str, cents: int) -> None:
    await asyncio.Event().wait()


def why(store: Path, run_id: str) -> dict[str, list[int]]:
    """What ``show --why`` says against running it again: the entries by code."""
    done = python("-m", "tracekit", "show", run_id, "--why", "--json", env={**os.environ, "TRACEKIT_DIR": str(store)})
    assert done.returncode in (0, 3), done.stderr  # 3: it has no end yet
    reasons = json.loads(done.stdout)["safe_to_retry"]["reasons"]
    return {reason["code"]: reason["entries"] for reason in reasons if "entries" in reason}


def timed_out(store: Path) -> Any:
    """A run that ended well, though a payment in it ran into its time limit."""
    with record("paid", store=store) as run:
        with pytest.raises(StepTimeoutError):
            asyncio.run(transfer("o-17", cents=4200))
        run.set_result("sorry")
    return run


def test_a_time_limit_that_was_caught_leaves_its_step_in_doubt(tmp_path: Path) -> None:
    """The run has ended well, and is listed all the same: with everything that the person who finds out needs."""
    before = datetime.now(UTC)
    run = timed_out(tmp_path)
    (call,) = of_type(run, "tool.call")
    found = recovery.in_doubt(tmp_path)
    (one,) = found.in_doubt
    assert (found.running, found.unreadable) == ((), ())
    assert (one.run_id, one.step, one.segment, one.name, one.state) == (
        run.id,
        call["seq"],
        None,
        call["name"],
        "in_doubt",
    )
    assert (one.arguments, one.idempotency_key) == ({"order": "o-17", "cents": 4200}, "o-17")
    assert one.host == entries(run)[0]["meta"]["environment"]["host"]
    assert before - timedelta(seconds=1) <= one.time <= datetime.now(UTC)
    assert timedelta() <= one.age <= datetime.now(UTC) - before + timedelta(seconds=1)
    assert one.code == "irreversible_timed_out"
    assert f"tracekit recovery settle {run.path} {call['seq']} " in one.what_to_do  # another store than the usual one
    assert one.as_dict()["time"] == one.time.isoformat()
    (decision,) = recovery.scan(tmp_path)
    assert (decision.run_id, decision.decision, decision.in_doubt) == (run.id, "abort", (call["seq"],))
    assert [reason["code"] for reason in decision.reasons] == ["finished", "irreversible_timed_out"]
    assert why(tmp_path, run.id) == {"in_doubt": [call["seq"]]}


@pytest.mark.parametrize("told", [{"output": None}, {"not_done": True}])
def test_a_step_of_a_run_that_has_ended_is_settled_beside_it(tmp_path: Path, told: dict[str, Any]) -> None:
    """Once a person has found out it is listed no more; the log is as it was, and nobody can say something else later."""
    run = timed_out(tmp_path)
    before = Path(run.path).read_bytes()
    ((_, step, _),) = doubts(tmp_path)
    assert recovery.settle(run.id, step, reason="asked the bank", store=tmp_path, **told) == 0
    assert recovery.in_doubt(tmp_path) == InDoubt()
    assert [*recovery.scan(tmp_path)] == []
    assert [one.in_doubt for one in recovery.scan(tmp_path, all=True)] == [()]
    assert Path(run.path).read_bytes() == before
    with pytest.raises(RecoveryRefusedError, match="settled before"):
        recovery.settle(run.id, step, reason="again", store=tmp_path, **told)
    with pytest.raises(RecoveryRefusedError):
        recovery.settle(run.id, step - 1, reason="which one?", store=tmp_path, **told)
    # What can't be read settles nothing, and stands in nobody's way unnoticed.
    (said,) = (tmp_path / "settled").iterdir()
    said.write_text('{"run_id":"x","seq":"5"}')
    assert len(doubts(tmp_path)) == 1
    with pytest.raises(TraceError, match=f"{said} is not a settlement .its 'seq' is text, not a number"):
        recovery.settle(run.id, step, reason="again", store=tmp_path, **told)
    # What is said of one run is not said of another that takes its name.
    Path(run.path).unlink()
    with record("paid", store=tmp_path, run_id=run.id), pytest.raises(StepTimeoutError):
        asyncio.run(transfer("o-18", cents=1))
    assert len(doubts(tmp_path)) == 1


@pytest.mark.parametrize("told", [{"output": None}, {"not_done": True}])
def test_what_was_in_a_step_of_a_run_that_has_ended_is_settled_with_it(tmp_path: Path, told: dict[str, Any]) -> None:
    """The time limit of the inner one failed both; who finds out about the outer one has found out about the inner one."""

    @traced_tool(side_effect="irreversible", timeout_ms=20)
    async def inner() -> None:
        await asyncio.Event().wait()

    @traced_tool(side_effect="irreversible")
    async def outer() -> None:
        await inner()

    with record("paid", store=tmp_path) as run, pytest.raises(StepTimeoutError):
        asyncio.run(outer())
    first, second = recovery.in_doubt(tmp_path).in_doubt
    assert (first.inside, second.inside) == (None, first.step)
    assert recovery.settle(run.id, first.step, reason="asked the bank", store=tmp_path, **told) == 0
    assert recovery.in_doubt(tmp_path) == InDoubt()
    with pytest.raises(RecoveryRefusedError, match=f"was settled with step {first.step}"):
        recovery.settle(run.id, second.step, reason="the other one", store=tmp_path, **told)


def test_a_time_limit_around_the_call_leaves_it_in_doubt(tmp_path: Path) -> None:
    """A time limit of the program's own, which it catches, leaves a payment in doubt as surely as one of the tool."""

    @traced_tool(side_effect="irreversible")
    async def pay() -> None:
        await asyncio.Event().wait()

    async def program() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pay()

    with record("paid", store=tmp_path) as run:
        asyncio.run(program())
    (call,) = of_type(run, "tool.call")
    assert doubts(tmp_path) == [(run.id, call["seq"], "irreversible_lost")]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ConnectionResetError("the answer was lost"), "irreversible_lost"),
        (TimeoutError("no answer"), "irreversible_lost"),
        (KeyboardInterrupt(), "irreversible_lost"),
        (asyncio.CancelledError(), "irreversible_lost"),
        (SystemExit(1), "irreversible_lost"),
        (ValueError("insufficient funds"), None),
        (None, None),
    ],
)
@pytest.mark.parametrize("side_effect", ["irreversible", "reversible"])
def test_what_the_program_knows_is_not_in_doubt(
    tmp_path: Path, raised: BaseException | None, code: str | None, side_effect: Any
) -> None:
    """A refusal is known; a lost answer, Ctrl-C, a cancellation or an exit in the middle is not: nobody knows what became of the
    call. And what can be undone is no matter for this list."""

    @traced_tool(side_effect=side_effect)
    def pay(order: str) -> None:
        if raised is not None:
            raise raised

    with record("paid", store=tmp_path) as run, nullcontext() if raised is None else pytest.raises(type(raised)):
        pay("o-17")
    (call,) = of_type(run, "tool.call")
    assert doubts(tmp_path) == ([(run.id, call["seq"], code)] if code and side_effect == "irreversible" else [])
    assert entries(run)[-1]["meta"].get("in_doubt", []) == [step for _, step, _ in doubts(tmp_path)]


def test_a_payment_that_is_being_made_is_running(tmp_path: Path) -> None:
    """Nothing is in doubt of it as long as its process is at work; when the process dies, it is."""
    begun, go = threading.Event(), threading.Event()

    @traced_tool(side_effect="irreversible", name="pay")
    def pay(order: str) -> None:
        begun.set()
        assert go.wait(60)

    python("-c", "pass")  # what starts processes for the tests is started outside the run
    with record("paying", store=tmp_path) as run:
        payer = threading.Thread(target=pay, args=("o-17",))
        payer.start()
        assert begun.wait(60)
        found = recovery.in_doubt(tmp_path)
        (decision,) = recovery.scan(tmp_path)
        reasons = why(tmp_path, run.id)
        go.set()
        payer.join()
    (call,) = of_type(run, "tool.call")
    assert found.in_doubt == ()
    (one,) = found.running
    assert (one.step, one.name, one.arguments, one.state, one.code) == (
        call["seq"], "pay", {"order": "o-17"}, "running", "running",
    )  # fmt: skip
    assert (decision.in_doubt, decision.running) == ((), (call["seq"],))
    assert reasons == {"running": [call["seq"]]}
    assert {"held", "running"} <= {reason["code"] for reason in decision.reasons}
    assert recovery.in_doubt(tmp_path) == InDoubt()
    died = tmp_path / "died"
    cut(run, call["seq"], died)
    assert doubts(died) == [(run.id, call["seq"], "irreversible_pending")]


def test_a_time_limit_is_in_doubt_while_its_run_goes_on(tmp_path: Path) -> None:
    """Nobody is making that call any more, whatever else its process does."""
    with record("paid", store=tmp_path) as run:
        with pytest.raises(StepTimeoutError):
            asyncio.run(transfer("o-17", cents=1))
        assert [code for _, _, code in doubts(tmp_path)] == ["irreversible_timed_out"]
        assert recovery.in_doubt(tmp_path).running == ()
        assert run.id


@pytest.mark.filterwarnings("ignore:tracekit.*came after run:RuntimeWarning")
def test_what_was_cut_off_by_the_end_of_the_run_is_in_doubt(tmp_path: Path) -> None:
    """A run that ends while a thread of it still pays: what the log says of that payment, it never says again."""
    begun, go = threading.Event(), threading.Event()

    @traced_tool(side_effect="irreversible", name="pay")
    def pay() -> None:
        begun.set()
        assert go.wait(60)

    @traced_tool(side_effect="irreversible", name="slow", timeout_ms=20, timeout_in="thread")
    def slow() -> None:
        pay()

    with record("paid", store=tmp_path) as run, pytest.raises(StepTimeoutError):
        slow()
    assert begun.wait(60)
    calls = {call["name"]: call["seq"] for call in of_type(run, "tool.call")}
    assert {step for _, step, _ in doubts(tmp_path)} == set(calls.values())
    (thread,) = (one for one in threading.enumerate() if one.name.startswith("tracekit-") and one.name.endswith("slow"))
    go.set()
    thread.join()


def test_a_key_that_may_be_made_of_a_secret_is_not_kept(tmp_path: Path) -> None:
    """The arguments are listed with their placeholders, and nothing beside them gives the secret away."""
    secret = "sk-proj-" + "a1B2c3D4" * 6

    @traced_tool(side_effect="irreversible", exactly_once=True, idempotency_key=lambda token: token[8:])
    def pay(token: str) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), record("paid", store=tmp_path) as run:
        pay(secret)
    (one,) = recovery.in_doubt(tmp_path).in_doubt
    assert one.idempotency_key is None
    assert secret[8:] not in Path(run.path).read_text() + repr(one)


def test_a_damaged_log_is_no_empty_one(tmp_path: Path) -> None:
    """What it says is listed up to the damage, and that there may be more."""
    run = timed_out(tmp_path)
    lines = Path(run.path).read_bytes().splitlines(keepends=True)
    Path(run.path).write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b"sorry", b"happy"))
    found = recovery.in_doubt(tmp_path)
    assert found.unreadable == (run.path,)
    assert [one.run_id for one in found.in_doubt] == [run.id]


def _linked(path: Path) -> None:
    path.symlink_to(path.parent / "a disk that is not mounted")


def _looped(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("put", [_linked, _looped, Path.mkdir, os.mkfifo])
def test_what_has_the_name_of_a_run_and_is_no_file_may_be_in_doubt(tmp_path: Path, put: Callable[[Path], None]) -> None:
    """A run that was moved to another disk and linked back: nobody who asks is told that nothing is in doubt, or that all have ended."""
    run = timed_out(tmp_path)
    os.remove(run.path)
    put(Path(run.path))
    assert recovery.in_doubt(tmp_path).unreadable == (run.path,)
    for command, code in ((["in-doubt"], 1), (["recovery", "scan"], 2), (["list"], 0)):
        done = python("-m", "tracekit", *command, "--store", str(tmp_path))
        assert done.returncode == code, (command, done.stderr)
        assert f"{run.path} has the name of a run but is a broken link" in done.stderr
        assert "Nothing is in doubt" not in done.stderr
        assert "has ended" not in done.stderr
    registry = CollectorRegistry()
    registry.register(RunCollector(tmp_path))
    assert registry.get_sample_value("tracekit_runs", {"state": "unreadable"}) == 1


def test_where_there_is_no_store_nothing_is_said(tmp_path: Path) -> None:
    """A directory without runs answers for none: that is no empty list."""
    with pytest.raises(RunNotFoundError, match="no store"):
        recovery.in_doubt(tmp_path / "elsewhere")


@pytest.mark.parametrize("count", [0, 3])
def test_each_run_is_listed_by_its_own_steps(tmp_path: Path, count: int) -> None:
    """Over all runs of a store, the oldest first."""
    runs = [timed_out(tmp_path).id for _ in range(count)]
    with record("calm", store=tmp_path):
        pass
    assert [run_id for run_id, _, _ in doubts(tmp_path)] == runs


# -- the command line ---------------------------------------------------------------------------------------------------


def command(*words: str, store: Path) -> Result:
    return CliRunner().invoke(main, [*words, "--store", str(store)])


def test_the_command_says_what_is_in_doubt_and_what_to_do(tmp_path: Path) -> None:
    """Tool, arguments, key, run, host, age, why; exit code 1 while something is; what it says to do works as printed."""
    run = timed_out(tmp_path)
    (call,) = of_type(run, "tool.call")
    done = command("in-doubt", store=tmp_path)
    assert done.exit_code == 1
    assert done.stdout.startswith("in doubt: 1 step\n")
    host = entries(run)[0]["meta"]["environment"]["host"]
    for text in (
        f"{call['name']}(order=o-17, cents=4200)",
        f"  paid  {run.id} step {call['seq']}",
        "key o-17",
        f" ago) on {host}",
    ):
        assert text in done.stdout
    assert "irreversible_timed_out" in done.stdout
    for option in ("--not-done", "--done OUTPUT.json"):  # each command on a line of its own, to be copied
        assert f"\n      tracekit recovery settle {run.path} {call['seq']} {option} --reason TEXT\n" in done.stdout
    (line,) = command("in-doubt", "--json", store=tmp_path).stdout.splitlines()
    facts = json.loads(line)
    assert (facts["run_id"], facts["step"], facts["state"], facts["arguments"]) == (
        run.id, call["seq"], "in_doubt", {"order": "o-17", "cents": 4200},
    )  # fmt: skip
    scanned = command("recovery", "scan", store=tmp_path)
    assert scanned.stdout.startswith(f"ended    {run.id}  paid  complete\n")
    assert "1 step in doubt: `tracekit in-doubt` lists them" in scanned.stderr
    hint = re.findall("`tracekit (.*?)`", facts["what_to_do"])[0].replace("TEXT", "asked")
    assert CliRunner().invoke(main, shlex.split(hint)).exit_code == 0
    done = command("in-doubt", store=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "Nothing is in doubt" in done.stderr
    shown = command("show", run.id, store=tmp_path).stdout
    assert "as not done: asked" in shown
    assert "in doubt" not in shown
    assert "it was not done, says" in command("show", run.id, str(call["seq"]), store=tmp_path).stdout


def test_the_command_has_running_ones_apart_and_names_what_is_damaged(tmp_path: Path) -> None:
    """What a live process is making is no doubt, and a damaged file may hold more than is listed."""
    found: list[Result] = []

    @traced_tool(side_effect="irreversible", name="pay")
    def pay() -> None:
        found.append(command("in-doubt", store=tmp_path))

    with record("paying", store=tmp_path):
        pay()
    (done,) = found
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "being made right now: 1 step")
    run = timed_out(tmp_path)
    lines = Path(run.path).read_bytes().splitlines(keepends=True)
    Path(run.path).write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b"sorry", b"happy"))
    done = command("in-doubt", store=tmp_path)
    assert done.exit_code == 1
    assert f"{run.path} can't be read completely" in done.stderr


def test_the_command_without_a_store_is_an_error(tmp_path: Path) -> None:
    """Nothing was looked at: that is no empty list."""
    done = command("in-doubt", store=tmp_path / "elsewhere")
    assert (done.exit_code, done.stdout) == (2, "")
