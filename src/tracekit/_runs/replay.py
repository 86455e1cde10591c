"""``replay()``: checks what it is called with. The block that it returns is in ``replaying``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .._journal.entry import FAMILIES, SINGLES
from .._journal.store import Store
from .._runtime import verdict
from .._runtime.process import process
from .._runtime.redaction import patterns_of
from . import block, partial, replaying
from .block import called_from
from .run import Run

if TYPE_CHECKING:
    from .replaying import ReplayBlock

__all__ = ["ignored_fields", "kinds_that_go_live", "replay"]


def kinds_that_go_live(live: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Check the value of ``live=``; return, by kind, what replaces the recorded one."""
    kinds = {live: None} if isinstance(live, str) else dict(live) if isinstance(live, Mapping) else dict.fromkeys(live)
    if kinds:
        partial.Live(kinds)
    return kinds


def ignored_fields(ignore: Any) -> dict[str, list[str]]:
    """Check and return the value of ``ignore=``."""
    block.taken_as(
        "ignore", ignore, Mapping, 'a dictionary of fields by kind of step, {"tool:search": ["input.trace_id"]}'
    )
    found = {}
    for kind, paths in (ignore or {}).items():
        if not isinstance(kind, str) or kind.partition(":")[0] not in FAMILIES.keys() | SINGLES:
            raise ValueError(f'ignore names kinds of steps, "llm", "tool:search" or "decision", not {kind!r}')
        found[kind] = list(block.strings("ignore", paths))
        for path in found[kind]:
            if path.partition(".")[0].partition("[")[0] not in ("input", "output", "meta"):
                raise ValueError(f'ignore names fields as a difference does, "input.trace_id", not {path!r}')
    return found


def replay(
    run: str | os.PathLike[str] | Run,
    *,
    store: str | os.PathLike[str] | None = None,
    live: Iterable[str] | Mapping[str, Any] = (),
    on_divergence: Literal["raise", "warn"] = "raise",
    strict: Iterable[Literal["environment", "clock", "output", "redacted"]] = (),
    ignore: Mapping[str, Iterable[str]] | None = None,
    guard: Literal["process", "context", "off"] = "process",
    allow_hosts: Iterable[str] = (),
    dry_run: bool = False,
    writes: Literal["new", "real"] = "new",
    live_env: Iterable[str] = (),
    live_files: Iterable[str] = (),
    redact: Iterable[Any] = (),
) -> ReplayBlock:
    """Replay a recorded run: ``with replay(run.id) as session:`` around the same code.

    ``run`` is an id, a path or a ``Run``. Inside the block every captured step is answered from the file, and nothing
    reaches the outside world (``guard``). The first difference raises ``DivergenceError``, ``TraceExhaustedError`` or
    ``LiveCallBlockedError``, none of which ``except Exception`` catches. At the end of the block, recorded steps that
    the program did not make raise ``UnconsumedStepsError``, and a replay that was not exact (outcomes in another order,
    say) raises ``InexactReplayError``; ``session.report.verdict`` has the reasons.

    - ``on_divergence="warn"``: continue where that is harmless, and issue an ``InexactReplayWarning`` at the end.
    - ``strict``: let the verdict's remarks of ``"environment"``, ``"clock"``, ``"output"`` or ``"redacted"`` make the
      replay inexact.
    - ``ignore``: fields left out of the comparison, by kind of step, as a difference names them: ``{"llm":
      ["input.body.user"], "tool:search": ["input.trace_id"]}``.
    - ``writes="real"``: let the program change existing files. ``dry_run``: block all file writes.
    - ``allow_hosts``: hosts that may be reached, such as a test's own server.
    - ``redact``: the patterns of the recording.
    - ``live_env`` (``"LOG_LEVEL"``, ``"MY_*"``) and ``live_files`` (``"prompts/*.txt"``): environment variables and
      files that are read from this machine instead of the recording.

    ``live={"llm"}`` (or ``"tool:search"`` for one name) lets these steps go live: a partial replay. It is written as a
    new run that names its origin (``session.new_run_id``), with the differences in the report. Irreversible steps never
    go live. If the program departs from the recording, calls equal to recorded ones still get the recorded answers; the
    replay ends at a call that was not recorded.

    - ``live={"llm": "gpt-5"}``: ask that model instead of the program's.
    - ``"policy.check"``, ``"breaker"``, ``"detection"``: decided again, by the program or by a function,
      ``{"policy.check": decide}``, called with the kind, the name, the input and the program's own output.
    - ``{"clock": timedelta(days=30)}`` shifts the recorded time, ``{"clock": "2026-01-31"}`` sets the start of the run,
      ``{"clock"}`` uses the current time.

    Raises ``RunNotFoundError``, ``TraceIntegrityError`` or ``TraceVersionError`` before anything is run.

    Examples:
        >>> from tracekit import record, replay, traced_tool
        >>> calls = []
        >>> @traced_tool(side_effect="read_only")
        ... def look_up(order):
        ...     calls.append(order)
        ...     return "lost"
        >>> with record("support") as run:
        ...     look_up("A-1042")
        'lost'
        >>> with replay(run.id) as session:
        ...     look_up("A-1042")
        'lost'
        >>> calls  # the replay did not call it
        ['A-1042']
        >>> session.report.exact
        True
        >>> with replay(run.id):
        ...     look_up("B-7")
        Traceback (most recent call last):
        ...
        tracekit.errors.DivergenceError: ...
    """
    block.run_to_replay(run, Run)
    block.taken_as("store", store, (str, os.PathLike, Store), "a directory")
    wanted = block.strings("strict", strict)
    wrong = wanted and set(wanted) - {*verdict.CAN_BE_INEXACT}
    if wrong:
        raise ValueError(f"strict takes {', '.join(verdict.CAN_BE_INEXACT)}, not {sorted(wrong)!r}")
    if on_divergence not in ("raise", "warn"):
        raise ValueError(f'on_divergence is "raise" or "warn", not {on_divergence!r}')
    if guard not in ("process", "context", "off"):
        raise ValueError(f'guard is "process", "context" or "off", not {guard!r}')
    if writes not in ("new", "real"):
        raise ValueError(f'writes is "new" or "real", not {writes!r}')
    options = {
        "store": store,
        "live": kinds_that_go_live(live),
        "branches": None,
        "on_divergence": on_divergence,
        "strict": wanted,
        "ignore": ignored_fields(ignore),
        "guard": guard,
        "allow_hosts": block.strings("allow_hosts", allow_hosts),
        "dry_run": dry_run,
        "writes": writes,
        "live_env": block.strings("live_env", live_env),
        "live_files": block.strings("live_files", live_files),
        "redact": patterns_of(redact),
    }
    where = os.fspath(run.path if isinstance(run, Run) else run)
    replayed: ReplayBlock | None = process.role.replay_of(where, options)
    return replaying.ReplayBlock(run, options, called_from()) if replayed is None else replayed
