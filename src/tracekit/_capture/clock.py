"""Captures clocks: the session answers every read by the run's own code, and reads on which libraries base decisions.

Covered, for references taken earlier as well: the clock functions of ``time``, ``now``/``utcnow``/``today`` of
``datetime`` and ``date`` (which remain the same classes), ``loop.time()``, and freezegun's fakes of all these. If
freezegun or time-machine fake the time below these hooks, the run takes that as its live time.
"""

from __future__ import annotations

import datetime as _datetime
import sys
import time as _time
import warnings
from collections.abc import Callable
from functools import cache, partial
from io import TextIOWrapper
from sys import _getframe
from typing import Any, Final, Literal

from .. import _reality
from .._runtime.session import STEADY, Scope, current, in_own_lane
from . import in_place
from .callers import RUNNERS, by_user, reader
from .in_place import (
    NOARGS,
    ONE,
    ClassMethodExchange,
    CodeExchange,
    Unsupported,
    function_patch,
    genuine,
    marking,
    works,
)
from .leftovers import collecting
from .patch import AttributePatch, ReversiblePatch, Switch, imported_within

__all__ = ["hooks"]

Hook = Callable[..., Any]
_scope: Final = current.get
_UTC: Final = _datetime.UTC

#: Clocks without arguments.
PLAIN: Final = tuple(
    f"{clock}{unit}"
    for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
)
#: Functions that read the clock only if no time is passed, with the number of arguments in that case.
FORMATS: Final = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}


def _answer(scope: Scope, name: str, real: Callable[[], Any], who: Literal[True] | str = True) -> Any:
    session, scope = scope.session, in_own_lane(scope)
    return session.clock_read(scope, name, real) if who is True else session.library_clock(scope, name, who, real)


def _plain(name: str, real: Callable[[], Any]) -> Hook:
    def read(_proxy: object) -> Any:
        scope = _scope()
        if scope is None:
            return real()
        if scope.live:
            return _inside(scope, name, real) if steady else real()
        who = reader()
        if who is True:
            return scope.session.clock_read(in_own_lane(scope), name, real)
        # Each wait of the standard library has its own clock. When garbage is collected is a matter of chance.
        if not who or collecting.here() or (who == "logging" and not _seen_by_others(_getframe(1))):
            return real()
        return scope.session.library_clock(in_own_lane(scope), name, who, real)

    steady = name in STEADY
    return read


# -- log records -------------------------------------------------------------------------------------------------------
#
# What ``logging`` writes by itself to a file or terminal concerns nobody in the run. A record that code of the program or
# of a package gets is another matter: it sends it, stores it, or decides by its time. So is a time that is written to a
# stream in memory, which the program reads.


def _seen_by_others(frame: Any) -> bool:
    """Return whether ``frame`` makes a log record that others than ``logging`` itself, or a test runner, get."""
    while frame.f_globals.get("__name__") != "logging":  # of what stands in for the clock
        frame = frame.f_back
    if frame.f_code.co_qualname != "LogRecord.__init__":  # while it is imported, say
        return False
    logging = sys.modules["logging"]
    makes = logging.Logger.makeRecord.__code__
    while frame is not None and frame.f_code is not makes:
        frame = frame.f_back
    if frame is None or logging.getLogRecordFactory() is not logging.LogRecord:
        return True
    logger, level = frame.f_locals["self"], frame.f_locals["level"]
    others = [*logger.filters]
    while logger is not None:
        for handler in logger.handlers:
            if level >= getattr(handler, "level", 0):  # anything with a ``handle`` may be one
                others += (handler, getattr(handler, "formatter", None), *getattr(handler, "filters", ()))
        logger = logger.parent if logger.propagate else None
    return any(not _only_writes(logging, other) for other in others)


#: The streams of files and terminals, and of a file that is not open yet.
_FILES: Final = (TextIOWrapper, type(None))


def _only_writes(logging: Any, other: Any) -> bool:
    module = type(other).__module__
    if isinstance(other, logging.StreamHandler) and not isinstance(other.stream, _FILES):
        uses_time = getattr(other.formatter, "usesTime", None)
        if uses_time is not None and uses_time():
            return False
    if module == "logging.handlers":  # the others pass the record on
        return isinstance(other, logging.StreamHandler)
    return other is None or module == "logging" or module.partition(".")[0] in RUNNERS


def _inside(scope: Scope, name: str, real: Callable[[], Any]) -> Any:
    """Read a steady clock inside a live step: the run's own, since a deadline may have been set outside."""
    clock = scope.session.state.clock
    return real() if clock is None or not reader(3) else clock.now(name, real)


def _of_one(name: str, real: Callable[..., Any], flags: int) -> Hook:
    def read(_proxy: object, argument: Any) -> Any:
        arguments = argument if spread else (argument,)
        scope = _scope()
        if scope is None or scope.live or not by_user():
            return real(*arguments)
        return _answer(scope, name, partial(real, *arguments))

    spread = flags != ONE
    return read


def _formatting(name: str, real: Callable[..., Any], needed: int) -> Hook:
    def read(_proxy: object, arguments: tuple[Any, ...]) -> Any:
        scope = _scope()
        if scope is None or arguments[needed:] not in ((), missing) or scope.live or not by_user():
            return real(*arguments)
        return _thawed(_answer(scope, name, lambda: _frozen(real(*arguments))))

    # For localtime, gmtime and ctime, None means no argument.
    missing = (None,) if not needed and name != "time.asctime" else ()
    return read


def _frozen(value: Any) -> Any:
    # Zone and offset are not among its nine items.
    return [*value[:9], value.tm_zone, value.tm_gmtoff] if isinstance(value, _time.struct_time) else value


def _thawed(value: Any) -> Any:
    return _time.struct_time(tuple(value)) if isinstance(value, list) else value


# -- datetime and date -------------------------------------------------------------------------------------------------


class _Real:
    """The interpreter's originals. Not module attributes, which freezegun would replace."""

    datetime: Final[Any] = _reality.unfaked(_datetime, "datetime")
    date: Final[Any] = _reality.unfaked(_datetime, "date")
    time: Final[Any] = _reality.unfaked(_time, "time")


def _parts(moment: Any, cls: Any, zone: Any = None) -> Any:
    """Return ``moment`` as an instance of ``cls``, created as the C functions do."""
    if cls is _Real.datetime and type(moment) is _Real.datetime:
        return moment.replace(tzinfo=zone)
    fold = {"fold": 1} if moment.fold else {}
    date = moment.year, moment.month, moment.day
    return cls(*date, moment.hour, moment.minute, moment.second, moment.microsecond, zone, **fold)


def _naive(moment: Any) -> Any:
    return _parts(moment, _Real.datetime)


def _bound(method: Any, cls: type) -> Any:
    return method.__get__(None, cls)


def _now(name: str, method: Any) -> Hook:
    base = method.__get__(None, _Real.datetime)

    def now(cls: Any, tz: Any = None) -> Any:
        scope = _scope()
        real = base if cls is _Real.datetime else _bound(method, cls)
        who = None if scope is None or scope.live else reader()
        if scope is None or who is None:
            return real(tz)
        if tz is None:
            value = _answer(scope, name, real if cls is _Real.datetime else lambda: _naive(real()), who)
            return value if cls is _Real.datetime else _parts(value, cls)
        if not isinstance(tz, _datetime.tzinfo):
            return real(tz)  # raises the usual error
        # Recorded in UTC, and under another name (a naive reading can't replace it): a zone is the program's own
        # object, and is applied as in the C function.
        if cls is _Real.datetime:
            value = _answer(scope, in_utc, partial(real, _UTC), who)
            return value if tz is _UTC else value.astimezone(tz)
        value = _answer(scope, in_utc, lambda: _parts(real(_UTC), _Real.datetime, _UTC), who)
        return tz.fromutc(_parts(value, cls, tz))

    in_utc = f"{name}(UTC)"
    return now


def _utcnow(name: str, now: Any, method: Any) -> Hook:
    def utcnow(cls: Any) -> Any:
        if warns:
            warnings.warn(_DEPRECATED, DeprecationWarning, stacklevel=2)
        scope = _scope()
        # From 3.12 on the C function warns, and would name this file; ``now`` reads the same instant silently.
        read = partial(_bound(now, cls), _UTC) if warns else _bound(method, cls)
        who = None if scope is None or scope.live else reader()
        if scope is None or who is None:
            value = _naive(read())
        else:
            value = _answer(scope, name, lambda: _naive(read()), who)
        return value if cls is _Real.datetime else _parts(value, cls)

    warns = now is not None and sys.version_info >= (3, 12)
    return utcnow


_DEPRECATED: Final = (
    "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. "
    "Use timezone-aware objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
)


def _today(method: Any) -> Hook:
    def today(cls: Any) -> Any:
        scope = _scope()
        who = None if scope is None or scope.live else reader()
        if scope is None or who is None:
            return _read_day(cls, method)
        if issubclass(cls, _Real.datetime):
            value = _answer(scope, "datetime.datetime.today", lambda: _naive(_read_day(cls, method)), who)
            return value if cls is _Real.datetime else _parts(value, cls)
        value = _answer(scope, "datetime.date.today", lambda: _day(_read_day(cls, method)), who)
        return value if cls is _Real.date else cls(value.year, value.month, value.day)

    return today


def _read_day(cls: Any, method: Any) -> Any:
    if _time.time is _Real.time and (cls is _Real.date or cls is _Real.datetime):
        # Like the C function, but without the hook on the clock that it looks up by name.
        return cls.fromtimestamp(_reality.time())
    return _bound(method, cls)()


def _day(date: Any) -> Any:
    return date if type(date) is _Real.date else _Real.date(date.year, date.month, date.day)


def _date_patches() -> list[ReversiblePatch]:
    try:
        now = _class_method(_Real.datetime, "now", partial(_now, "datetime.datetime.now"))
        utcnow = partial(_utcnow, "datetime.datetime.utcnow", now.genuine)
        return [now, _class_method(_Real.datetime, "utcnow", utcnow), _class_method(_Real.date, "today", _today)]
    except Unsupported as error:
        hooks.degraded.append(f"datetime and date: now, utcnow and today are not captured ({error})")
        return []


def _class_method(owner: Any, name: str, make: Callable[[Any], Hook]) -> ClassMethodExchange:
    _try_class_method(owner, name)
    return ClassMethodExchange(owner, name, make)


def _try_class_method(owner: Any, name: str) -> None:
    earlier = getattr(owner, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        marker = object()
        trial = ClassMethodExchange(
            owner, name, lambda method: marking(marker, lambda cls, *args, **kw: _bound(method, cls)(*args, **kw))
        )
        fault = works(trial, earlier, lambda: getattr(owner, name)(), marker=marker)
    if fault is not None:
        raise Unsupported(f"datetime.{owner.__name__}.{name}: {fault}")


# -- what to patch -----------------------------------------------------------------------------------------------------


def _time_patches() -> list[ReversiblePatch]:
    names = (*PLAIN, "clock_gettime", "clock_gettime_ns", *FORMATS)
    return [_time_patch(name) for name in names if hasattr(_time, name)]


def _time_patch(name: str) -> ReversiblePatch:
    function = _reality.unfaked(_time, name)
    try:
        if name in _reality.__all__:
            _reality.repoint(name, genuine(function))
        return function_patch(_time, function, lambda real, flags: _hook(name, real, flags))
    except Unsupported as error:
        hooks.degraded.append(
            f"time.{name}: only the name in its module is replaced, not references taken earlier ({error})"
        )
        flags = ONE if name.startswith("clock") else in_place.VARARGS if name in FORMATS else 0
        return AttributePatch(_time, name, in_place.plain(_hook(name, function, flags), flags))


def _hook(name: str, real: Any, flags: int) -> Hook:
    if name in FORMATS:
        return _formatting(f"time.{name}", real, FORMATS[name])
    if name in PLAIN:
        if name == "monotonic" and flags == NOARGS:
            _Monotonic.function, _Monotonic.real = _reality.unfaked(_time, name), real
        return _plain(f"time.{name}", real)
    return _of_one(f"time.{name}", real, flags)


def _loop_patches() -> list[ReversiblePatch]:
    return [CodeExchange(sys.modules["asyncio"].BaseEventLoop.time, _loop_time)]


class _Monotonic:
    """``time.monotonic``, and the function that its hook calls."""

    function: Any = None
    real: Any = None


def _loop_time(real: Any) -> Hook:
    # asyncio's own reads ``time.monotonic``: the hook on that would again determine that a loop reads it.
    monotonic = getattr(getattr(real, "__code__", None), "co_names", None) == ("time", "monotonic")

    def machine(loop: Any) -> Any:
        return _Monotonic.real() if monotonic and _time.monotonic is _Monotonic.function else real(loop)

    def read(_proxy: object, loop: Any) -> Any:
        scope = _scope()
        if scope is not None:
            clock = scope.session.state.clock
            if clock is None:
                package = None if scope.live else reader(3)  # above the function that was replaced
                if package is not None:
                    return answered(scope, package, loop)
            elif not _decides_what_is_due():
                if scope.live:
                    return clock.now("loop.time", partial(machine, loop))
                return answered(scope, reader(3), loop)
        # ``machine``, inlined: a loop asks several times in each round
        return _Monotonic.real() if monotonic and _time.monotonic is _Monotonic.function else real(loop)

    def answered(scope: Scope, package: Literal[True] | str | None, loop: Any) -> Any:
        if package is True:
            return _answer(scope, "loop.time", partial(machine, loop))
        if package is not None:
            scope = in_own_lane(scope)
        return scope.session.library_clock(scope, "loop.time", package, partial(machine, loop))

    return read


def _decides_what_is_due() -> bool:
    """Return whether a loop reads its clock to see which timers are due: they are set on the machine's clock."""
    try:
        return _getframe(3).f_code.co_name == "_run_once"
    except ValueError:  # called by C, with no Python caller
        return False


def _uvloop_patches() -> list[ReversiblePatch]:
    loop = sys.modules["uvloop"].Loop
    return [AttributePatch(loop, "time", in_place.plain(_loop_time(loop.time), 0))]


def _freezegun_patches() -> list[ReversiblePatch]:
    """Hook freezegun's fakes, which replace the functions, like the functions themselves, whether time is frozen now or
    later."""
    api = sys.modules["freezegun.api"]
    patches: list[ReversiblePatch] = []
    for name in (*PLAIN, "localtime", "gmtime", "strftime"):
        fake = getattr(api, f"fake_{name}", None)
        if fake is not None:
            patches.append(CodeExchange(fake, partial(_spread_hook, name)))
    makes: tuple[tuple[Any, str, Callable[[Any], Hook]], ...] = (
        (api.FakeDatetime, "now", partial(_now, "datetime.datetime.now")),
        (api.FakeDatetime, "utcnow", partial(_utcnow, "datetime.datetime.utcnow", None)),
        (api.FakeDatetime, "today", _today),
        (api.FakeDate, "today", _today),
    )
    for cls, name, make in makes:
        if name in vars(cls):
            patches.append(AttributePatch(cls, name, classmethod(make(vars(cls)[name]))))
    return patches


def _spread_hook(name: str, real: Any) -> Hook:
    hook = _hook(name, real, 0)
    return (lambda proxy, *args: hook(proxy, args)) if name in FORMATS else hook


def _time_machine_patches() -> list[ReversiblePatch]:
    """Hook time-machine, which patches the same C functions when a travel starts and stops: lift our hooks meanwhile,
    to stay above its own. (And while it is imported, since it reads the layout of what it finds in ``datetime``.)"""
    module = sys.modules["_time_machine"]
    return [AttributePatch(module, name, _below(getattr(module, name))) for name in ("patch", "unpatch")]


def _below(theirs: Callable[[], Any]) -> Callable[[], Any]:
    def patch() -> Any:
        with hooks.stack.lifted():
            return theirs()

    return patch


_LATER: Final[dict[str, Callable[[], list[ReversiblePatch]]]] = {
    "asyncio": _loop_patches,
    "uvloop": _uvloop_patches,
    "freezegun.api": _freezegun_patches,
    "_time_machine": _time_machine_patches,
}


@cache
def _core_patches() -> list[ReversiblePatch]:
    return [*_time_patches(), *_date_patches()]


hooks: Final = Switch(_core_patches, _LATER)
imported_within("_time_machine", hooks.stack.lifted)
