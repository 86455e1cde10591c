"""``tracekit estimate``: predicts a run's calls, tokens and cost from earlier runs or from a plan."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import click
import orjson

from .._policy.forecast import LATEST, Estimate
from .._policy.forecast import estimate as foresee
from .._runtime.prices import Price, why_unpriced
from . import output
from .options import JSON, STORE
from .output import printable

__all__ = ["estimate"]

_UNKNOWN: Final = "?"


def _limit(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter(f"{value!r} is not a finite number >= 0")
    return value


@click.command()
@click.argument("subject", required=False, type=click.Path(allow_dash=True))
@click.option("--agent", metavar="NAME", help="Use the history of runs with this agent.")
@click.option("--run-name", metavar="NAME", help="Use the history of runs of this name.")
@click.option("--budget", metavar="UNITS", type=float, callback=_limit, help="Fail if it would take more cost units.")
@click.option("--budget-usd", metavar="USD", type=float, callback=_limit, help="Fail if it would cost more US dollars.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="MODEL=IN,OUT",
    help="Price of a model's tokens, in US dollars per million.",
)
@click.option(
    "--last",
    "latest",
    metavar="N",
    type=click.IntRange(1),
    default=LATEST,
    show_default=True,
    help="Use the last N runs.",
)
@STORE
@JSON
def estimate(
    subject: str | None,
    agent: str | None,
    run_name: str | None,
    budget: float | None,
    budget_usd: float | None,
    prices: tuple[str, ...],
    latest: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Estimate what a run will take: calls, tokens, dollars, cost units, seconds.

    SUBJECT is a JSON file: the envelope of a request ({"intent": …}), estimated from the completed runs that answered the same
    intent, or a plan (a list of {"model": …} and {"tool": …}). Without it, --agent or --run-name selects the history.

    Exit codes: 0, 4 over a budget (by what nine of ten runs stay within, or by the plan), 2 no history, an unknown price, calls that
    did not report what they took, usage error.

    \b
    Examples:
      tracekit estimate plan.json --budget-usd 2
      tracekit estimate --run-name nightly  # from the runs of that name
    """
    with output.reported():
        found = foresee(
            None if subject is None else _read(subject),
            agent=agent,
            run_name=run_name,
            store=store,
            prices=_prices(prices),
            latest=latest,
        )
        over = found.over(cost_units=budget, usd=budget_usd)
        limits = {"cost_units": budget, "usd": budget_usd}
        if as_json:
            set_ = {name: limit for name, limit in limits.items() if limit is not None}
            output.emit({**found.as_dict(), "budget": set_, "over": over})
        else:
            _print(found)
        for name in over:
            output.message(
                f"over budget: {found.p90[name]:.6g} {name.replace('_', ' ')}, and {limits[name]:.6g} are allowed"
            )
        if over:
            sys.exit(output.REFUSED)


def _read(path: str) -> Any:
    try:
        with click.open_file(path, "rb") as file:
            return orjson.loads(file.read())
    except OSError as error:
        raise click.UsageError(
            f"{path} can't be read: {error.strerror}. SUBJECT is a JSON file; --run-name or --agent names the history of runs"
        ) from None
    except ValueError as error:
        raise click.UsageError(
            f'{path} is not JSON: {error}. SUBJECT is a plan, a list of {{"model": …}} and {{"tool": …}}, or an envelope'
        ) from None


def _prices(options: tuple[str, ...]) -> dict[str, Price] | None:
    found = {}
    for one in options:
        model, _, amounts = one.rpartition("=")
        try:
            asked, answered = map(float, amounts.split(","))
            found[model] = Price(asked, answered)
        except ValueError:
            raise click.UsageError(f"--price {one!r}: write MODEL=INPUT,OUTPUT, as in my-model=0.5,1.5") from None
    return found or None


def _print(found: Estimate) -> None:
    from rich.text import Text

    console = output.console()
    of = f"{found.runs} runs of {found.of}" if found.source == "history" else f"a plan of {found.of}"
    console.print(Text(printable(f"by {of}")), soft_wrap=True)
    console.print(Text(f"{'':15}{'median':>14}{'9 of 10':>14}", style="dim"))
    for name, median in found.median.items():
        console.print(Text(f"{name.replace('_', ' '):15}{_shown(name, median):>14}{_shown(name, found.p90[name]):>14}"))
    if found.unpriced:
        console.print(Text(printable(why_unpriced(found.unpriced))), soft_wrap=True)
    if found.unreported:
        console.print(Text(f"{found.unreported} model calls did not report what they took"), soft_wrap=True)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"${value:.6f}" if name == "usd" else f"{value:,.10g}"
