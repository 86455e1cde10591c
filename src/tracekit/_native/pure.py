"""In Python, each function of ``tracekit._native``: what an installation without a compiler has, and what those in C are held to."""

from __future__ import annotations

from typing import Any

__all__ = ["plain"]

# -- values ------------------------------------------------------------------------------------------------------------


def plain(value: dict[str, Any] | list[Any], levels: int, width: int) -> bool:
    """Whether orjson writes a dictionary or list of JSON's own kinds faithfully as it is.

    It has at most so many ``levels`` of containers, and none but the first has more than ``width`` of them. Level by level: cycles
    and depth end there.
    """
    level: list[Any] = [value]
    left = levels - 1
    try:
        while True:
            below: list[Any] = []
            for node in level:
                if type(node) is dict:
                    for key in node:
                        if type(key) is not str or "$" in key or not key.isascii():
                            return False
                    node = node.values()
                for leaf in node:
                    kind = type(leaf)
                    if kind is str:
                        if not leaf.isascii() and not _encodable(leaf):
                            return False
                    elif kind is int:
                        if not -9223372036854775808 <= leaf <= 18446744073709551615:
                            return False
                    elif kind is dict or kind is list:
                        below.append(leaf)
                    elif leaf is not None and kind is not bool and (kind is not float or leaf - leaf != 0.0):
                        return False
            if not below:
                return True
            left -= 1
            if left < 0 or len(below) > width:
                return False
            level = below
    except RuntimeError:  # changed by another thread meanwhile
        return False


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
