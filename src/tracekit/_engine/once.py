"""Calls that happen once: the keys of ``exactly_once`` in one recording.

The first call under a key is made; every later one is a *duplicate*: it is on the log with its own intention, is not made, and is
answered with what came of the first (``tool.skipped``). A call that was undone is none: the next one is a first one again. With
``exactly_once="store"`` the first one has its key file on the device before its intention is on the log, and runs that find that
file ask its owner's log what came of it.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from .._journal.keys import Keys, Owner
from .._journal.names import SEGMENT, SUFFIX
from .._journal.reader import Trace
from ..errors import BudgetExceededError, ContractViolationError, LogWriteError
from .duplicates import Call, DuplicateStep, FirstStep
from .elsewhere import Awaited, Elsewhere, place_of
from .gate import owner
from .logged import LoggedCall, calls_of
from .scope import Scope
from .step import Request, Spec

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
        self._keys: Final = Keys(os.path.dirname(runs), sync=journal.durability != "none")
        self._elsewhere: Final = Elsewhere(session, runs, self._keys, self._me)
        self._lock: Final = threading.RLock()  # a signal handler may call a tool, too
        self._calls: Final[dict[str, Call]] = {}
        self.shared = past is not None and _has_segments(runs, session.run_id)
        #: Whether each key that this recording has has its file; one thread sees to it.
        self._published = self.shared
        self._publishing: Final = threading.RLock()
        #: For those that had none: should the machine die, no process is left that could ask for them.
        self._unsynced: Final = Keys(os.path.dirname(runs), sync=False)
        #: Why none of the keys in the log can be told again.
        self._strange: ContractViolationError | None = None
        if past is not None:
            self._go_on(past)

    @classmethod
    def of_log(cls, session: Recording, past: Trace) -> Once:
        """The keys of a run that goes on where ``past``, which must stay open, ends."""
        return cls(session, past)

    def forked(self, session: Recording) -> None:
        """In a forked child, whose own recording is ``session``: it has the keys that its parent had."""
        child = session._once = Once(session)
        child.shared = child._published = True
        child._strange = self._strange
        for digest, call in self._calls.items():
            if self._undoing(call) != 0:
                child._calls[digest] = self._inherited(child, digest, call)

    def _inherited(self, child: Once, digest: str, call: Call) -> Call:
        undoing = self._undoing(call)
        if undoing:
            return Call.doubtful(self._half_undone(call, undoing))
        if call.pending and call.doubt is None and call.seq and call.thread != get_ident():
            has = Owner(self._me.run_id, self._me.segment, call.seq)
            return Awaited(child._elsewhere, digest, has, call.seq, inherited=True)
        if call.pending and call.doubt is None and not isinstance(call, Awaited):
            doubt = ContractViolationError(
                f"the process that this one was forked from is making this call (step {call.seq}); it was not executed here",
                run_id=self.session.run_id,
                step=call.seq or None,
                contract="exactly_once",
                next_action="fork when the call has ended",
            )
            return Call.doubtful(doubt)
        if type(call.of) is int and call.doubt is None:
            call.of = place_of(self._me, call.of)
        return call

    def share(self) -> None:
        """From now on other processes write parts of the run: whoever asks finds the keys of the calls before, too.

        ``LogWriteError`` where that can't be: then no process may be started.
        """
        with self._publishing:
            with self._lock:
                self.shared = True
                known = [] if self._published else list(self._calls.items())
            for digest, call in known:
                # What another thread is about to begin without a file is waited for: that is an entry of the log.
                if call.opened() and not isinstance(call.of, Mapping) and self._undoing(call) != 0:
                    file = self._file(digest, False)
                    assert file is not None
                    self._unsynced.restore(file, *self._me[:2], call.of)
            self._published = True

    # -- the door --------------------------------------------------------------------------------------------------------

    def begin(
        self, scope: Scope, request: Request, reserve: Callable[[], object] | None = None
    ) -> FirstStep | DuplicateStep:
        """The live step of the first call under a key, or one that the first one answers. ``reserve`` is asked before a first one alone.

        ``LogWriteError`` where it can't be known or written that it is the first; ``ContractViolationError``, which is on the log then,
        where it can neither be made nor answered.
        """
        try:
            if self._strange is not None:
                raise self._strange.fresh()
            assert request.once_key is not None
            digest = self._keys.digest(request.spec.name.encode("utf-8", "surrogatepass"), request.once_key)
            keyed = request.saying({"once": digest, "once_by": self._keys.fingerprint()})
            while True:
                call, first = self._enter(digest, scope)
                if first:
                    step = self._first(call, digest, scope, keyed, reserve)
                    if step is not None:
                        return step
                elif call.opened():
                    return self._duplicate(call, scope, keyed)
        except ContractViolationError as error:
            raise self.session.refuse(scope, request, error) from None

    def _enter(self, digest: str, scope: Scope) -> tuple[Call, bool]:
        """The call that has the key, and whether that is this one."""
        with self._lock:
            call = self._calls.get(digest)
            undoing = None if call is None else self._undoing(call)
            if call is None or call.stale or undoing == 0:
                call = self._calls[digest] = Call(scope.lane, owner(), get_ident())
                return call, True
            if undoing:
                raise self._half_undone(call, undoing)
            return call, False

    def _undoing(self, call: Call) -> int | None:
        """The step that undoes a call of this run, 0 where it is done, ``None`` where there is none."""
        return self.session.undone.get(call.of) if type(call.of) is int else None

    def _half_undone(self, call: Call, undoing: int) -> ContractViolationError:
        return ContractViolationError(
            f"the call under this key (step {call.of}) was undone, or not: its compensation (step {undoing}) has no certain end; it was "
            "not executed",
            run_id=self.session.run_id,
            step=undoing,
            contract="exactly_once",
            next_action="find out what was done; another idempotency key makes another call",
        )

    def _first(
        self, call: Call, digest: str, scope: Scope, request: Request, reserve: Callable[[], object] | None
    ) -> FirstStep | None:
        """Make the call. ``None``: another run has made it, and answers from now on."""
        spec, info = request.spec, request.info or {}
        file = self._file(digest, _in_store(spec))
        try:
            if file is not None:
                known = self._elsewhere.ask(file, digest, spec)
                if known is not None:
                    self._put(digest, call, known)
                    return None
            if reserve is not None:
                reserve()
            everywhere = file is not None
            seq = self.session.intend(scope, request, sync=spec.effect or everywhere)
        except BaseException as error:
            self._put(digest, call, None)
            if file is not None and isinstance(error, (LogWriteError, BudgetExceededError)):
                self._keys.release(file, *self._me[:2])
            raise
        if file is not None:
            self._keys.used(file, seq)
        call.made(seq)
        return FirstStep(self.session, scope, request, seq, call, info.get("compensates"))

    def _file(self, digest: str, in_store: bool) -> str | None:
        """The name of the key's file; ``None`` where it needs none."""
        if in_store or not self.shared:
            return digest if in_store else None
        return self._keys.digest(self._me.run_id.encode(), digest.encode())

    def _put(self, digest: str, call: Call, instead: Call | None) -> None:
        with self._lock:
            if instead is None:
                del self._calls[digest]
            else:
                self._calls[digest] = instead
        call.not_made()

    def _duplicate(self, call: Call, scope: Scope, request: Request) -> DuplicateStep:
        if call.doubt is not None:
            raise call.doubt.fresh()
        if call.pending and (call.owner == owner() or call.encloses(scope.lane)):
            raise self._inside_itself(call, request.spec)
        request = request.saying({"duplicate_of": call.of})
        seq = self.session.intend(scope, request, sync=False)
        return DuplicateStep(self, scope, request, seq, call)

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

    # -- the log that a resumed run goes on from -------------------------------------------------------------------------

    def _go_on(self, past: Trace) -> None:
        """Know the keys that the log has. What the store has lost of its own is put back."""
        calls = calls_of(past.entries())
        made_by = {call.by for call in calls.values()}
        if made_by and made_by != {self._keys.known_by()}:
            self._strange = self._other_secret()
            return
        for digest, call in calls.items():
            known = self._recorded(call, past)
            if known is not None:
                self._calls[digest] = known
            file = self._file(digest, call.in_store)
            if file is not None:
                self._keys.restore(file, *self._me[:2], call.seq)

    def _other_secret(self) -> ContractViolationError:
        path = os.path.join(self._keys.root, "secret")
        return ContractViolationError(
            f"run {self.session.run_id} made calls that happen once under a secret that is not in {path}: which of them were made can't be "
            "told, so this one was not executed",
            run_id=self.session.run_id,
            path=path,
            contract="exactly_once",
            next_action=f"bring {path} back as it was beside that run, then resume it",
        )

    def _recorded(self, call: LoggedCall, past: Trace) -> Call | None:
        """What the log says of a key; ``None`` where the call may be made (again)."""
        if call.undoing:
            doubtful = Call.doubtful(self._half_undone(Call.logged(call, past), call.undoing))
            doubtful.of = call.seq
            return doubtful
        if call.ended:
            supplied = self.session.supplied
            return Call.supplied(call.seq, supplied[call.seq]) if call.seq in supplied else Call.logged(call, past)
        if call.side_effect in ("read_only", "reversible"):
            return None
        return Call.doubtful(
            ContractViolationError(
                f"{call.name!r} ({call.side_effect}) began in run {self.session.run_id} at step {call.seq} and the log does not say "
                "whether it was made; it was not executed again",
                run_id=self.session.run_id,
                step=call.seq,
                contract="exactly_once",
                next_action="find out what was done, and say so with "
                f"`tracekit recovery settle {self.session.run_id} {call.seq} --done OUTPUT.json | --not-done --reason TEXT`",
            )
        )


def _has_segments(runs: str, run_id: str) -> bool:
    with os.scandir(runs) as files:
        return any(file.name.startswith(f"{run_id}.") and file.name != run_id + SUFFIX for file in files)


def _in_store(spec: Spec) -> bool:
    contract = spec.signature.get("contract")
    return isinstance(contract, Mapping) and contract.get("exactly_once") == "store"
