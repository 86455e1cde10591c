"""What one call holds back of the budgets around it, until what it took is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import UnknownPriceError
from .estimate import answer_tokens, request_tokens
from .step import Spec

if TYPE_CHECKING:
    from .spending import Spending

__all__ = ["OF_TOKENS", "Held", "refused"]

#: Limits that need the tokens of a call to be foreseen.
OF_TOKENS: Final = frozenset(("usd", "input_tokens", "output_tokens", "cost_units"))
#: Exceptions of HTTP clients after which nothing can have been sent.
_NEVER_SENT: Final = frozenset(
    ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError", "LocalProtocolError")
)


class Held:
    """The costs of one call in each of ``levels``: foreseen, and then as they were.

    ``estimate`` is what was foreseen of tokens and dollars, ``None`` where no limit asks for it, ``price`` what a function told of the
    model's price. ``free`` is a call that the other side did not take.
    """

    __slots__ = ("_about", "_closed", "_levels", "_spec", "costs", "estimate", "free", "price")

    def __init__(self, levels: Sequence[Spending], spec: Spec, info: Mapping[str, Any] | None) -> None:
        self._levels: Final = levels
        self._spec: Final = spec
        self._about: Final = info or {}
        self._closed = False
        self.costs: list[tuple[Spending, dict[str, float]]] = []
        self.estimate: dict[str, float] | None = None
        self.price: Mapping[str, float] | None = None
        self.free = False

    @classmethod
    def of_entry(cls, level: Spending, entry: Mapping[str, Any]) -> Held:
        """What an intention in a log held back, in ``level`` alone."""
        signature = dict(entry.get("meta") or {})
        about = signature.pop("info", None) or {}
        spec = Spec("llm" if entry["type"] == "llm.request" else "tool", str(entry.get("name")), signature=signature)
        held = cls((level,), spec, about)
        held.estimate, held.price = about.get("estimate"), about.get("price")
        held.costs = [(level, held._cost(level, held.estimate or {}))]
        return held

    def foresee(self, input: object) -> None:
        """Work out what the call may cost; ``UnknownPriceError`` where a limit in dollars can't tell."""
        if self._spec.family != "llm" or all(OF_TOKENS.isdisjoint(level.budget.limits) for level in self._levels):
            self.costs = [(level, self._cost(level, {})) for level in self._levels]
            return
        asked = request_tokens(input)
        for level in self._levels:
            answered = answer_tokens(self._spec, input, level.budget.assumed_output_tokens)
            usage: dict[str, float] = {"input_tokens": asked, "output_tokens": answered}
            if level.budget.usd is not None:
                usage["cost_usd"] = round(level.prices.of(self.model, *self._place, usage), 9)
                self.price = level.prices.told(self.model)  # the outermost one's, where there are several
            self.estimate = {**usage, **(self.estimate or {})}
            self.costs.append((level, self._cost(level, usage)))

    @property
    def model(self) -> str:
        """The model that is asked."""
        return str(self._spec.signature.get("model", self._spec.name))

    @property
    def _place(self) -> tuple[str | None, str | None]:
        return self._about.get("provider"), self._about.get("origin")

    def _cost(self, level: Spending, usage: Mapping[str, Any]) -> dict[str, float]:
        if self._spec.family == "tool":
            return {"tool_calls": 1, "cost_units": self._about.get("cost_units", 1)}
        if self._spec.family != "llm":
            return {}
        asked, answered = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        return {
            "llm_calls": 1,
            "input_tokens": asked,
            "output_tokens": answered,
            "cost_units": (asked + answered) / level.budget.tokens_per_unit,
            "usd": usage.get("cost_usd", 0.0),
        }

    # -- after the call --------------------------------------------------------------------------------------------------

    def settle(
        self, usage: Mapping[str, Any] | None, answered: object, *, free: bool = False, usd: float | None = None
    ) -> float | None:
        """The call was made: what it took stands in place of what was held. Returns its price where a limit asks for one.

        Where nothing tells the tokens, what was foreseen counts; where nothing was, the call is counted as one that is not known.
        ``answered`` names the model that did; ``usd`` is the price where that is known already.
        """
        free = free or self.free
        told: Mapping[str, Any] = {} if free else usage or self.estimate or {}
        self._count_unknown(free or bool(told))
        price: float | None = None
        actual: list[tuple[Spending, dict[str, float]]] = []
        for level, _ in self.costs:
            counted = dict(told)
            if self._spec.family == "llm" and level.budget.usd is not None:
                counted["cost_usd"] = (self._price(level, answered, told) if usd is None else usd) if told else 0.0
                price = counted["cost_usd"] if price is None else price
            actual.append((level, self._cost(level, counted)))
        self._close(actual)
        return price

    def _price(self, level: Spending, answered: object, usage: Mapping[str, Any]) -> float:
        try:
            return round(level.prices.of_answer(answered, self.model, *self._place, usage), 9)
        except UnknownPriceError:  # it was known before the call
            return float((self.estimate or {}).get("cost_usd", 0.0))

    def price_of(self, answered: object) -> Mapping[str, float] | None:
        """What a function told of the price of the model that answered, where that is another than the one that was asked."""
        asks = [level for level in self._levels if level.budget.usd is not None]
        return asks[-1].prices.told(answered) if asks and answered != self.model else None

    def keep(self) -> None:
        """Nobody will tell what it took: what was held is spent."""
        self._count_unknown(self.estimate is not None)
        self._close(self.costs)

    def _count_unknown(self, known: bool) -> None:
        if self._spec.family == "llm" and not known and not self._closed:
            for level, _ in self.costs:
                level.unreported += 1

    def give_back(self) -> None:
        """The call was not made."""
        self._close([])

    def _close(self, actual: list[tuple[Spending, dict[str, float]]]) -> None:
        if not self._closed:
            self._closed = True
            self._levels[0].move(self.costs, actual)


def refused(output: object) -> bool:
    """Whether an answer (its status, or what was raised instead) is of a call that the other side did not take."""
    if not isinstance(output, Mapping):
        return False
    status = output.get("status")
    return (type(status) is int and status >= 400) or output.get("raised") in _NEVER_SENT
