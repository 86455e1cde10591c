"""Schedulers of tasks and greenlets other than asyncio: how they are started, and how code that runs in one is
recognised."""

from __future__ import annotations

import sys
from typing import Any

from tracekit.integration import Scheduler

__all__ = ["SCHEDULERS"]


def _module(name: str) -> Any:
    """Return a module of the scheduler, which the program has imported."""
    return sys.modules.get(name)


def _in_trio() -> bool:
    lowlevel = _module("trio.lowlevel")
    return lowlevel is not None and bool(lowlevel.in_trio_run())


def _in_gevent() -> bool:
    """Return whether the code runs in a greenlet: patched threads do; the main greenlet of an unpatched process is a
    normal thread."""
    gevent, monkey = _module("gevent"), _module("gevent.monkey")
    patched = monkey is not None and (monkey.is_module_patched("threading") or monkey.is_module_patched("_thread"))
    return patched or isinstance(gevent.getcurrent(), gevent.Greenlet)


def _in_eventlet() -> bool:
    patcher, greenthread = _module("eventlet.patcher"), _module("eventlet.greenthread")
    patched = patcher is not None and patcher.is_monkey_patched("thread")
    return patched or (greenthread is not None and isinstance(greenthread.getcurrent(), greenthread.GreenThread))


def _instead(unpatched: str) -> str:
    return f"{unpatched}, or call what needs it inside a traced tool, which a replay answers as a whole"


SCHEDULERS = (
    Scheduler(
        "trio",
        ["trio:run", "trio.lowlevel:start_guest_run"],
        _in_trio,
        _instead("run it on asyncio (with anyio: backend='asyncio')"),
    ),
    Scheduler(
        "gevent",
        [
            "gevent:Greenlet.start",
            "gevent:Greenlet.start_later",
            "gevent:spawn_raw",
            "gevent.monkey:patch_all",
            "gevent.monkey:patch_thread",
        ],
        _in_gevent,
        _instead("record with threads or asyncio, in a process in which gevent has not patched them"),
    ),
    Scheduler(
        "eventlet",
        [
            "eventlet.greenthread:spawn",
            "eventlet.greenthread:_spawn_n",
            "eventlet.greenthread:spawn_after",
            "eventlet.greenthread:spawn_after_local",
            "eventlet.patcher:monkey_patch",
        ],
        _in_eventlet,
        _instead("record with threads or asyncio, in a process in which eventlet has not patched them"),
    ),
)
