"""``--entry module:function``: a run made again by calling one function with what the run was given."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from .._session import Run, takeover
from ..errors import RunStateError

__all__ = ["Entry"]


class Entry:
    """The function that ``--entry`` names. It may have a ``record()`` of its own inside: that is the run itself then.

    ``in_task``: a coroutine function has the run in its task, as its own ``record()`` would have; else around the event loop.
    """

    def __init__(self, name: str, *, in_task: bool) -> None:
        self._name: Final = name
        self._in_task: Final = in_task
        #: Whether the function has opened a run of its own.
        self.opened = False

    def function(self) -> Any:
        """The function, below its decorators. ``RunStateError`` where there is none."""
        module, _, name = self._name.partition(":")
        sys.path.insert(0, os.getcwd())
        try:
            found: Any = importlib.import_module(module)
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) and error.name not in (None, module, module.partition(".")[0]):
                raise  # it is there, and what it imports is not
            raise self._wrong(f"there is no module {module!r}") from None
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        if not name or not callable(found):
            raise self._wrong(f"{module!r} has no function {name!r}")
        return inspect.unwrap(found)

    def _wrong(self, what: str) -> RunStateError:
        return RunStateError(
            f"--entry {self._name}: {what}", next_action="say --entry MODULE:FUNCTION, importable from here"
        )

    def call(self, block: Any, run: Callable[[], Run], given: Callable[[], Any], came: Callable[[Any], object]) -> None:
        """Call it inside ``block`` with what the run was ``given``; ``came`` gets what it returns, if the run is not its own."""
        function = self.function()
        if self._in_task and inspect.iscoroutinefunction(function):
            asyncio.run(self._awaited(function, block, run, given, came))
            return
        with block:
            self._lend(block, run())
            value = function(**self._arguments(function, given()))
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            if not self.opened:
                came(value)

    async def _awaited(self, function: Any, block: Any, run: Any, given: Any, came: Any) -> None:
        async with block:
            self._lend(block, run())
            value = await function(**self._arguments(function, given()))
            if not self.opened:
                came(value)

    def _arguments(self, function: Any, given: Any) -> Mapping[str, Any]:
        found = given if isinstance(given, Mapping) else {}
        try:
            inspect.signature(function).bind(**found)
        except TypeError as error:
            with_ = ", ".join(map(str, found)) or "no arguments"
            raise self._wrong(f"it can't be called with what the run was given, {with_}: {error}") from None
        except ValueError:  # a builtin without a signature: the call will tell
            pass
        return found

    def _lend(self, block: Any, run: Run) -> None:
        takeover.lend(block.session, _Borrowed(self, run))


class _Borrowed:
    """What stands in for the ``record()`` inside the function: the run around it."""

    def __init__(self, entry: Entry, run: Run) -> None:
        self._entry = entry
        self._run = run

    def stand_in(self, options: Mapping[str, Any]) -> Run:
        self._entry.opened = True
        return self._run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        pass
