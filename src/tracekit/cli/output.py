"""Output of the commands: entries and runs as text or JSON, errors with their exit codes, and the ``--store`` option."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import orjson

from .. import _reality
from .._journal.store import Store, store_named
from .._lazy import expression
from .._runs.remote import as_named, fetched_run, fetched_store, is_url
from .._runs.wording import FRAME, both_sides, brief, dollars, duration, local_time, plural, printable, short, time_span
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    RecoveryRefusedError,
    ReplayError,
    RunNotFoundError,
    TraceIntegrityError,
    TracekitError,
    UnknownPriceError,
)

if TYPE_CHECKING:
    import click
    from rich.console import Console
    from rich.text import Text

    from .._runs.reading import RunView
    from .._runs.recovery import Decision

__all__ = [
    "DIFFERENT",
    "INCOMPLETE",
    "INTERRUPTED",
    "LEAST_ROOM",
    "REFUSED",
    "RIGHT",
    "USAGE_ERROR",
    "Line",
    "age",
    "aside",
    "both_sides",
    "brief",
    "complete_in_run",
    "complete_run",
    "console",
    "dollars",
    "duration",
    "emit",
    "end_by_interrupt",
    "escaped",
    "exit_code",
    "fail",
    "flush_output",
    "function_name",
    "local",
    "local_time",
    "located",
    "message",
    "moment",
    "named",
    "page",
    "paged",
    "plain",
    "printable",
    "progress",
    "readable",
    "reported",
    "short",
    "shown",
    "styled",
    "values_in",
    "working",
]

# -- output ------------------------------------------------------------------------------------------------------------
#
# Data goes to stdout, messages to stderr; the meaning of each exit code.

#: Success.
RIGHT: Final = 0
#: A difference, or damage.
DIFFERENT: Final = 1
#: A usage error, or input that can't be read.
USAGE_ERROR: Final = 2
#: A run without an end, or a torn tail.
INCOMPLETE: Final = 3
#: Refused: recovery, budget, contract.
REFUSED: Final = 4
#: Ended by Ctrl-C before there was an answer; as a shell reports it.
INTERRUPTED: Final = 130


def emit(value: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, pretty: bool = False, stderr: bool = False) -> None:
    """Print one JSON object, or several as JSON lines, on stdout (or ``stderr``). The reader may close the pipe early."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    out = (sys.stderr if stderr else sys.stdout).buffer
    for item in [value] if isinstance(value, Mapping) else value:
        out.write(escaped(as_named(orjson.dumps(item, option=options).decode()).encode()))
    out.flush()


#: Characters that control a terminal or change the order in which text is shown: control characters (C0 except line
#: ends and tabs, and C1), bidirectional controls, invisible characters. In JSON they occur only within strings.
_STEERING: Final = expression(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def escaped(json_text: bytes) -> bytes:
    """Return equivalent JSON with terminal control characters written as escapes."""
    if json_text.isascii() and b"\x7f" not in json_text:
        return json_text
    return _STEERING.sub(
        lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", json_text.decode()
    ).encode()


def plain(text: str) -> str:
    """Return ``text`` as it is printed: without terminal control characters (line ends and tabs stay), and with the URLs of
    what was downloaded."""
    return _STEERING.sub(" ", as_named(text))


#: The width of lines in a pipe or a file, unless ``COLUMNS`` says otherwise.
_WIDTH: Final = 160


def console(*, stderr: bool = False) -> Console:
    """Return a rich console on stdout (or ``stderr``) that prints all text as ``plain``; as wide as the terminal, in a
    pipe 160 columns."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **kwargs):
                yield segment if segment.control else Segment(plain(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            """Whether the reader went away says nothing about the run: rich's own answer would be exit code 1."""
            raise BrokenPipeError

    # rich would use 80 columns for a dumb terminal, whatever its width.
    from shutil import get_terminal_size

    width, height = get_terminal_size((80 if (sys.stderr if stderr else sys.stdout).isatty() else _WIDTH, 25))
    # A recorded ":x:" is no emoji, and a recorded "[b]" no style.
    return Plain(highlight=False, emoji=False, markup=False, stderr=stderr, width=width, height=height)


#: The least characters that a text beside others gets, however narrow the terminal.
LEAST_ROOM: Final = 80


def room(out: Console, *before: str) -> int:
    """Return how many characters a text may have behind those ``before`` it in its line: the rest of the width, but enough
    to say something in a narrow terminal, too."""
    return max(LEAST_ROOM, out.width - sum(map(len, before)))


def without_room(out: Console, widths: Mapping[str, int], dispensable: Iterable[str]) -> list[str]:
    """Return those ``dispensable`` columns of a table, in the order given, that must be left out on a terminal.

    ``widths`` are those of all columns. In a pipe there is room for all.
    """
    taken, found = sum(width + 2 for width in widths.values()) - 2, []
    for name in dispensable:
        if not out.is_terminal or taken <= out.width:
            break
        taken -= widths[name] + 2
        found.append(name)
    return found


def print_left_out(out: Console, columns: Sequence[str]) -> None:
    """Print below a table which columns it lacks, if any."""
    from rich.text import Text

    if columns:
        out.print(Text(f"no room for {', '.join(columns)} (--json)", style="dim"), soft_wrap=True)


@contextmanager
def paged() -> Iterator[Console]:
    """A console whose text is shown when the block ends: in a pager if it is longer than the terminal."""
    import click

    out = console()
    if not out.is_terminal:
        yield out
        return
    with out.capture() as captured:
        yield out
    text = captured.get()
    if text.count("\n") < out.height:
        click.echo(text, nl=False, color=True)
    else:
        click.echo_via_pager(text)  # which leaves colours out for a pager that would print them as codes


#: A line of text in pieces, each with its style.
Line = list[tuple[str, str]]


def styled(*parts: tuple[str, str]) -> Text:
    """Return a line of these pieces, each with its style."""
    from rich.text import Text

    return Text.assemble(*((printable(text), style) for text, style in parts))


def page(lines: Callable[[Console], Iterator[Line | Text]]) -> None:
    """Print lines as they come: on a terminal in a pager if they are too many, and each ``Line`` cut to the width."""
    import click

    out = console()
    if not out.is_terminal:
        for line in lines(out):
            text = "".join(part for part, _ in line) if isinstance(line, list) else line.plain
            sys.stdout.write(printable(as_named(text)).rstrip() + "\n")
        sys.stdout.flush()
        return
    texts = (_rendered(out, line) for line in lines(out))
    first = [*islice(texts, out.height - 1)]
    if (more := next(texts, None)) is None:
        click.echo("".join(first), nl=False, color=True)
    else:
        click.echo_via_pager(chain(first, [more], texts))


def _rendered(out: Console, line: Line | Text) -> str:
    with out.capture() as captured:
        if isinstance(line, list):
            out.print(styled(*line), no_wrap=True, overflow="ellipsis")
        else:
            out.print(line, soft_wrap=True)
    return captured.get()


Item = TypeVar("Item")


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items one by one; after two seconds, show the progress on stderr, if it is a terminal."""
    since, bar = _reality.monotonic(), None
    try:
        for number, item in enumerate(items):
            if bar is not None:
                bar.update(bar.task_ids[0], completed=number)
            elif sys.stderr.isatty() and _reality.monotonic() - since > 2:
                from rich.progress import Progress

                bar = Progress(console=console(stderr=True), transient=True)
                bar.add_task(what, total=len(items), completed=number)
                bar.start()
            yield item
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def working(what: str, *, after: float = 2) -> Iterator[None]:
    """A block whose progress can't be measured: after two seconds, stderr says what it does, if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Event, Thread

    done = Event()

    def show() -> None:
        if not done.wait(after):
            with console(stderr=True).status(f"{what} …"):
                done.wait()

    thread = Thread(target=show, name="tracekit-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def read(path: str, where: Store | None = None) -> RunView:
    """Read a whole run; for a long one, say so meanwhile."""
    from .._runs.reading import read_run

    with working("reading the run"):
        return read_run(path, where)


def message(text: str) -> None:
    """Print a line for people on stderr."""
    import click

    click.echo(plain(text), err=True)


def stands(path: str) -> None:
    """Print on stderr how the run in this file stands, and what to do next: after what continues a run was interrupted."""
    from .._runs.recovery import standing

    with suppress(TracekitError, OSError):  # its file is gone, or damaged
        text, next_ = standing(path)
        message(f"tracekit: {text}")
        message(f"tracekit: next: {next_}")


def flush_output() -> None:
    """Flush what was printed, like Python at its end: unless the program has closed it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def end_by_interrupt() -> None:
    """End this process by SIGINT itself, like Python after a ``KeyboardInterrupt``; return where that can't be done."""
    flush_output()
    if hasattr(os, "kill"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def fail(error: TracekitError) -> NoReturn:
    """Print the error's text on stderr and exit with its exit code."""
    message(str(error))
    sys.exit(exit_code(error))


def exit_code(error: TracekitError) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, (TraceIntegrityError, ReplayError)):
        return DIFFERENT
    if isinstance(error, UnknownPriceError):
        return USAGE_ERROR
    if isinstance(error, (RecoveryRefusedError, BudgetExceededError, ContractViolationError)):
        return REFUSED
    return USAGE_ERROR


@contextmanager
def aside() -> Iterator[None]:
    """A block in which stdout is redirected to stderr, also for user code and child processes: stdout is only for data."""
    with redirect_stdout(sys.stderr):
        try:
            sys.stderr.flush()
            kept = os.dup(1)
        except (OSError, AttributeError):  # there is no stdout, or no stderr
            yield
            return
        try:
            os.dup2(2, 1)
            yield
        finally:
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
            os.dup2(kept, 1)
            os.close(kept)


#: Errors of stdout: a full disk, a quota, a failing device, a closed descriptor.
_UNWRITABLE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))


@contextmanager
def reported() -> Iterator[None]:
    """A block around a command: tracekit's errors are printed as messages, without a traceback, and end it."""
    try:
        yield
    except TracekitError as error:
        fail(error)
    except BrokenPipeError:
        sys.stdout = None  # the reader (head, less) has closed the pipe; Python would report that again at exit
        sys.exit(RIGHT)
    except OSError as error:
        if error.filename is None and error.errno not in _UNWRITABLE:
            raise  # nothing that the user could fix
        if error.filename is None:
            sys.stdout = None
        # Not Python's exit code 1, which would be an answer: a difference, or damage.
        message(f"tracekit: {error.filename or 'the output can not be written'}: {error.strerror}")
        sys.exit(USAGE_ERROR)


# -- text --------------------------------------------------------------------------------------------------------------
#
# Values, durations and ages in one line.


def age(ns: int) -> str:
    """Return how long ago a moment was, given in ns since the epoch: ``"5.0 s"``, ``"3 d"``."""
    return duration(max(0, _reality.time_ns() - ns))


# -- times -------------------------------------------------------------------------------------------------------------


def function_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An option's ``MODULE:FUNCTION``, with both parts."""
    import click

    module, _, function = (value or "").partition(":")
    if value is not None and not (module and function):
        raise click.BadParameter(
            f"{value!r} names no function: write MODULE:FUNCTION, such as {module or 'agent'}:main"
        )
    return value


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Parse an option's moment: ``2026-11-20``, ``2026-11-20T10:00``, or ``12h`` ago."""
    import click

    if value is None:
        return None
    try:
        if (ago := time_span(value)) is not None:
            return datetime.fromtimestamp(_reality.time()).astimezone() - ago
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither a date (2026-11-20, 2026-11-20T10:00) nor a duration (30m, 12h, 2d)"
        ) from None


# -- store -------------------------------------------------------------------------------------------------------------
#
# The file that RUN names: an id, the beginning of one, ``last``, or a path.


def named(store: str | None, *, existing: bool = False) -> Store:
    """Return the store to list: the one named by ``--store`` or ``TRACEKIT_DIR``, which must exist, or the default one.

    With ``existing`` the default one must exist, too: otherwise a wrong directory would look like a store without runs.
    """
    import click

    if is_url(where := store_named(store)):
        return fetched_store(where, None, progress)
    found = Store(store)
    if existing and not _is_directory(found.runs):
        raise click.UsageError(
            f"there is no store in {found.root} (it has no directory 'runs'), so nothing was examined: go to the directory that the "
            "program runs in, or name its store with --store or TRACEKIT_DIR"
        )
    if (store is not None or os.environ.get("TRACEKIT_DIR")) and not os.path.isdir(found.root):
        which = "--store" if store is not None else "TRACEKIT_DIR"
        raise click.UsageError(f"{which}: there is no directory {found.root}")
    return found


def no_files(store: Store) -> dict[str, str]:
    """Return what has the name of a run but is no readable file, by its path; with a text about it."""
    what = "has the name of a run but is a broken link, a directory or a pipe: that run was not examined"
    return {path: f"{printable(path)} {what}" for path in store.no_files()}


def _is_directory(path: str) -> bool:
    """Return whether it is a directory; raise if this user may not know."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def readable(store: str | None, *runs: str) -> Store:
    """Return the store from which to read ``runs``: a directory, or the needed part of a store at a URL."""
    if is_url(where := store_named(store)):
        if all(map(is_url, runs)):
            return Store(".tracekit")  # in which none of them is
        return fetched_store(where, runs[0].partition(".")[0] if len(runs) == 1 else None, progress)
    return Store(store)


def local(store: str | None, *changed: str) -> Store:
    """Return the store in which something is done: a directory; a store at a URL, or a run to be ``changed`` there, is
    only read."""
    import click

    for where in (store_named(store), *changed):
        if is_url(where):
            raise click.UsageError(f"{where} is a URL, which is only read: copy the store here first")
    return Store(store)


def located(run: str, store: Store) -> str:
    """Return the path of the trace file of ``run``; raise ``RunNotFoundError`` if there is none."""
    if is_url(run):
        return fetched_run(run)
    try:
        return store.find(run)
    except RunNotFoundError:
        if os.path.isfile(run):  # any file: reading it reports what is wrong with it
            return os.path.abspath(run)
        if os.path.isdir(run):
            is_store = os.path.isdir(os.path.join(run, "runs"))
            raise RunNotFoundError(
                f"{run} is a directory, not a run",
                store=store.root,
                next_action=f"it is a store: `tracekit list --store {run}` lists its runs"
                if is_store
                else "name the file of a trace in it, or a run; `tracekit list` lists the runs of the store",
            ) from None
        raise


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Return shell completions for RUN: the matching ids of the store, the newest first, each with its name and how it
    ended."""
    from click.shell_completion import CompletionItem

    try:
        store = ctx.params.get("store")
        if is_url(store_named(store)):
            return []
        found = Store(store).list()
    except (OSError, TracekitError):
        return []
    offered = [CompletionItem("last", help="the newest run")] if "last".startswith(incomplete) else []
    for run in found:
        if run.run_id.startswith(incomplete):
            ended = (run.end or "no end").removeprefix("run.")
            offered.append(
                CompletionItem(run.run_id, help=f"{short(run.name or '', 30)}, {ended}, {age(run.started_ns)} ago")
            )
    return offered[:200]


def values_in(view: RunView) -> dict[str, dict[str, str]]:
    """Return what the steps of a run can be chosen by: their numbers, kinds, lanes, agents and tools, each with a
    description."""
    found: dict[str, dict[str, str]] = {"step": {}, "kind": {}, "lane": {}, "agent": {}, "tool": {}}
    kinds = Counter(step.kind for step in view.steps(all=True) if step.type not in FRAME)
    found["kind"] = {kind: plural(count, "step") for kind, count in kinds.most_common()}
    for step in view.steps(all=True):
        if step.type in FRAME:
            continue
        lane = step.lane.label or step.file.process or str(step.lane.number)
        found["lane"].setdefault(lane, "")
        if step.agent:
            found["agent"].setdefault(step.agent, "")
        if step.kind == "tool":
            found["tool"].setdefault(step.name, "")
        if not step.bookkeeping:
            found["step"][str(step.place)] = f"{step.kind} {step.name}, {step.state}"
    return found


def complete_in_run(what: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return the completion for a step, kind, lane, agent or tool of the run that the command names."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from .._runs.reading import read_run

        try:
            # Behind an option that still lacks its value, click has not assigned the arguments.
            run, where = ctx.params["run"] or next(iter(ctx.args), ""), Store(ctx.params.get("store"))
            if is_url(run):
                return []
            with read_run(located(run, where), where) as view:
                found = values_in(view)[what]
        except (KeyError, OSError, TracekitError):
            return []
        offered = [(value, about) for value, about in found.items() if value.startswith(incomplete)]
        return [CompletionItem(value, help=printable(about) or None) for value, about in offered[:200]]

    return complete


# -- decisions -----------------------------------------------------------------------------------------------------------
#
# Recovery decisions on runs without an end, as text.


def shown(decisions: Iterable[Decision], *, stderr: bool = False) -> bool:
    """Print each decision with its reasons, on stdout (or ``stderr``); return whether there was any."""
    from rich.text import Text

    from .._runs.recovery import FOR

    terminal, found = console(stderr=stderr), False
    for decision in decisions:
        found = True
        # In JSON the decision is "abort", which a person would read as advice: what helps is nearly always something else.
        resumes = decision.decision == "resume"
        word, style = ("resume", "bold green") if resumes else ("refused", "bold red")
        if decision.state == "complete":
            word, style = "ended", "bold"
        line = Text(f"{word:<7}  ", style=style) + Text(printable(decision.run_id), style="cyan")
        line += Text(f"  {printable(decision.name)}" if decision.name else "")
        terminal.print(line + Text(f"  {decision.state}", style="dim"), soft_wrap=True)
        for reason in decision.reasons:
            mark = Text("  + ", style="green") if reason["code"] in FOR else Text("  - ", style="red")
            text = Text(f"{reason['code']}: ", style="bold") + Text(printable(str(reason["text"])))
            terminal.print(mark + text, soft_wrap=True)
    return found
