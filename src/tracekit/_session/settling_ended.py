"""Settling a call that happens once in the whole store after its run has ended: beside its key, since the log can't be added to."""

from __future__ import annotations

import os
from typing import Any, Final

from .._engine.doubt import Doubt, Steps
from .._engine.redaction import Redactor
from .._journal.keys import Keys, Owner
from .._journal.names import SEGMENT, SUFFIX
from .._journal.reader import Trace
from ..errors import RecoveryRefusedError
from . import reopening
from .decisions import decided, refused, store_of

__all__ = ["settle_ended"]

_NEXT: Final = "`tracekit show` shows the run as it is"


def settle_ended(path: str, step: int, tree: Any, *, done: bool, reason: str, by: str | None) -> bool:
    """Settle ``step`` of the run at ``path`` for the other runs of its store; false where this is not such a step of such a run."""
    where = store_of(path)
    with Trace(path) as trace:
        verdict = where.judge(trace)
        if verdict.state != "sealed" or not 0 < step <= verdict.count:
            return False
        entry = trace.entry(step)
        digest = _key_of(entry)
        if digest is None:
            return False

        def no(text: str) -> RecoveryRefusedError:
            about: dict[str, object] = {"code": "not_settleable", "text": text}
            return refused(decided(trace, verdict), "settling it", (about,), _NEXT)

        found = Steps(trace.entries()).steps.get(step)
        if found is None or not _open(found):
            return False
        redactor = Redactor.of_process()
        tree, secret = redactor.redact(tree)
        if secret:
            raise no(
                "this output holds a secret, which is not written down: the other runs could not be answered with it"
            )
        said = {
            "hash": entry["hash"],
            "done": done,
            **({"output": tree} if done else {}),
            **reopening.said_by(redactor, by, reason),
        }
        if not Keys(where.root).settle(digest, _owner(path, step), said):
            raise no(f"the key of step {step}, tool {found.name!r}, was settled before, or belongs to another run now")
    return True


def _key_of(entry: dict[str, Any]) -> str | None:
    """The key of a call that happens once in the whole store."""
    meta = entry.get("meta")
    info = meta.get("info") if isinstance(meta, dict) else None
    contract = meta.get("contract") if isinstance(meta, dict) else None
    if not isinstance(info, dict) or not isinstance(contract, dict) or contract.get("exactly_once") != "store":
        return None
    digest = info.get("once")
    return digest if isinstance(digest, str) and "duplicate_of" not in info else None


def _open(step: Doubt) -> bool:
    """Whether nothing says what became of it."""
    return step.state == "pending" or (step.state == "failed" and step.effect and not step.settled)


def _owner(path: str, step: int) -> Owner:
    stem = os.path.basename(path).removesuffix(SUFFIX)
    part = SEGMENT.fullmatch(stem)
    return Owner(stem, None, step) if part is None else Owner(part["run"], part["segment"], step)
