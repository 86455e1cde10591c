"""One client's transport captured, without patching its class."""

from __future__ import annotations

from typing import Any

from .plugins import discover
from .routes import register

__all__ = ["attach", "detach"]


def attach(transport: Any) -> None:
    """Put the seam on this one HTTP client object. Doing it again changes nothing.

    Raises ``TypeError`` if no installed integration knows this kind of client.
    """
    for integration in discover().values():
        if integration.attach is not None and integration.attach(transport):
            register(integration)
            return
    raise TypeError(
        f"no installed integration captures a {type(transport).__module__}.{type(transport).__qualname__}; "
        f"installed are {', '.join(sorted(discover())) or 'none'}"
    )


def detach(transport: Any) -> None:
    """Take the seam off again; one that is not there is no error."""
    for integration in discover().values():
        if integration.detach is not None and integration.detach(transport):
            return
