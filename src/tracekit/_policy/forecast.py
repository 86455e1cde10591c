"""``estimate``: predicts what a run will cost, from a plan of its calls or from earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from .._journal.reader import open_trace
from .._journal.store import Store
from .._runtime.prices import PriceList, Prices, checked
from .._runtime.spending import request_tokens, usage_of
from ..errors import RunNotFoundError, RunStateError, TraceError, UnknownPriceError

__all__ = ["Estimate", "estimate"]

#: The quantities that an estimate covers.
RESOURCES: Final = ("llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost_units", "usd", "seconds")
_TOKENS_PER_UNIT: Final = 1000
_ASSUMED_OUTPUT: Final = 1024
#: More of anything than a run can use.
_MOST: Final = 10**15
#: How many of the latest runs are examined.
LATEST: Final = 100
_MODEL_KEYS: Final = frozenset(("model", "provider", "input_tokens", "prompt", "max_output_tokens", "n"))
_TOOL_KEYS: Final = frozenset(("tool", "cost_units", "n"))


class Estimate(NamedTuple):
    """``median`` and ``p90`` (equal for a plan) of calls, tokens, ``cost_units``, ``usd`` and ``seconds``; ``None``
    where unknown.

    ``source`` is ``"history"`` (of ``runs`` runs) or ``"plan"``; ``unpriced`` names models without a known price,
    ``unreported`` counts the model calls whose usage is unknown.
    """

    source: str
    of: str
    runs: int
    median: dict[str, float | None]
    p90: dict[str, float | None]
    unpriced: tuple[str, ...] = ()
    unreported: int = 0

    def over(self, *, cost_units: float | None = None, usd: float | None = None) -> list[str]:
        """Return the names of those limits that at least one of ten runs would exceed.

        Raises ``UnknownPriceError`` if the cost in dollars can't be known, ``RunStateError`` if calls did not report
        their usage, and ``ValueError`` for a limit that is not a finite number of at least 0.
        """
        found = []
        for name, limit in (("cost_units", cost_units), ("usd", usd)):
            if limit is None:
                continue
            if not (math.isfinite(limit) and limit >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, not {limit!r}")
            amount = self.p90[name]
            if amount is None:
                raise _unreported(self) if self.unreported or name != "usd" else _unpriced(self.unpriced)
            if amount > limit:
                found.append(name)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "unpriced": list(self.unpriced)}


def estimate(
    subject: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    agent: str | None = None,
    run_name: str | None = None,
    store: Any = None,
    prices: PriceList | None = None,
    latest: int = LATEST,
) -> Estimate:
    """Estimate what a run will cost.

    ``subject`` is a plan (a list of calls, see ``tracekit docs budgets``) or the envelope of a request; an envelope is
    estimated from completed runs that answered the same intent, or else from its ``plan``. ``agent`` and ``run_name``
    select earlier runs instead: of an agent (or in which an agent of a registry was called), or with a name. ``latest``
    limits how many of them are used, newest first; ``prices`` are your own prices.

    Raises ``RunNotFoundError`` if there is no such run, and ``UnknownPriceError`` for a planned model without a known
    price.
    """
    found = Prices(None if prices is None else checked(prices))
    if subject is None and agent is None and run_name is None:
        raise RunStateError("nothing to estimate", next_action="name a plan or an envelope, an agent or a run's name")
    if subject is None or isinstance(subject, Mapping):
        envelope = subject or {}
        plan = _plan_in(envelope)
        wanted = _Wanted(agent, run_name, _intent(envelope))
        if any(wanted):
            taken = [usage_of(path, found) for path in _matching(store, wanted, latest)]
            if taken:
                return _by_history(wanted.description, taken)
            if plan is None:
                raise _no_history(wanted.description)
        subject = plan
    if not isinstance(subject, (list, tuple)):
        raise RunStateError(
            "neither a plan nor the envelope of an intent",
            next_action='a plan is a list of {"model": …} and {"tool": …}; an envelope has "intent"',
        )
    return _by_plan(subject, found)


# -- by a plan ---------------------------------------------------------------------------------------------------------------


def _by_plan(plan: Sequence[Any], prices: Prices) -> Estimate:
    total: dict[str, float | None] = dict.fromkeys(RESOURCES, 0)
    total["seconds"] = None
    unpriced: set[str] = set()
    for place, item in enumerate(plan, 1):
        for name, amount in _call(place, item, prices).items():
            before = total[name]
            total[name] = None if amount is None or before is None else before + amount
            if amount is None:
                unpriced.add(item["model"])
    return Estimate("plan", f"{len(plan)} lines", 0, total, total, tuple(sorted(unpriced)))


def _call(place: int, item: Any, prices: Prices) -> dict[str, float | None]:
    """Return the usage of one line of a plan."""
    if not isinstance(item, Mapping) or ("model" in item) == ("tool" in item):
        raise _wrong(place, 'a line is an object with "model" or with "tool"')
    unknown = set(item) - (_MODEL_KEYS if "model" in item else _TOOL_KEYS)
    if unknown:
        raise _wrong(place, f"unknown keys: {', '.join(sorted(map(str, unknown)))}")
    times = _number(place, item, "n", 1, whole=True)
    if "tool" in item:
        return {"tool_calls": times, "cost_units": times * _number(place, item, "cost_units", 1)}
    if not isinstance(item["model"], str):
        raise _wrong(place, '"model" is a name')
    asked = _number(place, item, "input_tokens", request_tokens(item.get("prompt")), whole=True)
    answered = _number(place, item, "max_output_tokens", _ASSUMED_OUTPUT, whole=True)
    return {
        "llm_calls": times,
        "input_tokens": times * asked,
        "output_tokens": times * answered,
        "cost_units": times * (asked + answered) / _TOKENS_PER_UNIT,
        "usd": _dollars(prices, item, times, {"input_tokens": asked, "output_tokens": answered}),
    }


def _dollars(prices: Prices, item: Mapping[str, Any], times: float, usage: Mapping[str, float]) -> float | None:
    try:
        return times * prices.of(item["model"], item.get("provider"), None, usage)
    except UnknownPriceError:
        if not prices.complete:  # without the package no price is known, and dollars may not be wanted
            return None
        raise


def _number(place: int, item: Mapping[str, Any], name: str, default: float, *, whole: bool = False) -> float:
    value = item.get(name, default)
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not 0 <= value <= _MOST:
        raise _wrong(place, f'"{name}" must be a {"whole " if whole else ""}number >= 0, not {value!r}')
    return value  # type: ignore[no-any-return]


def _wrong(place: int, why: str) -> RunStateError:
    return RunStateError(
        f"line {place} of the plan: {why}", next_action="`tracekit docs budgets#estimates` describes plans"
    )


# -- by earlier runs ---------------------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    agent: str | None
    run_name: str | None
    intent: str | None

    @property
    def description(self) -> str:
        return ", ".join(
            f"{what.replace('_', ' ')} {name!r}" for what, name in self._asdict().items() if name is not None
        )


def _matching(store: Any, wanted: _Wanted, latest: int) -> Iterable[str]:
    """Yield the files of the latest completed runs that match."""
    where = Store.at(store)
    found = 0
    for run in where.list():
        if run.end != "run.completed" or (wanted.run_name is not None and run.name != wanted.run_name):
            continue
        if (wanted.agent is None and wanted.intent is None) or _matches(run.path, wanted):
            yield run.path
            found += 1
            if found == latest:
                return


def _matches(path: str, wanted: _Wanted) -> bool:
    try:
        with open_trace(path) as file:
            first = orjson.loads(file.readline())
            own = first.get("agent_id")
            agent = wanted.agent is None or wanted.agent == own
            intent = wanted.intent is None or wanted.intent in (first.get("name"), own)
            for line in file:
                if agent and intent:
                    break
                agent = agent or _names(line, b"agent.attempt.start", wanted.agent)
                intent = intent or _names(line, b"intent.received", wanted.intent)
            return agent and intent
    except (OSError, ValueError, TraceError):
        return False


def _names(line: bytes, kind: bytes, name: str | None) -> bool:
    """Return whether a line is an entry of this type and name."""
    if b'"type":"%b"' % kind not in line:
        return False
    entry = orjson.loads(line)
    return bool(entry["type"] == kind.decode() and entry.get("name") == name)


def _by_history(description: str, taken: list[dict[str, Any]]) -> Estimate:
    for one in taken:
        one["usd"] = one.get("cost_usd")
    median: dict[str, float | None] = {}
    p90: dict[str, float | None] = {}
    for name in RESOURCES:
        values = [one.get(name) for one in taken]
        known = sorted(value for value in values if value is not None)
        if len(known) < len(values):
            median[name] = p90[name] = None
            continue
        median[name] = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
        p90[name] = known[math.ceil(len(known) * 0.9) - 1]
    unpriced = {model for one in taken for model in one.get("unpriced", ())}
    unreported = sum(one.get("unreported", 0) for one in taken)
    return Estimate("history", description, len(taken), median, p90, tuple(sorted(unpriced)), unreported)


def _plan_in(envelope: Mapping[str, Any]) -> Any:
    """Return the plan declared by an envelope, or by a file that contains nothing else."""
    payload = envelope.get("payload")
    inside = payload.get("plan") if isinstance(payload, Mapping) else None
    return envelope.get("plan", inside)


def _intent(envelope: Mapping[str, Any]) -> str | None:
    intent = envelope.get("intent")
    if isinstance(intent, Mapping):
        intent = intent.get("name")
    if intent is not None and not isinstance(intent, str):
        raise RunStateError(
            f"intent must be a name, not {intent!r}", next_action='{"intent": {"name": …}} or {"intent": …}'
        )
    return intent


def _no_history(description: str) -> RunNotFoundError:
    return RunNotFoundError(
        f"no completed run in the store shows what {description} takes",
        next_action="record some, name another store, or declare a plan",
    )


def _unreported(found: Estimate) -> RunStateError:
    return RunStateError(
        f"{found.unreported} model calls of {found.of} did not report what they took, so that can't be known",
        next_action='let them report it (`stream_options={"include_usage": True}`), record under a budget of tokens, or declare a plan',
    )


def _unpriced(models: Sequence[str]) -> UnknownPriceError:
    named = ", ".join(models) or "its models"
    return UnknownPriceError(
        f"the price of {named} is not known, so dollars can't be estimated",
        model=named,
        provider=None,
        next_action="say it (`--price MODEL=INPUT,OUTPUT`, dollars for a million tokens), or `pip install genai-prices`",
    )
