"""Patches: they restore exactly what they found, in reverse order, and never take away somebody else's."""

from __future__ import annotations

import queue
import sys
import threading
import types
from collections.abc import Callable

import pytest

from tracekit import record
from tracekit._capture.patch import AtRestore, AttributePatch, LatePatch, Patch, PatchStack, ReversiblePatch, Switch


class Base:
    def greet(self) -> str:
        return "base"


class Child(Base):
    pass


@pytest.mark.parametrize("name", ["put", "get", "qsize", "_put"])
def test_what_is_replaced_in_a_class_keeps_its_names(name: str) -> None:
    """A decorator, a profiler or a log of the program's own sees the names that the method has without a run."""
    before = vars(queue.Queue)[name]
    with record("job"):
        during = vars(queue.Queue)[name]
        assert during is not before
        for about in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(during, about) == getattr(before, about)


def test_an_inherited_method_is_nothing_there() -> None:
    """Patching an inherited method leaves no trace of it on the subclass."""
    patch = AttributePatch(Child, "greet", lambda self: "patched")
    patch.apply()
    assert Child().greet() == "patched"
    assert Base().greet() == "base"
    assert patch.restore()
    assert "greet" not in vars(Child)


def test_a_class_method_comes_back_raw() -> None:
    """A class method or static method is put back as the object in the class, not as what looking it up gives."""

    class Owner:
        @classmethod
        def made(cls) -> str:
            return cls.__name__

    raw = vars(Owner)["made"]
    patch = AttributePatch(Owner, "made", classmethod(lambda cls: "patched"))
    patch.apply()
    patch.restore()
    assert vars(Owner)["made"] is raw


def test_applying_and_restoring_twice_changes_nothing() -> None:
    """Both are idempotent: the original is never lost to a second apply."""
    module = types.ModuleType("module")
    module.value = 1
    patch = AttributePatch(module, "value", 2)
    patch.apply()
    patch.apply()
    assert patch.restore()
    assert patch.restore()
    assert module.value == 1


def test_somebody_elses_patch_on_top_stays() -> None:
    """Where another tool has patched the same place since, its patch is left, and the target is named."""
    module = types.ModuleType("module")
    module.value = 1
    stack = PatchStack()
    stack.apply(AttributePatch(module, "value", 2))
    module.value = 3
    assert stack.restore() == ["module.value"]
    assert module.value == 3


def test_a_stack_restores_in_reverse_order() -> None:
    """Two patches of one place, applied in order, give back what was there before the first."""
    module = types.ModuleType("module")
    stack = PatchStack()
    stack.apply(AttributePatch(module, "value", 1), AttributePatch(module, "value", 2))
    assert module.value == 2
    assert stack.restore() == []
    assert not hasattr(module, "value")


def test_a_failing_patch_takes_those_before_it_back() -> None:
    """A stack applies all of its patches or none."""

    class Complete:
        __slots__ = ()

    module = types.ModuleType("module")
    stack = PatchStack()
    with pytest.raises(AttributeError):
        stack.apply(AttributePatch(module, "value", 1), AttributePatch(Complete(), "value", 1))
    assert not hasattr(module, "value")
    assert len(stack) == 0


def test_patches_are_lifted_for_another_patcher() -> None:
    """Inside ``lifted()`` the bare functions are seen, and a patch made there ends up below ours."""
    module = types.ModuleType("module")
    module.value = "bare"
    stack = PatchStack()
    stack.apply(AttributePatch(module, "value", "ours"))
    with stack.lifted():
        assert module.value == "bare"
        module.value = "theirs"
    assert module.value == "ours"
    stack.restore()
    assert module.value == "theirs"


def test_a_switch_counts_its_holders() -> None:
    """The first holder applies, the last one restores, from whatever threads; one ``off`` too many does nothing."""
    module = types.ModuleType("module")
    patch = AttributePatch(module, "value", 1)
    switch = Switch(lambda: [patch])
    threads = [threading.Thread(target=switch.activate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(7):
        switch.deactivate()
        assert module.value == 1
    switch.deactivate()
    assert not hasattr(module, "value")
    switch.deactivate()
    assert not switch.active


def test_a_switch_asks_for_its_patches_again_when_a_module_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """While none has been imported, the patches are those of the first time; one that comes, or comes again, is patched."""
    name = "tracekit_test_module"
    asked: list[object] = []

    def patches() -> list[ReversiblePatch]:
        module = sys.modules.get(name)
        asked.append(module)
        return [] if module is None else [switch.once(module, "value", lambda bare: f"ours for {bare}")]

    switch = Switch(patches, (name,))
    switch.activate()
    switch.deactivate()
    for value in ("one", "two"):
        module = types.ModuleType(name)
        module.value = value  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        for _ in range(2):
            switch.activate()
            assert module.value == f"ours for {value}"
            switch.deactivate()
            assert module.value == value
    assert len(asked) == 3


def test_a_switch_takes_a_table_of_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table, those patches apply whose module is loaded and has the attribute; the others are left out."""
    name = "tracekit_test_module"
    switch = Switch(
        (
            Patch(name, "Client.send", lambda bare: f"ours for {bare}"),
            Patch(name, "Client.sent", lambda bare: 1 / 0),
            Patch(name, "Server.__init__", lambda bare: 1 / 0),
            Patch("tracekit_test_no_module", "value", lambda bare: 1 / 0),
        )
    )
    switch.activate()
    switch.deactivate()
    module = types.ModuleType(name)
    module.Client = types.SimpleNamespace(send="theirs")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    switch.activate()
    assert vars(module.Client) == {"send": "ours for theirs"}
    switch.deactivate()
    assert vars(module.Client) == {"send": "theirs"}


def test_further_patches_of_a_switch_stay_until_it_is_released() -> None:
    """They come while somebody holds it, and go with the others; what is to be done then is done once."""
    module = types.ModuleType("module")
    patch, restored = AttributePatch(module, "value", 1), []
    switch = Switch(lambda: [AtRestore("module", lambda: restored.append(hasattr(module, "value")))])
    switch.extend(lambda: [patch])
    assert not hasattr(module, "value")
    assert not switch.extended
    switch.activate()
    switch.activate()
    for _ in range(2):
        switch.extend(lambda: [patch])
    switch.deactivate()
    assert module.value == 1
    assert switch.extended
    switch.deactivate()
    assert restored == [False]
    assert not switch.extended


def test_what_is_made_of_a_function_is_kept_for_the_next_time() -> None:
    """A hook that is made of what it finds is made once of each: put on and taken off a thousand times, it is the same; where somebody
    else's function stands by then, it is made of that."""
    module = types.ModuleType("module")
    made: list[object] = []

    def first() -> str:
        return "first"

    def other() -> str:
        return "other"

    def make(found: Callable[[], str]) -> Callable[[], str]:
        made.append(found)
        return lambda: f"hook of {found()}"

    module.function = first
    patch = LatePatch(module, "function", make)
    said = []
    for found in (first, first, other, first):
        module.function = found
        patch.apply()
        said.append(module.function())
        assert patch.restore()
        assert module.function is found
    assert said == ["hook of first", "hook of first", "hook of other", "hook of first"]
    assert made == [first, other, first]
