"""What has been spent of a budget: a ledger, and what calls that are under way hold back of it.

Ledgers are nested: a call counts in each one around it, and each limit holds. A call reserves what it may cost before it is made,
and settles what it did cost after, so that concurrent calls can't overshoot together what each of them could have afforded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from .. import _reality
from .._journal.reader import Trace
from ..errors import BudgetExceededError
from .budget import LIMITS, Budget
from .held import OF_TOKENS, Held, refused
from .prices import Prices
from .step import Request

__all__ = ["Spending"]

#: Sums of fractions are not exact.
_SLACK: Final = 1e-9
#: What is left of an amount where nothing is.
_NOTHING: Final = 1e-12
#: What is counted, and can be added up from a log.
_COUNTED: Final = tuple(name for name in LIMITS if name != "seconds")


Costs: TypeAlias = "Iterable[tuple[Spending, Mapping[str, float]]]"


class Spending:
    """The ledger of ``budget``, of which ``name`` tells whose it is: ``"run"``, a span, a block. ``outer`` holds as well.

    In a run that is resumed, its root is made by :meth:`of_log`; those inside it learn by :meth:`recall` what their steps
    cost that the log answers.
    """

    __slots__ = (
        "_before",
        "_held",
        "_lock",
        "_spent",
        "_started",
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
        #: One for all that are nested: what is reserved is reserved in all of them.
        self._lock: Final[threading.RLock] = threading.RLock() if outer is None else outer._lock
        self._spent: Final = dict.fromkeys(_COUNTED, 0.0)
        self._held: Final = dict.fromkeys(_COUNTED, 0.0)
        self._started = _reality.monotonic()
        self._before = 0.0
        #: The first refusal: from then on nothing is allowed any more.
        self.refused: BudgetExceededError | None = None
        #: How many model calls there were of which nothing tells what they took: neither the provider nor an estimate.
        self.unreported = 0
        #: Whether it was made from the log of a run that is resumed, and knows already what is in there.
        self.from_log = False
        #: Adds what other processes of the run have spent by now, where there are some.
        self.look: Callable[[], None] | None = None

    def copy(self) -> Spending:
        """The same as it is now, for a forked process: what the two spend from here on is not added up."""
        outer = None if self.outer is None else self.outer.copy()
        made = Spending(self.budget, name=self.name, outer=outer, prices=self.prices)
        made._spent.update(self._spent)
        made._started, made._before, made.refused = self._started, self._before, self.refused
        made.unreported = self.unreported
        return made

    def remainder(self) -> Budget:
        """What is left now in all ledgers that hold here, as a budget for a process that is started."""
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
                if level.refused is not None:  # nothing is allowed any more
                    left.update(llm_calls=0, tool_calls=0)
        prices = next((one.budget.prices for one in self.levels() if one.budget.prices), None)
        return replace(self.budget, **{**dict.fromkeys(LIMITS), **left, "prices": prices})

    def levels(self) -> Iterator[Spending]:
        """This ledger and those around it, innermost first."""
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
        """How long it has been since the beginning, the time before a resumption included."""
        return self._before + _reality.monotonic() - self._started

    @property
    def spent(self) -> dict[str, float | None]:
        """What has been spent, by the names of a budget's limits; ``usd`` only where a limit in US dollars is set.

        ``None`` where there were calls of which nothing tells what they took.
        """
        unknown = OF_TOKENS if self.unreported else ()
        found = {name: None if name in unknown else _plain(value) for name, value in self._spent.items()}
        if self.budget.usd is None:
            del found["usd"]
        found["seconds"] = round(self.seconds, 3)
        return found

    @property
    def exceeded(self) -> list[str]:
        """The limits that a call was refused for, or that what was spent went over."""
        refused = None if self.refused is None else self.refused.resource
        limits = self.budget.limits
        return [name for name in limits if name == refused or self._spent.get(name, 0.0) > limits[name] + _SLACK]

    # -- a call ----------------------------------------------------------------------------------------------------------

    def reserve(self, request: Request) -> Held:
        """Hold back what a call may cost, in every ledger; ``BudgetExceededError`` where one can't afford it."""
        if self.look is not None:
            self.look()
        held = Held(tuple(self.levels()), request.spec, request.info)
        held.foresee(request.input)
        with self._lock:
            for level, cost in held.costs:
                level._afford(cost)
            for level, cost in held.costs:
                _add(level._held, cost, 1)
        return held

    def _afford(self, cost: Mapping[str, float]) -> None:
        if self.refused is not None:
            raise self._again(self.refused)
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
        more = f", and the next call may take {_told(resource, estimate)}" if estimate else ""
        self.refused = BudgetExceededError(
            f"{self._whose} allows {_told(resource, limit)}; {_told(resource, spent)} spent or held back{more}; "
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
        """Write down, in this ledger alone, what costs ``units`` and is no call; ``BudgetExceededError`` where it can't be afforded."""
        with self._lock:
            self._afford({"cost_units": units})
            _add(self._spent, {"cost_units": units}, 1)

    def move(self, held: Costs, spent: Costs) -> None:
        """Give back what was held, and write down what was spent, in one go."""
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
        name: str = "run",
        prices: Prices | None = None,
    ) -> Spending:
        """The ledger of a run that is resumed: what its log says was spent. The time in which no process ran it is not counted."""
        made = cls(budget, name=name, prices=prices)
        made.from_log = True
        made.read(entries)
        return made

    @classmethod
    def resumed(cls, trace: Trace, given: Budget | None = None) -> Spending | None:
        """The ledger of the run in ``trace``, by the budget that it was given; ``None`` where it had none.

        Where a function told its prices, that of the budget which the program has ``given`` now does, or else the log says what it told.
        """
        told = (trace.entry(1).get("meta") or {}).get("budget")
        if told is None:
            return None
        prices: Prices | None = None
        if told.get("prices_by") == "function":
            prices = Prices(given.prices if given is not None and callable(given.prices) else None)
        return cls.of_log(Budget.of_dict(told), trace.entries(), prices=prices)

    def read(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add what these entries of one log say was spent, in this ledger alone."""
        open_calls: dict[int, Held] = {}
        since = last = None
        for entry in entries:
            if entry["type"] == "recovery.started" or since is None:
                self._before += 0.0 if since is None or last is None else (last - since) / 1e9
                since = entry["ts_ns"]
            last = entry["ts_ns"]
            self._read(entry, open_calls)
        for held in open_calls.values():  # cut off, and so in doubt: it may have cost what it was let go for
            held.keep()
        if since is not None and last is not None:
            self._before += (last - since) / 1e9

    def _read(self, entry: Mapping[str, Any], open_calls: dict[int, Held]) -> None:
        kind = entry["type"]
        if kind in ("llm.request", "tool.call"):
            held = open_calls[entry["seq"]] = Held.of_entry(self, entry)
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
            meta = entry.get("meta") or {}
            self.prices.learn(meta.get("model"), meta.get("price"))
            if kind.endswith(".skipped"):  # answered by an earlier call; or given up for another attempt, and then made
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
        """Add what another process of the run has spent, by its log; its time passed here, too."""
        told = list(entries)
        with self._lock:
            for level in self.levels():
                before = level._before
                level.read(told)
                level._before = before

    def add(self, other: Spending) -> None:
        """Add what the ledger ``other`` has, in this one alone."""
        with self._lock:
            _add(self._spent, other._spent, 1)
            self.unreported += other.unreported

    def recall(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add a step that the log answered, in every ledger that does not know it yet."""
        unaware = [level for level in self.levels() if not level.from_log]
        told = list(entries) if unaware else []
        with self._lock:
            for level in unaware:
                before = level._before
                level.read(told)
                level._before = before


def _add(to: dict[str, float], cost: Mapping[str, float], sign: int) -> None:
    for name, value in cost.items():
        to[name] += sign * value


def _copy(error: BudgetExceededError) -> BudgetExceededError:
    """The same without the frames that it passes on its way."""
    copy = error.fresh()
    assert isinstance(copy, BudgetExceededError)
    return copy


def _plain(value: float) -> float:
    """A whole number as one."""
    return int(value) if float(value).is_integer() else round(value, 9)


def _told(resource: str, value: float) -> str:
    if resource == "usd":
        return f"${value:.6f}".rstrip("0").rstrip(".")
    number = _plain(round(value, 3))
    what = resource.replace("_", " ")
    return f"{number:,} {what.removesuffix('s') if number == 1 else what}"
