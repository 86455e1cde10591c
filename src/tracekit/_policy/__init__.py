"""Policies, as sessions around the one that writes the log: calls that happen once, and budgets; what a contract may say; forecasts."""

from .._lazy import later

later(globals(), "contract", "once")
