"""What a run says at its end of its budget, and how the process ends that has gone over one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .._engine.recording import Recording
from .._engine.spending import Spending
from ..errors import BudgetExceededError

__all__ = ["account", "keep_as_failure", "refused_runs", "swallowed", "warn"]

#: How many runs of this process ended over their budget, by the program's word or not.
_refused: Final[list[BudgetExceededError]] = []


def warn(session: Recording, error: BaseException | None) -> None:
    """Say what went over a budget, where no exception has said so to whoever holds the block."""
    if not isinstance(error, BudgetExceededError):
        for whose, resource in session.overruns.items():
            session.warn(f"a budget was exceeded ({whose}: {resource}); calls were refused, and not made")
        spending = session.spending
        if spending is not None and spending.refused is None and spending.exceeded:
            session.warn(f"the run took more than its budget allows: {', '.join(spending.exceeded)}")


def account(spending: Spending) -> dict[str, Any]:
    """What the last entry of a run says: the limits, what was spent, which limits were gone over."""
    if spending.refused is not None:
        _refused.append(spending.refused)
    return {"limits": spending.budget.limits, "spent": spending.spent, "exceeded": spending.exceeded}


def keep_as_failure(error: BudgetExceededError, about: dict[str, Any]) -> BudgetExceededError:
    """The failure of a run whose program caught ``error`` and went on to its end; ``about`` is its account."""
    about["swallowed"] = True
    return error


def swallowed(last: Mapping[str, Any]) -> bool:
    """Whether a run that failed, by its last entry, did so by its budget alone: its program ended without an exception."""
    return bool(((last.get("meta") or {}).get("budget") or {}).get("swallowed"))


def refused_runs() -> int:
    """How many runs of this process ended over their budget."""
    return len(_refused)
