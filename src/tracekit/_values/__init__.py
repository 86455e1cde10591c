"""Converts Python values to canonical JSON and back: tagged types, opaque values, fingerprints.

A value becomes a *tree* (``to_json``): JSON scalars, lists and dictionaries that orjson writes faithfully. Whatever
JSON can't express is ``{"$t": tag, "v": …}``. ``from_json`` is the inverse; it treats the tree as untrusted input.
"""

from __future__ import annotations

from .codec import (
    Decoder,
    Made,
    Structure,
    Walk,
    add_structure,
    attributes_of,
    canonical,
    dumps,
    dumps_in_order,
    exception_from_json,
    exception_to_json,
    exception_with_structure,
    fingerprint,
    fingerprint_continued,
    fingerprint_encoded,
    from_json,
    not_serialisable,
    noted,
    quick,
    refuse,
    repeated,
    shortfalls,
    snapshot,
    structure_of,
    structured,
    to_json,
    with_structure,
)
from .registry import register

__all__ = [
    "Decoder",
    "Made",
    "Structure",
    "Walk",
    "add_structure",
    "attributes_of",
    "canonical",
    "dumps",
    "dumps_in_order",
    "exception_from_json",
    "exception_to_json",
    "exception_with_structure",
    "fingerprint",
    "fingerprint_continued",
    "fingerprint_encoded",
    "from_json",
    "not_serialisable",
    "noted",
    "quick",
    "refuse",
    "register",
    "repeated",
    "shortfalls",
    "snapshot",
    "structure_of",
    "structured",
    "to_json",
    "with_structure",
]
