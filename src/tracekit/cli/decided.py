"""Decisions on runs that did not end, for people."""

from __future__ import annotations

from collections.abc import Iterable

from .._engine.recovery import FOR, Decision
from . import output
from .timeline import printable

__all__ = ["shown"]


def shown(decisions: Iterable[Decision]) -> bool:
    """Print each decision with its reasons; whether there was any."""
    from rich.text import Text

    console, found = output.console(), False
    for decision in decisions:
        found = True
        style = "bold green" if decision.decision == "resume" else "bold red"
        line = Text(f"{decision.decision:<7}", style=style) + Text(printable(decision.run_id), style="cyan")
        console.print(line + Text(f"  {decision.state}", style="dim"), soft_wrap=True)
        for reason in decision.reasons:
            mark = Text("  + ", style="green") if reason["code"] in FOR else Text("  - ", style="red")
            text = Text(f"{reason['code']}: ", style="bold") + Text(printable(str(reason["text"])))
            console.print(mark + text, soft_wrap=True)
    return found
