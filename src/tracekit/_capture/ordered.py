"""Sets of tasks that keep their order.

``asyncio.as_completed`` and ``asyncio.wait`` go through a ``set``, whose order follows the objects' addresses: which of several
equal coroutines becomes the first task, and in which order a program meets the tasks that are done, would differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._engine.scope import current

__all__ = ["InOrder", "set_of_tasks"]


class InOrder(set[Any]):
    """A set that is iterated in the order in which its elements were added."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._order: dict[Any, None] = dict.fromkeys(elements)
        super().__init__(self._order)

    def add(self, element: Any) -> None:
        self._order.setdefault(element)
        super().add(element)

    def __iter__(self) -> Iterator[Any]:
        if len(self._order) != len(self) or not self._order.keys() >= set(super().__iter__()):
            self._order = dict.fromkeys([x for x in self._order if x in self] + list(super().__iter__()))
        return iter(list(self._order))

    def pop(self) -> Any:
        for element in self:
            self.remove(element)
            del self._order[element]
            return element
        raise KeyError("pop from an empty set")

    def __reduce__(self) -> Any:
        return set, (list(self),)

    def __repr__(self) -> str:
        return repr(set(super().__iter__()))


def set_of_tasks(*elements: Iterable[Any]) -> set[Any]:
    """What ``set`` is in ``asyncio.tasks``: in order inside a run."""
    return set(*elements) if current.get() is None else InOrder(*elements)
