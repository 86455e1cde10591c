"""How commands speak: data on stdout, messages on stderr, and what an exit code means."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    RecoveryRefusedError,
    ReplayError,
    TraceIntegrityError,
    TracekitError,
    UnknownPriceError,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "DIFFERENT",
    "REFUSED",
    "RIGHT",
    "UNSEALED",
    "WRONG_USE",
    "aside",
    "console",
    "emit",
    "exit_code",
    "fail",
    "message",
    "reported",
    "structured",
]

#: Everything as it should be.
RIGHT: Final = 0
#: A difference, or damage.
DIFFERENT: Final = 1
#: Wrong use, or input that can't be read.
WRONG_USE: Final = 2
#: A run without an end, or a torn tail.
UNSEALED: Final = 3
#: Refused: recovery, budget, contract.
REFUSED: Final = 4


def structured(as_json: bool) -> bool:
    """Whether to print JSON: it was asked for, or stdout is not a terminal."""
    return as_json or not sys.stdout.isatty()


def emit(value: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, pretty: bool = False) -> None:
    """Print one JSON object, or several as JSON lines. Whoever reads may stop reading early."""
    import orjson

    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    out = sys.stdout.buffer
    for item in [value] if isinstance(value, Mapping) else value:
        out.write(orjson.dumps(item, option=options))
    out.flush()


def console() -> Console:
    """A rich console on stdout, for people."""
    from rich.console import Console

    return Console(highlight=False)


def message(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


def fail(error: TracekitError) -> NoReturn:
    """Print the error's own text on stderr and leave with its exit code."""
    message(str(error))
    sys.exit(exit_code(error))


def exit_code(error: TracekitError) -> int:
    """What a command leaves with when this error ends it."""
    if isinstance(error, (TraceIntegrityError, ReplayError)):
        return DIFFERENT
    if isinstance(error, UnknownPriceError):
        return WRONG_USE
    if isinstance(error, (RecoveryRefusedError, BudgetExceededError, ContractViolationError)):
        return REFUSED
    return WRONG_USE


@contextmanager
def aside() -> Iterator[None]:
    """A block in which whatever a user's code prints goes to stderr, that of its child processes too: stdout is for data alone."""
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


@contextmanager
def reported() -> Iterator[None]:
    """Around a command: errors of tracekit are told as messages, without a traceback."""
    try:
        yield
    except TracekitError as error:
        fail(error)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it closes stdout.
        sys.stdout = None
        sys.exit(RIGHT)
