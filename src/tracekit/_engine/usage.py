"""What a recorded run took: calls, tokens, dollars, units, time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .._journal.reader import Trace
from .._journal.segments import beside
from ..errors import RunStateError, TraceError, UnknownPriceError
from .budget import Budget
from .held import refused
from .prices import Prices
from .spending import Spending

__all__ = ["usage_of"]

#: More than any run takes: counts without limiting.
_ANY = Budget(cost_units=1e18)
_COUNTED: Final = ("llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost_units")


def usage_of(path: str, prices: Prices | None = None) -> dict[str, Any]:
    """What the run in the file at ``path`` took, its child processes included.

    What a call took that reports no usage is what was foreseen for it, where a budget asked for that; else nobody knows, and the call is
    counted in ``unreported``: the tokens, units and dollars of such a run are ``None``. ``cost_usd`` is ``None`` too where a model's
    price is not known or the package of prices not there; ``unpriced`` names the models.
    """
    try:
        own, *others = [_usage(one, prices or Prices()) for one in (path, *beside(path))]
    except TraceError:
        return {}
    files = [own, *others]
    unreported = sum(one["unreported"] for one in files)
    unpriced = sorted({model for one in files for model in one["unpriced"]})
    taken = {
        name: None if any(one[name] is None for one in files) else sum(one[name] for one in files) for name in _COUNTED
    }
    cost = None if unreported or unpriced else round(sum(one["cost"] for one in files), 9)
    return {**taken, "cost_usd": cost, "unpriced": unpriced, "unreported": unreported, "seconds": own["seconds"]}


def _usage(path: str, prices: Prices) -> dict[str, Any]:
    """What the steps in one file took."""
    with Trace(path) as trace:
        ledger = Spending.of_log(_ANY, trace.entries())
        cost, unpriced = _cost(trace.entries(), prices)
        lasted = (trace.entry(len(trace))["ts_ns"] - trace.entry(1)["ts_ns"]) / 1e9 if len(trace) else 0.0
    about = {"unreported": ledger.unreported, "cost": cost, "unpriced": unpriced, "seconds": round(lasted, 3)}
    return {**ledger.spent, **about}


def _cost(entries: Iterable[Mapping[str, Any]], prices: Prices) -> tuple[float | None, list[str]]:
    """The price of the model calls that tell what they took, or of what was foreseen; and the models that have none."""
    asked: dict[int, Mapping[str, Any]] = {}
    total = 0.0
    unpriced: set[str] = set()
    for entry in entries:
        if entry["type"] == "llm.request":
            asked[entry["seq"]] = entry.get("meta") or {}
        elif entry["type"] in ("llm.response", "llm.error", "llm.skipped") and entry["step"] in asked:
            meta, request = entry.get("meta") or {}, asked.pop(entry["step"])
            total += _price(prices, request, meta, unpriced, free=refused(entry.get("output")))
        elif entry["type"] == "llm.chunk" and entry["step"] in asked and _refused_stream(entry.get("output")):
            asked.pop(entry["step"])
    for request in asked.values():  # cut off
        total += _price(prices, request, {}, unpriced, free=False)
    return (None if unpriced else round(total, 9)), sorted(unpriced)


def _refused_stream(output: object) -> bool:
    return isinstance(output, Mapping) and refused(output.get("head"))


def _price(
    prices: Prices, request: Mapping[str, Any], meta: Mapping[str, Any], unpriced: set[str], *, free: bool
) -> float:
    about = request.get("info") or {}
    foreseen: Mapping[str, Any] = {} if free else about.get("estimate") or {}
    usage = meta.get("usage") or foreseen
    known = meta.get("cost_usd", None if meta.get("usage") else foreseen.get("cost_usd"))
    if known is not None or not usage:
        return float(known or 0.0)
    model = str(request.get("model") or meta.get("model"))
    try:
        return prices.of_answer(meta.get("model"), model, about.get("provider"), about.get("origin"), usage)
    except (UnknownPriceError, RunStateError):
        unpriced.add(model)
        return 0.0
