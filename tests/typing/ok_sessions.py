"""record() and replay() as blocks, as async blocks and as decorators."""

from typing import assert_type

from tracekit import instrument, record, replay, uninstrument


def block() -> str:
    instrument()
    with record("billing", durability="effects") as run:
        assert_type(run.id, str)
        run.set_result({"sent": 1})
    with replay(run.id, live={"llm"}, guard="process") as session:
        print(session.report)
    with replay(run) as again:
        print(again.report)
    uninstrument()
    return run.id


async def asynchronous() -> None:
    async with record("billing") as run:
        run.set_result(None)
    async with replay(run.id, strict={"clock", "redacted"}) as session:
        print(session.report)


@record("billing")
def bill(customer: str, cents: int = 0) -> bool:
    return cents > 0


@record()
async def bill_later(customer: str) -> int:
    return len(customer)


async def use() -> None:
    assert_type(bill("ACME", cents=3), bool)
    assert_type(await bill_later("ACME"), int)
