"""``tracekit audit``: an account that names, for each effect, who acted, why, what allowed it and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.plain_writer import RUN, entry, lines
from tracekit import Budget, agent, decision, policy_check, record, traced_model, traced_tool
from tracekit.agents import receive_task, send_task
from tracekit.cli import main
from tracekit.errors import ContractViolationError
from tracekit.integration import Store, Trace


@traced_tool(side_effect="irreversible", exactly_once=True, idempotency_key="order", idempotent_required=True)
def pay(cents: int, order: str | None = None) -> str:
    return f"paid {cents}"


@traced_tool(side_effect="reversible")
def book(seat: int) -> str:
    if seat < 0:
        raise ValueError("no such seat")
    return f"B{seat}"


@traced_tool(side_effect="read_only")
def look(order: str) -> int:
    return 4200


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", *arguments])


def audited(program: Callable[[], object], *options: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """Exit code of the audit of the program's run, and its account."""
    with record("payday", **how) as run:
        program()
    done = call(run.path, "--json", *options)
    return done.exit_code, json.loads(done.stdout)


def action(account: dict[str, Any], name: str) -> dict[str, Any]:
    """The effect or refusal of this name."""
    return next(
        one for one in account["actions"] if one["name"] == name and (one["effect"] or one["state"] == "refused")
    )


def allow(tool: str, output: object = "allow", **payload: Any) -> int:
    policy_check("spend", input={"action": tool, "payload": payload}, output=output)
    return 0


def test_an_effect_is_accounted_for() -> None:
    """Who acted and what is claimed of them, on which decision, which policy and contract allowed it, key, outcome, and where it stands."""

    def program() -> None:
        message = send_task("payer", {"order": "o-1"})
        with agent("payer", identity={"spiffe_id": "spiffe://acme.example/payer"}):
            receive_task(message)
            decision("pay", input={"order": "o-1"}, output={"tool": "pay", "reason": "invoice o-1 is due"})
            allow("pay", {"decision": "allow", "reason": "below the limit"}, cents=4200)
            pay(4200, order="o-1")

    code, account = audited(program, agent="clerk", identity={"attestation": "signed by somebody"})
    paid = action(account, "pay")
    assert code == 0, account["findings"]
    assert (paid["agent"], paid["side_effect"], paid["state"], paid["output"]) == (
        "payer",
        "irreversible",
        "done",
        "paid 4200",
    )
    assert paid["input"] == {"cents": 4200, "order": "o-1"}
    assert (paid["basis"]["kind"], paid["basis"]["text"]) == ("decision", "invoice o-1 is due")
    assert (paid["policy"]["answer"], paid["policy"]["reason"]) == ("allowed", "below the limit")
    assert (paid["key"], paid["contract"]["exactly_once"]) == ("o-1", True)
    assert [len(one["hash"]) for one in paid["entries"]] == [64, 64]
    claimed = {one["agent"]: one for one in account["identities"]}
    assert claimed["payer"]["place"] == paid["identity"]
    assert not any(one["verified"] for one in claimed.values())
    text = call("last").stdout
    for said in ("invoice o-1 is due", "below the limit", "claimed, not verified", "no seal was checked", "no finding"):
        assert said in text


def test_texts_are_as_long_as_the_line_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wide terminal the reasons of decisions and policies and the key are whole; in a narrow one their beginnings are shown."""
    words = " ".join(f"word{number:02}" for number in range(40))
    with record("payments"):
        decision("pay", input={}, output={"tool": "pay", "reason": f"due {words}"})
        allow("pay", {"decision": "allow", "reason": f"limit {words}"}, cents=1)
        pay(1, order=f"key {words}")
    monkeypatch.setenv("COLUMNS", "500")
    wide = call("last").stdout
    monkeypatch.setenv("COLUMNS", "30")
    narrow = call("last").stdout
    for start in ("due", "limit", "key"):
        assert f"{start} {words}" in wide
        assert f"{start} {words[:60]}" in narrow
        assert f"{start} {words[:90]}" not in narrow


def test_a_model_that_asked_for_the_call_is_its_decision() -> None:
    """Where no decision is recorded, the answer of the model that asked for this very call is what it goes back to."""

    @traced_model(model="small")
    def ask(messages: list[dict[str, str]]) -> dict[str, Any]:
        request = {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"seat": 7}'}}
        return {"choices": [{"message": {"role": "assistant", "content": "seat 7 is free", "tool_calls": [request]}}]}

    def program() -> None:
        ask([{"role": "user", "content": "a seat, please"}])
        book(7)

    _, account = audited(program)
    booked = action(account, "book")
    assert booked["basis"]["kind"] == "model"
    assert booked["basis"]["how"] == "it requested exactly this call"
    assert any("the run recorded no policy check" in gap for gap in account["gaps"])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (lambda: allow("look") or pay(1, order="o"), "no-policy"),
        (lambda: allow("pay", "deny") or pay(1, order="o"), "against-policy"),
        (lambda: allow("pay", {"allowed": False}) or pay(1, order="o"), "against-policy"),
        (lambda: allow("pay", "ask a person") or pay(1, order="o"), "unclear-policy"),
        (lambda: allow("pay", {"decision": "allow", "allowed": False}) or pay(1, order="o"), "unclear-policy"),
        (lambda: allow("pay", cents=1) or pay(2, order="o"), "no-policy"),
        (lambda: allow("pay") or allow("pay", "deny") or pay(1, order="o"), "against-policy"),
        (lambda: allow("payments.write", cents=1) or (pay(1, order="o") and pay(1, order="p")), "no-policy"),
        (lambda: pay(1, order="o") and allow("pay"), "no-policy"),
        (lambda: allow("payments.write") or pay(1, order="o"), "no-policy"),
        (
            lambda: (policy_check("sanctions", input="pay", output="deny") and allow("pay")) or pay(1, order="o"),
            "against-policy",
        ),
    ],
)
def test_an_effect_that_no_policy_allowed(program: Callable[[], object], code: str) -> None:
    """In a run that asked a policy an effect without one that allows it is a finding, and exit code 1; nothing is taken for a Yes."""
    done, account = audited(program)
    assert (done, [one["code"] for one in account["findings"]]) == (1, [code])


@pytest.mark.parametrize(
    "program",
    [
        lambda: allow("pay") or pay(1, order="o"),
        lambda: allow("pay", True) or pay(1, order="o"),
        lambda: allow("tool:pay", {"allow": "yes"}, cents=1, currency="EUR") or pay(1, order="o"),
        lambda: allow("payments.write", "permitted", cents=1) or (look("o") and pay(1, order="o")),
        lambda: policy_check("spend", input={"amount": 1}, output="allow") and pay(1, order="o"),
        lambda: allow("pay") or (pay(1, order="o") and pay(1, order="o")),
        lambda: allow("pay", "deny") or allow("pay", "allow") or pay(1, order="o"),
    ],
)
def test_what_a_policy_allowed(program: Callable[[], object]) -> None:
    """A check allows the effect that it names, by tool, agent and arguments; one that names none the next one in its line of execution."""
    code, account = audited(program)
    assert (code, account["findings"]) == (0, [])


def test_a_tool_of_another_place_is_another_tool() -> None:
    """What allows ``users.delete`` allows no ``orders.delete``."""

    @traced_tool(side_effect="irreversible", name="orders.delete")
    def delete(order: str) -> None:
        pass

    code, account = audited(lambda: allow("users.delete") or delete("o"))
    assert (code, [one["code"] for one in account["findings"]]) == (1, ["no-policy"])
    code, account = audited(lambda: allow("tool:shop.orders.delete") or delete("o"))
    assert (code, account["findings"]) == (0, [])


def test_what_was_asked_before_a_process_began_counts_in_it(tmp_path: Path) -> None:
    """A check of the run itself allows an effect of a child process if it was made before the process was started, and not after."""
    for asked_first in (True, False):
        check = entry("policy.check", name="p", input={"action": "pay"}, output="allow")
        other = entry("policy.check", name="p", input={"action": "look"}, output="allow")
        path = _trace(tmp_path / str(asked_first), *((check, other) if asked_first else (other, check)))
        with Trace(path) as trace:
            cause = {"run_id": RUN, "seq": 2, "hash": trace.hash_of(2)}
        name = "a" * 16
        begun = {**entry("run.started", cause=[cause]), "meta": {"segment": name, "lane": "worker"}}
        called = entry("tool.call", name="pay", input={}, meta={"side_effect": "irreversible"})
        returned = entry("tool.return", parent=2, step=2, output=None)
        path.with_name(f"{RUN}.{name}.jsonl").write_bytes(b"".join(lines([begun, called, returned])))
        account = json.loads(call(str(path), "--json").stdout)
        assert [one["code"] for one in account["findings"]] == ([] if asked_first else ["no-policy"])


def test_actions_by_other_names() -> None:
    """Where a policy has names of its own for actions, the auditor says which tool each is."""
    code, account = audited(lambda: allow("payments.write") or pay(1, order="o"), "--action", "payments.write=pay")
    assert (code, action(account, "pay")["policy"]["how"]) == (0, "it names the action")
    assert call("last", "--action", "payments.write").exit_code == 2


def test_what_did_not_happen_is_no_effect() -> None:
    """A refused call, one that a policy denied and one that failed are told apart from what was done."""

    def program() -> None:
        allow("pay", "deny")
        with pytest.raises(ContractViolationError):
            pay(5)
        allow("book")
        with pytest.raises(ValueError, match="no such seat"):
            book(-1)

    code, account = audited(program)
    assert (code, account["findings"]) == (0, [])
    assert (action(account, "pay")["state"], action(account, "pay")["effect"]) == ("refused", False)
    assert (action(account, "book")["state"], action(account, "book")["error"]) == (
        "failed",
        "ValueError: no such seat",
    )


def test_filters_hide_rows_and_no_finding() -> None:
    """``--agent``, ``--tool`` and ``--effects`` choose what is shown; findings are of the whole run."""

    def program() -> None:
        allow("pay")
        with agent("payer"):
            pay(1, order="o")
        look("o")
        book(7)

    code, account = audited(program, "--tool", "pa*", agent="clerk", budget=Budget(usd=10))
    assert [one["name"] for one in account["actions"]] == ["pay"]
    assert (code, [one["code"] for one in account["findings"]]) == (1, ["no-policy"])
    assert account["budget"]
    names = [one["name"] for one in json.loads(call("last", "--json", "--agent", "clerk").stdout)["actions"]]
    assert names == ["spend", "look", "book"]
    assert [one["name"] for one in json.loads(call("last", "--json", "--effects").stdout)["actions"]] == ["pay", "book"]
    assert "not shown: 2 actions" in call("last", "--effects").stdout


def _trace(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    path = Path(Store(tmp_path / "store").path(RUN))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(lines([entry("run.started", name="by hand"), *entries])))
    return path


def test_in_doubt_compensated_and_inside(tmp_path: Path) -> None:
    """An effect without outcome is in doubt, one that was undone says by what, and what is done inside another effect is a part of it."""
    effect = {"meta": {"side_effect": "reversible"}}
    path = _trace(
        tmp_path,
        entry("policy.check", name="p", input={"action": "book"}, output="allow"),
        entry("tool.call", name="book", input={"seat": 1}, **effect),
        entry("http.request", name="POST https://a.example", parent=3, input={}, meta={"side_effect": "irreversible"}),
        entry("http.response", parent=4, step=4, output={"status": 200}),
        entry("tool.return", parent=3, step=3, output="B1"),
        entry(
            "tool.call",
            name="unbook",
            input={"seat": 1},
            meta={"side_effect": "reversible", "info": {"compensates": 3}},
        ),
        entry("tool.return", parent=7, step=7, output=None),
        entry("policy.check", name="p", input={"action": "send"}, output="allow"),
        entry("tool.call", name="send", input={}, meta={"side_effect": "irreversible"}),
    )
    done = call(str(path), "--json")
    account = json.loads(done.stdout)
    assert (done.exit_code, account["findings"]) == (3, [])
    assert (action(account, "book")["state"], action(account, "book")["undone_by"]) == ("compensated", [7])
    assert action(account, "POST https://a.example")["inside"] == 3
    assert action(account, "send")["state"] == "in doubt"
    assert account["gaps"][0] == "what came after the last entry: the run has no end"
    assert "whether tool send was done: it is in doubt [10]" in account["gaps"]


def test_integrity_comes_first(tmp_path: Path) -> None:
    """Damage, and a seal that was asked for and is not there, are findings; a sealed run says by which key."""
    runner = CliRunner()
    assert runner.invoke(main, ["keygen", str(tmp_path / "k")]).exit_code == 0
    with record("payday") as run:
        book(7)
    assert call(run.path).exit_code == 0
    asked = call(run.path, "--json", "--key", str(tmp_path / "k.pub"))
    assert (asked.exit_code, [one["code"] for one in json.loads(asked.stdout)["findings"]]) == (1, ["seal"])
    fingerprint = runner.invoke(main, ["seal", run.path, "--key", str(tmp_path / "k")]).stdout.split()[-1]
    sealed = call(run.path, "--key", str(tmp_path / "k.pub"))
    assert (sealed.exit_code, fingerprint in sealed.stdout, "no seal" in sealed.stdout) == (0, True, False)
    file = Path(run.path)
    file.write_bytes(file.read_bytes().replace(b'"B7"', b'"B8"', 1))
    damaged = call(run.path, "--json")
    assert (damaged.exit_code, json.loads(damaged.stdout)["findings"][0]["code"]) == (1, "damage")


def test_what_the_log_does_not_have_is_said() -> None:
    """A process that nobody recorded may have done anything: without a policy the account says so, with one it is a finding."""

    def program() -> None:
        subprocess.run([sys.executable, "-c", ""], check=True)

    code, account = audited(program)
    ran = next(one for one in account["actions"] if one["kind"] == "process")
    assert (code, ran["effect"], ran["declared"]) == (0, True, False)
    code, account = audited(lambda: allow("pay") or program())
    assert (code, [one["code"] for one in account["findings"]]) == (1, ["no-policy"])
