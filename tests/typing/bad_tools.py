"""What a type checker says about a traced tool that is declared or called wrongly."""

from tracekit import traced_tool


@traced_tool(side_effect="read_only")
def price(symbol: str, *, day: int = 0) -> int:
    return day


@traced_tool(side_effect="irreversible")
async def send(to: str) -> int:
    return len(to)


class Desk:
    @traced_tool(side_effect="reversible")
    def book(self, seat: int) -> str:
        return str(seat)


@traced_tool()  # error: call-arg
def undeclared(path: str) -> None: ...


@traced_tool(side_effect="harmless")  # error: arg-type
def misnamed(path: str) -> None: ...


@traced_tool(side_effect="read_only", exactly_twice=True)  # error: call-arg
def unknown_field(path: str) -> None: ...


@traced_tool(side_effect="read_only", mutates=3)  # error: arg-type
def misfit(path: str) -> None: ...


async def use(desk: Desk) -> None:
    price(3)  # error: arg-type
    price("ACME", 3)  # error: call-arg
    price("ACME", month=3)  # error: call-arg
    text: str = price("ACME")  # error: assignment
    unawaited: int = send("a@example.org")  # error: assignment
    desk.book("4")  # error: arg-type
