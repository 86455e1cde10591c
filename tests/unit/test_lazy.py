"""What is made when it is first used behaves as if it had been there from the beginning."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python
from tracekit import _lazy


class Plain(typing.NamedTuple):
    """A point."""

    x: int
    y: str = "up"

    def both(self) -> str:
        return f"{self.x}{self.y}"


class Made(_lazy.NamedTuple):
    """A point."""

    x: int
    y: str = "up"

    def both(self) -> str:
        return f"{self.x}{self.y}"


class Below(Made):
    """Of a class of them."""


def _outcome(do: Callable[[Any], Any], kind: Any) -> Any:
    try:
        return repr(do(kind)).replace("Plain", "Made")
    except Exception as error:
        return str(error).replace("Plain", "Made")


WAYS: list[Callable[[Any], Any]] = [
    lambda kind: kind(1),
    lambda kind: kind(1, "down"),
    lambda kind: kind(y="down", x=1),
    lambda kind: kind(),
    lambda kind: kind(1, 2, 3),
    lambda kind: kind(1, z=3),
    lambda kind: (kind(1).x, kind(1).y, kind(1)[1], [*kind(1)], len(kind(1)), kind(1).both()),
    lambda kind: kind(1) == (1, "up") and hash(kind(1)) == hash((1, "up")) and kind(1) < (2,),
    lambda kind: tuple.__new__(kind, (1, "a"))._replace(y="b"),
    lambda kind: kind(1)._replace(z=1),
    lambda kind: kind._make([1, "b"]),
    lambda kind: kind._make([1]),
    lambda kind: kind(1)._asdict(),
    lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, typing.get_type_hints(kind), kind.__doc__),
    lambda kind: (kind.__mro__[-2:], kind.__name__, kind.__module__, type(kind), kind.__slots__),
    lambda kind: (pickle.loads(pickle.dumps(kind(1))), copy.copy(kind(1)), copy.deepcopy(kind(1))),
    lambda kind: setattr(kind(1), "x", 2),
    lambda kind: setattr(kind(1), "z", 2),
    lambda kind: kind(1).__getnewargs__(),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_named_tuple_is_one_of_python(way: int) -> None:
    """Made, printed, compared, copied, pickled and misused as ``typing.NamedTuple`` is."""
    assert _outcome(WAYS[way], Made) == _outcome(WAYS[way], Plain)


def test_a_class_of_a_named_tuple_is_made_like_it() -> None:
    """Also before the first object of the one that it comes from."""
    code = (
        "from __future__ import annotations\nfrom tracekit._lazy import NamedTuple\n"
        "class A(NamedTuple):\n    x: int\n    y: int = 2\nclass B(A): pass\n"
        "print(B(1), A(1), type(B(1)).__name__, B(3)._replace(x=4), type(B(3)._replace(x=4)).__name__)"
    )
    assert python("-c", code).stdout == "B(x=1, y=2) A(x=1, y=2) B B(x=4, y=2) B\n"
    assert Below(1).both() == "1up"


def test_a_module_is_imported_when_one_of_its_names_is_first_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``from package import module`` gives a stand-in, which reads, sets and deletes as the module does. A module that has
    used it has the real one from then on."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "user.py").write_text("from . import there\n\ndef value(): return there.value\n")
    (tmp_path / "late" / "__init__.py").write_text("from tracekit._lazy import later\nlater(globals(), 'there')\n")
    (tmp_path / "late" / "there.py").write_text("value = 1\n")
    monkeypatch.setattr(_lazy, "_modules", [])
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("late")
    there = late.there
    try:
        user = importlib.import_module("late.user")
        assert (there.__name__, _lazy.imported(there), user.there is there) == ("late.there", False, True)
        assert there.value == user.value() == 1
        assert _lazy.imported(there)
        there.value = 2
        assert late.there is user.there is sys.modules["late.there"]
        assert (late.there.value, there.value, user.value()) == (2, 2, 2)
        del there.value
        with pytest.raises(AttributeError, match="value"):
            _ = there.value
    finally:
        for name in ("late.user", "late.there", "late"):
            sys.modules.pop(name, None)
