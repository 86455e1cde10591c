"""The local time zone of the process: what a recording says of it, and how a replay takes it on.

Reads of the clock are answered from the recording, but what the program makes of an instant in local time
(``datetime.fromtimestamp``, ``astimezone()``, ``time.localtime(then)``) the C library does, by its own idea of the
zone. It takes that from the variable ``TZ`` of the C environment when it is told to; ``os.environ``, which the program
reads, keeps today's value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from .. import _reality
from .._lazy import expression
from .._runtime.redaction import environment_variables

__all__ = ["local_zone", "take_on"]

_DATABASES: Final = ("/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo")
_DEFAULT: Final = "/etc/localtime"
_UTC: Final = ("UTC0", "<UTC>0", "UTC", "UTC+0", "UTC-0")
_UTC_ZONE: Final = {"time_zone": "UTC", "time_zone_rule": "UTC0"}
#: How a rule begins, by which it is told from a name.
_RULE: Final = expression(r"(?:<[\w+-]+>|[A-Za-z]{3,})[+-]?\d")


class _TakenOn:
    """The zones that replays have given this process, the current one last, each with what a recording says of it."""

    def __init__(self) -> None:
        self.lock: Final = _reality.OwnLock()
        self.zones: Final[list[tuple[str, dict[str, str]]]] = []


_taken_on: Final = _TakenOn()


@_reality.off_loop()
def local_zone() -> dict[str, str]:
    """Return the zone in which this process shows the time, for a recording.

    ``time_zone`` is its name (``Europe/Berlin``), otherwise its rule; ``time_zone_rule`` is its present rule as ``TZ``
    takes it (``CET-1CEST,M3.5.0,M10.5.0/3``), for machines without a database of zones. Empty if nothing is known.
    """
    if _taken_on.zones:
        return dict(_taken_on.zones[-1][1])
    return dict(_described(environment_variables().get("TZ")))


def take_on(recorded: Mapping[str, Any]) -> Callable[[], None]:
    """Let this process show the time in the zone that ``local_zone`` gave for a recording; return what undoes that.

    Nothing changes if the zone is this process's already, or if it can't be had here.
    """
    zone, rule = recorded.get("time_zone"), recorded.get("time_zone_rule")
    if not isinstance(zone, str) or not hasattr(time, "tzset") or local_zone().get("time_zone") == zone:
        return _nothing
    value = zone if _file_of(zone) is not None else rule if isinstance(rule, str) else zone
    if _file_of(value) is None and not _RULE.match(value):
        return _nothing
    facts = {"time_zone": zone, **({"time_zone_rule": rule} if isinstance(rule, str) else {})}
    with _taken_on.lock:
        before = environment_variables().get("TZ")
        one = (value, facts)
        _taken_on.zones.append(one)
        _set(value)

    def restore() -> None:
        with _taken_on.lock:
            last = _taken_on.zones[-1] is one
            _taken_on.zones[:] = [other for other in _taken_on.zones if other is not one]
            now = environment_variables().get("TZ")
            if last and now == before:  # otherwise the program, or a replay beside this one, has set another one
                _set(_taken_on.zones[-1][0] if _taken_on.zones else now)

    return restore


def _nothing() -> None:
    """Undo nothing."""


def _set(value: str | None) -> None:
    if value is None:
        os.unsetenv("TZ")
    else:
        os.putenv("TZ", value)
    time.tzset()


@lru_cache(maxsize=16)  # as the C library, which reads a zone once
def _described(variable: str | None) -> Mapping[str, str]:
    """Return what a value of ``TZ`` says; ``None``: it is not set."""
    if variable is None:
        path: str | None = os.path.realpath(_DEFAULT) if os.path.exists(_DEFAULT) else None
        named = "UTC"
    else:
        named = variable.removeprefix(":") or "UTC"
        path = os.path.realpath(named) if _is_path(named) else _file_of(named)
    if path is None:
        return _UTC_ZONE if named in _UTC else {"time_zone": named} if _RULE.match(named) else {}
    rule = _rule_in(path)
    if rule in _UTC:
        return _UTC_ZONE
    name = named if variable is not None and not _is_path(named) else _name_of(path)
    return {key: value for key, value in (("time_zone", name or rule), ("time_zone_rule", rule)) if value}


def _is_path(value: str) -> bool:
    return value.removeprefix(":").startswith(os.sep)


def _file_of(name: str) -> str | None:
    """Return the file of the database that describes a zone."""
    if _is_path(name) or os.pardir in name.split("/"):
        return None
    return next((path for one in _DATABASES if os.path.isfile(path := os.path.join(one, name))), None)


def _name_of(path: str) -> str | None:
    directories = (os.path.realpath(one) + os.sep for one in _DATABASES)
    return next((path.removeprefix(one).removeprefix("posix/") for one in directories if path.startswith(one)), None)


def _rule_in(path: str) -> str | None:
    """Return the rule at the end of a compiled description of a zone (RFC 9636)."""
    with suppress(OSError, ValueError), _reality.open_file(path, "rb") as file:
        content = file.read(1 << 20)
        if content.startswith(b"TZif") and content[4:5] >= b"2" and content.endswith(b"\n"):
            return content[:-1].rpartition(b"\n")[2].decode("ascii") or None
    return None
