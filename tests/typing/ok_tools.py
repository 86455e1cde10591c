"""Every shape of traced tool keeps its signature: arguments, result, coroutine and generator types."""

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import assert_type

from tracekit import traced, traced_tool


@traced_tool(side_effect="read_only")
def price(symbol: str, *, day: int = 0) -> Decimal:
    return Decimal(day)


@traced_tool(side_effect="irreversible", name="mail.send", version="2.1", require_run=True)
async def send(to: str, text: str) -> int:
    return len(text)


@traced_tool(side_effect="read_only")
def lines(path: str) -> Iterator[str]:
    yield path


@traced_tool(side_effect="read_only")
async def pages(path: str) -> AsyncIterator[bytes]:
    yield path.encode()


class Desk:
    @traced_tool(side_effect="reversible")
    def book(self, seat: int) -> str:
        return str(seat)

    @classmethod
    @traced_tool(side_effect="read_only")
    def count(cls, floor: int) -> int:
        return floor

    @traced_tool(side_effect="read_only", mutates=("into", "self"))
    def collect(self, into: list[str]) -> list[str]:
        return into

    @staticmethod
    @traced_tool(side_effect="read_only")
    def name(floor: int) -> str:
        return str(floor)


@traced("plan")
def plan(goal: str) -> list[str]:
    return [goal]


@traced()
async def act(step: str) -> bool:
    return bool(step)


async def use(desk: Desk) -> None:
    assert_type(price("ACME", day=3), Decimal)
    assert_type(await send("a@example.org", text="hello"), int)
    for line in lines("x"):
        assert_type(line, str)
    async for page in pages("x"):
        assert_type(page, bytes)
    assert_type(desk.book(4), str)
    assert_type(desk.collect([]), list[str])
    assert_type(Desk.count(4), int)
    assert_type(Desk.name(4), str)
    assert_type(plan("rest"), list[str])
    assert_type(await act("rest"), bool)
