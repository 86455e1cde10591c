"""A tool is killed while it sends a request: a person settles the tool once, and the request inside it is settled with
it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.processes import python
from tracekit import recovery
from tracekit.cli import main
from tracekit.errors import RecoveryRefusedError

PROGRAM = """
import json, os, signal, sys, urllib.request
import tracekit
from tracekit import record, replay, resume, traced_tool
tracekit.instrument()
what, port, how = sys.argv[1:]

def post(order):
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    body = json.dumps({"order": order}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/pay", body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))["id"]

@traced_tool(side_effect="irreversible", exactly_once=how == "once")
def pay(order):
    receipt = post(order)
    if how == "answered" and what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt

@traced_tool(side_effect="irreversible" if how == "once" else "reversible")
def checkout(order):
    return "bought " + pay(order)

def main(run):
    if how == "bare":
        found = post("o-1")
    elif how in ("checkout", "once"):
        found = checkout("o-1")
    else:
        found = pay("o-1")
    run.set_result(found)
    print(found)

if what == "die":
    with record("shop", run_id="shop") as run:
        main(run)
elif what == "resume":
    with resume("shop") as run:
        main(run)
else:
    with replay("shop") as session:
        main(session)
    assert session.report.exact
"""


class Shop:
    """A program that sends a payment to a server, which kills it meanwhile, before or after the payment is made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paid: list[str] = []
        self.kills = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if outer.kills != "before":
                    outer.paid.append(asked["order"])
                if outer.kills:
                    outer.kills = ""
                    os.kill(int((directory / "pid").read_text()), signal.SIGKILL)
                    return
                body = json.dumps({"id": f"p-{len(outer.paid)}"}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def live(self, what: str, how: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        port = str(self.server.server_port)
        return python("-c", PROGRAM, what, port, how, cwd=self.directory, env=environment)

    def killed(self, how: str, *, paid: bool) -> None:
        self.kills = "" if how == "answered" else "after" if paid else "before"
        assert self.live("die", how).returncode == -signal.SIGKILL

    def goes_on(self, how: str, result: str) -> None:
        for what in ("resume", "replay"):
            went = self.live(what, how)
            assert (went.returncode, went.stdout) == (0, result + "\n"), went.stderr
        assert self.paid == ["o-1"]
        assert command("in-doubt").exit_code == 0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    found = Shop(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


def command(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def settle(step: int, *how: str, given: Any = None) -> Result:
    if how == ("--done",):
        Path("output.json").write_text(json.dumps(given))
        how = ("--done", "output.json")
    return command("recovery", "settle", "shop", str(step), *how, "--reason", "asked the bank")


def doubts() -> dict[str, Any]:
    """Return the steps in doubt, by what kind of call they are."""
    return {str(one.name).split()[0]: one for one in recovery.in_doubt().in_doubt}


def test_the_request_is_listed_under_its_tool(shop: Shop) -> None:
    """The tool and its request are both counted as in doubt, but only the tool has to be settled."""
    shop.killed("plain", paid=True)
    found = doubts()
    assert (found["pay"].inside, found["POST"].inside) == (None, found["pay"].step)
    done = command("in-doubt")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "in doubt: 2 steps, 1 of them inside another"
    assert lines[1].startswith("  pay(")
    assert sum(line.startswith("    POST") for line in lines[2:]) == 1
    assert f"settle step {found['pay'].step} around it" in found["POST"].what_to_do
    assert "recovery settle" not in found["POST"].what_to_do
    assert f"inside it (step {found['POST'].step}, http 'POST" in found["pay"].what_to_do
    listed = [json.loads(line) for line in command("in-doubt", "--json").stdout.splitlines()]
    assert [one["inside"] for one in listed] == [None, found["pay"].step]
    assert "2 steps in doubt" in command("recovery", "scan").stderr


def test_a_tool_that_was_done_settles_what_was_in_it(shop: Shop) -> None:
    """One command settles both as done; the resumed program gets the answer, nothing is sent again, and the request can
    no longer be settled alone."""
    shop.killed("plain", paid=True)
    found = doubts()
    done = settle(found["pay"].step, "--done", given="p-1")
    assert done.exit_code == 0, done.output
    assert f"with it, as done: step {found['POST'].step}, http 'POST" in done.stdout
    assert doubts() == {}
    (decision,) = recovery.scan()
    assert (decision.decision, decision.in_doubt) == ("resume", ())
    (inner,) = [reason for reason in decision.reasons if reason.get("step") == found["POST"].step]
    assert (inner["code"], inner["with"]) == ("settled", found["pay"].step)
    assert "not made again" in inner["text"]
    refused = settle(found["POST"].step, "--not-done")
    assert refused.exit_code == 4
    assert f"was settled with step {found['pay'].step}" in refused.stderr
    shop.goes_on("plain", "p-1")


def test_a_tool_that_was_not_done_has_done_nothing_inside(shop: Shop) -> None:
    """One command settles both as not done and names both, and the resumed program makes the payment once."""
    shop.killed("plain", paid=False)
    found = doubts()
    done = settle(found["pay"].step, "--not-done")
    assert done.exit_code == 0, done.output
    assert f"with it, as not done: step {found['POST'].step}, http 'POST" in done.stdout
    assert doubts() == {}
    (decision,) = recovery.scan()
    texts = {reason["step"]: reason["text"] for reason in decision.reasons if reason["code"] == "settled"}
    assert texts[found["POST"].step].endswith(f"it is made again with step {found['pay'].step} around it")
    shop.goes_on("plain", "p-1")


@pytest.mark.parametrize(("first", "then"), [("--done", "--not-done"), ("--not-done", "--done")])
def test_a_settlement_is_corrected_with_what_is_inside(shop: Shop, first: str, then: str) -> None:
    """The last declaration counts, for the tool and for its request."""
    shop.killed("plain", paid=then == "--done")
    step = doubts()["pay"].step
    for how in (first, then):
        assert settle(step, how, given="p-1").exit_code == 0
    assert doubts() == {}
    shop.goes_on("plain", "p-1")


def test_what_was_done_inside_is_not_done_again(shop: Shop) -> None:
    """If the request was answered, or a person declared it done, the tool can't be made again and must be settled as
    done."""
    shop.killed("answered", paid=True)
    step = doubts()["pay"].step
    assert "can't be settled as not done" in doubts()["pay"].what_to_do
    refused = settle(step, "--not-done")
    assert (refused.exit_code, "recovery abort" in refused.stderr) == (4, True)
    assert settle(step, "--done", given="p-1").exit_code == 0
    shop.goes_on("answered", "p-1")


def test_a_request_that_was_settled_as_done_forbids_the_tool_as_not_done(shop: Shop) -> None:
    """Who declared the request done can't declare the tool not done without taking the first declaration back."""
    shop.killed("plain", paid=True)
    found = doubts()
    answer = {"status": 200, "headers": {}, "body": {"id": "p-1"}, "format": "json"}
    assert settle(found["POST"].step, "--done", given=answer).exit_code == 0
    assert settle(found["pay"].step, "--not-done").exit_code == 4
    assert settle(found["pay"].step, "--done", given="p-1").exit_code == 0
    shop.goes_on("plain", "p-1")


@pytest.mark.parametrize("paid", [True, False])
def test_what_runs_again_around_the_tool_is_named(shop: Shop, paid: bool) -> None:
    """A step around the payment is not in doubt itself but would repeat it; if the payment was made, that step has to
    be settled."""
    shop.killed("checkout", paid=paid)
    pay = doubts()["pay"]
    not_done, done = re.findall("`tracekit (.*?)`", pay.what_to_do)
    assert "tool 'checkout', around it" in pay.what_to_do
    Path("OUTPUT.json").write_text('"bought p-1"')
    hint = done if paid else not_done
    assert command(*shlex.split(hint.replace("TEXT", "asked"))).exit_code == 0
    assert doubts() == {}
    shop.goes_on("checkout", "bought p-1")


def test_what_happens_once_is_settled_by_itself(shop: Shop) -> None:
    """An exactly-once call inside a step is settled by itself, because its key answers other calls, too; settling the
    step around it is refused with what to do first."""
    shop.killed("once", paid=False)
    found = doubts()
    assert (found["pay"].inside, found["POST"].inside) == (None, found["pay"].step)
    refused = settle(found["checkout"].step, "--not-done")
    assert refused.exit_code == 4
    assert f"tracekit recovery settle shop {found['pay'].step} --done OUTPUT.json | --not-done" in refused.stderr
    assert f"step {found['pay'].step}, tool 'pay'" in found["checkout"].what_to_do
    for tool in ("pay", "checkout"):
        assert settle(found[tool].step, "--not-done").exit_code == 0
    shop.goes_on("once", "bought p-1")


def test_a_step_around_what_happens_once_leaves_that_in_doubt(shop: Shop) -> None:
    shop.killed("once", paid=True)
    assert settle(doubts()["checkout"].step, "--done", given="bought p-1").exit_code == 0
    assert set(doubts()) == {"pay", "POST"}
    assert settle(doubts()["pay"].step, "--done", given="p-1").exit_code == 0
    shop.goes_on("once", "bought p-1")


WRONG: tuple[Any, ...] = (
    {"id": "p-1"},
    "p-1",
    {"status": "200", "headers": {}, "body": {}, "format": "json"},
    {"status": 200, "headers": {}, "body": {}},
    {"status": 200, "headers": {"Server": "x"}, "body": {}, "format": "json"},
    {"status": 200, "headers": {}, "body": {}, "format": "yaml"},
    {"status": 200, "headers": {}, "body": {}, "format": "text"},
)


def test_the_answer_of_a_request_is_asked_for_in_its_form(shop: Shop) -> None:
    """For a request outside every tool the command says which form the answer has, refuses another form, and gives the
    answer to the program."""
    shop.killed("bare", paid=True)
    post = doubts()["POST"]
    (form,) = re.findall(r"\(OUTPUT.json is the answer: (.*?)\)", post.what_to_do)
    for wrong in WRONG:
        refused = settle(post.step, "--done", given=wrong)
        assert (refused.exit_code, form in refused.stderr) == (2, True), refused.stderr
        assert doubts()["POST"].step == post.step
    assert settle(post.step, "--done", given=json.loads(form)).exit_code == 0
    shop.goes_on("bare", "p-1")


def test_a_cut_in_two_settlement_leaves_the_tool_in_doubt(shop: Shop) -> None:
    """If the device fails or the process dies after the request was settled and before the tool was, nothing is made
    again."""
    shop.killed("plain", paid=False)
    found = doubts()
    assert settle(found["pay"].step, "--not-done").exit_code == 0
    path = Path(".tracekit/runs/shop.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert set(doubts()) == {"pay"}
    assert shop.live("resume", "plain").returncode == 1
    assert shop.paid == []
    assert settle(found["pay"].step, "--not-done").exit_code == 0
    shop.goes_on("plain", "p-1")


def test_a_damaged_trace_is_told_what_to_do_with(shop: Shop) -> None:
    """In a damaged trace nothing can be settled and nothing is cut off, so the output suggests neither."""
    shop.killed("plain", paid=True)
    path = Path(".tracekit/runs/shop.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"shop"', b'"ship"', 1)[:-1] + b'\n{"v":1,"se')
    damaged = command("in-doubt")
    assert damaged.exit_code == 1
    assert "recovery settle" not in damaged.stdout
    scanned = command("recovery", "scan").stdout
    assert "damaged" in scanned
    assert "cut off" not in scanned
    path.write_bytes(whole)
    with pytest.raises(RecoveryRefusedError):
        recovery.settle("shop", 1, not_done=True, reason="none")


def test_a_run_that_has_ended_is_not_said_to_be_aborted(shop: Shop) -> None:
    """A run that has ended is listed as ended, without a word of aborting it."""
    shop.killed("plain", paid=False)
    settle(doubts()["pay"].step, "--not-done")
    shop.goes_on("plain", "p-1")
    for words in (("recovery", "scan", "--all"), ("recovery", "resume", "shop")):
        said = command(*words).stdout
        assert said.split()[:4] == ["ended", "shop", "shop", "complete"], said  # its id and its name
        assert "abort" not in said
