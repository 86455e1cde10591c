"""What other runs, and other processes of the same run, say of a call that happens once: asked of their logs, and waited for."""

from __future__ import annotations

import os
from asyncio import sleep
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._journal.keys import Keys, Owner
from .._journal.lock import live_writer
from .._journal.names import SEGMENT, SUFFIX, valid_run_id
from .._journal.reader import Trace
from ..errors import ContractViolationError, LogWriteError, TraceError
from .duplicates import Call
from .logged import LoggedCall, calls_of
from .scope import current
from .step import Spec

if TYPE_CHECKING:
    from .recording import Recording

__all__ = ["Awaited", "Elsewhere", "place_of"]

#: How long a call of another process is waited for where it has no limit of its own (s), and one that is about to begin.
PATIENCE: Final = 60.0
_ABOUT_TO: Final = 1.0
#: The pause between two looks at its log, to begin with and at most; and how many times as long as a look it is at least.
_FIRST: Final = 0.005
_LONGEST: Final = 0.25
_APART: Final = 4


class Elsewhere:
    """The keys of the store as ``me``, whose recording is ``session``, finds them; ``runs`` is where the logs are."""

    def __init__(self, session: Recording, runs: str, keys: Keys, me: Owner) -> None:
        self._session: Final = session
        self._runs: Final = runs
        self._keys: Final = keys
        self._me: Final = me

    def ask(self, file: str, digest: str, spec: Spec) -> Call | None:
        """What another run, or process of this one, says of the key; ``None`` if it is ours now, its ``file`` on the device."""
        until = _reality.monotonic() + _ABOUT_TO
        while True:
            has = self._keys.claim(file, *self._me[:2])
            if has is None or has[:2] == self._me[:2]:
                return None
            begins = has.seq == 0 and _reality.monotonic() < until  # between its key and its intention
            try:
                # As long as nobody writes there and nobody can begin to, what the log says stays true.
                with live_writer(self.log_of(has)) as writing:
                    known = self.asked(digest, has, spec, writing)
                    if known is not None or (not writing and self._keys.take_over(file, has, *self._me[:2])):
                        return known
                if writing and not begins:
                    raise self._refused(
                        has, 0, "is about to make this call, or may make it again", "wait until that run has ended"
                    )
            except LogWriteError:
                raise
            except (TraceError, OSError) as error:
                if not (begins and isinstance(error, FileNotFoundError)):
                    raise self._unsure(has, getattr(error, "what", str(error))) from error
            _reality.sleep(_FIRST)

    def log_of(self, has: Owner) -> str:
        right = valid_run_id(has.run_id) and (has.segment is None or SEGMENT.fullmatch(f"x.{has.segment}"))
        if not right:
            raise self._unsure(has, "its name is none of a run")
        return os.path.join(self._runs, has.run_id + (f".{has.segment}" if has.segment else "") + SUFFIX)

    def asked(self, digest: str, has: Owner, spec: Spec, writing: bool) -> Call | None:
        """What the log of ``has`` says; ``None`` where it did not make the call, and will not unless it is ``writing``."""
        with Trace(self.log_of(has)) as log:
            status = log.check()
            call = calls_of(islice(log.entries(), status.count)).get(digest)  # whoever writes it may have added some
            if call is not None and call.undoing:
                what = f"has undone this call, or not: its compensation (step {call.undoing}) has no certain end"
                raise self._refused(
                    has, call.seq, what, "find out what was done; another idempotency key makes another call"
                )
            if call is not None and not writing:
                said = self._keys.settled(digest, Owner(has.run_id, has.segment, call.seq))
                if said is not None and said.get("hash") == log.entry(call.seq)["hash"]:
                    return call.settled(said, spec, place_of(has, call.seq))
            if call is not None and call.ended:
                return Call.answered(place_of(has, call.seq), call.result(log, spec))
        if writing:
            return None if call is None else Awaited(self, digest, has, call.seq)
        if call is not None:
            raise self._in_doubt(has, call)
        if status.count < has.seq:
            raise self._unsure(has, f"its log ends before step {has.seq}, where it began the call")
        return None

    # -- refusals --------------------------------------------------------------------------------------------------------

    def _in_doubt(self, has: Owner, call: LoggedCall) -> ContractViolationError:
        run = has.run_id if has.segment is None else f"{has.run_id}.{has.segment}"
        settle = f"`tracekit recovery settle {run} {call.seq} --done OUTPUT.json | --not-done --reason TEXT`"
        what = "began this call, and its log does not say whether it was made"
        return self._refused(has, call.seq, what, f"find out what was done, and say so with {settle}")

    def too_long(self, has: Owner, seq: int, waited: float) -> ContractViolationError:
        what = f"is making this call, and was waited for for {waited:g} s"
        return self._refused(has, seq, what, "wait until that call has ended, or give the tool a larger timeout_ms")

    def given_up(self, has: Owner, seq: int) -> ContractViolationError:
        return self._refused(has, seq, "has given up this call, or undone it", "call it again")

    def _refused(self, has: Owner, seq: int, what: str, next_action: str) -> ContractViolationError:
        where = f" (step {seq})" if seq else ""
        same = has.run_id == self._session.run_id
        return ContractViolationError(
            f"{'another process of this run' if same else f'run {has.told}'} {what}{where}: "
            f"exactly once in the whole {'run' if same else 'store'}, so it was not executed here",
            run_id=self._session.run_id,
            other_run=has.run_id,
            other_step=seq or None,
            contract="exactly_once",
            next_action=next_action,
        )

    def _unsure(self, has: Owner, why: str) -> ContractViolationError:
        return ContractViolationError(
            f"this call belongs to run {has.told}, of which it can't be told whether it was made ({why}); it was not executed",
            run_id=self._session.run_id,
            other_run=has.run_id,
            contract="exactly_once",
            next_action="bring that run's file back, or find out what was done and remove its key file from the store's `keys`",
        )


class Awaited(Call):
    """A call that another process is making. Whoever waits looks at that one's log, now and then.

    ``inherited`` is one that the parent of a forked process is making: it has no key file, so nobody else may ever make it here.
    """

    def __init__(self, elsewhere: Elsewhere, digest: str, has: Owner, seq: int, *, inherited: bool = False) -> None:
        super().__init__(None, 0, 0)
        self.of = place_of(has, seq)
        self._elsewhere: Final = elsewhere
        self._digest: Final = digest
        self._has: Final = has
        self._step: Final = seq
        self._inherited: Final = inherited
        self._size = -1
        self._is_open.release()

    def wait(self, spec: Spec) -> None:
        for pause in self._looks(spec):
            _reality.sleep(pause)

    async def wait_async(self, spec: Spec) -> bool:
        ran = False
        for pause in self._looks(spec):
            token = current.set(None)  # the sleep itself is none of the run's own
            try:
                ran = True
                await sleep(pause)
            finally:
                current.reset(token)
        return ran

    def _looks(self, spec: Spec) -> Iterator[float]:
        """How long to wait until the next look, until it has ended; ``ContractViolationError`` where it will not in time."""
        patience = _patience(spec)
        began, pause = _reality.monotonic(), _FIRST
        while self.pending:
            looked = _reality.monotonic()
            if self._ended(spec):
                return
            now = _reality.monotonic()
            if now - began >= patience:
                raise self._elsewhere.too_long(self._has, self._step, patience)
            yield min(max(pause, _APART * (now - looked)), began + patience - now)
            pause = min(2 * pause, _LONGEST)

    def _ended(self, spec: Spec) -> bool:
        if self.doubt is not None:
            raise self.doubt.fresh()
        try:
            self._ask(spec)
            return not self.pending
        except ContractViolationError as error:
            if self._inherited:
                self.doubt = error
            self.stale = not self._inherited
            raise

    def _ask(self, spec: Spec) -> None:
        path = self._elsewhere.log_of(self._has)
        with live_writer(path) as writing:
            size = os.stat(path).st_size
            if writing and size == self._size:
                return
            try:
                known = self._elsewhere.asked(self._digest, self._has, spec, writing)
            except (TraceError, OSError) as error:
                if writing:  # in the middle of a line
                    return
                raise self._elsewhere._unsure(self._has, getattr(error, "what", str(error))) from error
            self._size = size
        if known is None:
            raise self._elsewhere.given_up(self._has, self._step)
        if not known.pending:
            self.end(known.result(spec))


def _patience(spec: Spec) -> float:
    contract = spec.signature.get("contract")
    limit = contract.get("timeout_ms") if isinstance(contract, Mapping) else None
    return PATIENCE if limit is None else limit / 1000


def place_of(has: Owner, seq: int) -> dict[str, Any]:
    place: dict[str, Any] = {"run_id": has.run_id, "seq": seq}
    if has.segment is not None:
        place["segment"] = has.segment
    return place
