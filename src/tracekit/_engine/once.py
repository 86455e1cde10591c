"""Calls that happen once: the keys of ``exactly_once`` in one recording.

The first call under a key is made; every later one is a *duplicate*: it is on the log with its own intention, is not made, and is
answered with what came of the first (``tool.skipped``). With ``exactly_once="store"`` the first one has its key file on the
device before its intention is on the log, and runs that find that file ask its owner's log what came of it.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .._journal.keys import Keys, Owner
from .._journal.lock import live_writer
from .._journal.names import SEGMENT, SUFFIX, valid_run_id
from .._journal.reader import Trace
from ..errors import ContractViolationError, LogWriteError, TraceError
from .duplicates import Call, DuplicateStep, FirstStep
from .gate import owner
from .logged import LoggedCall, calls_of
from .scope import Scope
from .step import Spec

if TYPE_CHECKING:
    from .recording import Recording

__all__ = ["Once"]


class Once:
    """The keys of one recording. ``past`` is the log that it goes on from, where there is one.

    ``shared`` says that other processes write parts of the same run: then each of its keys has a key file.
    """

    def __init__(self, session: Recording, past: Trace | None = None) -> None:
        self.session: Final = session
        journal = session.journal
        runs, name = os.path.split(os.path.abspath(journal.path))
        part = SEGMENT.fullmatch(name.removesuffix(SUFFIX))
        self._me: Final = Owner(session.run_id, None if part is None else part["segment"])
        self._runs: Final = runs
        self._keys: Final = Keys(os.path.dirname(runs), sync=journal.durability != "none")
        self._lock: Final = threading.RLock()  # a signal handler may call a tool, too
        self._calls: Final[dict[str, Call]] = {}
        self.shared = past is not None and _has_segments(runs, session.run_id)
        if past is not None:
            for digest, call in calls_of(past.entries()).items():
                known = self._recorded(call, past)
                if known is not None:
                    self._calls[digest] = known

    @classmethod
    def of_log(cls, session: Recording, past: Trace) -> Once:
        """The keys of a run that goes on where ``past``, which must stay open, ends."""
        return cls(session, past)

    def forked(self, session: Recording) -> None:
        """In a forked child, whose own recording is ``session``: it has the keys that its parent had."""
        child = session._once = Once(session)
        child.shared = True
        child._calls.update({digest: self._inherited(call) for digest, call in self._calls.items()})

    def _inherited(self, call: Call) -> Call:
        if call.pending and call.doubt is None:
            doubt = ContractViolationError(
                f"the process that this one was forked from is making this call (step {call.seq}); it was not executed here",
                run_id=self.session.run_id,
                step=call.seq or None,
                contract="exactly_once",
                next_action="fork when the call has ended",
            )
            return Call.doubtful(doubt)
        if type(call.of) is int and call.doubt is None:
            call.of = self._place(self._me, call.of)
        return call

    # -- the door --------------------------------------------------------------------------------------------------------

    def begin(
        self,
        scope: Scope,
        spec: Spec,
        input: object,
        info: Mapping[str, Any] | None,
        key: object,
        data: bytes | None,
        material: bytes,
    ) -> FirstStep | DuplicateStep:
        """The live step of the first call under a key, or one that the first one answers.

        ``LogWriteError`` where it can't be known or written that it is the first; ``ContractViolationError``, which is on the log then,
        where it can neither be made nor answered.
        """
        digest = self._keys.digest(spec.name.encode("utf-8", "surrogatepass"), material)
        about = {**(info or {}), "once": digest}
        try:
            while True:
                call, first = self._enter(digest, scope)
                if first:
                    step = self._first(call, digest, scope, spec, input, about, key, data)
                    if step is not None:
                        return step
                elif call.opened():
                    return self._duplicate(call, scope, spec, input, about, key, data)
        except ContractViolationError as error:
            raise self.session.refuse(scope, spec, input, error) from None

    def _enter(self, digest: str, scope: Scope) -> tuple[Call, bool]:
        """The call that has the key, and whether that is this one."""
        with self._lock:
            call = self._calls.get(digest)
            if call is None:
                call = self._calls[digest] = Call(scope.lane, owner(), get_ident())
                return call, True
            return call, False

    def _first(
        self,
        call: Call,
        digest: str,
        scope: Scope,
        spec: Spec,
        input: object,
        about: Mapping[str, Any],
        key: object,
        data: bytes | None,
    ) -> FirstStep | None:
        """Make the call. ``None``: another run has made it, and answers from now on."""
        everywhere = _in_store(spec)
        file = digest if everywhere or not self.shared else self._keys.digest(self._me.run_id.encode(), digest.encode())
        everywhere = everywhere or self.shared
        try:
            if everywhere:
                known = self._elsewhere(file, digest, spec)
                if known is not None:
                    self._put(digest, call, known)
                    return None
            seq = self.session.intend(scope, spec, input, about, key, data, sync=spec.effect or everywhere)
        except BaseException as error:
            self._put(digest, call, None)
            if everywhere and isinstance(error, LogWriteError):
                self._keys.release(file, *self._me[:2])
            raise
        if everywhere:
            self._keys.used(file, seq)
        call.made(seq)
        return FirstStep(self.session, scope, spec, seq, call)

    def _put(self, digest: str, call: Call, instead: Call | None) -> None:
        with self._lock:
            if instead is None:
                del self._calls[digest]
            else:
                self._calls[digest] = instead
        call.not_made()

    def _duplicate(
        self,
        call: Call,
        scope: Scope,
        spec: Spec,
        input: object,
        about: Mapping[str, Any],
        key: object,
        data: bytes | None,
    ) -> DuplicateStep:
        if call.doubt is not None:
            raise call.doubt.fresh()
        if call.pending and (call.owner == owner() or call.encloses(scope.lane)):
            raise self._inside_itself(call, spec)
        seq = self.session.intend(scope, spec, input, {**about, "duplicate_of": call.of}, key, data, sync=False)
        return DuplicateStep(self, scope, spec, seq, call)

    def _inside_itself(self, call: Call, spec: Spec) -> ContractViolationError:
        return ContractViolationError(
            f"{spec.name!r} was called again under the key of a call that has not ended (step {call.of}), by that call's own code; "
            "it was not executed, and waiting for the first one would never end",
            run_id=self.session.run_id,
            step=call.seq or None,
            contract="exactly_once",
            next_action="let the tool not call itself with the same input, or give the two calls different idempotency keys",
        )

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def may_wait(self, step: DuplicateStep, *, blocking: bool) -> None:
        """Let ``step`` wait for its call; ``ContractViolationError`` where that call could never end then."""
        call = step.call
        with self._lock:
            if not call.pending:
                return
            stuck = blocking and call.thread == get_ident()
            around = [one for one in self._calls.values() if one.pending and one.encloses(step.scope.lane)]
            if stuck or call in around or any(one in call.waits_for() for one in around):
                raise self._inside_itself(call, step.spec)
            for one in around:
                one.waiting.append(call)

    def waited(self, step: DuplicateStep) -> None:
        with self._lock:
            for one in self._calls.values():
                if step.call in one.waiting and one.encloses(step.scope.lane):
                    one.waiting.remove(step.call)

    # -- other runs ------------------------------------------------------------------------------------------------------

    def _elsewhere(self, file: str, digest: str, spec: Spec) -> Call | None:
        """What another run, or process of this one, says of the key; ``None`` if it is ours now, its ``file`` on the device."""
        while True:
            has = self._keys.claim(file, *self._me[:2])
            if has is None or has[:2] == self._me[:2]:
                return None
            try:
                # As long as nobody writes there and nobody can begin to, what the log says stays true.
                with live_writer(self._log_of(has)) as writing:
                    known = self._asked(digest, has, spec, writing)
                    if known is not None or self._keys.take_over(file, has, *self._me[:2]):
                        return known
            except LogWriteError:
                raise
            except (TraceError, OSError) as error:
                raise self._unsure(has, getattr(error, "what", str(error))) from error

    def _log_of(self, has: Owner) -> str:
        right = valid_run_id(has.run_id) and (has.segment is None or SEGMENT.fullmatch(f"x.{has.segment}"))
        if not right:
            raise self._unsure(has, "its name is none of a run")
        return os.path.join(self._runs, has.run_id + (f".{has.segment}" if has.segment else "") + SUFFIX)

    def _asked(self, digest: str, has: Owner, spec: Spec, writing: bool) -> Call | None:
        """What the log of ``has`` says; ``None`` where it never made the call, and never will."""
        with Trace(self._log_of(has)) as log:
            status = log.check()
            call = calls_of(log.entries()).get(digest)
            if call is not None and call.ended:
                return Call.answered(self._place(has, call.seq), call.result(log, spec))
        if writing:
            raise self._refused(has, call, "is making this call, or is about to", "wait until that run has ended")
        if call is not None:
            settle = f"`tracekit recovery settle {has.run_id} {call.seq}`"
            what = "began this call, and its log does not say whether it was made"
            raise self._refused(has, call, what, f"find out what was done, say so with {settle}, then resume that run")
        if status.count < has.seq:
            raise self._unsure(has, f"its log ends before step {has.seq}, where it began the call")
        return None

    @staticmethod
    def _place(has: Owner, seq: int) -> dict[str, Any]:
        place: dict[str, Any] = {"run_id": has.run_id, "seq": seq}
        if has.segment is not None:
            place["segment"] = has.segment
        return place

    def _refused(self, has: Owner, call: LoggedCall | None, what: str, next_action: str) -> ContractViolationError:
        where = "" if call is None else f" (step {call.seq})"
        return ContractViolationError(
            f"run {has.told} {what}{where}: exactly once in the whole store, so it was not executed here",
            run_id=self.session.run_id,
            other_run=has.run_id,
            other_step=None if call is None else call.seq,
            contract="exactly_once",
            next_action=next_action,
        )

    def _unsure(self, has: Owner, why: str) -> ContractViolationError:
        return ContractViolationError(
            f"this call belongs to run {has.told}, of which it can't be told whether it was made ({why}); it was not executed",
            run_id=self.session.run_id,
            other_run=has.run_id,
            contract="exactly_once",
            next_action="bring that run's file back, or find out what was done and remove its key file from the store's `keys`",
        )

    # -- the log that a resumed run goes on from -------------------------------------------------------------------------

    def _recorded(self, call: LoggedCall, past: Trace) -> Call | None:
        """What the log says of a key; ``None`` where the call may be made (again)."""
        if call.ended:
            return Call.logged(call, past)
        if call.side_effect in ("read_only", "reversible"):
            return None
        return Call.doubtful(
            ContractViolationError(
                f"{call.name!r} ({call.side_effect}) began in run {self.session.run_id} at step {call.seq} and the log does not say "
                "whether it was made; it was not executed again",
                run_id=self.session.run_id,
                step=call.seq,
                contract="exactly_once",
                next_action=f"find out what was done, then `tracekit recovery settle {self.session.run_id} {call.seq}`",
            )
        )


def _has_segments(runs: str, run_id: str) -> bool:
    with os.scandir(runs) as files:
        return any(file.name.startswith(f"{run_id}.") and file.name != run_id + SUFFIX for file in files)


def _in_store(spec: Spec) -> bool:
    contract = spec.signature.get("contract")
    return isinstance(contract, Mapping) and contract.get("exactly_once") == "store"
