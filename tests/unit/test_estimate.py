"""Estimates: what a run will take, by a plan or by what such runs took."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tracekit
from tests.support.processes import python
from tracekit import (
    Budget,
    Price,
    RunNotFoundError,
    RunStateError,
    UnknownPriceError,
    estimate,
    record,
    replay,
    traced_model,
    traced_tool,
)
from tracekit._runtime.spending import answer_tokens, request_tokens
from tracekit.agents import AgentRegistry, IntentRouter
from tracekit.cli import main
from tracekit.integration import Spec

PRICES = {"priced": Price(1000, 2000)}
PLAN: list[dict[str, Any]] = [
    {"model": "priced", "input_tokens": 100, "max_output_tokens": 50, "n": 3},
    {"tool": "search", "cost_units": 2, "n": 4},
    {"tool": "mail"},
]


@traced_tool(side_effect="read_only")
def look(n: int) -> int:
    return n


@traced_model(model="priced", parameters={"max_tokens": 10})
def ask(prompt: str) -> str:
    return prompt


def history(counts: list[int], **options: Any) -> None:
    """Runs that call the tool so many times each."""
    for count in counts:
        with record(**{"name": "agent-run", "agent": "planner", **options}):
            for n in range(count):
                look(n)


# -- by a plan ---------------------------------------------------------------------------------------------------------------


def test_a_plan_adds_up() -> None:
    """Calls, tokens, units and dollars of each line, times ``n``."""
    found = estimate(PLAN, prices=PRICES)
    assert (found.source, found.median) == ("plan", found.p90)
    assert found.p90 == {
        "llm_calls": 3, "tool_calls": 5, "input_tokens": 300, "output_tokens": 150, "cost_units": pytest.approx(0.45 + 8 + 1),
        "usd": pytest.approx(0.6), "seconds": None,
    }  # fmt: skip
    assert found.over(cost_units=9) == ["cost_units"]
    assert found.over(cost_units=10, usd=0.61) == []
    assert found.over(usd=0.59) == ["usd"]


def test_a_prompt_is_counted_as_a_request_is() -> None:
    """Its tokens are those that a budget would foresee; without a limit the answer is the assumed one."""
    prompt = [{"role": "user", "content": "word " * 400}]
    found = estimate([{"model": "priced", "prompt": prompt}], prices=PRICES)
    assert found.p90["input_tokens"] == request_tokens(prompt)
    assert found.p90["output_tokens"] == Budget(usd=1).assumed_output_tokens


@pytest.mark.parametrize(
    "line",
    [
        {}, {"model": "m", "tool": "t"}, {"tool": "t", "n": -1}, {"tool": "t", "n": 1.5}, {"tool": "t", "cost_units": "2"}, {"model": 3},
        {"tool": "t", "cost_units": float("nan")}, {"model": "m", "max_tokens": 3}, "search", {"tool": "t", "n": True},
        {"tool": "t", "cost_units": float("inf")}, {"tool": "t", "n": 10**400},
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_told_by_line(line: Any) -> None:
    """The error names the line and the key; nothing is guessed."""
    with pytest.raises(RunStateError, match="line 2 of the plan"):
        estimate([{"tool": "t"}, line], prices=PRICES)


def test_a_model_without_a_price() -> None:
    """It is an error, never 0; with the price it is none."""
    with pytest.raises(UnknownPriceError, match="house-model"):
        estimate([{"model": "house-model", "input_tokens": 1}])
    assert estimate([{"model": "gpt-4o-mini", "input_tokens": 10**6, "max_output_tokens": 0}]).p90[
        "usd"
    ] == pytest.approx(0.15)


def test_without_the_package_dollars_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units can be had without prices; who asks for dollars is told that they can't."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    found = estimate([{"model": "gpt-4o-mini", "input_tokens": 1000, "max_output_tokens": 0}])
    assert (found.p90["usd"], found.p90["cost_units"], found.unpriced) == (None, 1, ("gpt-4o-mini",))
    assert found.over(cost_units=2) == []
    with pytest.raises(UnknownPriceError):
        found.over(usd=1)


def test_a_missing_price_list_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is not the model that lacks a price."""
    plan = tmp_path / "plan.json"
    plan.write_text('[{"model": "gpt-4o-mini", "input_tokens": 1000, "max_output_tokens": 0}]')
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    done = CliRunner().invoke(main, ["estimate", str(plan)])
    assert "no price list is installed: pip install genai-prices\n" in done.stdout, done.output
    assert "gpt-4o-mini" not in done.stdout


# -- by history --------------------------------------------------------------------------------------------------------------


def test_median_and_nine_of_ten() -> None:
    """Ten runs of the agent: the middle of them, and what nine stay within; other agents' runs and failed ones are not among them."""
    history([1, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    history([50], agent="other", name="other-run")
    with pytest.raises(ZeroDivisionError), record("agent-run", agent="planner"):
        raise ZeroDivisionError
    for found in (estimate(agent="planner"), estimate(run_name="agent-run")):
        assert (found.source, found.runs) == ("history", 10)
        assert (found.median["tool_calls"], found.p90["tool_calls"]) == (5.5, 9)
        assert found.p90["cost_units"] == 9
        assert found.p90["usd"] == 0
    assert estimate(agent="planner", latest=3).median["tool_calls"] == 9


def test_an_envelope_is_foreseen_by_runs_of_its_intent() -> None:
    """Runs of the intent's name tell; where there are none, the plan that the envelope declares; else that is an error."""
    envelope = {"version": "1.0", "intent": {"name": "summarize"}, "payload": {"text": "…"}}
    with pytest.raises(RunNotFoundError, match="summarize"):
        estimate(envelope)
    assert estimate({**envelope, "plan": PLAN}, prices=PRICES).source == "plan"
    history([3], name="summarize", agent=None)
    found = estimate({**envelope, "plan": PLAN})
    assert (found.source, found.p90["tool_calls"]) == ("history", 3)
    assert estimate({"intent": "summarize"}).p90["tool_calls"] == 3


def test_an_agent_of_a_registry_has_a_history() -> None:
    """The runs in which it was asked, whoever recorded them; together with an intent, those with both."""
    registry = AgentRegistry()

    @registry.agent(intent="greet", side_effect="read_only")
    def greeter(payload: dict[str, Any]) -> int:
        return 1

    for run_name, intent in (("one", "greet"), ("two", "greet"), ("three", "nothing")):
        with record(run_name):
            IntentRouter(registry).route({"intent": intent})
    assert (estimate(agent="greeter").runs, estimate({"intent": "greet"}, agent="greeter").runs) == (2, 2)
    assert estimate(agent="greeter", run_name="one").runs == 1
    for other in ({"agent": "nobody"}, {"agent": "greeter", "run_name": "three"}):
        with pytest.raises(RunNotFoundError):
            estimate(**other)


def test_models_of_the_history_have_their_price() -> None:
    """The recorded price, or the usage at today's; a model that nobody knows leaves dollars open."""
    with record("paid", budget=Budget(usd=1, prices=PRICES)) as run:
        ask("hello")
    (answer,) = [json.loads(line) for line in Path(run.path).read_text().splitlines() if '"llm.response"' in line]
    assert estimate(run_name="paid").p90["usd"] == pytest.approx(answer["meta"]["cost_usd"])


@pytest.mark.parametrize("subject", [None, {}, {"payload": {}}, {"intent": 3}, 5])
def test_an_estimate_without_a_plan_an_intent_or_a_name_is_an_error(subject: Any) -> None:
    """Where nothing says what would be done, the estimate is refused rather than guessed."""
    with pytest.raises(RunStateError):
        estimate(subject)


# -- foreseeing a request -----------------------------------------------------------------------------------------------------


def test_what_a_request_is_taken_for() -> None:
    """Texts by their bytes, pictures and files by number, whatever their size."""
    text = request_tokens({"body": {"messages": [{"role": "user", "content": "x" * 4000}]}})
    assert 1000 <= text <= 1050
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 100_000}}
    assert request_tokens({"body": [picture]}) < 2000
    assert request_tokens({"body": [{"data": "QUJD" * 100_000}]}) < 2000
    assert request_tokens("ü" * 400) == 200
    assert request_tokens(None) == 0


def test_what_an_answer_may_take() -> None:
    """The request's own limit, by each name that it has, times the answers wanted; embeddings answer no tokens."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        assert answer_tokens(Spec("llm", "m", signature={name: 7, "n": 2}), {}, 1000) == 14
    assert answer_tokens(Spec("llm", "m"), {"max_tokens": 9}, 1000) == 9
    assert answer_tokens(Spec("llm", "m"), {}, 1000) == 1000
    assert answer_tokens(Spec("llm", "m", signature={"operation": "embeddings"}), {}, 1000) == 0


# -- the command line ---------------------------------------------------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}
    return python("-m", "tracekit", "estimate", "--json", *words, env=environment)


def test_the_command(tmp_path: Path) -> None:
    """Data on stdout; 4 over a budget, 2 without history or price, 0 else."""
    plan, envelope = tmp_path / "plan.json", tmp_path / "intent.json"
    plan.write_text(json.dumps(PLAN))
    envelope.write_text('{"intent": {"name": "nobody-asked-yet"}}')
    price = ("--price", "priced=1000,2000")
    done = command(str(plan), *price, "--budget", "9", "--budget-usd", "0.5")
    assert done.returncode == 4
    told = json.loads(done.stdout)
    assert told["over"] == ["cost_units", "usd"]
    assert told["p90"]["usd"] == pytest.approx(0.6)
    assert "over budget" in done.stderr
    assert command(str(plan), *price, "--budget", "10", "--budget-usd", "1").returncode == 0
    done = command(str(plan))
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown-price" in done.stderr
    done = command(str(envelope))
    assert done.returncode == 2
    assert "nobody-asked-yet" in done.stderr
    history([2, 4])
    done = command("--agent", "planner", "--budget", "3")
    assert (done.returncode, json.loads(done.stdout)["runs"]) == (4, 2)
    plan.write_text("[")
    assert command(str(plan)).returncode == 2
    assert command("--price", "x=1", "--agent", "planner").returncode == 2
    assert tracekit.estimate is estimate


# -- calls that do not tell --------------------------------------------------------------------------------------------------


def test_calls_that_report_nothing_are_not_taken_for_free() -> None:
    """A model call without usage: tokens, units and dollars of the run are not known, and no limit is said to be kept."""
    with record("quiet", agent="quiet") as run:
        ask("hello")
        look(1)
    with replay(run) as session:
        ask("hello")
        look(1)
    told = session.report.recorded
    unknown = ("input_tokens", "output_tokens", "cost_units", "cost_usd")
    assert [told[name] for name in unknown] == [None] * 4
    assert (told["unreported"], told["llm_calls"], told["tool_calls"]) == (1, 1, 1)
    found = estimate(agent="quiet")
    assert found.unreported == 1
    for limit in ("usd", "cost_units"):
        with pytest.raises(RunStateError, match="did not report"):
            found.over(**{limit: 1000.0})


def test_what_was_foreseen_stands_for_what_was_not_reported() -> None:
    """Where a budget had it foreseen, that counts, in units and dollars too."""
    with record("foreseen", agent="foreseen", budget=Budget(output_tokens=100)) as run:
        ask("hello")
    with replay(run) as session:
        ask("hello")
    told = session.report.recorded
    assert (told["unreported"], told["output_tokens"]) == (0, 10)
    assert told["input_tokens"] > 0
    assert told["cost_usd"] is None  # nobody knows that model's price
    found = estimate(agent="foreseen", prices=PRICES)
    assert found.p90["usd"] == pytest.approx(told["input_tokens"] * 1e-3 + 0.02)
    assert found.over(usd=0.02) == ["usd"]


@pytest.mark.parametrize("limit", [math.nan, math.inf, -1.0])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    """Nothing is over NaN: a limit is a finite number from 0."""
    found = estimate([{"tool": "look", "n": 2}])
    for name in ("cost_units", "usd"):
        with pytest.raises(ValueError, match="finite"):
            found.over(**{name: limit})


def test_limits_on_the_command_line(tmp_path: Path) -> None:
    """Wrong use and what can't be told are 2, over is 4."""
    plan = tmp_path / "plan.json"
    plan.write_text('[{"tool": "look", "n": 2}]')
    for option in ("--budget", "--budget-usd"):
        for value in ("nan", "inf", "-1", "-inf"):
            done = command(str(plan), f"{option}={value}")
            assert done.returncode == 2, done
            assert "finite" in done.stderr
    assert command(str(plan), "--budget=1").returncode == 4
    assert command(str(plan), "--budget=2").returncode == 0
    with record("quiet", agent="quiet"):
        ask("hello")
    for option in ("--budget", "--budget-usd"):
        done = command("--agent", "quiet", f"{option}=1000")
        assert done.returncode == 2, done
        assert "did not report" in done.stderr
    told = json.loads(command("--agent", "quiet").stdout)
    assert (told["unreported"], told["p90"]["usd"], told["p90"]["llm_calls"]) == (1, None, 1)
