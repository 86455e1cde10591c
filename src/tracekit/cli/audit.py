"""``tracekit audit``: who did what in a run, on which decision, what allowed it, and its outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import click

from .._runs.auditing import Account, Action, account_of
from .._runs.reading import plain
from . import output
from .options import JSON, READ_STORE
from .output import Line, brief, located, short, styled
from .show import line_of
from .verify import KEYS, sealed_line, trusted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["audit"]

#: As wide as what is before the text of a row about a step.
_DETAIL: Final = " " * 14


def _actions(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found = dict(one.split("=", 1) for one in value if "=" in one.strip("="))
    if len(found) < len(value):
        raise click.BadParameter("say which tool an action is, as in payments.write=pay, and each action once")
    return found


@click.command()
@click.argument("run", metavar="RUN", shell_complete=output.complete_run)
@KEYS
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    shell_complete=output.complete_in_run("agent"),
    help="Show only what this agent did.",
)
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    shell_complete=output.complete_in_run("tool"),
    help="Show only calls of this tool (pay, pay*).",
)
@click.option(
    "--action",
    "actions",
    multiple=True,
    metavar="ACTION=TOOL",
    callback=_actions,
    help="The name that a policy has for calls of a tool.",
)
@click.option("--effects", is_flag=True, help="Show only what changed something, or was refused.")
@READ_STORE
@JSON
def audit(
    run: str,
    keys: tuple[str, ...],
    agents: tuple[str, ...],
    tools: tuple[str, ...],
    actions: dict[str, str],
    effects: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Account for a run: who did what, on what decision, what allowed it, and with what result.

    RUN is an id, the beginning of one, "last", or a path. The top says how far the trace can be trusted, the end what an auditor
    has to look at and what the account cannot say; both are about the whole run, whatever is shown. Exit code: 0, 1 for a finding
    (damage, a required seal that does not hold, an effect that no policy allowed in a run that asked one), 3 for a run without an
    end, 2 if there is no such run.

    \b
    Examples:
      tracekit audit last
      tracekit audit last --effects --tool 'pay*'
      tracekit audit run.jsonl --key seal.key.pub --json
    """
    with output.reported():
        where = output.readable(store, run)
        path = located(run, where)
        with output.read(path, where) as view:
            with output.working("verifying, and reading the steps"):
                account = account_of(view, where.verify(path, keys=trusted(keys)), actions=actions)
            shown = [one for one in account.actions if _is_shown(one, agents, tools, effects)]
            if as_json:
                output.emit({**account.as_dict(), "actions": [one.as_dict() for one in shown]})
            else:
                output.page(lambda console: _lines(account, shown, console))
            if account.findings:
                sys.exit(output.DIFFERENT)
            sys.exit(output.INCOMPLETE if account.found.state == "incomplete" else output.RIGHT)


def _is_shown(action: Action, agents: tuple[str, ...], tools: tuple[str, ...], effects: bool) -> bool:
    step = action.step
    if agents and step.agent not in agents:
        return False
    if tools and not (
        (step.calls or action.state == "refused") and any(fnmatchcase(step.name, tool) for tool in tools)
    ):
        return False
    return not effects or action.effect or action.state == "refused"


def _lines(account: Account, shown: list[Action], console: Console) -> Iterator[Text]:
    """Yield the lines of the account. A step's own line is cut to the width; the texts about it are cut only if they are
    longer than that."""
    for line in _top(account, console):
        yield styled(*line)
    yield styled()
    for action in shown:
        yield line_of(action.step, console.width)
        for line in _details(account, action, console):
            yield styled(*line)
    if hidden := len(account.actions) - len(shown):
        yield styled((f"not shown: {_plural(hidden, 'action')} (--agent, --tool, --effects)", "dim"))
    yield styled()
    for finding in account.findings:
        place = "" if finding.place is None else f" [{finding.place}]"
        yield styled(("finding   ", "bold red"), (f"{finding.text}{place}", "red"))
    if not account.findings:
        yield styled(("no finding", "green"))
    for text in account.gaps:
        yield styled(("not known ", "yellow"), (text, ""))


def _top(account: Account, console: Console) -> Iterator[Line]:
    view, found = account.view, account.found
    when = f"{output.local_time(view.started_ns)}, {output.duration(view.took)}" if view.started_ns else ""
    yield [(view.name, "bold"), (f"  {view.run_id}", "cyan"), (f"  {view.state}", ""), (f"  {when}", "dim")]
    about = account.as_dict()["program"]
    program = [
        brief(about[key], console.width) if key != "argv" else " ".join(map(str, about[key]))
        for key in ("argv", "host", "revision")
        if about.get(key)
    ]
    yield from _row("program", ", ".join(program), console)
    style = {"complete": "green", "incomplete": "yellow", "broken": "bold red"}[found.state]
    problem = f": {found.problem}" if found.problem else ""
    yield [
        ("chain     ", "dim"),
        (f"{found.state}{problem}", style),
        (f", {found.count} entries verify, tip hash {found.head}", ""),
    ]
    line = sealed_line(found)
    yield [("seal      ", "dim"), line or ("none; no seal was requested", "yellow")]
    for identity in account.identities:
        redacted = ", with redacted parts" if identity.redacted else ""
        claimed = f"  claimed{redacted}, not verified [{identity.place}]"
        claims = brief(identity.claims, output.room(console, "agent     ", identity.agent, " ", claimed))
        yield [("agent     ", "dim"), (identity.agent, "cyan"), (f" {claims}", ""), (claimed, "yellow")]
    counts = ", ".join(
        f"{sum(one.answer == answer for one in account.checks)} {answer}" for answer in ("allowed", "denied", "unclear")
    )
    checks = f"{_plural(len(account.checks), 'check')}: {counts}" if account.checks else "none was made"
    yield from _row("policy", checks, console)
    if account.budget:
        yield from _row("budget", account.budget, console)


def _details(account: Account, action: Action, console: Console) -> Iterator[Line]:
    if not (action.effect or action.state == "refused"):
        return
    if (basis := action.basis) is not None:
        head, end = f"{basis.kind} {basis.place}: ", f" ({basis.how})"
        text = short(basis.text, output.room(console, _DETAIL, head, end))
        yield from _row("because", f"{head}{text}{end}", None, 4)
    elif action.inside is None:
        yield from _row("because", "no decision is recorded: the code alone", None, 4)
    for line in _allowed(account, action, console):
        yield [("    allowed   ", "dim"), line]
    if contract := action.step.meta.get("contract"):
        yield from _row("contract", plain(contract), console, 4)
    if action.key is not None:
        yield from _row("key", action.key, console, 4)
    if action.identity is not None:
        yield from _row("actor", f"{action.identity.agent}, claimed in entry {action.identity.place}", None, 4)
    for one in action.undone_by:
        yield from _row("undone", f"by {one.place} {one.name}: {one.state}", None, 4)
    entries = ", ".join(f"{one['place']} {str(one['hash'])[:16]}…" for one in action.entries)
    yield from _row("entries", entries, None, 4)


def _allowed(account: Account, action: Action, console: Console) -> Iterator[tuple[str, str]]:
    """Yield what allowed an effect, or did not; nothing if the run consulted no policy."""
    check = action.policy
    if not action.effect or not account.checks:
        return
    inside = "" if action.inside is None else f", as a part of {action.inside}"
    if check is None:
        undoes = action.step.facts.get("compensates")
        yield (
            (f"it undoes {undoes}", "") if undoes is not None else (f"by no recorded policy check{inside}", "bold red")
        )
    else:
        head, end = f"policy {check.step.name} [{check.place}] {check.answer}", f" ({action.policy_how}{inside})"
        reason = f": {short(check.reason, output.room(console, _DETAIL, head, ': ', end))}" if check.reason else ""
        style = {"allowed": "green", "denied": "bold red"}.get(check.answer, "bold yellow")
        yield f"{head}{reason}{end}", style


def _row(what: str, value: object, console: Console | None, indent: int = 0) -> Iterator[Line]:
    """Yield a row of the account, unless it is empty; cut to the width of the ``console``, if there is one."""
    head = f"{' ' * indent}{what:<10}"
    if text := value if console is None else brief(value, output.room(console, head)):
        yield [(head, "dim"), (str(text), "")]


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
