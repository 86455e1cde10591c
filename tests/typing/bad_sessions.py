"""What a type checker says about sessions that are opened wrongly."""

from tracekit import record, replay


@record("billing")
def bill(customer: str) -> bool:
    return bool(customer)


def use() -> None:
    with record("billing", durability="sometimes"):  # error: call-overload
        pass
    with replay():  # error: call-arg
        pass
    with replay("a-run", guard="open"):  # error: arg-type
        pass
    with replay("a-run", on_divergence="ignore"):  # error: arg-type
        pass
    bill(3)  # error: arg-type
    text: str = bill("ACME")  # error: assignment
