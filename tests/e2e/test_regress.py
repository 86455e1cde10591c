"""``tracekit regress`` judges every run of a corpus once, each in a process of its own, and says why a run is not the
same."""

from __future__ import annotations

import fcntl
import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests.support.processes import forking, python
from tests.support.stub_provider import StubProvider, stub_provider
from tracekit import CorpusReport, JudgedRun, Query, RunNotFoundError, RunStateError, regress
from tracekit.cli import main

SHOP = """
import ctypes, fcntl, os, random, time
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look_up(order):
    return {"order": order, "cents": 100 * order}

@traced_tool(side_effect="irreversible")
def pay(cents):
    with open("../paid", "a") as file:
        file.write(f"{cents}\\n")
    return "paid"

seen = []

def below():
    look_up(6)

"""
AGENT = """
@record("shop", metadata={"of": "tests"})
def agent(order):
    seen.append(order)
    assert seen == [order] or "recording" in os.environ, seen   # each replay has a process of its own
    if order == 6:
        child = os.fork()
        if child == 0:
            below()
            os._exit(0)
        os.waitpid(child, 0)
    cents = look_up(order)["cents"] + random.randrange(1000)
    open("notes.txt", "a").write("seen\\n")
    return {"said": pay(cents), "at": time.time()}
"""
#: What has changed since, by the order that a run is about.
TODAY = """
agent_then = agent.__wrapped__

def below():
    os.setsid()
    file = open(os.environ["SLOW"], "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    print("slow", file=file, flush=True)
    while True:
        ctypes.CDLL(None).sleep(60)  # not a clock of the run

@record("shop")
def today(order):
    if order == 3:
        look_up(order)
    if order == 4:
        raise KeyError(order)
    if order == 5:
        os.abort()
    if order == 7:
        return pay(look_up(order)["cents"])
    if order == 8:
        return agent_then(order)["said"].upper()
    if order in (9, 10):
        look_up(order), pay(1)
    return agent_then(order)
"""
RECORD = """
import os
os.environ["recording"] = "1"
from shop import agent, look_up, record
for order in range(1, 11):
    agent(order)
"""
NIGHTLY = """
import sys
from shop import record, look_up

with record("nightly", run_id="nightly"):
    look_up(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an agent, what became of it, and a store of eleven runs; one more is damaged."""
    place = tmp_path_factory.mktemp("shop") / "here"
    place.mkdir()
    (place / "shop.py").write_text(SHOP + AGENT)
    (place / "today.py").write_text(SHOP + AGENT + TODAY)
    variables = {**os.environ, "TRACEKIT_DIR": str(place / ".tracekit")}
    (place / "nightly.py").write_text(NIGHTLY)
    for program in (["-c", RECORD], ["nightly.py", "11"]):
        assert python(*program, cwd=place, env=variables).returncode == 0
    (place / "notes.txt").unlink()
    runs = sorted(path for path in (place / ".tracekit" / "runs").glob("0*.jsonl") if path.stem.count(".") == 0)
    (place / ".tracekit" / "runs" / "damaged.jsonl").write_bytes(runs[0].read_bytes().replace(b'"cents"', b'"pence"'))
    for number, path in enumerate(runs, 1):
        (place / f"{number}.jsonl").symlink_to(path)
    return place


@pytest.fixture(scope="module", autouse=True)
def _forking() -> Iterator[None]:
    """The processes that replay runs are forked from an interpreter with the imports done."""
    with forking():
        yield


@pytest.fixture(autouse=True)
def _here(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.setenv("TRACEKIT_DIR", str(shop / ".tracekit"))


def orders(*numbers: int) -> list[str]:
    """The runs of these orders, by their files in the store."""
    return [os.path.realpath(f"{number}.jsonl") for number in numbers]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["regress", *arguments])


def facts(runs: Sequence[JudgedRun]) -> dict[str, JudgedRun]:
    """What is said of each run, without how long it took."""
    return {run.run: replace(run, seconds=0, cpu=0, output="") for run in runs}


def test_the_same_code_is_the_same_and_nothing_is_touched(shop: Path) -> None:
    """With unchanged code every run is the same, nothing is live, and no file of the user is changed."""
    paid = (shop.parent / "paid").read_text()
    stored = {path: path.read_bytes() for path in (shop / ".tracekit").rglob("*") if path.is_file()}
    report = regress(*orders(*range(1, 11)), entry="shop:agent", workers=2)
    assert report.same, report.groups
    assert report.exit_code == 0
    assert [run.steps for run in report.runs] == [2] * 5 + [3] + [2] * 4
    assert {run.verdict for run in report.runs} == {"exact"}
    assert (shop.parent / "paid").read_text() == paid
    assert not (shop / "notes.txt").exists()
    assert {path: path.read_bytes() for path in (shop / ".tracekit").rglob("*") if path.is_file()} == stored


@pytest.fixture(scope="module")
def report(shop: Path) -> CorpusReport:
    """What came of the whole corpus with today's code."""
    before = os.getcwd()
    os.chdir(shop)
    os.environ["SLOW"] = str(shop.parent / "slow")
    try:
        done: list[tuple[int, int]] = []
        found = regress(
            *orders(*range(1, 11)),
            str(shop / ".tracekit" / "runs" / "damaged.jsonl"),
            entry="today:today",
            timeout=8,
            workers=1,
            progress=lambda *many: done.append(many),
        )
        assert done == [(number, 11) for number in range(12)]
        return found
    finally:
        os.chdir(before)
        del os.environ["SLOW"]


def test_each_run_says_what_came_of_it(report: CorpusReport, shop: Path) -> None:
    """Each run is the same, differs (with the first difference), is not replayable, crashed or timed out, and is listed
    once, in the order of the corpus."""
    assert [run.state for run in report.runs] == [
        "same", "same", "differs", "crashed", "crashed", "timed out", "differs", "differs", "differs", "differs", "not replayable",
    ]  # fmt: skip
    assert report.counts == {"same": 2, "differs": 5, "not replayable": 1, "crashed": 2, "timed out": 1}
    assert report.exit_code == 1
    _, _, more, raised, aborted, slow, less, result, other, _, damaged = report.runs
    place = str(shop / "today.py")
    assert (more.kind, more.name) == ("tool.call", "pay")
    assert "'look_up' is not the recorded step" in more.text
    assert raised.text == "KeyError: 4"
    assert str(raised.location).startswith(place)
    assert aborted.text.startswith("its process ended with signal 6")
    assert re.search(r"had not ended after \d+ s", slow.text)
    assert less.code == "divergence"
    assert "result" in result.text
    assert [one["path"] for one in other.differences] == ["input.cents"]
    assert str(other.location).startswith(place)
    assert damaged.code == "trace-integrity"
    assert report.runs[5].seconds < 60


def test_a_run_that_takes_too_long_is_killed_with_all_it_has_started(report: CorpusReport, shop: Path) -> None:
    """A process forked by the program does not outlive the timeout, even in a group of its own, and its lock becomes
    free."""
    assert report.runs[5].state == "timed out"
    with (shop.parent / "slow").open() as file:
        assert file.read() == "slow\n"
        fcntl.flock(file, fcntl.LOCK_EX)


def test_runs_are_grouped_by_their_first_difference(report: CorpusReport) -> None:
    """Runs with one cause are one group, the most serious first; a difference names the step, the field and the line."""
    groups = [(group.state, len(group.runs)) for group in report.groups]
    assert [state for state, _ in groups] == sorted(
        (state for state, _ in groups), key=["crashed", "timed out", "differs", "not replayable"].index
    )
    assert ("differs", 2) in groups
    together = next(group for group in report.groups if len(group.runs) == 2)
    assert "pay: input.cents (at today.py:" in together.text


def test_the_order_is_in_no_answer(report: CorpusReport) -> None:
    """The answers do not depend on the order, on how many runs are judged at a time, or on the executor."""
    some = [report.runs[number].place for number in (9, 3, 10, 2, 0)]
    again = regress(*some, entry="today:today", workers=1)
    expected = facts(report.runs)
    assert [run.place for run in again.runs] == some
    assert facts(again.runs) == {run.run: expected[run.run] for run in again.runs}
    with ThreadPoolExecutor(1) as executor:
        again = regress(*some[:2], entry="today:today", executor=executor, workers=1)
    assert facts(again.runs) == {run.run: expected[run.run] for run in again.runs}


class Losing(ThreadPoolExecutor):
    """An executor whose first piece of work is lost with its worker, and that is broken after some more."""

    def __init__(self, pieces: int) -> None:
        super().__init__(1)
        self._pieces = pieces
        self.given: list[str] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        if len(self.given) == self._pieces:
            raise BrokenExecutor("a worker was killed")
        self.given += args[1]
        if len(self.given) > 1:
            return super().submit(call, *args, **kwargs)
        lost: Future[Any] = Future()
        lost.set_exception(BrokenExecutor("a worker was killed"))
        return lost


def test_what_an_executor_loses_is_not_lost(report: CorpusReport) -> None:
    """If a worker is lost, its part is given out again, and done in this process if nobody takes it; each run is judged
    once."""
    expected = facts(report.runs)
    some = [report.runs[number].place for number in (0, 2, 10)]
    with Losing(2) as executor:
        again = regress(*some, entry="today:today", executor=executor, workers=1)
    assert executor.given == some[:2]  # the first one is lost, and nobody takes the third, nor the first again
    assert facts(again.runs) == {run.run: expected[run.run] for run in again.runs}
    assert [run.place for run in again.runs] == some


def test_a_server_that_goes_takes_no_run_with_it(shop: Path) -> None:
    """A program that kills the process it was forked from and runs for ever counts as crashed and is ended; it is tried
    once more, and the others are judged as usual."""
    held = shop.parent / "held"
    (shop / "murder.py").write_text(
        (shop / "shop.py").read_text()
        + textwrap.dedent(f"""
            import ctypes

            @record("shop")
            def murder(order):
                if order == 2:
                    file = open({str(held)!r}, "w")
                    fcntl.flock(file, fcntl.LOCK_EX)
                    ctypes.CDLL(None).kill(os.getppid(), 9)
                    while True:
                        pass
                return agent.__wrapped__(order)
            """)
    )
    report = regress(*orders(1, 2, 3), entry="murder:murder", workers=1)
    assert [run.state for run in report.runs] == ["same", "crashed", "same"]
    assert (
        report.runs[1].text
        == "its process ended with exit code 1: twice, the process that replays runs has ended with it"
    )
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_module_that_is_not_to_be_shared_is_imported_by_each(shop: Path) -> None:
    """A module that leaves a thread, or opens a run while it is imported, is imported anew for each run."""
    (shop / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nfrom shop import agent\n"
    )
    assert regress(*orders(1, 2), entry="threaded:agent", workers=1).same


def test_what_a_run_writes_is_gone_before_the_next(shop: Path) -> None:
    """Runs that are replayed one after the other find the original files, whatever earlier ones made, removed or
    closed."""
    (shop / "litter.py").write_text(
        SHOP
        + textwrap.dedent("""
            import ctypes

            def is_there(path):   # as native code finds it, of which nothing is recorded
                return ctypes.CDLL(None).access(path.encode(), os.R_OK) == 0

            @record("shop")
            def agent(order):
                assert is_there("today.py") and not is_there("litter/below"), order
                assert os.stat("/proc/self/cwd").st_mode & 0o777 != 0o701, order
                if order == 2:
                    os.makedirs("litter/below")
                if order == 3:
                    os.chmod(".", 0o701)
                if order == 4:
                    os.remove("today.py")
                cents = look_up(order)["cents"] + random.randrange(1000)
                return {"said": pay(cents), "at": time.time()}
            """)
    )
    runs = orders(2, 3, 4, 5, 1)
    report = regress(*runs, entry="litter:agent", workers=1)
    assert [run.state for run in report.runs] == ["same"] * len(report.runs), report.groups
    assert (shop / "today.py").exists()


def test_command(report: CorpusReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints text, JSON, JUnit and HTML with the command that shows more, and its exit code says whether
    all is as it was."""
    monkeypatch.setattr("tracekit.cli.regress.regress_runs", lambda *runs, **options: report)
    done = call("--entry", "today:today", "--junit", "report.xml", "--html", "report.html")
    assert done.exit_code == 1
    assert "differs: tool.call pay: input.cents (at today.py:" in done.stdout
    other = report.runs[8]
    assert "".join(f"  {line}\n" for line in other.text.splitlines()) in done.stdout  # all its lines, and nothing twice
    assert "input.cents: " not in done.stdout
    assert "11 runs against today:today: 2 same, 5 differ, 1 not replayable, 2 crashed, 1 timed out" in done.stdout
    assert "next: tracekit replay " in done.stdout
    suite = ElementTree.parse("report.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["11", "5", "3", "1"]
    assert sum(len(case) > 0 for case in suite) == 9
    assert all("\nnext: tracekit " in str(one.text) for case in suite for one in case if one.tag == "failure")
    page = Path("report.html").read_text()
    assert all(one.run in page for one in report.runs)
    assert all(escape(group.text) in page and page.count("<h2>") == len(report.groups) for group in report.groups)
    assert call("--entry", "today:today", "--html", "today.py").exit_code == 2  # no report: it is left as it is
    assert len(json.loads(call("--entry", "today:today", "--json").stdout)["runs"]) == 11


# -- another model, another policy, another day -------------------------------------------------------------------------

DESK = """
import datetime, json
import httpx
from tracekit import instrument, policy_check, record, traced_tool

instrument()

@traced_tool(side_effect="read_only")
def price(item):
    return {"book": 1200, "pen": 90}[item]

@traced_tool(side_effect="irreversible")
def charge(cents):
    with open("../charged", "a") as file:
        file.write(f"{cents}\\n")

def ask(text):
    body = {"model": "tiny-1", "messages": [{"role": "user", "content": text}]}
    with httpx.Client() as client:
        return client.post(open("../model").read(), json=body).json()["choices"][0]["message"]["content"]

@record("desk")
def desk(item):
    cents = price(item)
    said = ask(f"{item} for {cents}?")
    if said == "cheaper":
        cents -= 100
    elif said == "none":
        return ask("why?")
    asked = {"action": "charge", "payload": {"cents": cents}, "said": said}
    answer = policy_check("limits", input=asked, output={"decision": "deny" if said == "no" else "allow"})
    if answer["decision"] == "allow":
        charge(cents)
    if datetime.date.today().day == 31:
        price(item)
    return cents
"""
POLICIES = """
def strict(kind, name, input, output):
    return {"decision": "deny", "reason": "too dear"} if input["payload"]["cents"] > 1000 else output
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubProvider]:
    """A directory with an agent that asks a model, and a store of three runs of it; yields the model."""
    place = tmp_path_factory.mktemp("desk") / "here"
    place.mkdir()
    (place / "desk.py").write_text(DESK)
    (place / "policies.py").write_text(POLICIES)
    with stub_provider() as provider:
        provider.says = lambda body: "yes"
        (place.parent / "model").write_text(f"{provider.url}/v1/chat/completions")
        record = "import desk; desk.desk('book'), desk.desk('pen'), desk.desk('book')"
        variables = {**os.environ, "TRACEKIT_DIR": str(place / ".tracekit")}
        assert python("-c", record, cwd=place, env=variables).returncode == 0
        provider.place = place  # type: ignore[attr-defined]
        yield provider


@pytest.fixture
def at_the_desk(desk: StubProvider, monkeypatch: pytest.MonkeyPatch) -> Path:
    place: Path = desk.place  # type: ignore[attr-defined]
    monkeypatch.chdir(place)
    monkeypatch.setenv("TRACEKIT_DIR", str(place / ".tracekit"))
    desk.seen.clear()
    return place


def test_another_model(desk: StubProvider, at_the_desk: Path) -> None:
    """The unchanged program asks another model, live: equal calls get the recorded answer, one that was not recorded is
    not made and ends its run, and the report compares steps, results, tokens and cost."""
    before = (at_the_desk.parent / "charged").read_text()
    stored = sorted(os.listdir(".tracekit/runs"))
    answers = iter(["cheaper", "yes", "none", "no reason"])
    desk.says = lambda body: next(answers)
    done = call("--entry", "desk:desk", "--live", "llm=big-2", "-n", "1", "--json")
    assert done.exit_code == 1, done.output
    assert [json.loads(one["body"])["model"] for one in desk.seen] == ["big-2"] * 4
    assert (at_the_desk.parent / "charged").read_text() == before
    assert sorted(os.listdir(".tracekit/runs")) == stored
    found = json.loads(done.stdout)
    assert [run["state"] for run in found["runs"]] == ["differs", "same", "differs"]
    cheaper, same, none = found["runs"]
    assert cheaper["differences"] == [{"path": "input.cents", "recorded": 1200, "actual": 1100}]
    assert [(one["op"], one["name"], one["answered"]) for one in cheaper["changes"]["calls"]] == [
        ("changed", "charge", False)
    ]
    assert (same["changes"]["calls"], same["changes"]["result"]) == ([], [])
    assert [(one["op"], one["name"]) for one in none["changes"]["calls"]] == [("dropped", "charge")]
    assert none["changes"]["result"] == [{"path": "output", "recorded": 1200, "actual": "no reason"}]
    changes = found["changes"]
    assert changes["calls"] == {"added": 0, "dropped": 1, "changed": 1, "moved": 0, "not reached": 0}
    assert (changes["cut_off"], changes["results"], changes["compared"]) == (1, 1, 3)
    assert (changes["recorded"]["calls"], changes["now"]["calls"]) == (3, 4)
    assert changes["now"]["input_tokens"] > changes["recorded"]["input_tokens"] > 0
    assert (changes["recorded"]["cost_usd"], changes["recorded"]["unpriced"]) == (None, ["tiny-1"])


def test_what_comes_after_a_crash_is_not_reached(desk: StubProvider, at_the_desk: Path) -> None:
    """A program that another answer of the model breaks has dropped no call: it did not get there, and gave no result."""
    answers = iter(["yes", "yes", "none", "broken"])
    desk.says = lambda body: next(answers)
    crashes = (at_the_desk / "desk.py").read_text().replace('return ask("why?")', "raise KeyError(ask('why?'))")
    (at_the_desk / "crashes.py").write_text(crashes)
    done = call("--entry", "crashes:desk", "--live", "llm=big-2", "-n", "1", "--json")
    found = json.loads(done.stdout)
    assert [run["state"] for run in found["runs"]] == ["same", "same", "crashed"], done.output
    assert found["changes"]["calls"] == {"added": 0, "dropped": 0, "changed": 0, "moved": 0, "not reached": 1}
    assert found["changes"]["results"] == 0


def test_a_decision_that_another_model_leads_to(desk: StubProvider, at_the_desk: Path) -> None:
    """A policy that is asked about other words of the model, and answers otherwise, is the difference, with the effect
    behind it; a model without a name is a usage error."""
    desk.says = lambda body: "no"
    done = call("last", "--entry", "desk:desk", "--live", "llm=big-2", "-n", "1")
    assert done.exit_code == 1, done.output
    assert "differs: policy.check limits: decided otherwise  1 run" in done.stdout
    assert "output: {decision: allow} → {decision: deny}\n    behind it: charge (step " in done.stdout
    assert "calls: 1 dropped\ndecisions: 1 flipped\n" in done.stdout
    nameless = call("last", "--entry", "desk:desk", "--live", "llm=")
    assert (nameless.exit_code, "must be the name of a model" in nameless.stderr) == (2, True)


def test_another_policy_on_another_day(desk: StubProvider, at_the_desk: Path) -> None:
    """Policies decide anew on another day, and the report says what ran after each changed decision; nothing is live."""
    files = ["--junit", "x.xml", "--html", "x.html"]
    done = call("--entry", "desk:desk", "--policy", "policies:strict", "--at", "2031-01-31", "-n", "1", *files)
    assert done.exit_code == 1, done.output
    page = Path("x.html").read_text()
    assert ">3 differ<" in page
    assert "Models" not in page  # of which none was asked
    assert "  output: {decision: allow} -&gt; {decision: deny, reason: too dear}\n" in Path("x.xml").read_text()
    assert desk.seen == []
    assert "differs: policy.check limits: decided otherwise  2 runs" in done.stdout
    assert "output: {decision: allow} → {decision: deny, reason: too dear}" in done.stdout
    assert "behind it: charge (step " in done.stdout
    assert "differs: tool.call price: added  1 run" in done.stdout
    assert "calls: 3 added, 2 dropped\ndecisions: 2 flipped\n" in done.stdout
    assert (
        "desk:desk with policy.check/breaker/detection = policies:strict, clock = 2031-01-31: 3 differ" in done.stdout
    )


def test_a_page_holds_text_alone() -> None:
    """Nothing recorded becomes markup in the page, which has no script and loads nothing."""
    text = "</pre><script>alert(1)</script>"
    one = JudgedRun(text, text, "differs", text, differences=({"path": text, "actual": text},), group=text)
    page = CorpusReport((one,), entry=text).html()
    assert "<script" not in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert page.count("alert(1)") > 5


def test_a_long_difference_keeps_its_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a difference of many lines, a group shows the first ones and the last ones, where the hints are."""
    text = "\n".join(["not the step", *(f"  field {number}:" for number in range(40)), "  a hint"])
    fields = tuple({"path": f"field {number}", "recorded": 1, "actual": 2} for number in range(40))
    one = JudgedRun("run", "run", "differs", text, differences=fields, group="a step")
    monkeypatch.setattr("tracekit.cli.regress.regress_runs", lambda *runs, **options: CorpusReport((one,)))
    shown = call("--entry", "shop:agent").stdout.splitlines()
    assert shown[1:3] == ["  not the step", "    field 0:"]
    assert "    … 22 more lines (--json)" in shown
    assert shown[shown.index("  run") - 1] == "    a hint"
    assert " → " not in "".join(shown)


def test_usage() -> None:
    """An impossible request and a corpus without a run are usage errors."""
    assert call("1.jsonl", "--entry", "shop:agent", "--", "agent.py").exit_code == 2
    assert call("nothing", "--entry", "shop:agent").exit_code == 2
    assert call("--name", "nobody's", "--entry", "shop:agent").exit_code == 2
    assert call("--live", "decision").exit_code == 2
    assert call("--live", "llm", "--isolate", "on").exit_code == 2
    done = call("--at", "someday")
    assert (done.exit_code, "Error: --at is how far" in done.stderr) == (2, True)
    for options, wrong in (  # no judgement on a run, however many there are
        (("--entry", "nowhere:agent"), "--entry nowhere:agent: there is no module 'nowhere'"),
        (("--entry", "shop:nobody"), "--entry shop:nobody: 'shop' has no function 'nobody'"),
        (("--entry", "shop:agent", "--policy", "shop:nobody"), "there is no shop:nobody to decide"),
    ):
        done = call(*orders(1, 2), "-n", "1", *options)
        assert (done.exit_code, done.stdout, wrong in done.stderr) == (2, "", True), done.output
        assert "next:  " in done.stderr
    assert call("--at", "2031-01-31", "--shift-clock", "1d").exit_code == 2
    with pytest.raises(ValueError, match="name it"):
        regress("1.jsonl", live={"breaker": lambda *given: None})


def test_programs_are_todays_code() -> None:
    """``-- COMMAND`` runs that command for each run; without it, and without an entry, the program that the run names
    is run."""
    same = call("nightly", "--json", "-n", "1")
    assert same.exit_code == 0, same.stdout
    other = json.loads(call("nightly", "--json", "-n", "1", "--", "nightly.py", "12").stdout)
    assert [run["state"] for run in other["runs"]] == ["differs"]
    assert other["against"] == "nightly.py 12"


def test_which_runs(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are named by ids, paths, patterns and directories, each once, and a query chooses among them."""
    asked: list[list[str]] = []

    def here(how: Any, places: list[str], workers: int) -> Any:
        asked.append([Path(place).resolve().stem for place in places])
        reply = {"exit": 0, "timed_out": False, "seconds": 0, "cpu": 0, "output": ""}
        outcome = {"code": 0, "failure": None, "raised": None, "opened": True, "verdicts": []}
        return ((number, {**reply, "outcome": outcome}) for number in range(len(places)))

    monkeypatch.setattr("tracekit._runs.corpus._here", here)
    first = Path(orders(1)[0]).stem

    def chosen(*runs: str, **query: Any) -> list[str]:
        regress(*runs, entry="shop:agent", query=Query(**query))
        return asked[-1]

    assert len(chosen()) == 12
    assert chosen(first, "1.jsonl", str(shop / ".tracekit" / "runs" / f"{first}.jsonl")) == [first]
    assert len(chosen("[12].jsonl", "nightly")) == 3
    assert len(chosen(".tracekit")) == 12
    assert chosen(names=("night*",)) == ["nightly"]
    assert len(chosen(names=("shop",), ended=("complete",))) == 11
    for none in (
        {"agents": ("nobody",)},
        {"models": ("gpt-*",)},
        {"failure": "any"},
        {"min_cost": 1.0},
        {"ended": ("failed",)},
    ):
        with pytest.raises(RunStateError, match="query"):
            chosen("1.jsonl", **none)
    with pytest.raises(RunNotFoundError):
        chosen("nothing/*.jsonl")


def test_a_pipe_among_the_runs_is_not_waited_for(shop: Path) -> None:
    """What has the name of a run and is none is listed with the reason, and no run for which a query could ask."""
    corpus = shop / "corpus"
    corpus.mkdir()
    os.mkfifo(corpus / "a.jsonl")
    (corpus / "b.jsonl").symlink_to(shop / "nowhere")
    (corpus / "c.jsonl").mkdir()
    report = regress(str(corpus), entry="shop:agent", workers=1, timeout=60)
    assert [(run.state, run.code) for run in report.runs] == [("not replayable", "run-not-found")] * 3
    assert "there is no trace" in report.runs[0].text
    with pytest.raises(RunStateError, match="query"):
        regress(str(corpus), entry="shop:agent", query=Query(ended=("open",)))


@pytest.mark.parametrize("input", [{"order": 1}, {"order": "none"}])
def test_an_entry_that_does_not_take_the_input_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input: dict[str, Any]
) -> None:
    """It is a wrong use, whether the recorded run ended well or with an error of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEKIT_DIR", raising=False)
    (tmp_path / "agent.py").write_text(
        "from tracekit import record, traced_tool\n\n@traced_tool(side_effect='read_only')\ndef price(order):\n"
        "    return 100 + order\n\n@record('shop')\ndef sell(order):\n    return price(order)\n\ndef other(customer, item):\n"
        "    return price(customer)\n"
    )
    done = python("-c", f"import agent; agent.sell(**{input!r})", cwd=tmp_path)
    assert (done.returncode == 0) is (input["order"] == 1), done.stderr
    done = CliRunner().invoke(main, ["regress", "last", "--entry", "agent:other"])
    assert (done.exit_code, "can't be called with what the run was given" in done.stderr) == (2, True), done.output


@pytest.mark.parametrize(
    ("before", "state", "group"),
    [
        ("", "differs", "the program draws random.random here, and the recording has no such draw left before the next step"),
        ("    import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))\n", "not replayable", "was not captured"),
    ],
)  # fmt: skip
def test_a_group_says_what_differs_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, state: str, group: str
) -> None:
    """A difference that is at no step has its own sentence as the name of its group. If the recording itself says why
    it can't be replayed, that is the reason, and the program is not blamed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEKIT_DIR", raising=False)
    agent = (
        "import random\nfrom tracekit import record, traced_tool\n\n@traced_tool(side_effect='read_only')\n"
        "def price(order):\n    return 100 + order\n\n@record('shop')\ndef sell(order):\n"
    )
    (tmp_path / "agent.py").write_text(f"{agent}{before}    return price(order)\n")
    assert python("-c", "import agent; agent.sell(1)", cwd=tmp_path).returncode == 0
    (tmp_path / "today.py").write_text(f"{agent}    random.random()\n    return price(order)\n")
    (told,) = json.loads(call("last", "--entry", "today:sell", "--json").stdout)["groups"]
    assert told["state"] == state
    assert group in told["text"]
