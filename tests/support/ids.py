"""Names of test cases that are the same in every process."""

from __future__ import annotations

import re
from typing import Any


def shown(value: Any) -> str:
    """``repr`` without addresses, sets in order."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(shown, value)))})"
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x", repr(value))
