"""How many examples a property looks at: enough for each run of the suite, or as many as are worth waiting for.

``SUITE_DEEP=1`` in the environment asks for the second.
"""

from __future__ import annotations

import os

__all__ = ["examples"]

_SHARE = 1 if os.environ.get("SUITE_DEEP") else 4


def examples(deep: int) -> int:
    """``deep`` examples where the suite is to look deep, a quarter of them else."""
    return deep // _SHARE
