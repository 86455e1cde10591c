"""What leaves by websocket is refused inside a run, instead of passing unseen."""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from tracekit.integration import here, refuse

__all__ = ["refused"]


def refused(original: Any) -> Any:
    """``original`` opens a websocket: outside a run it does, inside it says that this is not supported."""
    what = f"the websocket of {original.__qualname__.partition('.')[0].removesuffix('ConnectionManager')}.connect()"

    def check() -> None:
        scope = here()
        if scope is not None:
            refuse(scope, what)

    if iscoroutinefunction(original):

        @wraps(original)
        async def enter_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            check()
            return await original(self, *args, **kwargs)

        return enter_async

    @wraps(original)
    def enter(self: Any, *args: Any, **kwargs: Any) -> Any:
        check()
        return original(self, *args, **kwargs)

    return enter
