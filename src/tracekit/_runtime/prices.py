"""Prices of model tokens: the user's own first, then the data bundled with the package ``genai-prices``.

Nothing here uses the network. The package is imported when a price is first looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from .. import _reality
from ..errors import RunStateError, UnknownPriceError

__all__ = ["Price", "PriceList", "Prices", "checked"]

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model in US dollars per million tokens. Cache reads and writes default to the input price."""

    input_per_mtok: float
    output_per_mtok: float
    cache_read_per_mtok: float | None = None
    cache_write_per_mtok: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name.startswith("cache"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number of US dollars, not {value!r}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is 0 or more US dollars, not {value!r}")

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}

    def of(self, usage: Mapping[str, Any]) -> float:
        """Return the cost of ``usage``; its ``input_tokens`` include those read from and written to a cache."""
        read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
        plain = max(usage.get("input_tokens", 0) - read - written, 0)
        reading = self.input_per_mtok if self.cache_read_per_mtok is None else self.cache_read_per_mtok
        writing = self.input_per_mtok if self.cache_write_per_mtok is None else self.cache_write_per_mtok
        answered = usage.get("output_tokens", 0) * self.output_per_mtok
        total: float = (plain * self.input_per_mtok + read * reading + written * writing + answered) / _MILLION
        return total


PriceList: TypeAlias = "Mapping[str, Price] | Callable[[str], Price | None]"


def checked(prices: object) -> PriceList:
    """Return a copy of a user's prices, so that later changes do not affect the budget."""
    if callable(prices):
        return prices
    if not isinstance(prices, Mapping):
        raise TypeError(f"prices must be a mapping from model to Price, or a function, not {prices!r}")
    for model, price in prices.items():
        if not isinstance(model, str) or not isinstance(price, Price):
            raise TypeError(f"prices map a model's name to a Price, not {model!r} to {price!r}")
    return dict(prices)


class Prices:
    """Looks up prices: in ``own``, then among those that a log recorded from a price function, then in the package."""

    __slots__ = ("_logged", "_own", "_used")

    def __init__(self, own: PriceList | None = None) -> None:
        self._own: Final = own
        #: The last price that the function returned for each model.
        self._used: Final[dict[str, Price]] = {}
        self._logged: Final[dict[str, Price]] = {}

    def prepare(self) -> None:
        """Load what lookups will need, early enough for an error to be seen. Raises ``RunStateError`` without any
        source of prices."""
        if self._own is None:
            _package()

    def given(self, model: object) -> dict[str, float] | None:
        """Return the last price that a function returned for a model, to be logged since it is recorded nowhere else;
        ``None`` if there is none."""
        price = self._used.get(model) if isinstance(model, str) else None
        return None if price is None else price.as_dict()

    def learn(self, model: object, price: object) -> None:
        """Remember a price function's result that a log recorded; ignore invalid prices."""
        if isinstance(model, str) and isinstance(price, Mapping):
            with suppress(TypeError, ValueError):
                self._logged[model] = self._used[model] = Price(**price)

    @property
    def complete(self) -> bool:
        """Whether the package's prices are available in addition to the user's own."""
        try:
            _package()
        except RunStateError:
            return False
        return True

    def of(self, model: str, provider: str | None, origin: str | None, usage: Mapping[str, Any]) -> float:
        """Return the price of ``usage`` in US dollars. Raises ``UnknownPriceError`` for a model without a known price."""
        price = self._user_price(model)
        if price is not None:
            return price.of(usage)
        try:
            found = _listed(model, provider, origin, usage)
        except RunStateError:
            found = None
        if found is None:
            raise unknown(model, provider)
        return found

    def of_answer(
        self, answered: object, model: str, provider: str | None, origin: str | None, usage: Mapping[str, Any]
    ) -> float:
        """Return the price of ``usage`` for the model that answered (often a dated name), or else for the one
        requested."""
        if isinstance(answered, str) and answered != model:
            try:
                return self.of(answered, provider, origin, usage)
            except UnknownPriceError:
                pass
        return self.of(model, provider, origin, usage)

    def of_logged(self, model: str, info: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
        """Return the cost of a logged model call in US dollars, given ``info`` of its request and ``meta`` of its
        response; ``None`` if its usage or its price is unknown."""
        self.learn(model, info.get("price"))
        known, usage = answer.get("cost_usd"), answer.get("usage")
        if isinstance(known, int | float) and not isinstance(known, bool):
            return float(known)
        if not isinstance(usage, Mapping) or not usage:
            return None
        try:
            return self.of_answer(answer.get("model"), model, info.get("provider"), info.get("origin"), usage)
        except (UnknownPriceError, RunStateError, TypeError, ValueError):
            return None

    def _user_price(self, model: str) -> Price | None:
        if isinstance(self._own, Mapping):
            return self._own.get(model)
        price = None if self._own is None else self._own(model)
        if price is not None and not isinstance(price, Price):
            raise TypeError(f"prices({model!r}) returned {price!r}, which is not a Price")
        if price is not None:
            self._used[model] = price
        return price or self._logged.get(model)


def unknown(model: str, provider: str | None) -> UnknownPriceError:
    by = f" of {provider}" if provider else ""
    return UnknownPriceError(
        f"the model {model!r}{by} has no known price, so a budget in US dollars can't hold; the call was not made",
        model=model,
        provider=provider,
        next_action=f"state its price: Budget(usd=…, prices={{{model!r}: Price(input_per_mtok=…, output_per_mtok=…)}})",
    )


@_reality.off_loop()
def _package() -> Any:
    try:
        import genai_prices
    except ModuleNotFoundError:
        raise RunStateError(
            "amounts in US dollars need prices, and the package genai-prices is not installed",
            next_action="pip install genai-prices, or say the prices: Budget(usd=…, prices={…})",
        ) from None
    except Exception as error:  # it imports pydantic, which loads plugins registered by other packages
        raise RunStateError(
            f"amounts in US dollars need prices, and the package genai-prices can't be imported: {error!r}",
            next_action="`python -c 'import genai_prices'` shows why; or say the prices: Budget(usd=…, prices={…})",
        ) from error
    return genai_prices


def why_unpriced(models: Iterable[str]) -> str:
    """Return why these models have no price: none is known, or the package that lists prices is not installed."""
    from importlib.util import find_spec

    if find_spec("genai_prices") is None:
        return "no price list is installed: pip install genai-prices"
    return f"no price known for {', '.join(models)}"


def _listed(model: str, provider: str | None, origin: str | None, usage: Mapping[str, Any]) -> float | None:
    """Return the price from the package's data: for the service at ``origin`` if known, else for the wire protocol's
    own provider."""
    genai_prices = _package()
    read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
    counted = genai_prices.Usage(
        input_tokens=max(usage.get("input_tokens", 0), read + written),
        output_tokens=usage.get("output_tokens", 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    now = datetime.fromtimestamp(_reality.time(), UTC)
    for place in ({"provider_api_url": origin} if origin else None, {"provider_id": provider}):
        if place is None:
            continue
        try:
            found: Any = genai_prices.calc_price(counted, model, genai_request_timestamp=now, **place)
        except (LookupError, ValueError):
            continue
        return float(found.total_price)
    return None
