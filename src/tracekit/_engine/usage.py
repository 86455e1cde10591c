"""What a recorded run took: calls, tokens, dollars, units, time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._journal.reader import Trace
from ..errors import RunStateError, TraceError, UnknownPriceError
from .budget import Budget
from .prices import Prices
from .spending import Spending

__all__ = ["usage_of"]

#: More than any run takes: counts without limiting.
_ANY = Budget(cost_units=1e18)


def usage_of(path: str, prices: Prices | None = None) -> dict[str, Any]:
    """What the run in the file at ``path`` took.

    ``cost_usd`` is ``None`` where a model's price is not known or the package of prices not there; ``unpriced`` names the models.
    """
    try:
        with Trace(path) as trace:
            spent = Spending.of_log(_ANY, trace.entries()).spent
            cost, unpriced = _cost(trace.entries(), prices or Prices())
            lasted = (trace.entry(len(trace))["ts_ns"] - trace.entry(1)["ts_ns"]) / 1e9 if len(trace) else 0.0
    except TraceError:
        return {}
    taken = {name: spent[name] for name in ("llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost_units")}
    return {**taken, "cost_usd": cost, "unpriced": unpriced, "seconds": round(lasted, 3)}


def _cost(entries: Iterable[Mapping[str, Any]], prices: Prices) -> tuple[float | None, list[str]]:
    """The price of the model calls, and the models that have none."""
    asked: dict[int, Mapping[str, Any]] = {}
    total = 0.0
    unpriced: set[str] = set()
    for entry in entries:
        if entry["type"] == "llm.request":
            asked[entry["seq"]] = entry.get("meta") or {}
        elif entry["type"] in ("llm.response", "llm.error") and entry["step"] in asked:
            meta, request = entry.get("meta") or {}, asked[entry["step"]]
            if "cost_usd" in meta:
                total += meta["cost_usd"]
            elif meta.get("usage"):
                model = str(request.get("model") or meta.get("model"))
                about = request.get("info") or {}
                place = about.get("provider"), about.get("origin")
                try:
                    total += prices.of_answer(meta.get("model"), model, *place, meta["usage"])
                except (UnknownPriceError, RunStateError):
                    unpriced.add(model)
    return (None if unpriced else round(total, 9)), sorted(unpriced)
