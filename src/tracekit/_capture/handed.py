"""Calls a function that the program handed to a thread, a pool or an event loop, as if the program did.

Code that looks at its caller finds this file, which counts as the program's own: ``pool.submit(random.random)`` draws
for the program, though the frame above is the pool's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["call"]


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function`` for the program that handed it over."""
    return function(*args, **kwargs)
