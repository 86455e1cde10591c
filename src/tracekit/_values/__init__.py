"""Converts Python values to canonical JSON and back: tagged types, opaque values, fingerprints.

A value becomes a *tree* (``to_json``): JSON scalars, lists and dictionaries that orjson writes faithfully. Whatever
JSON can't express is ``{"$t": tag, "v": …}``. ``from_json`` is the inverse; it treats the tree as untrusted input.
"""

from __future__ import annotations

from .._lazy import later
from .codec import (
    Made,
    Structure,
    Walk,
    add_structure,
    attributes_of,
    canonical,
    dumps,
    dumps_in_order,
    exception_text,
    exception_to_json,
    exception_with_structure,
    fingerprint,
    not_serialisable,
    noted,
    quick,
    repeated,
    snapshot,
    structure_of,
    to_json,
    with_structure,
    without_order,
)
from .registry import register

__all__ = [
    "Made",
    "Structure",
    "Walk",
    "add_structure",
    "attributes_of",
    "canonical",
    "dumps",
    "dumps_in_order",
    "exception_text",
    "exception_to_json",
    "exception_with_structure",
    "fingerprint",
    "not_serialisable",
    "noted",
    "quick",
    "register",
    "repeated",
    "snapshot",
    "structure_of",
    "to_json",
    "with_structure",
    "without_order",
]

later(globals(), "decoding")
