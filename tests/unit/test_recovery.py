"""What may be done with a run that did not end, for every state that a log can be in; and what a person does about it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support import plain_writer
from tests.support.processes import python
from tracekit import record, recovery, replay, traced_tool
from tracekit._runs.recovery import _ADVICE, FOR, IN_DOUBT, decision_on
from tracekit.errors import RecoveryRefusedError, TraceIntegrityError
from tracekit.integration import Store, Trace
from tracekit.recovery import Decision

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

CLASSES = ("read_only", "reversible", "irreversible", None)
STATES = (
    "pending",
    "done",
    "failed",
    "timed out",
    "superseded",
    "duplicate",
    "settled done",
    "settled not done",
    "looked at",
)
SETTLED = {"info": {"reason": "settled", "settled": {"by": "ann", "reason": "asked the bank", "at": 1}}}
ERROR = {"type": "builtins:ValueError", "text": "no", "args": ["no"]}


class Log:
    """The log of a run that died: written as its entries are given, without an end."""

    def __init__(self, run_id: str = "died", *, segment: str | None = None, **meta: Any) -> None:
        self.run_id = run_id
        self.path = Store().path(run_id, segment)
        self.entries: list[dict[str, Any]] = []
        self.add("run.started", name="r", input={}, meta={"durability": "effects", **meta})

    def add(self, kind: str, **fields: Any) -> int:
        self.entries.append(plain_writer.entry(kind, **fields))
        return len(self.entries)

    def call(self, side_effect: str | None, *, kind: str = "tool.call", **fields: Any) -> int:
        meta = fields.pop("meta", {}) | ({} if side_effect is None else {"side_effect": side_effect})
        return self.add(kind, **{"name": "t", "input": {}, "meta": meta, **fields})

    def end(self, step: int, kind: str = "tool.return", *, lane: int = 0, **fields: Any) -> int:
        return self.add(kind, parent=step, lane=lane, step=step, **(fields or {"output": 1}))

    def step(self, side_effect: str | None, state: str, *, parent: int = 1) -> int:
        """One step of a class, in a state."""
        meta = {"info": {"duplicate_of": 1}} if state == "duplicate" else {}
        step = self.call(side_effect, parent=parent, meta=meta)
        if state == "done":
            self.end(step)
        elif state in ("failed", "looked at"):
            self.end(step, "tool.error", error=ERROR)
        elif state == "timed out":
            self.end(step, "tool.error", error=ERROR, meta={"in_doubt": True})
        elif state == "superseded":
            self.end(step, "tool.skipped", meta={"info": {"reason": "superseded"}})
        elif state == "settled done":
            self.end(step, output=2, meta=SETTLED)
        elif state == "settled not done":
            self.end(step, "tool.skipped", meta=SETTLED)
        if state == "looked at":
            self.end(step, "recovery.settled", meta=SETTLED)
        return step

    def close(self) -> None:
        plain_writer.write(Path(self.path), self.entries, run_id=self.run_id)

    def decision(self, **options: Any) -> Decision:
        self.close()
        return decision_on(self.path, **options)


def segment_of(lane: str) -> str:
    return hashlib.sha256(lane.encode()).hexdigest()[:16]


def codes(decision: Decision) -> list[str]:
    return [reason["code"] for reason in decision.reasons]


def refusals(decision: Decision) -> list[str]:
    return [reason["code"] for reason in decision.refusals]


#: The promise in a table of its own: what one step does to the decision.
def refused_for(side_effect: str | None, state: str) -> str | None:
    if side_effect in ("read_only", "reversible") or state not in ("pending", "failed", "timed out"):
        return None
    if side_effect is None:
        return "class_missing"
    return {"pending": "irreversible_pending", "failed": "irreversible_failed", "timed out": "irreversible_timed_out"}[
        state
    ]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("side_effect", CLASSES)
def test_one_step(side_effect: str | None, state: str) -> None:
    """A run with one step is resumed unless the step is irreversible, or of no class, and its effect is in doubt."""
    log = Log()
    step = log.step(side_effect, state)
    decision, refused = log.decision(), refused_for(side_effect, state)
    assert decision.decision == ("resume" if refused is None else "abort")
    assert refusals(decision) == ([] if refused is None else [refused])
    assert decision.in_doubt == (() if refused is None else (step,))
    assert [one["step"] for one in decision.pending] == ([step] if state == "pending" else [])
    if state == "pending" and refused is None:
        assert f"pending_{side_effect}" in codes(decision)


def every_pair() -> Iterator[tuple[str, str | None, str, str | None, str]]:
    """Two steps, each of every class and in every state, and an id for a run with them."""
    every = list(itertools.product(CLASSES, STATES))
    for number, ((first, one), (second, two)) in enumerate(itertools.product(every, repeat=2)):
        yield f"pair{number:04}", first, one, second, two


def test_pairs_of_steps() -> None:
    """Two steps one after the other: one reason against it is enough, and each step has its own."""
    expected: dict[str, dict[int, str]] = {}
    for run_id, first, one, second, two in every_pair():
        log = Log(run_id)
        told = {log.step(first, one): refused_for(first, one), log.step(second, two): refused_for(second, two)}
        log.close()
        expected[run_id] = {step: code for step, code in told.items() if code}
    decisions = {decision.run_id: decision for decision in recovery.scan()}
    found = {run_id: {reason["step"]: reason["code"] for reason in each.refusals} for run_id, each in decisions.items()}
    assert found == expected
    assert all((each.decision == "abort") == bool(expected[run_id]) for run_id, each in decisions.items())


def test_a_step_inside_another() -> None:
    """A step that is made again makes everything in it again: nothing irreversible may be in there. What is inside a finished
    step is nobody's to make again."""
    expected: dict[str, set[str | None]] = {}
    for run_id, outer, one, inner, two in every_pair():
        if one not in ("done", "pending"):
            continue
        log, again = Log(run_id), one == "pending"
        around = log.call(outer)
        log.step(inner, two, parent=around)
        if not again:
            log.end(around)
        log.close()
        expected[run_id] = {refused_for(outer, one), refused_for(inner, two)} - {None}
        lasting = inner not in ("read_only", "reversible") and two not in (
            "superseded",
            "settled not done",
            "duplicate",
        )
        if again and lasting:
            expected[run_id].add("irreversible_inside")
        if not again and inner == "reversible" and two == "pending":
            expected[run_id].add("pending_orphaned")
    assert {decision.run_id: set(refusals(decision)) for decision in recovery.scan()} == expected


def test_kinds_of_steps() -> None:
    """A model call is a read where nothing else is said; an exchange is what is recorded; a span is no effect at all."""
    for kind, side_effect, refused in (
        ("llm.request", None, []),
        ("llm.request", "irreversible", ["irreversible_pending"]),
        ("http.request", "read_only", []),
        ("http.request", "irreversible", ["irreversible_pending"]),
        ("http.request", None, ["class_missing"]),
        ("tool.call", "harmless", ["class_missing"]),
        ("span.start", None, []),
    ):
        log = Log()
        log.call(side_effect, kind=kind)
        assert refusals(log.decision()) == refused


def test_a_lane_that_began_inside_a_step_is_inside_it() -> None:
    """What a tool's own thread did is in the tool's step, whatever its entries name as their parent."""
    log = Log()
    outer = log.call("reversible")
    log.add("lane", parent=outer, input={"id": 1, "parent": 0, "name": "w", "n": 1, "under": outer})
    inner = log.call("irreversible", lane=1)
    log.end(inner, lane=1)
    assert refusals(log.decision()) == ["irreversible_inside"]


@pytest.mark.parametrize("after", ["nothing", "a step", "a clock", "a step inside it", "another lane"])
def test_a_stream_that_was_cut_off(after: str) -> None:
    """A stream is made again from its beginning, so nothing may have happened with its first pieces where it was read."""
    log = Log()
    stream = log.call("read_only", kind="llm.request")
    log.add("llm.chunk", parent=stream, step=stream, output="a")
    if after == "a step":
        log.end(log.call("read_only"))
    elif after == "a clock":
        log.add("clock", name="time.time", values=[1.0])
    elif after == "a step inside it":
        log.end(log.call("read_only", parent=stream))
    elif after == "another lane":
        log.add("lane", input={"id": 1, "parent": 0, "name": "w", "n": 1})
        log.end(log.call("read_only", lane=1), lane=1)
    log.add("llm.chunk", parent=stream, step=stream, output="b")
    assert refusals(log.decision()) == (["stream_in_progress"] if after in ("a step", "a clock") else [])


OPAQUE = {"$t": "opaque", "type": "m:Lock", "repr": "<lock>"}


@pytest.mark.parametrize("where", ["output", "blob", "list", "chunk"])
@pytest.mark.parametrize("what", ["redacted", "opaque"])
def test_an_output_that_is_not_in_the_log(what: str, where: str) -> None:
    """The program must be answered with what it got: a secret, or what could not be recorded, is supplied or it does not go on."""
    log = Log()
    meta = {"meta": {"redacted": 1}} if what == "redacted" else {}
    value: Any = "[REDACTED:key]" if what == "redacted" else OPAQUE
    if where == "blob":
        value = {"$ref": log.add("blob", output=[value])}
    elif where == "list":
        asked = log.call("read_only", input=[value])
        log.end(asked)
        again = log.call("read_only", input={"$extend": asked, "at": ["input"], "v": [1]})
        log.end(again)
        value = {"$ref": again, "at": ["input"]}
    step = log.call("read_only")
    if where == "chunk":
        log.end(step, "tool.chunk", output=value, **meta)
        log.end(step, output=None)
    else:
        log.end(step, output={"a": value}, **meta)
    decision = log.decision()
    assert refusals(decision) == [f"{what}_output"]
    supplied = decision_on(log.path, supplied=(step,))
    expected = ("abort", [f"{what}_output"]) if where == "chunk" else ("resume", [])  # pieces came one by one
    assert (supplied.decision, refusals(supplied)) == expected


def test_nobody_is_answered_from_inside_a_finished_step() -> None:
    """An output that only a finished tool saw is not needed any more, nor is one of an input, an error or a step made again."""
    log = Log()
    outer = log.call("reversible", meta={"info": {"redacted": 1}})
    log.end(log.call("read_only", parent=outer), output="[REDACTED:key]", meta={"redacted": 1})
    log.end(outer)
    log.end(log.call("read_only"), "tool.error", error=ERROR, meta={"redacted": 1})
    log.end(log.call("reversible"), "tool.chunk", output="x", meta={"redacted": 1})
    decision = log.decision()
    assert refusals(decision) == []
    assert [reason["step"] for reason in decision.reasons if reason["code"] == "redacted_error"] == [
        len(log.entries) - 3
    ]


# -- the log as a whole ------------------------------------------------------------------------------------------------------


def test_the_decision_is_a_function_of_the_log() -> None:
    """Asked twice, in whatever process, it is the same to the last byte, in the documented form."""
    log = Log("stable")
    log.step("read_only", "done")
    log.step("irreversible", "pending")
    first = log.decision().as_dict()
    code = "import json, sys; from tracekit import recovery; print(json.dumps(next(recovery.scan()).as_dict()))"
    again = python("-c", code)
    assert json.loads(again.stdout) == first == decision_on(log.path).as_dict()
    assert list(first) == [
        "run_id", "state", "decision", "reasons", "in_doubt", "pending", "running", "undeclared", "name",
    ]  # fmt: skip
    assert (first["run_id"], first["state"], first["decision"], first["in_doubt"]) == (
        "stable",
        "incomplete",
        "abort",
        [4],
    )


def test_a_torn_tail_is_no_obstacle() -> None:
    """A last line that was never finished: no effect waited for it."""
    log = Log()
    log.step("irreversible", "done")
    log.close()
    with open(log.path, "ab") as file:
        file.write(b'{"v":1,"seq":4,"ty')
    decision = decision_on(log.path)
    assert (decision.decision, decision.state) == ("resume", "incomplete")
    assert "torn_tail" in codes(decision)


def test_a_damaged_log_is_refused() -> None:
    """An edited line in the middle, with a pending irreversible step before it: both are told."""
    log = Log()
    log.step("irreversible", "pending")
    log.step("read_only", "done")
    log.close()
    data = Path(log.path).read_bytes()
    Path(log.path).write_bytes(data.replace(b'"output":1', b'"output":7'))
    decision = decision_on(log.path)
    assert (decision.state, decision.in_doubt) == ("broken", (2,))
    assert refusals(decision)[0] in ("damaged", "lost_tail")
    assert "irreversible_pending" in refusals(decision)


def test_a_lost_tail_is_cut_only_on_the_operators_word() -> None:
    """What a power loss left after the last synced effect is a reason of its own, which names the option."""
    log = Log()
    log.step("irreversible", "done")
    log.close()
    with open(log.path, "ab") as file:
        file.write(b"\0" * 40 + b"\n" + b"\0" * 10)
    decision = decision_on(log.path)
    assert refusals(decision) == ["lost_tail"]
    assert "--accept-lost-tail" in decision.reasons[0]["text"]
    assert decision_on(log.path, accept_lost_tail=True).decision == "resume"
    with pytest.raises(TraceIntegrityError, match="accept-lost-tail"):
        recovery.abort(log.path, reason="power")
    recovery.abort(log.path, reason="power", accept_lost_tail=True)
    assert Store().verify(log.path).state == "complete"


def test_finished_and_aborted_runs_are_refused() -> None:
    """A run that has its end, whichever, is nobody's to go on with."""
    with record("done") as run:
        pass
    with pytest.raises(ZeroDivisionError), record("failed") as failed:
        raise ZeroDivisionError
    log = Log()
    log.close()
    recovery.abort(log.path, reason="a test")
    assert [codes(decision_on(path)) for path in (run.path, failed.path, log.path)] == [
        ["finished"],
        ["finished"],
        ["aborted"],
    ]
    assert list(recovery.scan()) == []
    assert {decision.decision for decision in recovery.scan(all=True)} == {"abort"}


def test_no_entries_and_a_newer_format() -> None:
    """An empty file, a file of one torn line, and a file of a later format: refused, each with its own reason."""
    store = Store()
    store.create("empty").close()
    store.create("torn").close()
    Path(store.path("torn")).write_bytes(b'{"v":1')
    log = Log("later")
    log.close()
    data = Path(log.path).read_bytes()
    Path(log.path).write_bytes(data.replace(b'{"v":1', b'{"v":9', 1))
    found = {decision.run_id: refusals(decision) for decision in recovery.scan()}
    assert found == {"empty": ["no_entries"], "torn": ["no_entries"], "later": ["format_newer"]}
    with pytest.raises(RecoveryRefusedError) as caught:
        recovery.abort("torn", reason="x")
    assert caught.value.reasons[0]["code"] == "no_entries"
    assert Path(store.path("torn")).read_bytes() == b'{"v":1'


def test_an_effect_of_an_unknown_type_is_refused() -> None:
    """A newer minor version may know steps that this one does not: an effect among them is not overlooked."""
    log = Log()
    log.add("mcp.call", name="x", meta={"side_effect": "irreversible"})
    assert refusals(log.decision()) == ["unknown_effect"]
    log = Log()
    log.add("mcp.note", name="x", meta={})
    log.add(
        "contract.violated",
        name="x",
        input={},
        error=ERROR,
        meta={"side_effect": "irreversible", "info": {"family": "tool"}},
    )
    assert log.decision().decision == "resume"


def test_child_processes_are_not_resumed() -> None:
    """A child's part that did not end cleanly is told with what is open in it."""
    log = Log("family")
    log.close()
    child = Log("family", segment=segment_of("a"))
    step = child.call("irreversible")
    child.close()
    decision = decision_on(log.path)
    assert refusals(decision) == ["segments"]
    assert str(step) in decision.refusals[0]["text"]
    recovery.abort("family", reason="gone")
    assert Store().verify("family").state == "complete"


@pytest.mark.parametrize(("lane", "refused"), [("/process:child.py#1", True), ("/process:child.py#1@2", False)])
def test_a_run_with_child_processes_is_not_resumed(lane: str, refused: bool) -> None:
    """One that the program started would be started again, though it ended cleanly; one in a tool's body is answered by the tool."""
    log = Log("parent")
    log.step("irreversible", "done")
    log.close()
    child = Log("parent", segment=segment_of(lane), lane=lane)
    child.add("run.completed", output=None, meta={"count": 2, "segments": []})
    child.close()
    decision = decision_on(log.path)
    assert refusals(decision) == (["segments"] if refused else [])
    assert decision.decision == ("abort" if refused else "resume")
    if refused:
        assert "a run with child processes can't be resumed" in decision.refusals[0]["text"]


HOLDER = """
import sys
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def charge():
    print(run.id, flush=True)
    sys.stdin.read()

with record("held") as run:
    charge()
"""


def test_a_live_process_holds_its_run_and_a_dead_one_does_not() -> None:
    """A run that is being written is refused with the pid of its process; killed, it leaves a lock that blocks nobody."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        try:
            (decision,) = recovery.scan()
            assert (decision.reasons[0]["code"], decision.reasons[0]["pid"]) == ("held", process.pid)
            for refused in (
                lambda: recovery.abort(run_id, reason="x"),
                lambda: recovery.settle(run_id, 2, not_done=True, reason="x"),
            ):
                with pytest.raises(RecoveryRefusedError, match=str(process.pid)):
                    refused()
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    (decision,) = recovery.scan()
    assert refusals(decision) == ["irreversible_pending"]
    assert recovery.abort(run_id, reason="killed").in_doubt == decision.in_doubt


def test_a_scan_finds_what_was_cut_off_or_exchanged() -> None:
    """An end that is not the one that was kept is not taken for the run's end: a scan reads such a run whole."""
    with record("whole") as run:
        tracekit.decision("a", input=1, output=2)
    lines = Path(run.path).read_bytes().splitlines(keepends=True)
    Path(run.path).write_bytes(b"".join(lines[:-1]))
    (decision,) = recovery.scan()
    assert refusals(decision) == ["damaged"]


# -- abort -------------------------------------------------------------------------------------------------------------------


def test_what_a_run_says_of_its_process_stays_as_it_is_whatever_the_users_patterns_match() -> None:
    """A pattern for UUIDs or dates takes them out of what the program says, not out of what it says of its process and its clocks."""
    uuids = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    with record("patterns", redact=[uuids, r"\d{4}-\d{2}-\d{2}", r"\d+\.\d+\.\d+"]) as run:
        tracekit.decision("said", input="4f9c1d2e-8f1b-4a67-9b0e-0d8b7d1f2a3c", output="2026-11-24")
    Path(run.path).write_bytes(b"".join(Path(run.path).read_bytes().splitlines(keepends=True)[:-1]))
    Path(Store().tips, run.id).unlink()  # as after a crash
    with Trace(run.path) as trace:
        about = trace.first["meta"]
        assert b"2026-11-24" not in trace.line(2)
        assert b"4f9c1d2e" not in trace.line(2)
    assert "REDACTED" not in json.dumps([about["writer"], about["clocks"], about["environment"]["python"]])
    (found,) = recovery.scan()
    assert found.decision == "resume", found.reasons


def test_an_abort_is_on_the_log_with_who_and_why() -> None:
    """``run.aborted`` ends the run in order, names the doubtful steps and what was not undone, and nothing goes on after it."""
    log = Log()
    kept, lost, doubt = (
        log.step("reversible", "done"),
        log.step("reversible", "pending"),
        log.step("irreversible", "pending"),
    )
    log.step("reversible", "superseded")
    log.close()
    done = recovery.abort(log.path, reason="the customer called", by="ann")
    assert (done.in_doubt, done.compensated, done.uncompensated) == ((doubt,), (), (lost, kept))
    with Trace(log.path) as trace:
        last = trace.last
    assert last["type"] == "run.aborted"
    facts = {key: last["meta"][key] for key in ("by", "reason", "in_doubt", "uncompensated", "count")}
    assert facts == {
        "by": "ann", "reason": "the customer called", "in_doubt": [doubt], "uncompensated": [lost, kept], "count": last["seq"],
    }  # fmt: skip
    assert Store().verify(log.path).state == "complete"
    before = Path(log.path).read_bytes()
    for again in (
        lambda: recovery.abort(log.path, reason="x"),
        lambda: recovery.settle(log.path, kept, not_done=True, reason="x"),
    ):
        with pytest.raises(RecoveryRefusedError) as caught:
            again()
        assert caught.value.reasons[0]["code"] == "aborted"
    assert Path(log.path).read_bytes() == before


def test_cut_bytes_are_kept_beside_the_file() -> None:
    """A torn tail is cut off only when something is appended, and what was cut is kept, whatever was cut there before."""
    log = Log("torn")
    step = log.step("irreversible", "pending")
    log.close()
    size = os.path.getsize(log.path)
    with open(log.path, "ab") as file:
        file.write(b'{"half')
    before = Path(log.path).read_bytes()
    decision_on(log.path)
    with pytest.raises(RecoveryRefusedError):
        recovery.settle("torn", 99, not_done=True, reason="no such step")
    assert Path(log.path).read_bytes() == before
    beside = Path(log.path).with_name(f"torn.cut-{size}")
    beside.write_bytes(b"another torn line")  # that an earlier recovery kept
    recovery.settle("torn", step, not_done=True, reason="asked")
    kept = beside.with_name(f"{beside.name}.2")
    assert kept.read_bytes() == b'{"half'
    assert (beside.read_bytes(), kept.stat().st_mode & 0o777) == (b"another torn line", 0o600)
    assert [run.run_id for run in Store().list()] == ["torn"]
    assert Store().find("tor") == log.path


def test_a_crash_between_keeping_and_cutting_keeps_the_bytes_once() -> None:
    """Who died after the bytes were kept and before they were cut is followed by one who cuts them, and keeps them once."""
    log = Log("torn")
    log.close()
    size = os.path.getsize(log.path)
    with open(log.path, "ab") as file:
        file.write(b'{"half')
    beside = Path(log.path).with_name(f"torn.cut-{size}")
    beside.write_bytes(b'{"half')
    recovery.abort("torn", reason="x")
    assert sorted(path.name for path in beside.parent.iterdir()) == [beside.name, "torn.jsonl"]


# -- settle ------------------------------------------------------------------------------------------------------------------

calls: list[int] = []


@traced_tool(side_effect="irreversible")
def charge(cents: int) -> int:
    calls.append(cents)
    if cents < 0:
        raise ValueError("no")
    return cents


@traced_tool(side_effect="read_only")
def look() -> str:
    calls.append(0)
    return "seen"


def cut_after(path: str, seq: int) -> None:
    """Make of a run one that died after entry ``seq``."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(path).write_bytes(b"".join(lines[:seq]))
    os.unlink(os.path.join(Store().tips, Path(path).stem))


def end_of(path: str) -> None:
    """Give a run that died an end, as if it had been resumed, so that it can be replayed whole."""
    journal, _ = Store().reopen(path)
    count = journal.seq + 1
    journal.append("run.completed", 0, 1, b',"output":null,"meta":{"count":%d,"segments":[]}' % count)
    journal.close()


def test_a_settled_step_answers_with_what_the_operator_gave() -> None:
    """A step that was done by hand's word is answered with that output when the program runs again; it is not called."""
    with record("pay") as run:
        charge(5)
    cut_after(run.path, 2)
    seq = recovery.settle(run.id, 2, output=500, reason="the bank says so", by="ann")
    with Trace(run.path) as trace:
        entry = trace.entry(seq)
    settled = entry["meta"]["info"]["settled"]
    assert (entry["type"], entry["step"], entry["output"]) == ("tool.return", 2, 500)
    assert (settled["by"], settled["reason"], settled["done"]) == ("ann", "the bank says so", True)
    assert decision_on(run.path).decision == "resume"
    end_of(run.path)
    calls.clear()
    with replay(run.id):
        assert charge(5) == 500
    assert calls == []


def test_a_settlement_takes_the_place_of_a_recorded_failure() -> None:
    """A failed irreversible step as the last word of its lane: settled as done, it returns, and the failure is not an event any more."""
    with pytest.raises(ValueError, match="no"), record("pay") as run:
        charge(-5)
    cut_after(run.path, 3)
    assert refusals(decision_on(run.path)) == ["irreversible_failed"]
    recovery.settle(run.id, 2, output=7, reason="it came through")
    assert (decision_on(run.path).decision, codes(decision_on(run.path))) == ("resume", ["intact", "settled"])
    end_of(run.path)
    calls.clear()
    with replay(run.id) as session:
        assert charge(-5) == 7
    assert (calls, session.report.reordered) == ([], [])


def test_a_step_settled_as_not_done_is_no_step_of_the_run_any_more() -> None:
    """It is given up: the log has room for a new attempt, and a replay of the run does not wait for the old one."""
    with pytest.raises(ValueError, match="no"), record("pay") as run:
        charge(-5)
    cut_after(run.path, 3)
    recovery.settle(run.id, 2, not_done=True, reason="the bank never saw it")
    assert decision_on(run.path).decision == "resume"
    end_of(run.path)
    with replay(run.id) as session:
        pass
    assert session.report.reordered == []


@pytest.mark.parametrize("done", [True, False])
def test_a_failure_that_the_program_went_on_with_stays_its_failure(done: bool) -> None:
    """Where the program caught the error and went on, a settlement says that somebody has looked; the program keeps its error."""
    with record("pay") as run:
        with pytest.raises(ValueError, match="no"):
            charge(-5)
        look()
    cut_after(run.path, 5)
    assert refusals(decision_on(run.path)) == ["irreversible_failed"]
    options: dict[str, Any] = {"output": 5} if done else {"not_done": True}
    seq = recovery.settle(run.id, 2, reason="asked", **options)
    with Trace(run.path) as trace:
        assert trace.entry(seq)["type"] == "recovery.settled"
    assert decision_on(run.path).decision == "resume"
    with pytest.raises(RecoveryRefusedError):
        recovery.settle(run.id, 2, reason="again", **options)
    end_of(run.path)
    calls.clear()
    with replay(run.id):
        with pytest.raises(ValueError, match="no"):
            charge(-5)
        assert look() == "seen"
    assert calls == []


@pytest.mark.parametrize(
    ("build", "step"),
    [
        (lambda log: log.step("irreversible", "done"), 2),
        (lambda log: (log.step("irreversible", "settled not done"), log.step("read_only", "done")), 2),
        (lambda log: log.step("read_only", "failed"), 2),
        (lambda log: log.step("irreversible", "pending"), 1),
        (lambda log: log.step("irreversible", "pending"), 77),
        (lambda log: log.call(None, kind="span.start"), 2),
    ],
)
def test_what_is_not_in_doubt_is_not_settled(build: Callable[[Log], object], step: int) -> None:
    """A step that has its outcome, one that is none, and one that is not there: refused, and nothing is written."""
    log = Log()
    build(log)
    log.close()
    before = Path(log.path).read_bytes()
    with pytest.raises(RecoveryRefusedError):
        recovery.settle(log.path, step, output=1, reason="x")
    assert Path(log.path).read_bytes() == before


def test_a_settlement_says_which_of_both_and_why() -> None:
    """Neither or both of ``output`` and ``not_done``, no reason, or an output that can't be recorded: wrong use."""
    log = Log()
    log.step("irreversible", "pending")
    log.close()
    wrong: Iterable[dict[str, Any]] = (
        {"reason": "x"},
        {"reason": "x", "output": 1, "not_done": True},
        {"reason": " ", "output": 1},
        {"reason": "x", "output": object()},
    )
    for options in wrong:
        with pytest.raises(ValueError):
            recovery.settle(log.path, 2, **options)


def test_secrets_do_not_enter_the_log_by_hand() -> None:
    """What an operator writes is redacted as what a program writes, and an output that was is asked for again on resume."""
    log = Log()
    step = log.step("irreversible", "pending")
    log.close()
    key = "sk-" + "proj-" + "a1B2" * 12
    recovery.settle(log.path, step, output={"token": key}, reason=f"key {key}")
    assert key.encode() not in Path(log.path).read_bytes()
    assert refusals(decision_on(log.path)) == ["redacted_output"]


def test_every_code_is_documented() -> None:
    """Each code that a decision can hold has its line in the reference."""
    source = Path(tracekit.__file__).parent
    page = (source.parents[1] / "docs/reference/recovery.md").read_text(encoding="utf-8")
    text = (source / "_runs/recovery.py").read_text(encoding="utf-8")
    import re

    found = {*re.findall(r'"code": "(\w+)"', text), *re.findall(r'_reason\(\s*f?"([\w]+)"', text), *FOR}
    assert len(found) > 20
    assert [code for code in sorted(found) if f"`{code}`" not in page] == []


def test_each_reason_to_refuse_has_advice_of_its_own() -> None:
    """What a person is told first fits the reason: nobody is told to give a run up that has only to be waited for."""
    page = (Path(tracekit.__file__).parents[2] / "docs/reference/recovery.md").read_text(encoding="utf-8")
    table = page.partition("## Reasons to refuse")[2].partition("\n\n`")[0]
    codes = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert len(codes) > 20
    assert codes - IN_DOUBT - {*_ADVICE} == set()


@pytest.mark.parametrize("state", ["done", "pending", "failed"])
def test_a_compensation_inside_the_step_that_it_undoes(state: str) -> None:
    """Cut off between the compensation of a step and its new attempt: the compensation is no part of what is made again; one
    that is in doubt itself is refused, as any effect is."""
    log = Log()
    outer = log.call("reversible")
    undo = log.call("irreversible", parent=outer, meta={"info": {"compensates": outer}})
    if state == "done":
        log.end(undo)
    elif state == "failed":
        log.end(undo, "tool.error", error=ERROR)
    decision = log.decision()
    expected = {"done": [], "pending": ["irreversible_pending"], "failed": ["irreversible_failed"]}[state]
    assert refusals(decision) == expected
