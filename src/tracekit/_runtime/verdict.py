"""What a replay has to say of itself."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["Report"]


class Report:
    """The account of one replay, complete when its block has ended.

    ``consumed`` steps were answered from the log or run in their recorded place, ``skipped`` ones happened inside an answered
    step, ``unconsumed`` lists recorded steps nobody asked for (``seq``, ``type``, ``name``). ``clock_drift`` lists clock reads too many
    (``surplus``) or too few (``missing``) with their place; ``reordered`` the ``seq`` of what was delivered or asked for out of its
    recorded order; ``differences`` what did not match where a replay goes on all the same. ``cost`` is what the replay cost, ``recorded``
    what the recorded run took.
    """

    __slots__ = (
        "_path",
        "_recorded",
        "clock_drift",
        "consumed",
        "cost",
        "differences",
        "failure",
        "isolation",
        "reordered",
        "run_id",
        "skipped",
        "unconsumed",
        "warnings",
    )  # fmt: skip

    def __init__(self, run_id: str, path: str | None = None) -> None:
        self.run_id: Final = run_id
        self._path: Final = path
        self._recorded: dict[str, Any] | None = None
        self.consumed = 0
        self.skipped = 0
        self.unconsumed: list[dict[str, Any]] = []
        self.clock_drift: list[dict[str, Any]] = []
        self.reordered: list[int] = []
        self.differences: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.failure: BaseException | None = None
        self.isolation: str | None = None
        self.cost = 0.0

    @property
    def exact(self) -> bool:
        """Whether every recorded step was asked for, in order, with equal content, and nothing else was."""
        return not (self.failure or self.unconsumed or self.differences or self.reordered or self.clock_drift)

    @property
    def recorded(self) -> dict[str, Any]:
        """What the recorded run took: calls, tokens, ``cost_usd`` (``None`` where a price is not known) and seconds."""
        if self._recorded is None:
            from .._policy.forecast import usage_of

            self._recorded = {} if self._path is None else usage_of(self._path)
        return self._recorded

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "failure" and not name.startswith("_")}
        facts["recorded"] = self.recorded
        facts["failure"] = None if self.failure is None else str(self.failure)
        facts["exact"] = self.exact
        return facts

    def __repr__(self) -> str:
        verdict = "exact" if self.exact else "inexact"
        return f"<Report {self.run_id}: {verdict}, {self.consumed} consumed, {self.skipped} skipped>"
