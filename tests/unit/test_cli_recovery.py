"""``tracekit recovery``: data on stdout, exit codes that scripts can rely on, and what compensations really do."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.processes import python
from tracekit import decision, record, recovery, replay, resume, traced_tool
from tracekit.cli import main
from tracekit.errors import RecoveryRefusedError
from tracekit.integration import Store, Trace

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

SHOP = """
import os
from tracekit import traced_tool

def told(what):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(what + "\\n")

@traced_tool(side_effect="reversible", name="release")
def release(sku, output):
    told(f"release {sku} {output}")

def refund(order):
    told(f"refund {order}")
    if order == "bad":
        raise ValueError("no refund")

async def give_back(seat):
    told(f"give back {seat}")

@traced_tool(side_effect="reversible", compensate=release)
def reserve(sku):
    told(f"reserve {sku}")
    return sku.upper()

@traced_tool(side_effect="reversible", compensate=refund)
def order(order):
    reserve("inner-" + order)
    told(f"order {order}")

@traced_tool(side_effect="reversible", compensate=give_back)
async def seat(seat):
    told(f"seat {seat}")

@traced_tool(side_effect="reversible")
def note(text):
    told(f"note {text}")

@traced_tool(side_effect="irreversible")
def charge(cents):
    os.kill(os.getpid(), 9)
"""

PROGRAM = """
import asyncio
from tracekit import record
from shop import *

with record("shop", run_id="shop"):
    reserve("a")
    order("one")
    order("bad")
    note("x")
    asyncio.run(seat("12F"))
    charge(5)
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["recovery", *arguments])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trace of a shop's run that was killed; what its tools did is in the ledger beside it."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    done = python(str(tmp_path / "program.py"))
    assert done.returncode == -signal.SIGKILL
    (tmp_path / "ledger").write_text("")
    return Path(Store().path("shop"))


def names(path: Path) -> dict[int, str]:
    with Trace(path) as trace:
        return {entry["seq"]: entry["name"] for entry in trace.entries() if entry["type"] == "tool.call"}


def test_scan_prints_json_lines(shop: Path) -> None:
    """One line a run that did not end, in the documented form, and nothing for a store without such runs."""
    done = call("scan", "--json")
    (line,) = done.stdout.splitlines()
    decision = json.loads(line)
    assert (done.exit_code, decision["run_id"], decision["decision"]) == (1, "shop", "abort")
    assert decision["in_doubt"] == [seq for seq, name in names(shop).items() if name == "charge"]
    assert {reason["code"] for reason in decision["reasons"]} == {"intact", "irreversible_pending"}
    assert call("abort", "shop", "--reason", "x").exit_code == 0
    assert (call("scan").stdout, call("scan").exit_code) == ("", 0)
    (line,) = call("scan", "--all", "--json").stdout.splitlines()
    assert [reason["code"] for reason in json.loads(line)["reasons"]] == ["aborted", "irreversible_pending"]


def test_a_refused_resumption_names_the_command_that_helps(shop: Path) -> None:
    """The step in doubt with the ready-made ``settle``, as ``in-doubt`` has it, on the command line and in Python alike."""
    (charge,) = [seq for seq, name in names(shop).items() if name == "charge"]
    (listed,) = map(json.loads, CliRunner().invoke(main, ["in-doubt", "--json"]).stdout.splitlines())
    assert f"`tracekit recovery settle shop {charge} --not-done --reason TEXT`" in listed["what_to_do"]
    done = call("resume", "shop")
    assert done.exit_code == 4
    assert f"next: {listed['what_to_do']}" in done.output
    with pytest.raises(RecoveryRefusedError) as refused, resume("shop"):
        pass
    assert refused.value.next_action == listed["what_to_do"]
    assert call("settle", "shop", str(charge), "--not-done", "--reason", "the bank says so").exit_code == 0
    assert call("resume", "shop", "--check").exit_code == 0


def test_the_exit_code_of_scan_says_whether_something_is_in_doubt(shop: Path) -> None:
    """1 while a step is in doubt, and for a damaged log, of which nobody knows; 0 once a person has said what became of the step."""
    (charge,) = [seq for seq, name in names(shop).items() if name == "charge"]
    assert [call("scan", *options).exit_code for options in ((), ("--json",), ("--all",))] == [1, 1, 1]
    intact = shop.read_bytes()
    assert call("settle", "shop", str(charge), "--not-done", "--reason", "the bank says so").exit_code == 0
    assert [call("scan", *options).exit_code for options in ((), ("--json",), ("--all",))] == [0, 0, 0]
    shop.write_bytes(intact.replace(b'"reserve"', b'"reversE"', 1))
    done = call("scan", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "broken")


def test_scan_goes_on_past_what_it_cannot_read(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can't be read is told on stderr, the others are judged, and the exit code says so."""
    (shop.parent / "a-directory.jsonl").mkdir()
    done = call("scan", "--json")
    assert (done.exit_code, json.loads(done.stdout)["run_id"]) == (2, "shop")
    assert "a-directory" in done.stderr


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_file_is_no_run(shop: Path, kind: str) -> None:
    """A pipe, a directory or a link to nothing under the name of a run: nothing waits for it, nothing fails, scan tells it."""
    for name in ("zz.jsonl", f"shop.{'0' * 16}.jsonl"):
        if kind == "pipe":
            os.mkfifo(shop.parent / name)
        elif kind == "directory":
            (shop.parent / name).mkdir()
        else:
            (shop.parent / name).symlink_to("nothing")
    program = "import sys; from tracekit.cli import main; main(sys.argv[1:])"
    for command, code in (("list", 0), ("failures", 0), ("show last", 3), ("verify last", 3), ("recovery scan", 2)):
        done = python("-c", program, *command.split(), timeout=60)
        assert done.returncode == code, (command, done.stderr)
        assert "Traceback" not in done.stderr
        if command != "recovery scan":
            assert "zz" not in done.stdout
    assert done.stderr.count("zz.jsonl") == 1
    assert [run.run_id for run in Store().list()] == ["shop"]


def test_a_copy_is_not_the_run_that_it_copies(shop: Path) -> None:
    """A run's file under another name is told under that name, as what it is; the run itself is judged as before."""
    alone = CliRunner().invoke(main, ["failures"]).stdout
    (shop.parent / "00.jsonl").write_bytes(shop.read_bytes())
    found = {decision["run_id"]: decision for decision in map(json.loads, call("scan", "--json").stdout.splitlines())}
    assert [*found] == ["00", "shop"]
    assert found["00"]["state"] == "broken"
    assert "holds run shop: it is a copy, or was renamed" in found["00"]["reasons"][0]["text"]
    assert found["shop"]["state"] == "incomplete"
    told = CliRunner().invoke(main, ["failures"])
    assert (told.exit_code, told.stdout) == (1, alone)
    assert "00.jsonl holds run shop" in told.stderr


def test_a_store_that_is_not_there_is_a_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by --store or TRACEKIT_DIR, it must be a directory: 2. The usual one has no run yet, and a list of them is empty."""
    commands = (["list"], ["failures"], ["recovery", "scan"])
    for command in commands:
        done = CliRunner().invoke(main, [*command, "--store", str(tmp_path / "typo")])
        assert (done.exit_code, done.stdout) == (2, "")
        assert str(tmp_path / "typo") in done.stderr
        assert CliRunner().invoke(main, command, env={"TRACEKIT_DIR": str(tmp_path / "typo")}).exit_code == 2
    monkeypatch.delenv("TRACEKIT_DIR")
    monkeypatch.chdir(tmp_path)
    for command in commands[:2]:
        assert CliRunner().invoke(main, command).exit_code == 0
    assert not (tmp_path / ".tracekit").exists()


def test_scan_without_a_store_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory without a store, or in one that holds none, nothing is said to have ended: 2, and where it was looked for."""
    monkeypatch.delenv("TRACEKIT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--json",), ("--all",), ("--store", str(tmp_path))):
        done = call("scan", *options)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"there is no store in {tmp_path}" in done.stderr
        assert "--store or TRACEKIT_DIR" in done.stderr
    assert [*tmp_path.iterdir()] == []
    with record("one"):
        pass
    done = call("scan")
    assert (done.exit_code, done.stdout) == (0, "")


def test_a_store_that_can_not_be_written_is_told(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only file system abort and settle say which file it is and what to do, without a traceback."""
    step = next(str(seq) for seq, name in names(shop).items() if name == "charge")
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(path) == str(shop) and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *more, **options)

    monkeypatch.setattr("tracekit._journal.store.system.open", read_only)
    for command in (("abort", "shop"), ("settle", "shop", step, "--not-done")):
        done = call(*command, "--reason", "x")
        assert (done.exit_code, done.stdout) == (2, "")
        assert isinstance(done.exception, SystemExit)
        assert str(shop) in done.stderr
        assert "writable" in done.stderr


def test_slips_are_told(shop: Path) -> None:
    """An empty reason, a step that is no number of an entry, a module without a name: 2, a line that says so, nothing written."""
    before = shop.read_bytes()
    for arguments, said in (
        (("abort", "shop", "--reason", ""), "say why"),
        (("settle", "shop", "6", "--not-done", "--reason", " "), "say why"),
        (("settle", "shop", "0", "--not-done", "--reason", "x"), "x>=1"),
        (("settle", "shop", "six", "--not-done", "--reason", "x"), "six"),
        (("settle", "shop", "--not-done", "--reason", "x", "--", "-6"), "-6"),
        (("settle", "shop", "-6", "--not-done", "--reason", "x"), "-6"),
        (("abort", "shop", "--reason", "x", "--tools", ""), "can't be imported"),
        (("abort", "", "--reason", "x"), "the name of the run is empty"),
    ):
        done = call(*arguments)
        assert (done.exit_code, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), arguments
        assert isinstance(done.exception, SystemExit)
    for step in (0, -1, "6", True):
        with pytest.raises(ValueError, match="number of an entry"):
            recovery.settle("shop", step, not_done=True, reason="x")  # type: ignore[arg-type]
    assert shop.read_bytes() == before


def test_scan_is_readable_at_a_terminal(shop: Path) -> None:
    """People get one line a run and one a reason."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from tracekit.cli import main; main()", "recovery", "scan"]
    done = subprocess.run(command, stdout=theirs, env={**os.environ, "TERM": "dumb"}, check=False)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 1
    assert text.startswith("refused")
    assert "irreversible_pending" in text


def test_compensations_run_in_reverse_order_once(shop: Path, tmp_path: Path) -> None:
    """With --tools, what was done is undone, the last step first, what is inside a step with it; one that raises stops no other;
    and each is a step of the log that names what it undoes."""
    before = names(shop)
    done = call("abort", "shop", "--reason", "the customer left", "--tools", "shop", "--by", "ann", "--json")
    assert done.exit_code == 0, done.output
    ledger = (tmp_path / "ledger").read_text().splitlines()
    assert ledger == ["give back 12F", "refund bad", "refund one", "release a A"]
    facts = json.loads(done.stdout)
    by_name = {name: seq for seq, name in reversed(before.items())}  # the first of each
    orders = [seq for seq, name in before.items() if name == "order"]
    refund = next(entry for entry in [*_entries(shop)] if entry.get("name") == "refund")  # the one that failed
    assert facts["in_doubt"] == [by_name["charge"], refund["seq"]]
    assert set(facts["compensated"]) == {by_name["seat"], orders[0], by_name["reserve"]}
    inner = [seq for seq, name in before.items() if name == "reserve"][2]  # of the order that could not be refunded
    assert facts["uncompensated"] == [by_name["note"], inner, orders[1]]
    with Trace(shop) as trace:
        entries = [*trace.entries()]
    undone = [entry for entry in entries if "compensates" in ((entry.get("meta") or {}).get("info") or {})]
    assert [entry["meta"]["info"]["compensates"] for entry in undone] == [
        by_name["seat"],
        orders[1],
        orders[0],
        by_name["reserve"],
    ]
    assert entries[-1]["type"] == "run.aborted"
    assert Store().verify(shop).state == "complete"


def _entries(path: Path) -> list[dict[str, Any]]:
    with Trace(path) as trace:
        return [*trace.entries()]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("with record('again', run_id='again'):\n    charge(1)", "record()"),
        ("charge(1)", "tool 'charge'"),
        ("try:\n    reserve('z')\nexcept Exception:\n    pass", "tool 'reserve'"),
        ("import subprocess\ntry:\n    subprocess.run(['true'])\nexcept BaseException:\n    pass", "subprocess"),
        ("from tracekit import replay\nwith replay('shop'):\n    reserve('a')", "replay()"),
        ("from tracekit import resume\nwith resume('shop'):\n    reserve('a')", "resume()"),
        (
            "import threading\nthread = threading.Thread(target=reserve, args=('z',))\nthread.start()\nthread.join()",
            "tool 'reserve'",
        ),
    ],
)
def test_a_module_that_runs_the_program_is_refused(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """Operator modules are imported with nothing live: no run, tool, connection or process; 4, and the log is as it was."""
    (tmp_path / "runs_at_once.py").write_text(f"from tracekit import record\nfrom shop import *\n\n{body}\n")
    monkeypatch.delitem(sys.modules, "runs_at_once", raising=False)
    monkeypatch.setattr("threading.excepthook", lambda told: None)
    before = shop.read_bytes()
    refused = call("abort", "shop", "--reason", "x", "--tools", "runs_at_once")
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "runs_at_once runs the program when it is imported" in refused.stderr
    assert said in refused.stderr
    assert "if __name__ == '__main__':" in refused.stderr
    assert (tmp_path / "ledger").read_text() == ""
    assert shop.read_bytes() == before
    assert [run.run_id for run in Store().list()] == ["shop"]
    assert call("abort", "shop", "--reason", "x", "--tools", "shop").exit_code == 0  # and nothing stays refused


def test_a_thread_with_the_number_of_one_that_has_ended_is_refused_as_well(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that were there before an operator module is imported go on; one that the module starts does not pass for one of them."""
    (tmp_path / "after_another.py").write_text(
        """
import threading
from shop import *

go.set()
there.join()
while True:
    thread = threading.Thread(target=reserve, args=("z",))
    thread.start()
    thread.join()
    if thread.ident == there.ident:
        break
"""
    )
    monkeypatch.delitem(sys.modules, "after_another", raising=False)
    monkeypatch.setattr("threading.excepthook", lambda told: None)
    go = threading.Event()
    there = threading.Thread(target=go.wait)
    there.start()
    monkeypatch.setattr("builtins.go", go, raising=False)
    monkeypatch.setattr("builtins.there", there, raising=False)
    refused = call("abort", "shop", "--reason", "x", "--tools", "after_another")
    assert refused.exit_code == 4, refused.output
    assert (tmp_path / "ledger").read_text() == ""


def test_modules_that_lack_the_tools_are_refused(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the wrong --tools a run would be complete with what it did: 4, with the steps and tools, unless --partial says so."""
    before = shop.read_bytes()
    refused = call("abort", "shop", "--reason", "x", "--tools", "json")
    assert (refused.exit_code, refused.stdout) == (4, "")
    seat = next(seq for seq, name in names(shop).items() if name == "seat")
    assert f"{seat} ('seat')" in refused.stderr
    assert "--partial" in refused.stderr
    assert shop.read_bytes() == before
    (tmp_path / "breaks.py").write_text("raise KeyError('no')\n")
    monkeypatch.delitem(sys.modules, "breaks", raising=False)
    broken = call("abort", "shop", "--reason", "x", "--tools", "breaks")
    assert (broken.exit_code, "breaks can't be imported: KeyError" in broken.stderr) == (2, True)
    done = call("abort", "shop", "--reason", "x", "--tools", "json", "--partial", "--json")
    assert (done.exit_code, json.loads(done.stdout)["compensated"]) == (0, [])


def test_an_abort_that_died_is_finished_and_never_resumed(shop: Path, tmp_path: Path) -> None:
    """Killed anywhere after its first entry, an abort leaves a run that can only be aborted; the next one finishes it, nothing twice."""
    count = len(_entries(shop))
    assert call("abort", "shop", "--reason", "the customer left", "--tools", "shop", "--by", "ann").exit_code == 0
    lines = shop.read_bytes().splitlines(keepends=True)
    started = json.loads(lines[count])
    assert (started["type"], started["meta"]["abort"]["by"]) == ("recovery.started", "ann")
    whole = ["give back 12F", "refund bad", "refund one", "release a A"]
    for kept in range(count + 1, len(lines)):
        (Path(Store().tips) / "shop").unlink(missing_ok=True)
        shop.write_bytes(b"".join(lines[:kept]))
        (decision,) = recovery.scan()
        assert decision.decision == "abort"
        assert "abort_begun" in [reason["code"] for reason in decision.refusals]
        assert call("resume", "shop", "--check").exit_code == 4
        (tmp_path / "ledger").write_text("")
        again = json.loads(call("abort", "shop", "--reason", "x", "--tools", "shop", "--json").stdout)
        begun = [entry for entry in map(json.loads, lines[:kept]) if entry["type"] == "tool.call"][
            len(names_of(lines[:count])) :
        ]
        ran = (tmp_path / "ledger").read_text().splitlines()
        open_release = kept == len(lines) - 2  # reversible: made again
        assert ran == whole[len(begun) - open_release :]
        ended = {entry["step"] for entry in map(json.loads, lines[:kept]) if entry["type"] == "tool.return"}
        doubt = {
            entry["seq"]
            for entry in begun
            if entry["meta"]["side_effect"] == "irreversible" and entry["seq"] not in ended
        }
        assert doubt <= set(again["in_doubt"])
        assert [entry["type"] for entry in _entries(shop)].count("recovery.started") == 1


def names_of(lines: list[bytes]) -> list[str]:
    return [entry["name"] for entry in map(json.loads, lines) if entry["type"] == "tool.call"]


def test_an_abort_that_is_cut_off_goes_on_where_it_was(shop: Path, tmp_path: Path) -> None:
    """Killed between two compensations and asked for again: what was undone, or was begun and can't be taken back, is not run again."""
    assert call("abort", "shop", "--reason", "x", "--tools", "shop").exit_code == 0
    with Trace(shop) as trace:
        entries = [*trace.entries()]
    begun = [entry["seq"] for entry in entries if "compensates" in ((entry.get("meta") or {}).get("info") or {})]
    lines = shop.read_bytes().splitlines(keepends=True)
    os.unlink(Path(Store().tips) / "shop")
    shop.write_bytes(b"".join(lines[: begun[2]]))  # the third had begun: a refund, which can't be taken back
    (tmp_path / "ledger").write_text("")
    again = json.loads(call("abort", "shop", "--reason", "x", "--tools", "shop", "--json").stdout)
    assert (tmp_path / "ledger").read_text().splitlines() == ["release a A"]
    assert begun[2] in again["in_doubt"]
    assert call("abort", "shop", "--reason", "x").exit_code == 4


def test_without_tools_the_output_lists_what_was_not_undone(shop: Path, tmp_path: Path) -> None:
    """Nothing of the trace is imported: an abort runs nothing that the operator did not name."""
    done = json.loads(call("abort", "shop", "--reason", "x", "--json").stdout)
    assert done["compensated"] == []
    assert set(done["uncompensated"]) == {seq for seq, name in names(shop).items() if name != "charge"}
    assert (tmp_path / "ledger").read_text() == ""
    assert "shop" not in sys.modules


def test_abort_refuses_and_says_why(shop: Path) -> None:
    """4 for a run that has ended, 2 for wrong use and a run that is not there, 1 for damage; nothing is changed."""
    assert call("abort", "shop").exit_code == 2
    assert call("abort", "shop", "--reason", "  ").exit_code == 2
    assert call("abort", "nobody", "--reason", "x").exit_code == 2
    assert call("abort", "shop", "--reason", "x", "--tools", "no_such_module").exit_code == 2
    data = shop.read_bytes()
    shop.write_bytes(data.replace(b'"a"', b'"b"'))
    assert call("abort", "shop", "--reason", "x", "--accept-lost-tail").exit_code == 1
    shop.write_bytes(data)
    assert call("abort", "shop", "--reason", "x").exit_code == 0
    refused = call("abort", "shop", "--reason", "x")
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "the run was aborted" in refused.stderr
    assert "`tracekit show shop`" in refused.stderr


def test_settle_takes_an_output_as_traces_write_it(tmp_path: Path) -> None:
    """--done gives a step the output in a file, tags and all; the replay of the run gives the program the value."""
    import datetime

    @traced_tool(side_effect="irreversible")
    def book() -> Any:
        raise AssertionError("it is not called")

    with pytest.raises(AssertionError), record("trip", run_id="trip"):
        book()
    path = Path(Store().path("trip"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    os.unlink(Path(Store().tips) / "trip")
    output = tmp_path / "output.json"
    output.write_text('{"when": {"$t": "date", "v": "2026-11-22"}}')
    done = call(
        "settle", "trip", "2", "--done", str(output), "--reason", "the airline says so", "--by", "ann", "--json"
    )
    assert (done.exit_code, json.loads(done.stdout)["seq"]) == (0, 3)
    (decision,) = recovery.scan()
    assert decision.decision == "resume"
    journal, _ = Store().reopen(path)
    journal.append("run.completed", 0, 1, b',"output":null,"meta":{"count":4,"segments":[]}')
    journal.close()
    with replay("trip"):
        assert book() == {"when": datetime.date(2026, 11, 22)}


def test_settle_refuses_wrong_use(shop: Path, tmp_path: Path) -> None:
    """Neither or both answers, no reason, something that is no output: 2; a step that is not in doubt: 4; nothing is written."""
    before = shop.read_bytes()
    step = next(str(seq) for seq, name in names(shop).items() if name == "charge")
    bad, ref = tmp_path / "bad.json", tmp_path / "ref.json"
    bad.write_text("{")
    ref.write_text('[{"$ref": 1}]')
    reason = ("--reason", "x")
    assert call("settle", "shop", step, *reason).exit_code == 2
    assert call("settle", "shop", step, "--not-done", "--done", str(bad), *reason).exit_code == 2
    assert call("settle", "shop", step, "--not-done").exit_code == 2
    assert call("settle", "shop", step, "--not-done", "--reason", "").exit_code == 2
    assert call("settle", "shop", step, "--done", str(bad), *reason).exit_code == 2
    assert call("settle", "shop", step, "--done", str(ref), *reason).exit_code == 2
    value = call("settle", "shop", step, "--done", "null", *reason)  # in place of a file with it
    assert (value.exit_code, "echo null | tracekit … --done -" in value.stderr) == (2, True)
    assert call("settle", "shop", "2", "--not-done", *reason).exit_code == 4
    assert shop.read_bytes() == before
    done = call("settle", "shop", step, "--not-done", *reason)
    assert done.exit_code == 0
    bad.write_text('{"$t": "datetime", "v": "22/11/2026"}')
    refused = call("settle", "shop", step, "--done", str(bad), *reason)
    assert refused.exit_code == 2
    assert "22/11/2026" in refused.output
    bad.write_text("4200")
    corrected = call("settle", "shop", step, "--done", str(bad), *reason)  # nothing was done since
    assert corrected.exit_code == 0
    assert f"step {step} is settled as done (entry " in corrected.stdout
    assert "it was settled as not done before, which no longer counts" in corrected.stdout
    shown = CliRunner().invoke(main, ["show", "shop", step]).stdout
    assert "took" not in shown  # nobody knows when the step itself ended


def test_settling_in_a_run_that_has_ended_names_the_step() -> None:
    """An entry that is no step, or a step that is not in doubt: refused, with the step and what can be settled instead."""
    with record("ended") as run:
        decision("route", input=1, output="express")
    done = call("settle", run.id, "2", "--not-done", "--reason", "x")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "its entry 2 is not a step: `tracekit in-doubt` lists what can be settled" in done.stderr
    assert "its entry 77 is not a step" in call("settle", run.id, "77", "--not-done", "--reason", "x").stderr
