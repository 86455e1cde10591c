"""The frame from which a function is called that the program handed to a thread, a pool or an event loop.

Who asks for its caller finds this file, and takes it for the program's own: ``pool.submit(random.random)`` draws for the program, though
the frame above it is the pool's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["call"]


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``function``, called for the program that handed it over."""
    return function(*args, **kwargs)
