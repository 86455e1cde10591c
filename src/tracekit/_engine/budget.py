"""What a run, or a part of one, may spend."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from .prices import Price, PriceList, checked

__all__ = ["LIMITS", "Budget"]

#: The limits of a budget, in the order in which they are told.
LIMITS: Final = ("usd", "llm_calls", "input_tokens", "output_tokens", "tool_calls", "cost_units", "seconds")
_COUNTS: Final = frozenset(("llm_calls", "input_tokens", "output_tokens", "tool_calls"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what a run, a span or a block may spend; immutable. ``None`` limits nothing, a count of 0 allows none.

    ``usd`` is the price of the model calls, ``llm_calls`` counts the requests (an SDK's retries too), ``tool_calls`` the calls of tools.
    ``cost_units`` adds what each tool declares (1, where it says nothing) and one unit per ``tokens_per_unit`` tokens of a model
    call. ``seconds`` is time on a clock that never goes back, from the beginning of the run, span or block.

    Tokens and dollars are checked before the call from an estimate: the request's size, and the most that it lets the model
    answer, ``assumed_output_tokens`` where it sets no limit. ``prices`` names models' prices (a mapping of :class:`Price`, or a function
    from a model's name to one); for what it does not know, and without it, the data of the package ``genai-prices`` are used.
    """

    usd: float | None = None
    llm_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tool_calls: int | None = None
    cost_units: float | None = None
    seconds: float | None = None
    prices: PriceList | None = None
    tokens_per_unit: float = 1000
    assumed_output_tokens: int = 1024

    def __post_init__(self) -> None:
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None:
                (_count if name in _COUNTS else _amount)(name, value)
        if not self.limits:
            raise ValueError(f"a budget limits something: set one of {', '.join(LIMITS)}")
        _amount("tokens_per_unit", self.tokens_per_unit)
        _count("assumed_output_tokens", self.assumed_output_tokens)
        if self.prices is not None:
            object.__setattr__(self, "prices", checked(self.prices))

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: getattr(self, name) for name in LIMITS if getattr(self, name) is not None}

    def as_dict(self) -> dict[str, Any]:
        """The budget as JSON values; of prices that a function tells, only that (each call says what it told)."""
        told: dict[str, Any] = dict(self.limits)
        told.update(tokens_per_unit=self.tokens_per_unit, assumed_output_tokens=self.assumed_output_tokens)
        if isinstance(self.prices, Mapping):
            told["prices"] = {model: price.as_dict() for model, price in self.prices.items()}
        elif self.prices is not None:
            told["prices_by"] = "function"
        return told

    @classmethod
    def of_dict(cls, told: Mapping[str, Any]) -> Budget:
        """The budget that ``as_dict`` told; ``TypeError`` or ``ValueError`` where it is none."""
        prices = told.get("prices")
        given = {one.name: told[one.name] for one in fields(cls) if one.name in told and one.name != "prices"}
        return cls(prices=prices and {model: Price(**price) for model, price in prices.items()}, **given)

    def __repr__(self) -> str:
        told = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if self._tells(one.name, one.default)]
        return f"Budget({', '.join(told)})"

    def _tells(self, name: str, default: Any) -> bool:
        return name != "prices" and getattr(self, name) != default

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in LIMITS))


def budget_or_none(value: object) -> Budget | None:
    """``value`` if it is a budget or ``None``, else ``TypeError``."""
    if value is None or isinstance(value, Budget):
        return value
    hint = f": write Budget(**{value!r})" if isinstance(value, Mapping) else ""
    raise TypeError(f"budget is a Budget, not {value!r}{hint}")


def _count(name: str, value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{name} is 0 or more, not {value!r}")


def _amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is a finite number above 0, not {value!r}")
