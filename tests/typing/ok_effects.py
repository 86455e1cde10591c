"""Contracts, budgets, resuming and routing as a type checker sees them."""

from typing import assert_type

from tracekit import (
    Budget,
    ExecutionContract,
    FailureType,
    Price,
    Run,
    SideEffectClass,
    StructuredFailure,
    limit,
    record,
    recovery,
    resume,
    traced,
    traced_tool,
)
from tracekit.agents import (
    AgentRegistry,
    IntentEnvelope,
    IntentResponse,
    IntentRouter,
    Message,
    receive_task,
    send_task,
)


def unbook(seat: int, output: str | None = None) -> None: ...


@traced_tool(side_effect="read_only", max_retries=2, timeout_ms=500, timeout_in="thread")
def look(seat: int) -> str:
    return str(seat)


@traced_tool(side_effect=SideEffectClass.REVERSIBLE, compensate=unbook, fallback=())
def book(seat: int) -> str:
    return str(seat)


@traced_tool(side_effect="irreversible", contract=ExecutionContract(exactly_once="store"), idempotency_key="order")
async def pay(order: str, cents: int) -> bool:
    return cents > 0


@traced("plan", budget=Budget(tool_calls=3))
def plan(goal: str) -> list[str]:
    return [goal]


async def use() -> None:
    budget = Budget(usd=1.5, llm_calls=10, prices={"m": Price(1.0, 2.0)})
    async with record("orders", budget=budget) as run:
        assert_type(look(3), str)
        assert_type(book(seat=3), str)
        assert_type(await pay("o-1", cents=3), bool)
        with limit(Budget(seconds=2.0), name="quick"):
            assert_type(plan("x"), list[str])
        await run.abort_async("no more")
    with resume(run.id, supply={3: "token"}) as again:
        assert_type(again, Run)
    for decision in recovery.scan():
        assert_type(decision.run_id, str)


def failed(failure: StructuredFailure) -> bool:
    assert_type(failure.type, FailureType)
    return failure.recoverable


def routed(registry: AgentRegistry, envelope: IntentEnvelope) -> Message:
    assert_type(IntentRouter(registry).route(envelope, budget_limit=3.0), IntentResponse)
    return receive_task(send_task("worker", {"do": 1}))
