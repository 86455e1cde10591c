"""Prices in cents."""


def with_tax(cents: int, percent: int = 19) -> int:
    return cents + cents * percent // 10
