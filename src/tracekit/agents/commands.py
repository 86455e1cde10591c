"""``tracekit route``: routes one request to the agents of a program, and records it."""

from __future__ import annotations

import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from io import StringIO
from typing import Any, Final, NoReturn, TypeVar

import click

from tracekit import Run, record

from ..cli import output
from ..errors import EnvelopeError, RecoveryRefusedError, RegistryError
from ..failures import FailureType
from ..integration import next_run, to_json
from .envelope import IntentEnvelope
from .registry import AgentRegistry
from .result import IntentResponse
from .router import IntentRouter

__all__ = ["route", "router_of"]

# -- apps --------------------------------------------------------------------------------------------------------------
#
# The program that ``--app MODULE:NAME`` names, and its agents.

T = TypeVar("T")


def router_of(app: str) -> IntentRouter:
    """Return the router of ``MODULE:NAME``. Raises ``RegistryError`` if there is none, or importing or calling it
    failed."""
    module, name = _names(app)
    sys.path.insert(0, os.getcwd())
    found: Any = _of_program(f"the module {module!r} can't be imported", lambda: _imported(module))
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise RegistryError(
                f"there is no {app!r}: {error}", next_action="name the registry of the module"
            ) from None
    if callable(found) and not isinstance(found, (AgentRegistry, IntentRouter)):
        found = _of_program(f"the function {app!r} did not return", found)
    if isinstance(found, AgentRegistry):
        return IntentRouter(found)
    if isinstance(found, IntentRouter):
        return found
    if inspect.iscoroutine(found):
        found.close()
    raise RegistryError(
        f"{app!r} is {type(found).__name__}",
        next_action="name an AgentRegistry, an IntentRouter, or a function without arguments that returns one",
    )


def _names(app: str) -> tuple[str, str]:
    module, colon, name = app.partition(":")
    if not (module and colon and name):
        raise click.UsageError(f"--app is MODULE:NAME, not {app!r}")
    if module.endswith(".py") or not all(map(str.isidentifier, [*module.split("."), *name.split(".")])):
        near = os.path.normpath(module).removesuffix(".py").replace(os.sep, ".")
        hint = f"; did you mean {near}:{name}?" if all(map(str.isidentifier, near.split("."))) else ""
        raise click.UsageError(f"--app is MODULE:NAME, the module as in an import, not {app!r}{hint}")
    return module, name


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the program failed
        raise _Absent(module) from None


class _Absent(Exception):
    """The module that ``--app`` names does not exist."""


def _of_program(problem: str, call: Callable[[], T]) -> T:
    """Return the result of the program's own code; on an error its traceback is printed, without tracekit's frames."""
    try:
        return call()
    except _Absent as error:
        raise RegistryError(
            f"there is no module {str(error)!r}", next_action="run it where the module can be imported"
        ) from None
    except (Exception, SystemExit) as error:
        output.message("".join(_error_lines(error)).rstrip())
        what = f"it ended the program, with status {error.code!r}" if isinstance(error, SystemExit) else _short(error)
        raise RegistryError(
            f"{problem}: {what}", next_action="no agent was called; fix that, and route again"
        ) from error


def _short(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().split("\n")[0]


def _error_lines(error: BaseException) -> list[str]:
    """Return the traceback of an error without the frames of tracekit and of the import system."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        where = where.tb_next
    return traceback.format_exception(type(error), error, where)


_NOT_THEIRS: Final = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(traceback.__file__) + os.sep + "importlib",
    "<frozen importlib",
)

# -- route -------------------------------------------------------------------------------------------------------------
#
# The command itself.

#: Failures due to a refusal: of a contract, a budget, a side-effect class.
_REFUSED: Final = (FailureType.CONTRACT_VIOLATION, FailureType.BUDGET_EXCEEDED, FailureType.SIDE_EFFECT_VIOLATION)


class _Units(click.FloatRange):
    """A finite number of cost units: click's own range accepts infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a number of cost units.", param, ctx)


@click.command()
@click.argument("envelope", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--app", required=True, metavar="MODULE:NAME", help="The AgentRegistry (or IntentRouter) to use.")
@click.option("--budget", metavar="N", type=_Units(0, min_open=True), help="The limit, in cost units.")
@click.option(
    "--side-effect",
    type=click.Choice(["read_only", "reversible", "irreversible"]),
    help="The class of agents that declare none.",
)
@click.option("--run-name", default="route", show_default=True, help="The run's name.")
@click.option(
    "--store",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory of runs (default: TRACEKIT_DIR, .tracekit).",
)
def route(
    envelope: str, app: str, budget: float | None, side_effect: str | None, run_name: str, store: str | None
) -> None:
    """Route the request in ENVELOPE (a JSON file, - for standard input) and print the response.

    The run is recorded. Exit codes: 0 an answer, 1 an agent failed, 2 a wrong envelope or no agent to ask, 4 refused by a
    contract or budget.

    \b
    Examples:
      tracekit route request.json --app shop.agents:registry
      echo '{"intent": "refund"}' | tracekit route - --app shop:registry
    """
    with output.reported():
        # In a replay the router is created first: a run that the app opens at its import precedes this one.
        request = None if next_run() is not None else _envelope(envelope)
        with output.aside():
            router = router_of(app)
        if request is None:
            request = _recorded(envelope)
        run: Run | None = None
        try:
            with output.aside(), record(run_name, store=store, input=request.as_dict()) as run:
                response = router.route(request, budget_limit=budget, default_side_effect=side_effect)
                run.set_result(response.about())
        except SystemExit as left:  # otherwise its status, which may be 0, would become this command's
            _exited(run, left)
        code = _exit_code(response)
        try:
            output.emit(to_json(response.as_dict()))
        except OSError as error:  # the answer is not lost: it is in the run
            code = _write_failed(error, code)
        output.message(f"recorded as run {run.id}")
        if response.error is not None:
            output.message(_response_text(response))
        sys.exit(code)


def _envelope(path: str) -> IntentEnvelope:
    text, source = _read(path), "standard input" if path == "-" else path
    try:
        return IntentEnvelope.from_json(text)
    except EnvelopeError as error:
        error.what = f"in {source}: {error.what}"
        raise


def _recorded(path: str) -> IntentEnvelope:
    """Return the recorded request, in a replayed or resumed process: its file, or standard input, may be gone."""
    run = next_run()
    if run is not None and isinstance(run.input, Mapping):
        return IntentEnvelope.from_dict(run.input)
    if run is None or not run.resumed:
        return _envelope(path)
    text, source = _supplied_again(path)
    try:
        request = IntentEnvelope.from_json(text)
    except EnvelopeError as error:
        raise EnvelopeError(f"in {source}: {error.what}", key=error.__dict__["key"], next_action=_AGAIN) from None
    same = run.was_given(request.as_dict())
    if same is False:
        problem = f"the request in {source} is not the one that the run was given"
        raise RecoveryRefusedError(
            f"{problem}: its secrets, which no trace keeps, or something else in it, differ; nothing was resumed",
            reasons=[{"code": "other_request", "text": problem}],
            next_action=f"{_AGAIN}; to route another one, abandon the run (`tracekit recovery abort`) and route that",
        )
    if same is None:
        output.message(
            f"tracekit: whether the secrets of the request in {source} are the same as before is not known: "
            "the store's secret, or a hash under it, is missing"
        )
    return request


def _supplied_again(path: str) -> tuple[bytes, str]:
    """Return the request that is supplied again, and its source: standard input if there is any, else its file."""
    if sys.stdin is not None and not sys.stdin.isatty():
        output.message("tracekit: the trace does not keep the secrets of the request: looking for it on standard input")
        found: bytes = _read("-")
        if found.strip():
            return found, "standard input"
    if path != "-":
        try:
            return _read(path), path
        except EnvelopeError as error:
            unreadable = f", and {error.what}"
    else:
        unreadable = ""
    raise EnvelopeError(f"the request had secrets, which no trace keeps{unreadable}", key=None, next_action=_AGAIN)


_AGAIN: Final = "give it again as it was: `tracekit recovery resume RUN < ENVELOPE.json`"


def _write_failed(error: OSError, code: int) -> int:
    """Return the exit code when the response could not be written; a reader that closed the pipe early is no error."""
    with suppress(OSError):
        sys.stdout.close()  # otherwise Python would try again at exit to write what is buffered
    sys.stdout = StringIO()
    if isinstance(error, BrokenPipeError):
        return code
    output.message(f"the response can't be written to stdout: {error.strerror}; it is in the run")
    return output.DIFFERENT


def _exited(run: Run | None, left: SystemExit) -> NoReturn:
    output.message(f"an agent ended the program, with status {left.code!r}, before there was a response")
    if run is not None:
        output.message(f"recorded as run {run.id}")
    sys.exit(output.DIFFERENT)


def _read(path: str) -> bytes:
    try:
        if path == "-":  # not a captured read: it is the input of the run, not one of its steps
            return b"" if sys.__stdin__ is None else bytes(sys.__stdin__.buffer.read())
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise EnvelopeError(
            f"{path} can't be read: {error.strerror}", key=None, next_action="name a file with an envelope in JSON"
        ) from None


def _response_text(response: IntentResponse) -> str:
    assert response.error is not None
    return "\n".join(f"{'because' if n else response.status}: {one}" for n, one in enumerate(response.error.chain()))


def _exit_code(response: IntentResponse) -> int:
    if response.error is None:
        return output.RIGHT
    kinds = [failure.type for failure in response.error.chain()]
    if kinds[0] is FailureType.NO_AGENT_FOUND:
        return output.USAGE_ERROR
    return output.REFUSED if any(kind in _REFUSED for kind in kinds) else output.DIFFERENT
