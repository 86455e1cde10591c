"""What a log says of calls that happen once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .._canonical import exception_from_json, from_json
from .._journal.entry import family_of
from .._journal.reader import Trace
from ..errors import ContractViolationError, NotReplayableError
from .duplicates import Call, Piece, Result

if TYPE_CHECKING:
    from .step import Spec

__all__ = ["LoggedCall", "calls_of"]


class LoggedCall:
    """The call under one key: its intention, its pieces, and the ``seq`` of its outcome (0: the log has none).

    ``undoing`` is the ``seq`` of a compensation of it that began and has no good end (0: there is none), ``by`` the secret under which
    the key was made, ``in_store`` whether it is one of the whole store.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.seq: Final[int] = entry["seq"]
        self.name: Final[Any] = entry.get("name")
        self.run_id: Final[str] = entry["run_id"]
        self.side_effect: Final[Any] = entry["meta"].get("side_effect")
        self.pieces: Final[list[int]] = []
        self.outcome = 0
        self.undoing = 0
        self.by: Final[Any] = entry["meta"]["info"].get("once_by")
        contract = entry["meta"].get("contract")
        self.in_store: Final = isinstance(contract, Mapping) and contract.get("exactly_once") == "store"

    @property
    def ended(self) -> bool:
        return self.outcome != 0

    def result(self, log: Trace, spec: Spec) -> Result:
        """What came of it, rebuilt; ``ContractViolationError`` where the log does not have it whole."""
        try:
            return self._result(log, spec)
        except NotReplayableError as error:
            raise self._not_given(error.what) from None

    def settled(self, said: Mapping[str, Any], spec: Spec, place: Mapping[str, Any]) -> Call | None:
        """It, as a person says of it after its run had ended; ``None`` where it was not made."""
        if not said["done"]:
            return None
        return Call.answered(place, Result(Piece(from_json(said.get("output"), spec.hint()), None, {})))

    def _result(self, log: Trace, spec: Spec) -> Result:
        pieces = tuple(self._piece(log, seq, spec) for seq in self.pieces)
        entry = log.entry(self.outcome)
        meta = entry.get("meta") or {}
        lazy = next((told["lazy"] for told in (meta, *(piece.meta for piece in pieces)) if "lazy" in told), None)
        if "error" in entry:
            return Result(None, exception_from_json(log.expand(entry["error"])), pieces, lazy)
        if meta.get("abandoned"):
            return Result(None, self._not_given("it was left before its end"), pieces, lazy)
        return Result(self._piece(log, self.outcome, spec), None, pieces, lazy)

    def _piece(self, log: Trace, seq: int, spec: Spec) -> Piece:
        entry = log.entry(seq)
        meta = entry.get("meta") or {}
        if meta.get("redacted"):
            raise self._not_given("a secret was taken out of it, which the log does not have")
        return Piece(from_json(log.expand(entry.get("output")), spec.hint()), None, meta)

    def _not_given(self, why: str) -> ContractViolationError:
        return ContractViolationError(
            f"{self.name!r} was made in run {self.run_id} at step {self.seq}, and its result can't be given again: {why}; "
            "it was not executed",
            run_id=self.run_id,
            step=self.seq,
            contract="exactly_once",
            next_action="return something that can be recorded, or use another idempotency key",
        )


def calls_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, LoggedCall]:
    """The calls of a log, by key. One that was given up, settled as not done, or undone, is none."""
    found: dict[str, LoggedCall] = {}
    begun: dict[int, tuple[str, LoggedCall]] = {}
    undoing: dict[int, tuple[str, LoggedCall]] = {}
    for entry in entries:
        role = family_of(entry["type"])
        if role is None:
            continue
        if role[1] == "intention":
            digest = _once(entry)
            if digest is not None:
                call = found[digest] = LoggedCall(entry)
                begun[call.seq] = digest, call
            undone = begun.get(_undoes(entry))
            if undone is not None:
                undoing[entry["seq"]] = undone
                undone[1].undoing = entry["seq"]
            continue
        seq, given_up = entry.get("step", 0), role[1] == "skipped" and "output" not in entry and "error" not in entry
        if seq in undoing:
            _of_undoing(found, *undoing[seq], role[1], given_up)
        if seq not in begun:
            continue
        digest, call = begun[seq]
        if role[1] == "chunk":
            call.pieces.append(entry["seq"])
        elif given_up:
            _forget(found, digest, call)
        else:
            call.outcome = entry["seq"]  # the last one counts: a person may settle what had failed
    return found


def _of_undoing(found: dict[str, LoggedCall], digest: str, call: LoggedCall, role: str, given_up: bool) -> None:
    if role == "outcome":
        _forget(found, digest, call)
    elif given_up:
        call.undoing = 0


def _forget(found: dict[str, LoggedCall], digest: str, call: LoggedCall) -> None:
    if found.get(digest) is call:
        del found[digest]


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an intention of a call that is made says; nothing where it is answered by an earlier one."""
    meta = entry.get("meta")
    info = meta.get("info") if isinstance(meta, dict) else None
    return info if isinstance(info, dict) and "duplicate_of" not in info else {}


def _undoes(entry: Mapping[str, Any]) -> int:
    of = _info(entry).get("compensates")
    return of if type(of) is int else 0


def _once(entry: Mapping[str, Any]) -> str | None:
    """The key of a call that was made, and not answered by an earlier one."""
    digest = _info(entry).get("once")
    return digest if isinstance(digest, str) else None
