"""Where the agents of a program are: what ``--app MODULE:NAME`` leads to."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from ..agents.registry import AgentRegistry
from ..agents.router import IntentRouter
from ..errors import RegistryError
from . import output

__all__ = ["router_of"]

T = TypeVar("T")


def router_of(app: str) -> IntentRouter:
    """The router of ``MODULE:NAME``. ``RegistryError`` where there is none, or the program went wrong before it could be had."""
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
            raise  # the program's own import went wrong
        raise _Absent(module) from None


class _Absent(Exception):
    """There is no such module at all."""


def _of_program(problem: str, call: Callable[[], T]) -> T:
    """What the program's own code gives; where it goes wrong its traceback is shown, from its first line on."""
    try:
        return call()
    except _Absent as error:
        raise RegistryError(
            f"there is no module {str(error)!r}", next_action="run it where the module can be imported"
        ) from None
    except (Exception, SystemExit) as error:
        output.message("".join(_told(error)).rstrip())
        what = f"it ended the program, with status {error.code!r}" if isinstance(error, SystemExit) else _short(error)
        raise RegistryError(f"{problem}: {what}", next_action="nobody was asked; mend that, and route again") from error


def _short(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().split("\n")[0]


def _told(error: BaseException) -> list[str]:
    """The traceback of an error without what is ours in it, and the import machinery's."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        where = where.tb_next
    return traceback.format_exception(type(error), error, where)


_NOT_THEIRS: Final = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(traceback.__file__) + os.sep + "importlib",
    "<frozen importlib",
)
