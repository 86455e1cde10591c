"""Budgets: what would go over one is not made, and nobody can go on as if nothing had been."""

from __future__ import annotations

import asyncio
import copy
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut import cut, lines
from tests.support.place import Place
from tests.support.processes import python
from tests.support.tracing import entries, of_type, replayed
from tracekit import (
    Budget,
    BudgetExceededError,
    Price,
    RunStateError,
    UnknownPriceError,
    limit,
    record,
    replay,
    resume,
    traced,
    traced_model,
    traced_tool,
)
from tracekit._policy.forecast import usage_of
from tracekit.integration import Request, Spec, Spending

calls: list[Any] = []
PRICES = {"priced": Price(1000, 2000)}  # a tenth of a cent for a token asked, two for one answered


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@traced_tool(side_effect="read_only")
def look(n: int = 1) -> int:
    calls.append(n)
    return n * 10


@traced_tool(side_effect="read_only", cost_units=4)
def dear(n: int = 1) -> int:
    calls.append(n)
    return n


@traced_model(model="priced", parameters={"max_tokens": 10})
def ask(prompt: str) -> str:
    calls.append(prompt)
    return prompt.upper()


def over(program: Callable[[], Any], **options: Any) -> tuple[Any, BudgetExceededError]:
    """The run of a program that goes over its budget, and what it raised."""
    with pytest.raises(BudgetExceededError) as raised, record("over", **options) as run:
        program()
    return run, raised.value


def again(run: Any, program: Callable[[], Any]) -> BudgetExceededError:
    """What the replay of such a run raises; nothing is called in it."""
    made = len(calls)
    with pytest.raises(BudgetExceededError) as raised, replay(run) as session:
        program()
    assert session.report.exact, session.report.as_dict()
    assert len(calls) == made
    return raised.value


# -- what a budget is ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, ValueError), ({"usd": 0}, ValueError), ({"usd": -1}, ValueError), ({"usd": math.nan}, ValueError),
        ({"usd": math.inf}, ValueError),
        ({"usd": "1"}, TypeError), ({"usd": True}, TypeError), ({"llm_calls": 1.0}, TypeError), ({"llm_calls": -1}, ValueError),
        ({"tool_calls": True}, TypeError), ({"seconds": 0}, ValueError), ({"cost_units": math.nan}, ValueError),
        ({"seconds": None}, ValueError),
        ({"usd": 1, "prices": {"m": 3}}, TypeError), ({"usd": 1, "prices": 3}, TypeError),
        ({"usd": 1, "tokens_per_unit": 0}, ValueError),
        ({"usd": 1, "assumed_output_tokens": -1}, ValueError), ({"dollars": 1}, TypeError),
    ],
)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_refused(given: dict[str, Any], error: type[Exception]) -> None:
    """What is not positive, not finite or of another type is told where it is written."""
    with pytest.raises(error):
        Budget(**given)


def test_a_budget_is_a_value() -> None:
    """It can't be changed, neither itself nor the prices that it was given; equal ones are equal; it shows what it says."""
    prices = {"m": Price(1, 2)}
    budget = Budget(usd=1, llm_calls=0, prices=prices)
    prices["m"] = Price(0, 0)
    assert budget.prices == {"m": Price(1, 2)}
    with pytest.raises(AttributeError):
        budget.usd = 2  # type: ignore[misc]
    assert copy.copy(budget) == budget == Budget.of_dict(budget.as_dict())
    assert hash(budget) == hash(copy.deepcopy(budget))
    assert repr(Budget(usd=0.5, tool_calls=3)) == "Budget(usd=0.5, tool_calls=3)"


@pytest.mark.parametrize("price", [(-1, 2), (math.nan, 1), (math.inf, 1)])
def test_a_price_is_a_finite_number(price: tuple[float, float]) -> None:
    """A price below 0 or without end is refused."""
    with pytest.raises(ValueError):
        Price(*price)
    with pytest.raises(TypeError):
        Price("1", 2)  # type: ignore[arg-type]


def test_record_takes_a_budget_only() -> None:
    """Something else in its place is told where record() is called."""
    with pytest.raises(TypeError, match="budget must be a Budget"):
        record("x", budget={"usd": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a Budget"):
        limit(None)  # type: ignore[arg-type]


# -- over it ------------------------------------------------------------------------------------------------------------------


def test_a_call_that_would_go_over_is_not_made() -> None:
    """Two are allowed: the third is not made, the caller gets figures, the log has it in the call's place, a replay repeats it."""

    def program() -> list[int]:
        return [look(n) for n in range(5)]

    run, error = over(program, budget=Budget(tool_calls=2))
    assert calls == [0, 1]
    assert (error.resource, error.limit, error.spent, error.estimate, error.budget) == ("tool_calls", 2, 2, 1, "run")
    (refused,) = of_type(run, "budget.exceeded")
    assert refused["name"] == "look"
    assert refused["input"] == {"n": 2}
    last = entries(run)[-1]
    assert last["type"] == "run.failed"
    assert last["meta"]["budget"]["exceeded"] == ["tool_calls"]
    assert last["meta"]["failure"]["type"] == "budget_exceeded"
    assert str(again(run, program)) == str(error)


@pytest.mark.parametrize("swallow", [BudgetExceededError, BaseException])
def test_an_agent_that_swallows_it_gets_no_other_call(swallow: type[BaseException]) -> None:
    """Each further call is refused, tools and models alike; the run has failed though its block ended cleanly, and replays so."""

    def program() -> list[str]:
        told = []
        for n in range(3):
            try:
                told.append(str(look(n)))
            except swallow as error:
                told.append(type(error).__name__)
        try:
            ask("anything")
        except swallow as error:
            told.append(type(error).__name__)
        return told

    with pytest.warns(RuntimeWarning, match="a budget was exceeded"), record("x", budget=Budget(tool_calls=1)) as run:
        first = program()
    assert first == ["0", *["BudgetExceededError"] * 3]
    assert calls == [0]
    last = entries(run)[-1]
    assert last["type"] == "run.failed"
    assert last["meta"]["budget"] | {"spent": None} == {
        "limits": {"tool_calls": 1}, "spent": None, "exceeded": ["tool_calls"], "swallowed": True,
    }  # fmt: skip
    report, second = replayed(run, program)
    assert report.exact
    assert second == first
    assert calls == [0]


def test_no_agent_swallows_it_by_accident() -> None:
    """``except Exception`` around every call, as agents have it, does not catch it."""

    def program() -> None:
        for n in range(3):
            try:
                look(n)
            except Exception:
                calls.append("swallowed")

    run, _ = over(program, budget=Budget(tool_calls=1))
    assert calls == [0]
    again(run, program)


def test_a_replay_that_ends_otherwise_than_a_swallowing_run_is_told() -> None:
    """The recorded program caught it; one that lets it pass now is not the same."""

    def program(catch: bool) -> None:
        try:
            look(1)
        except BudgetExceededError:
            if not catch:
                raise

    with pytest.warns(RuntimeWarning, match="exceeded"), record("x", budget=Budget(tool_calls=0)) as run:
        program(True)
    with pytest.raises(BudgetExceededError), replay(run) as session:
        program(False)
    assert not session.report.exact


def test_zero_allows_none() -> None:
    """A count of 0 is a limit, not the absence of one."""
    run, error = over(lambda: ask("x"), budget=Budget(llm_calls=0))
    assert calls == []
    assert error.resource == "llm_calls"
    again(run, lambda: ask("x"))


def test_time_that_is_up() -> None:
    """``seconds`` is looked at before each call; a call under way is not interrupted."""

    def program() -> None:
        look(1)
        look(2)

    run, error = over(program, budget=Budget(seconds=1e-9))
    assert (error.resource, calls) == ("seconds", [])
    assert str(again(run, program)) == str(error)


def test_units() -> None:
    """A tool costs what it declares, another 1, a model call one unit per thousand tokens."""

    def program() -> None:
        look(1)
        dear(2)
        look(3)
        dear(4)

    run, error = over(program, budget=Budget(cost_units=9))
    assert calls == [1, 2, 3]
    assert (error.spent, error.estimate, error.limit) == (6, 4, 9)
    again(run, program)


def test_tokens_are_foreseen() -> None:
    """A model call is refused by what it may take: the size of the request, and the answer that it allows."""

    def program() -> None:
        ask("a" * 40)
        ask("b" * 40)

    run, error = over(program, budget=Budget(output_tokens=15))
    assert (len(calls), error.resource, error.estimate) == (1, "output_tokens", 10)
    again(run, program)
    calls.clear()
    _, error = over(lambda: ask("c" * 4000), budget=Budget(input_tokens=900))
    assert (calls, error.resource) == ([], "input_tokens")
    assert error.estimate >= 1000


def test_dollars_are_foreseen_and_written_down() -> None:
    """The price of what may be taken is held back; the outcome says what it came to."""

    def program() -> None:
        ask("a" * 40)
        ask("b" * 40)

    run, error = over(program, budget=Budget(usd=0.05, prices=PRICES))
    assert (len(calls), error.resource) == (1, "usd")
    (answer,) = of_type(run, "llm.response")
    (request,) = of_type(run, "llm.request")
    assert answer["meta"]["cost_usd"] == request["meta"]["info"]["estimate"]["cost_usd"] == error.spent
    again(run, program)
    with record("free", budget=Budget(usd=0.01, prices=lambda model: Price(0, 0))) as run:
        program()
    assert of_type(run, "llm.response")[0]["meta"]["cost_usd"] == 0


def test_a_model_whose_price_nobody_knows() -> None:
    """It is refused before the call, never taken for free; a model that has a price can be asked after."""

    @traced_model(model="nobodys-model")
    def unknown() -> str:
        calls.append("unknown")
        return ""

    def program() -> list[str]:
        try:
            unknown()
        except UnknownPriceError as error:
            return [error.model, ask("x")]
        raise AssertionError

    with record("x", budget=Budget(usd=1, prices=PRICES)) as run:
        assert program() == ["nobodys-model", "X"]
    assert calls == ["x"]
    assert entries(run)[-1]["type"] == "run.completed"
    report, value = replayed(run, program)
    assert report.exact
    assert value == ["nobodys-model", "X"]
    assert calls == ["x"]


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit in dollars without prices: told when the run is to begin, before anything is made."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(RunStateError, match=r"pip install genai-prices"), record("x", budget=Budget(usd=1)):
        calls.append("begun")
    with record("y", budget=Budget(usd=1, prices=PRICES)), pytest.raises(UnknownPriceError):
        traced_model(model="other")(lambda: calls.append("asked"))()
    assert calls == []


def test_prices_are_not_loaded_without_need() -> None:
    """A program without a limit in dollars never imports the package of prices."""
    program = (
        "import sys, tracekit\n"
        "with tracekit.record('x', budget=tracekit.Budget(llm_calls=1, input_tokens=10)): pass\n"
        "assert 'genai_prices' not in sys.modules and 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# -- spans, blocks, bodies ----------------------------------------------------------------------------------------------------


def test_a_span_has_its_own_budget_at_each_call() -> None:
    """Each call of it may spend as much; over it, its caller may go on without it, and the run completes."""

    @traced("plan", budget=Budget(tool_calls=2))
    def plan(count: int) -> int:
        return sum(look(n) for n in range(count))

    def program() -> list[Any]:
        done: list[Any] = [plan(2), plan(2)]
        try:
            plan(3)
        except BudgetExceededError as error:
            done.append(error.budget)
        done.append(look(7))
        return done

    with pytest.warns(RuntimeWarning, match="plan"), record("x", budget=Budget(tool_calls=100)) as run:
        first = program()
    assert first == [10, 10, "plan", 70]
    assert calls == [0, 1, 0, 1, 0, 1, 7]
    assert entries(run)[-1]["type"] == "run.completed"
    assert entries(run)[-1]["meta"]["budget"]["spent"]["tool_calls"] == 7
    report, second = replayed(run, program)
    assert report.exact
    assert second == first
    assert len(calls) == 7


def test_each_limit_around_a_call_holds() -> None:
    """Inside a generous block a mean run still refuses, and the other way round; what was refused counts nowhere."""

    def program() -> None:
        with limit(Budget(tool_calls=2)):
            look(1)
            look(2)
        with limit(Budget(tool_calls=50)):
            look(3)
            look(4)

    run, error = over(program, budget=Budget(tool_calls=3))
    assert (calls, error.budget) == ([1, 2, 3], "run")
    again(run, program)


def test_generators_and_coroutines_spend_their_spans_budget() -> None:
    """A span that is a generator, a coroutine or an async generator is limited at each of its resumptions."""

    @traced("gen", budget=Budget(tool_calls=2))
    def generator() -> Iterator[int]:
        for n in range(5):
            yield look(n)

    @traced("co", budget=Budget(tool_calls=1))
    async def coroutine() -> None:
        look(1)
        await asyncio.sleep(0)
        look(2)

    @traced("agen", budget=Budget(tool_calls=2))
    async def agen() -> Any:
        for n in range(5):
            await asyncio.sleep(0)
            yield look(n)

    async def together() -> int:
        got = 0
        with pytest.raises(BudgetExceededError):
            await coroutine()
        try:
            async for _ in agen():
                got += 1
        except BudgetExceededError:
            got += 10
        async with limit(Budget(tool_calls=1), name="block"):
            look(1)
            with pytest.raises(BudgetExceededError):
                await asyncio.gather(asyncio.to_thread(look, 2))
        return got

    def program() -> tuple[int, int]:
        got = 0
        try:
            for _ in generator():
                got += 1
                look(100)  # the consumer's own calls are not the generator's
        except BudgetExceededError:
            got += 10
        return got, asyncio.run(together())

    with pytest.warns(RuntimeWarning, match="exceeded"), record("x") as run:
        assert program() == (12, 12)
    assert calls == [0, 100, 1, 100, 1, 0, 1, 1]
    report, value = replayed(run, program)
    assert report.exact, (report.reordered, report.unconsumed, report.clock_drift)
    assert value == (12, 12)
    assert len(calls) == 8


def test_what_a_tools_body_may_spend() -> None:
    """``max_cost_units`` limits the calls that a tool makes; its own cost is its caller's."""

    @traced_tool(side_effect="read_only", cost_units=1, max_cost_units=2)
    def research(count: int) -> int:
        return sum(look(n) for n in range(count))

    def program() -> int:
        total = research(2)
        with pytest.raises(BudgetExceededError) as raised:
            research(3)
        assert raised.value.budget.endswith("research")
        return total + look(5)

    with pytest.warns(RuntimeWarning, match="research"), record("x") as run:
        assert program() == 60
    assert calls == [0, 1, 0, 1, 5]
    report, value = replayed(run, program)
    assert (report.exact, value) == (True, 60)
    assert len(calls) == 5


def test_outside_a_run_a_budget_limits_nothing() -> None:
    """Without a run, a budget of no tool calls stops none: only a run has something to count."""
    with limit(Budget(tool_calls=0)):
        look(1)
    assert calls == [1]


# -- many at once -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_concurrent_calls_can_not_overshoot(kind: str) -> None:
    """32 at once with 10 allowed: exactly 10 are made. So with tokens: what may be taken is held back while they are under way."""
    lock, gate = threading.Lock(), threading.Barrier(32)

    def one(n: int, wait: bool) -> bool:
        if wait:
            gate.wait(10)
        try:
            look(n)
        except BudgetExceededError:
            return False
        return True

    def program(wait: bool) -> int:
        if kind == "threads":
            with ThreadPoolExecutor(32) as pool:
                return sum(pool.map(lambda n: one(n, wait), range(32)))

        async def tasks() -> int:
            return sum(await asyncio.gather(*(asyncio.to_thread(one, n, wait) for n in range(32))))

        return asyncio.run(tasks())

    with lock, pytest.warns(RuntimeWarning, match="exceeded"), record("x", budget=Budget(tool_calls=10)) as run:
        made = program(kind == "threads")
    assert made == len(calls) == 10
    assert len(of_type(run, "budget.exceeded")) == 22
    report, value = replayed(run, lambda: program(False))
    assert value == 10
    assert not report.unconsumed
    assert len(calls) == 10


def test_what_is_under_way_is_held_back() -> None:
    """A model call inside which another is made: the outer one's tokens are reserved, and given back for what it took."""

    @traced_model(model="outer", parameters={"max_tokens": 60})
    def outer() -> None:
        with pytest.raises(BudgetExceededError):
            inner()

    @traced_model(model="inner", parameters={"max_tokens": 60})
    def inner() -> None:
        calls.append("inner")

    with pytest.warns(RuntimeWarning, match="exceeded"), record("x", budget=Budget(output_tokens=100)):
        outer()
    assert calls == []


# -- the log ------------------------------------------------------------------------------------------------------------------


def test_the_ledger_can_be_made_again_from_the_log() -> None:
    """Calls, tokens, dollars and units by the log are those of the run; a call that was cut off is in doubt and counts."""
    budget = Budget(tool_calls=9, llm_calls=9, cost_units=99, usd=9, input_tokens=9999, prices=PRICES)
    with record("x", budget=budget) as run:
        look(1)
        dear(2)
        ask("hello")
        ask("hello again")
    said = entries(run)[-1]["meta"]["budget"]["spent"]
    found = Spending.of_log(budget, entries(run)).spent
    assert {**found, "seconds": 0} == {**said, "seconds": 0}
    cut = [entry for entry in entries(run) if entry["type"] not in ("llm.response", "run.completed")]
    assert {**Spending.of_log(budget, cut).spent, "seconds": 0} == {**said, "seconds": 0}


def test_a_refusal_in_the_log_still_holds() -> None:
    """Who resumes a run that was over its budget gets no call either; the time in which nobody ran it is not counted."""
    budget = Budget(tool_calls=1, seconds=1e6)
    run, _ = over(lambda: [look(n) for n in range(2)], budget=budget)
    told = [entry for entry in entries(run) if entry["type"] != "run.failed"]
    later = {**told[-1], "type": "recovery.started", "ts_ns": told[-1]["ts_ns"] + 10**12}
    spending = Spending.of_log(budget, [*told, later])
    assert spending.refused is not None
    assert spending.seconds < 100


@pytest.mark.parametrize("where", ["run", "span", "block"])
def test_a_resumed_run_goes_on_with_what_is_left(tmp_path: Path, where: str) -> None:
    """Cut off anywhere and resumed: what its log says was spent is spent, of the run's budget, a span's and a block's; no call too many."""
    budget = Budget(tool_calls=3, cost_units=1e6)

    @traced("plan", budget=budget)
    def span() -> list[int]:
        return [look(n) for n in range(5)]

    def block() -> list[int]:
        with limit(budget):
            return [look(n) for n in range(5)]

    program = {"run": lambda: [look(n) for n in range(5)], "span": span, "block": block}[where]
    run, first = over(program, budget=budget if where == "run" else None)
    assert calls == [0, 1, 2]
    whole = lines(run)
    for count in range(3, len(whole)):
        store = tmp_path / str(count)
        path = cut(run, count, store)
        answered = sum(b'"type":"tool.return"' in line for line in whole[:count])
        calls.clear()
        with pytest.raises(BudgetExceededError) as raised, resume(path, store=store) as again_run:
            program()
        pending = sum(b'"type":"tool.call"' in line for line in whole[:count]) - answered
        assert len(calls) + answered + pending == 3, count
        assert (raised.value.resource, raised.value.limit) == (first.resource, first.limit)
        made = len(calls)
        with pytest.raises(BudgetExceededError), replay(path, store=store) as session:
            program()
        assert session.report.exact, count
        assert len(calls) == made
        assert entries(again_run)[-1]["type"] == "run.failed"


def test_a_replay_says_what_the_run_took() -> None:
    """It costs 0 itself; of models whose price nobody knows it says so."""
    with record("x") as run:
        look(1)
        ask("hello")
    report, _ = replayed(run, lambda: (look(1), ask("hello")))
    assert report.cost == 0.0
    assert report.recorded["llm_calls"] == report.recorded["tool_calls"] == 1
    assert report.as_dict()["recorded"] == report.recorded


#: Asks two models whose prices a function tells, and dies in the middle, or goes on without that function.
_PRICED = """
import os, signal, sys
sys.modules["genai_prices"] = None
from tracekit import Budget, Price, record, replay, resume, traced_model

@traced_model(model="ours", parameters={"max_tokens": 10})
def ask(prompt):
    if prompt == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("asked", "a") as file:
        file.write(prompt + " ")
    return prompt.upper()

def program():
    return [ask(prompt) for prompt in ("a", "b", "c")]

if sys.argv[1] == "resume":
    with resume("priced") as run:
        assert program() == ["A", "B", "C"]
    with replay("priced") as session:
        program()
    assert session.report.exact
else:
    with record("priced", run_id="priced", budget=Budget(usd=1, prices=lambda model: Price(1000, 2000))):
        program()
"""


@pytest.mark.parametrize("how", ["in Python", "by the command line"])
def test_a_run_goes_on_with_the_prices_that_a_function_told(tmp_path: Path, how: str) -> None:
    """What a function told of a model's price is on the log: a resumed run prices its calls by it, and costs what it would have."""
    place = Place(tmp_path)
    script = place.program(_PRICED)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": paths, "TRACEKIT_DIR": str(place.store)}
        return python(*arguments, cwd=tmp_path, env=environment)

    assert run(script, "b").returncode == -signal.SIGKILL
    (path,) = place.runs
    if how == "in Python":
        went = run(script, "resume")
    else:
        went = place.cli("recovery", "resume", "priced", "--", script, "none")
    assert went.returncode == 0, went.stderr
    assert (tmp_path / "asked").read_text() == "a b c "
    first, *told = of_type(str(path), "run.started", "llm.request")
    assert first["meta"]["budget"]["prices_by"] == "function"
    assert [one["meta"]["info"]["price"] for one in told] == [Price(1000, 2000).as_dict()] * 4
    last = entries(str(path))[-1]
    costs = [one["meta"]["cost_usd"] for one in of_type(str(path), "llm.response")]
    estimate = told[1]["meta"]["info"]["estimate"]["cost_usd"]  # of the call that was cut off
    assert last["meta"]["budget"]["spent"]["usd"] == pytest.approx(sum(costs) + estimate)
    assert all(costs)
    assert any("prices" in text for text in last["meta"].get("warnings", [])) == (how == "in Python")
    recorded = usage_of(str(path))
    assert (recorded["cost_usd"], recorded["unpriced"]) == (last["meta"]["budget"]["spent"]["usd"], [])


def test_the_model_that_answered_has_its_price_on_the_log(tmp_path: Path) -> None:
    """A function may price the dated name that answers otherwise than the name that was asked: both are on the log."""

    @traced_model(model="ours", parameters={"max_tokens": 10})
    def ours() -> Any:
        return "x"

    told = {"ours": Price(1, 1), "ours-2026": Price(2, 2)}
    budget = Budget(usd=1, prices=told.get)
    with record("x", budget=budget) as run:
        ours()
    spending = Spending(budget)
    held = spending.reserve(Request(Spec("llm", "ours", signature={"model": "ours"}), {}))
    held.settle({"input_tokens": 5}, "ours-2026")
    assert held.price_of("ours-2026") == Price(2, 2).as_dict()
    assert of_type(run, "llm.request")[0]["meta"]["info"]["price"] == Price(1, 1).as_dict()


# -- the command line ---------------------------------------------------------------------------------------------------------

_PROGRAM = """
from tracekit import Budget, BudgetExceededError, record, traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    with open("made", "a") as file:
        file.write(f"{n} ")

with record("agent", budget=Budget(tool_calls=2)):
    for n in range(4):
        try:
            look(n)
        except SWALLOWED:
            pass
"""


@pytest.mark.parametrize(("swallowed", "code"), [("BaseException", 4), ("Exception", 4), ("ZeroDivisionError", 4)])
def test_over_budget_is_an_exit_code(tmp_path: Path, swallowed: str, code: int) -> None:
    """Under ``tracekit run`` a program that went over its budget leaves with 4, whatever it caught; its replay is exact."""
    (tmp_path / "agent.py").write_text(_PROGRAM.replace("SWALLOWED", swallowed))

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}
        return python("-m", "tracekit", *words, cwd=tmp_path, env=found)

    done = command("run", "agent.py")
    assert done.returncode == code, done.stderr
    assert (tmp_path / "made").read_text() == "0 1 "
    done = command("replay", "last")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").read_text() == "0 1 "
