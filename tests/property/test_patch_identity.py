"""Patch and restore is the identity: on modules, classes, instances, C functions and what inherits from them."""

from __future__ import annotations

import datetime
import random
import time
import types
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit._capture import clock, randomness
from tracekit._capture.in_place import CodeExchange, FunctionExchange
from tracekit._capture.patch import AttributePatch, PatchStack, ReversiblePatch

NAMES = ("own", "inherited", "absent", "static", "klass")


def world() -> tuple[list[Any], list[Any]]:
    """Fresh owners with one name of every kind, and everything whose contents must come back."""

    class Base:
        def inherited(self) -> int:
            return 1

        @staticmethod
        def static() -> int:
            return 2

        @classmethod
        def klass(cls) -> int:
            return 3

    class Child(Base):
        own = 4

    class Grandchild(Child):
        pass

    module = types.ModuleType("module")
    module.own = 5
    instance = Grandchild()
    instance.own = 6
    owners = [Base, Child, Grandchild, module, instance]
    return owners, owners


def contents(owners: list[Any]) -> list[Any]:
    return [(dict(vars(owner)), list(vars(owner))) for owner in owners]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(NAMES), st.integers()), max_size=12),
    st.lists(st.sampled_from(["lift", "again"]), max_size=3),
)
def test_attribute_patches_in_any_order(plan: list[tuple[int, str, int]], between: list[str]) -> None:
    """Any patches on any owners, applied in any order and lifted meanwhile, leave every namespace as it was."""
    owners, watched = world()
    before = [dict(vars(owner)) for owner in watched]
    patches: list[ReversiblePatch] = [AttributePatch(owners[at], name, value) for at, name, value in plan]
    stack = PatchStack()
    stack.apply(*patches)
    for step in between:
        if step == "lift":
            with stack.lifted():
                assert [dict(vars(owner)) for owner in watched] == before
        else:
            stack.apply(*patches)
    for at, name, _value in plan:
        last = [value for where, what, value in plan if (where, what) == (at, name)][-1]
        assert vars(owners[at])[name] == last
    assert stack.restore() == []
    assert [dict(vars(owner)) for owner in watched] == before


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["clock on", "clock off", "rng on", "rng off"]), max_size=14))
def test_hooks_in_any_order(steps: list[str]) -> None:
    """However often clock and rng are switched on and off, in whatever order, all that they touch comes back."""
    (
        clock.hooks.activate(),
        randomness.hooks.activate(),
        randomness.hooks.deactivate(),
        clock.hooks.deactivate(),
    )  # made and tried once
    touched = [datetime.datetime, datetime.date, time, random, random.Random, random.Random.__mro__[1]]
    functions = [time.time, time.localtime, random.random]
    before = contents(touched), [(id(f.__self__), hash(f), repr(f)) for f in functions]
    held = {"clock": 0, "rng": 0}
    parts = {"clock": clock.hooks, "rng": randomness.hooks}
    for step in steps:
        part, way = step.split()
        if way == "on":
            parts[part].activate()
            held[part] += 1
        elif held[part]:
            parts[part].deactivate()
            held[part] -= 1
    for part, count in held.items():
        for _ in range(count):
            parts[part].deactivate()
    assert (contents(touched), [(id(f.__self__), hash(f), repr(f)) for f in functions]) == before


@given(st.permutations(range(4)))
def test_exchanges_in_any_order(order: list[int]) -> None:
    """C functions and Python functions exchanged in place give back their code, their module and their values."""
    namespace: dict[str, Any] = {}
    exec("def answer(value=7, *, more=0):\n    return value + more", namespace)
    answer = namespace["answer"]
    code = answer.__code__
    patches: list[ReversiblePatch] = [
        CodeExchange(answer, lambda real: lambda _proxy, *args, **kw: -real(*args, **kw)),
        FunctionExchange(time.monotonic, lambda _proxy: "monotonic"),
        FunctionExchange(time.ctime, lambda _proxy, args: ("ctime", args)),
        FunctionExchange(time.process_time_ns, lambda _proxy: "process"),
    ]
    stack = PatchStack()
    stack.apply(*(patches[n] for n in order))
    assert (answer(), answer(1, more=2)) == (-7, -3)
    assert (time.monotonic(), time.ctime(5), time.process_time_ns()) == ("monotonic", ("ctime", (5,)), "process")
    assert stack.restore() == []
    assert answer.__code__ is code
    assert (answer(), answer(1, more=2)) == (7, 3)
    assert time.monotonic.__self__ is time
    assert isinstance(time.monotonic(), float)
