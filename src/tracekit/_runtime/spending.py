"""Budgets: their limits, what calls have spent and reserved, and what a recorded run used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from .. import _reality
from .._journal.entry import meta_of
from .._journal.store import beside
from ..errors import BudgetExceededError, TraceError, UnknownPriceError
from .doubt import never_sent
from .prices import Price, PriceList, Prices, checked

if TYPE_CHECKING:
    from .._journal.reader import Trace

__all__ = [
    "LIMITS",
    "Budget",
    "Call",
    "CallSpec",
    "Reservation",
    "Spending",
    "answer_tokens",
    "refused",
    "request_tokens",
    "usage_of",
]

# -- budget ------------------------------------------------------------------------------------------------------------

#: The limits of a budget, in the order in which they are listed.
LIMITS: Final = ("usd", "llm_calls", "input_tokens", "output_tokens", "tool_calls", "cost_units", "seconds")
_COUNTS: Final = frozenset(("llm_calls", "input_tokens", "output_tokens", "tool_calls"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on what a run, a span or a block may spend; immutable. ``None`` is no limit, a count of 0 allows no call.

    - ``usd``: the price of model calls in US dollars.
    - ``llm_calls``: model requests, including an SDK's retries. ``tool_calls``: tool calls.
    - ``input_tokens``, ``output_tokens``: tokens of model calls.
    - ``cost_units``: what each tool declares (default 1), plus one unit per ``tokens_per_unit`` tokens of a model call.
    - ``seconds``: monotonic time since the start of the run, span or block.

    Tokens and dollars are estimated before a call: from the request's size, and from the output limit set by the
    request, or ``assumed_output_tokens`` if it sets none. ``prices`` are your own (a mapping from model to ``Price``,
    or a function from a model's name to its ``Price``); other models are priced with the data of the package
    ``genai-prices``.

    Examples:
        >>> from tracekit import Budget, record, traced_tool
        >>> @traced_tool(side_effect="read_only")
        ... def search(words):
        ...     return f"about {words}"
        >>> with record("research", budget=Budget(usd=2.00, tool_calls=1)):
        ...     search("bees")
        ...     search("wasps")
        Traceback (most recent call last):
        ...
        tracekit.errors.BudgetExceededError: ...
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

    def opened(self, name: str, outer: Spending | None) -> Spending:
        """Return a new ledger of this budget for the body of a step of this name."""
        return Spending(self, name=name, outer=outer)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: getattr(self, name) for name in LIMITS if getattr(self, name) is not None}

    def as_dict(self) -> dict[str, Any]:
        """Return the budget as JSON values. A price function is only mentioned; each call records the price it
        returned."""
        described: dict[str, Any] = dict(self.limits)
        described.update(tokens_per_unit=self.tokens_per_unit, assumed_output_tokens=self.assumed_output_tokens)
        if isinstance(self.prices, Mapping):
            described["prices"] = {model: price.as_dict() for model, price in self.prices.items()}
        elif self.prices is not None:
            described["prices_by"] = "function"
        return described

    @classmethod
    def of_dict(cls, described: Mapping[str, Any]) -> Budget:
        """Return the budget for a dictionary from ``as_dict``. Raises ``TypeError`` or ``ValueError`` if it is invalid."""
        prices = described.get("prices")
        limits = {
            one.name: described[one.name] for one in fields(cls) if one.name in described and one.name != "prices"
        }
        return cls(prices=prices and {model: Price(**price) for model, price in prices.items()}, **limits)

    def __repr__(self) -> str:
        arguments = [
            f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if self._shows(one.name, one.default)
        ]
        return f"Budget({', '.join(arguments)})"

    def _shows(self, name: str, default: Any) -> bool:
        return name != "prices" and getattr(self, name) != default

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in LIMITS))


def budget_or_none(value: object) -> Budget | None:
    """Return ``value`` if it is a budget or ``None``, else raise ``TypeError``."""
    if value is None or isinstance(value, Budget):
        return value
    hint = f": write Budget(**{value!r})" if isinstance(value, Mapping) else ""
    raise TypeError(f"budget must be a Budget, not {value!r}{hint}")


def _count(name: str, value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{name} is 0 or more, not {value!r}")


def _amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")


class CallSpec(Protocol):
    """What a step's cost depends on: its family, its name (the model's, unless the signature names it) and its
    signature."""

    @property
    def family(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> Mapping[str, Any]: ...


class Call(Protocol):
    """A call that is about to be made, as far as a budget needs to know it."""

    @property
    def spec(self) -> CallSpec: ...
    @property
    def input(self) -> object: ...
    @property
    def info(self) -> Mapping[str, Any] | None: ...


class _Logged(NamedTuple):
    """A logged call, as far as a budget needs to know it."""

    family: str
    name: str
    signature: Mapping[str, Any]


# -- estimate ----------------------------------------------------------------------------------------------------------
#
# Estimates how many tokens a call will use, before it is made.

#: English text and JSON take four bytes per token or more; other scripts take both more bytes and more tokens.
_BYTES_PER_TOKEN: Final = 4
#: Tokens that frame a message or a part of one.
_PER_ITEM: Final = 3
#: Tokens of an image or another file inside a request, whatever its size.
_PER_FILE: Final = 1600
_LONG: Final = 1024
#: The keys under which requests contain files as base64.
_FILES: Final = frozenset(("data", "file_data", "b64_json", "bytes", "images", "bytesBase64Encoded"))
#: The keys with which requests limit the output.
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def request_tokens(input: object) -> int:
    """Estimate the tokens of a request from its size: a quarter of the bytes of its texts, plus a little per message."""
    body = input.get("body", input) if isinstance(input, Mapping) else input
    size = 0
    stack: list[tuple[str, Any]] = [("", body)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, str):
            size += _text(key, value)
        elif isinstance(value, Mapping):
            size += _PER_ITEM * _BYTES_PER_TOKEN
            for name, item in value.items():
                size += len(str(name))
                stack.append((str(name), item))
        elif isinstance(value, (list, tuple)):
            stack.extend((key, item) for item in value)
        elif isinstance(value, (bytes, bytearray)):
            size += _PER_FILE * _BYTES_PER_TOKEN if len(value) > _LONG else len(value)
        elif value is not None:
            size += 4
    return -(-size // _BYTES_PER_TOKEN)


def answer_tokens(spec: CallSpec, input: object, assumed: int) -> int:
    """Return the most output tokens that a request allows; ``assumed`` if it sets no limit."""
    signature = spec.signature
    if signature.get("operation") in ("embeddings", "rerank"):
        return 0
    request = input if isinstance(input, Mapping) else {}
    limit = next((found for found in (_limit(signature), _limit(request)) if found is not None), assumed)
    several = signature.get("n")
    return limit * several if type(several) is int and several > 1 else limit


def _limit(request: Mapping[str, Any]) -> int | None:
    for name in _LIMITS:
        value = request.get(name)
        if type(value) is int and value >= 0:
            return value
    return None


def _text(key: str, value: str) -> int:
    """Return the bytes of a text; a file encoded as text counts as a file."""
    if len(value) > _LONG and (key in _FILES or value.startswith("data:")):
        return _PER_FILE * _BYTES_PER_TOKEN
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


# -- reservations ------------------------------------------------------------------------------------------------------
#
# What one call reserves of the budgets around it, until its actual cost is known.

#: Limits that require the tokens of a call to be estimated.
OF_TOKENS: Final = frozenset(("usd", "input_tokens", "output_tokens", "cost_units"))


class Reservation:
    """The cost of one call in each of ``levels``: first the estimate, then the actual cost.

    ``estimate`` is the estimate of tokens and dollars, ``None`` if no limit needs it; ``price`` is the price that a
    function returned for the model. ``free`` marks a call that the provider did not accept.
    """

    __slots__ = ("_about", "_closed", "_levels", "_spec", "costs", "estimate", "free", "price")

    def __init__(self, levels: Sequence[Spending], spec: CallSpec, info: Mapping[str, Any] | None) -> None:
        self._levels: Final = levels
        self._spec: Final = spec
        self._about: Final = info or {}
        self._closed = False
        self.costs: list[tuple[Spending, dict[str, float]]] = []
        self.estimate: dict[str, float] | None = None
        self.price: Mapping[str, float] | None = None
        self.free = False

    @staticmethod
    def is_refused(output: object) -> bool:
        """Return whether a response means that the provider did not accept the call."""
        return refused(output)

    @classmethod
    def of_entry(cls, level: Spending, entry: Mapping[str, Any]) -> Reservation:
        """Return the reservation of a logged intent record, in ``level`` alone."""
        signature = dict(meta_of(entry))
        about = signature.pop("info", None) or {}
        spec = _Logged("llm" if entry["type"] == "llm.request" else "tool", str(entry.get("name")), signature)
        held = cls((level,), spec, about)
        held.estimate, held.price = about.get("estimate"), about.get("price")
        held.costs = [(level, held._cost(level, held.estimate or {}))]
        return held

    def foresee(self, input: object) -> None:
        """Estimate the call's cost. Raises ``UnknownPriceError`` if a limit in dollars can't be enforced without a
        price."""
        if self._spec.family != "llm" or all(OF_TOKENS.isdisjoint(level.budget.limits) for level in self._levels):
            self.costs = [(level, self._cost(level, {})) for level in self._levels]
            return
        asked = request_tokens(input)
        for level in self._levels:
            answered = answer_tokens(self._spec, input, level.budget.assumed_output_tokens)
            usage: dict[str, float] = {"input_tokens": asked, "output_tokens": answered}
            if level.budget.usd is not None:
                self._foresee_price(level, usage)
            self.estimate = {**usage, **(self.estimate or {})}
            self.costs.append((level, self._cost(level, usage)))

    def _foresee_price(self, level: Spending, usage: dict[str, float]) -> None:
        try:
            usage["cost_usd"] = round(level.prices.of(self.model, *self._place, usage), 9)
        except UnknownPriceError:
            if not self._about.get("own_price"):  # otherwise the response states the cost
                raise
        else:
            self.price = level.prices.given(self.model)  # that of the outermost level, if there are several

    @property
    def model(self) -> str:
        """The requested model."""
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
        """Replace the reservation with the actual cost; return the price in dollars if a limit needs one.

        Without reported tokens the estimate counts; without an estimate the call counts as unreported. ``answered`` is
        the model that answered; ``usd`` the price, if already known.
        """
        free = free or self.free
        usd = 0.0 if free else usd
        taken: Mapping[str, Any] = {} if free else usage or self.estimate or {}
        self._count_unknown(free or bool(taken))
        price: float | None = None
        actual: list[tuple[Spending, dict[str, float]]] = []
        for level, _ in self.costs:
            counted = dict(taken)
            if self._spec.family == "llm" and level.budget.usd is not None:
                cost = usd if usd is not None else self._price(level, answered, taken) if taken else 0.0
                counted["cost_usd"] = cost or 0.0
                price = cost if price is None else price
            actual.append((level, self._cost(level, counted)))
        self._close(actual)
        return price

    def _price(self, level: Spending, answered: object, usage: Mapping[str, Any]) -> float | None:
        try:
            return round(level.prices.of_answer(answered, self.model, *self._place, usage), 9)
        except UnknownPriceError as error:
            foreseen = (self.estimate or {}).get("cost_usd")
            if foreseen is None:  # the response was to state the cost, and did not
                level.unpriced(error)
            return foreseen  # it was known before the call

    def price_of(self, answered: object) -> Mapping[str, float] | None:
        """Return the price that a function returned for the model that answered, if it is not the requested one."""
        asks = [level for level in self._levels if level.budget.usd is not None]
        return asks[-1].prices.given(answered) if asks and answered != self.model else None

    def keep(self) -> None:
        """Count the reservation as spent: the actual cost will never be known."""
        self._count_unknown(self.estimate is not None)
        self._close(self.costs)

    def _count_unknown(self, known: bool) -> None:
        if self._spec.family == "llm" and not known and not self._closed:
            for level, _ in self.costs:
                level.unreported += 1

    def give_back(self) -> None:
        """Drop the reservation: the call was not made."""
        self._close([])

    def _close(self, actual: list[tuple[Spending, dict[str, float]]]) -> None:
        if not self._closed:
            self._closed = True
            self._levels[0].move(self.costs, actual)


def refused(output: object) -> bool:
    """Return whether a response (its status, or the error raised instead) means that the provider did not accept the
    call."""
    if not isinstance(output, Mapping):
        return False
    status = output.get("status")
    return (type(status) is int and status >= 400) or never_sent(output)


# -- spending ----------------------------------------------------------------------------------------------------------
#
# Ledgers of what has been spent of a budget and what running calls have reserved.
#
# Ledgers are nested: a call counts in every ledger around it, and every limit applies. A call reserves its estimated
# cost before it is made and settles the actual cost afterwards, so that concurrent calls can't jointly exceed what each
# alone could afford.

#: Tolerance: sums of fractions are not exact.
_SLACK: Final = 1e-9
#: What counts as the remainder of an exhausted amount.
_NOTHING: Final = 1e-12
#: The limits that are counted, and can be summed from a log.
_COUNTED: Final = tuple(name for name in LIMITS if name != "seconds")


Costs: TypeAlias = "Iterable[tuple[Spending, Mapping[str, float]]]"


class Spending:
    """The ledger of ``budget``; ``name`` says whose budget it is: ``"run"``, a span, a block. ``outer`` applies as
    well.

    In a resumed run, ``of_log`` creates the root ledger; inner ones learn from ``recall`` what the steps answered by
    the log had cost.
    """

    __slots__ = (
        "_before",
        "_held",
        "_lock",
        "_spent",
        "_started",
        "_unpriced",
        "budget",
        "from_log",
        "look",
        "name",
        "outer",
        "prices",
        "refused",
        "unreported",
    )

    def __init__(
        self, budget: Budget, *, name: str = "run", outer: Spending | None = None, prices: Prices | None = None
    ) -> None:
        self.budget: Final = budget
        self.name: Final = name
        self.outer: Final = outer
        if prices is None and outer is not None and budget.prices is None:
            prices = outer.prices
        self.prices: Final[Prices] = Prices(budget.prices) if prices is None else prices
        if budget.usd is not None and prices is None:
            self.prices.prepare()
        #: Shared by all nested ledgers: a reservation is made in all of them.
        self._lock: Final[_reality.OwnLock] = _reality.OwnLock() if outer is None else outer._lock
        self._spent: Final = dict.fromkeys(_COUNTED, 0.0)
        self._held: Final = dict.fromkeys(_COUNTED, 0.0)
        self._started = _reality.monotonic()
        self._before = 0.0
        #: The first refusal; after it, every call is refused.
        self.refused: BudgetExceededError | None = None
        #: Why the amount spent is unknown: a call was allowed without a price, and did not state its cost.
        self._unpriced: UnknownPriceError | None = None
        #: The number of model calls whose usage is unknown: neither reported nor estimated.
        self.unreported = 0
        #: Whether it was created from the log of a resumed run, whose contents it includes.
        self.from_log = False
        #: Adds what other processes of the run have spent so far, if there are any.
        self.look: Callable[[], None] | None = None

    def copy(self) -> Spending:
        """Return a copy of this ledger for a forked process; what the two spend from now on is not summed."""
        outer = None if self.outer is None else self.outer.copy()
        made = Spending(self.budget, name=self.name, outer=outer, prices=self.prices)
        made._spent.update(self._spent)
        made._started, made._before, made.refused = self._started, self._before, self.refused
        made.unreported, made._unpriced = self.unreported, self._unpriced
        return made

    def remainder(self) -> Budget:
        """Return what is left in all applicable ledgers, as a budget for a process that is being started."""
        left: dict[str, Any] = {}
        if self.look is not None:
            self.look()
        with self._lock:
            for level in self.levels():
                for name, limit in level.budget.limits.items():
                    if name == "seconds":
                        rest = limit - level.seconds
                    else:
                        rest = limit - level._spent[name] - level._held[name]
                    least = 0 if isinstance(limit, int) and name not in ("usd", "cost_units", "seconds") else _NOTHING
                    left[name] = min(left.get(name, limit), max(rest, least))
                    if least == 0:
                        left[name] = int(left[name])
                if level.refused is not None:  # every call is refused
                    left.update(llm_calls=0, tool_calls=0)
        prices = next((one.budget.prices for one in self.levels() if one.budget.prices), None)
        return replace(self.budget, **{**dict.fromkeys(LIMITS), **left, "prices": prices})

    def levels(self) -> Iterator[Spending]:
        """Yield this ledger and those around it, innermost first."""
        level: Spending | None = self
        while level is not None:
            yield level
            level = level.outer

    @property
    def root(self) -> Spending:
        """The outermost ledger."""
        *_, last = self.levels()
        return last

    @property
    def seconds(self) -> float:
        """Seconds since the start, including the time before the run was resumed."""
        return self._before + _reality.monotonic() - self._started

    @property
    def spent(self) -> dict[str, float | None]:
        """Return what has been spent, by limit; ``usd`` only if there is a limit in US dollars.

        ``None`` marks amounts that are unknown because of calls with unknown usage.
        """
        unknown = OF_TOKENS if self.unreported else ()
        found = {name: None if name in unknown else _plain(value) for name, value in self._spent.items()}
        if self.budget.usd is None:
            del found["usd"]
        found["seconds"] = round(self.seconds, 3)
        return found

    @property
    def exceeded(self) -> list[str]:
        """Return the limits that were exceeded, or for which a call was refused."""
        refused = None if self.refused is None else self.refused.resource
        limits = self.budget.limits
        return [name for name in limits if name == refused or self._spent.get(name, 0.0) > limits[name] + _SLACK]

    # -- a call ----------------------------------------------------------------------------------------------------------

    def reserve(self, call: Call) -> Reservation:
        """Reserve the estimated cost of a call in every ledger. Raises ``BudgetExceededError`` if one can't afford it."""
        if self.look is not None:
            self.look()
        held = Reservation(tuple(self.levels()), call.spec, call.info)
        held.foresee(call.input)
        with self._lock:
            for level, cost in held.costs:
                level._afford(cost)
            for level, cost in held.costs:
                _add(level._held, cost, 1)
        return held

    def unpriced(self, error: UnknownPriceError) -> None:
        """Note that a call was made whose price is unknown: from now on no limit in dollars can be enforced."""
        self.unreported += 1
        self._unpriced = self._unpriced or UnknownPriceError(
            f"a call of {error.model!r} did not say what it cost, and the model has no known price: what {self._whose} has left is not "
            "known; no further call is made",
            model=error.model,
            provider=error.provider,
            next_action=error.next_action,
        )

    def afford(self, cost: Mapping[str, float], own_units: float = 0.0) -> None:
        """Raise ``BudgetExceededError`` if the calls to come can't be afforded together; reserve nothing.

        ``own_units`` count in this ledger alone, as in ``charge``.
        """
        with self._lock:
            for level in self.levels():
                units = cost.get("cost_units", 0.0) + (own_units if level is self else 0.0)
                level._afford({**cost, "cost_units": units})

    def _afford(self, cost: Mapping[str, float]) -> None:
        if self.refused is not None:
            raise self._again(self.refused)
        if self._unpriced is not None:
            raise self._unpriced.fresh()
        limits = self.budget.limits
        if "seconds" in limits and self.seconds >= limits["seconds"]:
            raise self._refuse("seconds", limits["seconds"], self.seconds, 0.0)
        for name, estimate in cost.items():
            limit = limits.get(name)
            if limit is None:
                continue
            spent = self._spent[name] + self._held[name]
            if spent > limit + _SLACK or spent + estimate > limit + _SLACK:
                raise self._refuse(name, limit, spent, estimate)
        for name in ("usd", "input_tokens", "output_tokens", "cost_units"):
            if name in limits and self._spent[name] > limits[name] + _SLACK:
                raise self._refuse(name, limits[name], self._spent[name], 0.0)

    def _refuse(self, resource: str, limit: float, spent: float, estimate: float) -> BudgetExceededError:
        more = f", and the next call may take {_shown(resource, estimate)}" if estimate else ""
        self.refused = BudgetExceededError(
            f"{self._whose} allows {_shown(resource, limit)}; {_shown(resource, spent)} spent or held back{more}; "
            "the call was not made",
            resource=resource,
            limit=_plain(limit),
            spent=_plain(spent),
            estimate=_plain(estimate),
            budget=self.name,
            next_action="raise the limit, or let the agent do with less; `tracekit estimate` shows what its runs take",
        )
        return _copy(self.refused)

    def _again(self, first: BudgetExceededError) -> BudgetExceededError:
        return BudgetExceededError(
            f"{self._whose} was exceeded before ({first.resource}); no further call is made",
            resource=first.resource,
            limit=first.limit,
            spent=first.spent,
            estimate=first.estimate,
            budget=self.name,
            next_action=first.next_action,
        )

    @property
    def _whose(self) -> str:
        if self.name == "process":
            return "what the run had left for this process"
        return "the budget of the run" if self.name == "run" else f"the budget of {self.name!r}"

    def charge(self, units: float) -> None:
        """Enter ``units`` that are not a call, in this ledger alone. Raises ``BudgetExceededError`` if they can't be
        afforded."""
        with self._lock:
            self._afford({"cost_units": units})
            _add(self._spent, {"cost_units": units}, 1)

    def move(self, held: Costs, spent: Costs) -> None:
        """Release reservations and enter costs, atomically."""
        with self._lock:
            for level, cost in held:
                _add(level._held, cost, -1)
            for level, cost in spent:
                _add(level._spent, cost, 1)

    # -- from a log ------------------------------------------------------------------------------------------------------

    @classmethod
    def of_log(
        cls,
        budget: Budget,
        entries: Iterable[Mapping[str, Any]],
        *,
        prices: Prices | None = None,
    ) -> Spending:
        """Create the ledger of a resumed run from its log. Time during which no process ran it does not count."""
        made = cls(budget, name="run", prices=prices)
        made.from_log = True
        made.read(entries)
        return made

    @classmethod
    def resumed(cls, trace: Trace, budget: Budget | None = None) -> Spending | None:
        """Return the ledger of the run in ``trace``, with the budget it was given; ``None`` if it had none.

        If that budget used a price function, prices come from ``budget``, the program's current one, or else from those
        recorded in the log.
        """
        described = meta_of(trace.entry(1)).get("budget")
        if described is None:
            return None
        prices: Prices | None = None
        if described.get("prices_by") == "function":
            prices = Prices(budget.prices if budget is not None and callable(budget.prices) else None)
        return cls.of_log(Budget.of_dict(described), trace.entries(), prices=prices)

    def read(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add what the entries of one log say was spent, in this ledger alone."""
        open_calls: dict[int, Reservation] = {}
        since = last = None
        for entry in entries:
            if entry["type"] == "recovery.started" or since is None:
                self._before += 0.0 if since is None or last is None else (last - since) / 1e9
                since = entry["ts_ns"]
            last = entry["ts_ns"]
            self._read(entry, open_calls)
        for held in open_calls.values():  # interrupted, so in doubt: each may have cost what was reserved
            held.keep()
        if since is not None and last is not None:
            self._before += (last - since) / 1e9

    def _read(self, entry: Mapping[str, Any], open_calls: dict[int, Reservation]) -> None:
        kind = entry["type"]
        if kind in ("llm.request", "tool.call"):
            held = open_calls[entry["seq"]] = Reservation.of_entry(self, entry)
            self.prices.learn(held.model, held.price)
            _add(self._held, held.costs[0][1], 1)
        elif kind == "budget.exceeded":
            self._remember(entry.get("error") or {})
        elif entry.get("step") not in open_calls:
            pass
        elif kind.endswith(".chunk"):
            output = entry.get("output")
            if isinstance(output, Mapping) and refused(output.get("head")):
                open_calls[entry["step"]].free = True
        else:
            held = open_calls.pop(entry["step"])
            meta = meta_of(entry)
            self.prices.learn(meta.get("model"), meta.get("price"))
            if kind.endswith(".skipped"):  # answered by an earlier call; or retried, which counts by itself
                held.give_back() if "output" in entry or "error" in entry else held.keep()
            else:
                free = refused(entry.get("output"))
                held.settle(meta.get("usage"), meta.get("model"), free=free, usd=meta.get("cost_usd"))

    def _remember(self, error: Mapping[str, Any]) -> None:
        about = error.get("attrs") or {}
        if about.get("budget") != self.name or about.get("resource") not in LIMITS or self.refused is not None:
            return
        self.refused = BudgetExceededError(
            str(about.get("what")),
            **{key: about.get(key) for key in ("resource", "limit", "spent", "estimate", "budget", "next_action")},
        )

    def include(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add what another process of the run has spent, according to its log; its time has passed here, too."""
        entries = list(entries)
        with self._lock:
            for level in self.levels():
                before = level._before
                level.read(entries)
                level._before = before

    def add(self, other: Spending) -> None:
        """Add the contents of the ledger ``other``, in this one alone."""
        with self._lock:
            _add(self._spent, other._spent, 1)
            self.unreported += other.unreported

    def recall(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add a step answered by the log, in every ledger that does not include it yet."""
        unaware = [level for level in self.levels() if not level.from_log]
        entries = list(entries) if unaware else []
        with self._lock:
            for level in unaware:
                before = level._before
                level.read(entries)
                level._before = before


def _add(to: dict[str, float], cost: Mapping[str, float], sign: int) -> None:
    for name, value in cost.items():
        to[name] += sign * value


def _copy(error: BudgetExceededError) -> BudgetExceededError:
    """Return a copy of the error without the first one's traceback."""
    copy = error.fresh()
    assert isinstance(copy, BudgetExceededError)
    return copy


def _plain(value: float) -> float:
    """Return an integral number as ``int``."""
    return int(value) if float(value).is_integer() else round(value, 9)


def _shown(resource: str, value: float) -> str:
    if resource == "usd":
        return f"${value:.6f}".rstrip("0").rstrip(".")
    number = _plain(round(value, 3))
    what = resource.replace("_", " ")
    return f"{number:,} {what.removesuffix('s') if number == 1 else what}"


# -- usage -------------------------------------------------------------------------------------------------------------
#
# What a recorded run used: calls, tokens, dollars, units, time.

_SUMMED: Final = ("llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost_units")


def usage_of(path: str, prices: Prices | None = None) -> dict[str, Any]:
    """Return what the run in the file at ``path`` used, including its child processes.

    For a call without reported usage the estimate counts, if a budget required one; otherwise the call is counted in
    ``unreported``, and the run's tokens, units and dollars are ``None``. ``cost_usd`` is also ``None`` if a model's
    price is unknown or the price package is missing; ``unpriced`` names the models.
    """
    try:
        own, *others = [_usage(one, prices or Prices()) for one in (path, *beside(path))]
    except TraceError:
        return {}
    files = [own, *others]
    unreported = sum(one["unreported"] for one in files)
    unpriced = sorted({model for one in files for model in one["unpriced"]})
    taken = {
        name: None if any(one[name] is None for one in files) else sum(one[name] for one in files) for name in _SUMMED
    }
    cost = None if unreported or unpriced else round(sum(one["cost"] for one in files), 9)
    return {**taken, "cost_usd": cost, "unpriced": unpriced, "unreported": unreported, "seconds": own["seconds"]}


def _usage(path: str, prices: Prices) -> dict[str, Any]:
    """Return what the steps in one file used."""
    from .._journal.reader import Trace

    with Trace(path) as trace:
        # a budget that is never reached: it counts without limiting
        ledger = Spending.of_log(Budget(cost_units=1e18), trace.entries())
        cost, unpriced = _cost(trace.entries(), prices)
        lasted = (trace.last["ts_ns"] - trace.entry(1)["ts_ns"]) / 1e9 if len(trace) else 0.0
    about = {"unreported": ledger.unreported, "cost": cost, "unpriced": unpriced, "seconds": round(lasted, 3)}
    return {**ledger.spent, **about}


def _cost(entries: Iterable[Mapping[str, Any]], prices: Prices) -> tuple[float | None, list[str]]:
    """Return the price of the model calls by reported or estimated usage, and the models without a price."""
    calls = ModelCalls(prices)
    found = [call for entry in entries if (call := calls.take(entry)) is not None]
    found += calls.cut_off()
    unpriced = sorted({call.model for call in found if call.cost_usd is None})
    return (None if unpriced else round(sum(call.cost_usd or 0.0 for call in found), 9)), unpriced


class LoggedModelCall(NamedTuple):
    """A logged model call: the requested model, the reported tokens, the price in US dollars.

    ``cost_usd`` is ``None`` if the model's price is unknown. ``reported`` is false if the usage was neither reported
    nor estimated; then ``cost_usd`` is 0.
    """

    model: str
    usage: Mapping[str, Any]
    cost_usd: float | None
    reported: bool


class ModelCalls:
    """The model calls of a log, read entry by entry."""

    def __init__(self, prices: Prices) -> None:
        self._prices: Final = prices
        self._asked: Final[dict[int, Mapping[str, Any]]] = {}

    def take(self, entry: Mapping[str, Any]) -> LoggedModelCall | None:
        """Take an entry; return the call that it ends, if any."""
        kind = entry["type"]
        if kind == "llm.request":
            self._asked[entry["seq"]] = meta_of(entry)
        elif kind in ("llm.response", "llm.error", "llm.skipped") and entry["step"] in self._asked:
            meta, request = meta_of(entry), self._asked.pop(entry["step"])
            return self._call(request, meta, free=refused(entry.get("output")))
        elif kind == "llm.chunk" and entry["step"] in self._asked and _refused_stream(entry.get("output")):
            return self._call(self._asked.pop(entry["step"]), {}, free=True)
        return None

    def cut_off(self) -> list[LoggedModelCall]:
        """Return the calls without an end; their estimates count."""
        return [self._call(request, {}, free=False) for request in self._asked.values()]

    def _call(self, request: Mapping[str, Any], meta: Mapping[str, Any], *, free: bool) -> LoggedModelCall:
        model, info = str(request.get("model") or meta.get("model")), request.get("info") or {}
        foreseen: Mapping[str, Any] = {} if free else info.get("estimate") or {}
        answer = meta
        if not meta.get("usage"):
            answer = {"cost_usd": foreseen.get("cost_usd"), **meta, "usage": foreseen}
        cost, reported = self._prices.of_logged(model, info, answer), bool(answer["usage"])
        return LoggedModelCall(
            model, meta.get("usage") or {}, 0.0 if cost is None and not reported else cost, free or reported
        )


def _refused_stream(output: object) -> bool:
    return isinstance(output, Mapping) and refused(output.get("head"))
