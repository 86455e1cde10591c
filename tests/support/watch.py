"""What holds for every trace that any test wrote: no secret of the environment in it, each line as the schema says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["CANARY", "NAME", "leaks", "misfits"]

#: In the environment of every test.
NAME = "SUITE_CANARY_TOKEN"
CANARY = "sk-proj-SuiteCanary8Yp2Lm5Qw9Zr3Tx7Vb1Nc"
#: So many lines of one type are looked at in one file, and so many in all.
_EACH, _ALL = 3, 4000


def leaks(base: Path) -> list[Path]:
    """The files of stores below ``base`` that hold the canary."""
    return [path for path in _files(base) if CANARY.encode() in path.read_bytes()]


def misfits(base: Path) -> list[str]:
    """What does not satisfy the schema, of traces that tracekit itself wrote and no test has damaged since."""
    import jsonschema

    from tracekit._journal import schema

    validator = jsonschema.Draft202012Validator(schema.load())
    found: list[str] = []
    for number, (path, entry) in enumerate(_sampled(base)):
        if number >= _ALL:
            break
        if not validator.is_valid(entry):
            problem = next(validator.iter_errors(entry))
            found.append(f"{path}: line {entry['seq']} ({entry['type']}): {problem.message[:300]}")
    return found


def _files(base: Path) -> Iterator[Path]:
    return (path for path in base.rglob("*.jsonl") if path.is_file())


def _sampled(base: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    from tracekit.errors import TraceError
    from tracekit.integration import Trace

    for path in _files(base):
        try:
            with Trace(path) as trace:
                if trace.status.state == "broken" or "environment" not in trace.entry(1).get("meta", {}):
                    continue
        except (TraceError, IndexError, ValueError, KeyError):
            continue
        seen: Counter[str] = Counter()
        for line in path.read_bytes().split(b"\n"):
            kind = line[line.find(b'"type":') :][:30].decode("ascii", "replace")
            seen[kind] += 1
            if line.endswith(b"}") and seen[kind] <= _EACH:
                yield path, json.loads(line)
