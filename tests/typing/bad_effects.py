"""What a type checker says about contracts, budgets and resuming that are written wrongly."""

from tracekit import Budget, ExecutionContract, record, resume, traced_tool


@traced_tool(side_effect="read_only", max_retries="two")  # error: arg-type
def wordy(n: int) -> int:
    return n


@traced_tool(side_effect="read_only", timeout=500)  # error: call-arg
def misnamed(n: int) -> int:
    return n


@traced_tool(side_effect="read_only", timeout_ms=500, timeout_in="process")  # error: arg-type
def elsewhere(n: int) -> int:
    return n


def use() -> None:
    ExecutionContract(exactly_twice=True)  # error: call-arg
    Budget(3)  # error: call-arg
    Budget(dollars=3)  # error: call-arg
    with record("x", budget=3):  # error: call-overload
        pass
    with resume(3):  # error: arg-type
        pass
