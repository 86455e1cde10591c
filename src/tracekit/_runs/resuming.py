"""``resume()``: continues a run after a crash, from opening its log to the run's end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from .. import _reality
from .._capture import callers, inputs, randomness, world, zones
from .._capture import guard as guards
from .._journal.entry import meta_of
from .._journal.reader import Trace, TraceReading, Verdict
from .._journal.store import Store, first_entry, writer
from .._journal.writer import Durability, Journal
from .._policy.policies import under_policies
from .._runtime.callsite import not_made, warn_of_replay
from .._runtime.lane import ROOT
from .._runtime.process import process
from .._runtime.recorder import Recording, encode_reads
from .._runtime.recovered import RecoveredLog
from .._runtime.redaction import Redactor, patterns_of
from .._runtime.replayer import NEEDED
from .._runtime.resumer import Followed, Resumption
from .._runtime.session import current
from .._runtime.spending import Spending
from .._values import dumps_in_order
from .._values.decoding import from_json
from ..errors import (
    LiveCallBlockedError,
    LogWriteError,
    RecoveryRefusedError,
    ReplayError,
    TracekitError,
)
from . import block, children, recording, segments
from .block import called_from
from .ending import End
from .environment import drift, environment, file_hash, this_program
from .recording import DEFAULTS, RecordBlock
from .recovery import Decision, advice, decided, decision_on, refused
from .run import Run, identify, register, unregister

__all__ = ["ResumeBlock", "resume"]


class ResumeBlock(RecordBlock):
    """The block that ``resume`` returns. It calls ``opened`` when the program has followed the log to its end."""

    verb = "resume"

    def __init__(
        self,
        which: str | os.PathLike[str] | Run,
        options: dict[str, Any],
        called_from: str | None,
        *,
        supply: Mapping[int, Any],
        accept_lost_tail: bool,
        original_is_dead: bool,
        opened: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(options, called_from)
        self._which: Final = which
        self._supply: Final = dict(supply)
        self._accept_lost_tail: Final = accept_lost_tail
        self._original_is_dead: Final = original_is_dead
        self._opened: Final = opened
        self._guard: guards.Guard | None = None
        self._resumption: Resumption | None = None
        #: The file that was read for the decision, and what was found in it.
        self._read: tuple[tuple[int, ...], TraceReading] | None = None

    def _again(self) -> ResumeBlock:
        return ResumeBlock(
            self._which,
            self.options,
            self.called_from,
            supply=self._supply,
            accept_lost_tail=self._accept_lost_tail,
            original_is_dead=self._original_is_dead,
            opened=self._opened,
        )

    @property
    def session(self) -> Resumption:
        """The session, once the block has begun."""
        assert self._resumption is not None
        return self._resumption

    @property
    def input(self) -> Any:
        """The run's recorded input."""
        trace = self.session.replay.trace
        return from_json(trace.expand(self.session.replay.originals.first(trace).get("input")))

    @property
    def begun(self) -> bool:
        return self._run is not None

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        """Begin in place of a ``record()`` with these options."""
        run = self.__enter__()
        identify(self.session, options)
        return run

    async def drain_for(self, run: Run) -> None:
        await self._drain()

    def end_for(self, run: Run, error: BaseException | None) -> None:
        """End as the ``record()`` block of ``run`` would."""
        self._exit(error)

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _enter(self) -> Run:
        outer = current.get()
        if outer is not None:
            raise self._inside(outer, "end that block first")
        store = self.options["store"]
        self._store = Store.at(store)
        for module in (self.called_from, *self.options["user_modules"]):
            if module is not None:
                callers.include(module)
        path = self._which.path if isinstance(self._which, Run) else self._store.find(self._which)
        durability = meta_of(first_entry(path)).get("durability", "effects")
        journal, verdict = self._reopen(path, durability)
        try:
            self._acquire_all(journal, verdict)
        except BaseException:
            journal.close()
            raise
        assert self._run is not None
        return self._run

    @property
    def _allowed(self) -> dict[str, Any]:
        """The operator's arguments for the decision."""
        return {
            "supplied": self._supply,
            "accept_lost_tail": self._accept_lost_tail,
            "original_is_dead": self._original_is_dead,
        }

    def _reopen(self, path: str, durability: Durability) -> tuple[Journal, Verdict]:
        """Lock and reopen the log, and decide again: another process may have continued or ended it meanwhile."""

        def check(trace: Trace, verdict: Verdict) -> None:
            self._check(decided(trace, verdict, **self._allowed), path)
            if verdict.state != "broken":
                found = trace.reading
                self._read = trace.file, found._replace(collected={kind: found.collected[kind] for kind in NEEDED})

        try:
            return self._store.reopen(
                path,
                durability=durability,
                encode_read=encode_reads,
                accept_lost_tail=self._accept_lost_tail,
                collect=(*NEEDED, RecoveredLog),
                check=check,
            )
        except RecoveryRefusedError:
            raise
        except (TracekitError, OSError):  # report what rules out resuming at all first, in its own words
            self._check(decision_on(path, **self._allowed), path)
            raise

    def _check(self, decision: Decision, path: str) -> None:
        if decision.decision != "resume":
            raise refused(
                decision,
                f"resuming run {decision.run_id}",
                decision.refusals,
                advice(decision, path),
            )

    def _acquire_all(self, journal: Journal, verdict: Verdict) -> None:
        """Acquire what a resumed run needs. On failure release everything, so that it can be tried again."""
        with ExitStack() as taken:
            trace = taken.enter_context(Trace(journal.path))
            if (
                self._read is not None and self._read[0] == trace.file
            ):  # nothing had to be cut off, and no other process can write
                trace.reading = self._read[1]
            self._read = None
            self._acquire(
                journal,
                Followed(
                    trace,
                    Redactor.of_process(self.options["redact"], trace=journal.path, create=True),
                    self._supply,
                ),
                verdict,
                taken,
            )
            taken.pop_all()

    def _acquire(self, journal: Journal, log: Followed, verdict: Verdict, taken: ExitStack) -> None:
        first, last = log.trace.first, log.trace.last
        taken.callback(zones.take_on(meta_of(first).get("environment") or {}))
        found = self._drift(log, first)
        self._session = session = self._resumption = Resumption(
            journal,
            log.redactor,
            log,
            about=self._about(journal.path, verdict, last, log.trace.status.size, found),
            opened=self._live,
        )
        session.state.children = children.RecordedChildren(session)
        taken.callback(log.schedule.end)
        budget = self.options["budget"]
        session.state.spending = Spending.resumed(log.trace, budget)
        by = (meta_of(first).get("budget") or {}).get("prices_by")
        if by == "function" and not callable(getattr(budget, "prices", None)):
            session.report.warn(_PRICES, quiet=True)
        world.enter()
        taken.callback(world.leave)
        taken.callback(self._let_go)
        self._guard = guards.Guard("process", (), False, failed=self._blocked, resumes=True)
        self._guard.engage()
        process.refuse_outside(self._outside)
        self._run = Run(session, journal.path, first.get("name"))
        register(session, self._run)
        taken.callback(unregister, session)
        recording.begin(session)
        taken.callback(recording.end, session)
        segments.follow(session, self._store)
        taken.callback(process.closed, session)
        session.state.root = self._scope_in(under_policies(session), first.get("agent_id"), session.state.spending)
        taken.callback(self._scope_out)
        randomness.align_numpy(log)
        inputs.follow_directory(log)
        session.look()

    def _drift(self, log: Followed, first: Mapping[str, Any]) -> list[Any]:
        recorded = meta_of(first).get("environment") or {}
        found = drift(recorded, environment())
        then, program = meta_of(first).get("program_command") or {}, this_program()
        same = program is not None and then.get("script") == program.script
        if program is not None and same and then.get("sha256", "") != file_hash(program).get("sha256", ""):
            found.append(f"{program} has changed since the run began")
        for sentence in found:
            warn_of_replay(f"resuming {log.run_id}: {sentence}", RuntimeWarning, None)
        return found

    def _about(
        self, path: str, verdict: Verdict, last: Mapping[str, Any], size: int, found: list[Any]
    ) -> dict[str, Any]:
        """Return the content of the ``recovery.started`` entry."""
        about: dict[str, Any] = {
            "after": verdict.count,
            "gap_ns": max(0, _reality.time_ns() - last["ts_ns"]),
            "pid": os.getpid(),
            "writer": writer(path),
            "environment": environment(),
        }
        if verdict.torn_bytes:
            about["cut_bytes"] = verdict.torn_bytes
        elif verdict.state == "broken":
            about["cut_bytes"] = verdict.size - size
        if self._original_is_dead:
            about["original_is_dead"] = True
        if found:
            about["drift"] = [str(sentence) for sentence in found]
        if self._supply:
            about["supplied"] = sorted(self._supply)
        return about

    # -- the log's end -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Go live: the program has followed the log to its end."""
        if self._let_go():
            self._opened()

    def _blocked(self, error: LiveCallBlockedError) -> None:
        """Fail the replay: the guard refused something before the end of the log was reached."""
        self.session.replay.fail(error)

    def _outside(self, family: str, name: str) -> None:
        raise self.session.replay.fail(
            not_made(
                family,
                name,
                "outside the resumed run before that had reached the end of its log",
                "start what calls it inside the block",
                run_id=self.session.run_id,
            )
        )

    # -- the end of the block --------------------------------------------------------------------------------------------

    def _end_log(self, error: BaseException | None) -> None:
        session = self.session
        try:
            followed = session.look()
        except LogWriteError:  # already reported where it happened
            followed = False
        session.replay.state.ended = True
        session.replay.schedule.end()
        failure = session.replay.failure
        if failure is None and not followed and error is None:
            failure = session.replay.unfollowed()
        self._let_go()
        if failure is None and followed:
            self._close(session, error)
            return
        self._leave_open(session)
        if failure is not None and failure is not error:
            raise failure from (None if isinstance(error, ReplayError) else error)

    def _let_go(self) -> bool:
        """Release the guard; return whether this call did so."""
        guard, self._guard = self._guard, None
        if guard is None:
            return False
        guard.release()
        process.allow_outside(self._outside)
        return True

    def _leave_open(self, session: Resumption) -> None:
        """Leave the run as it was: the program did not reach the end of the log."""
        session.state.ended = True
        recording.end(session)
        process.closed(session)
        try:
            session.log.journal.close()
        finally:
            world.leave()

    def _how_it_ends(self, session: Recording, error: BaseException | None) -> End:
        session.log.journal.append(
            "recovery.completed", 0, ROOT, b',"meta":%b' % dumps_in_order({"steps": session.steps})
        )
        return super()._how_it_ends(session, error)


_PRICES: Final = (
    "the function that gave its budget's prices is not known: models are priced as the log says, others by genai-prices"
)


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    store: str | os.PathLike[str] | None = None,
    redact: Iterable[Any] = (),
    user_modules: Iterable[str] = (),
    supply: Mapping[int, Any] | None = None,
    accept_lost_tail: bool = False,
    original_is_dead: bool = False,
) -> ResumeBlock:
    """Continue a run after a crash: ``with resume(run_id) as run:`` around the same code, ``async with``, or a
    decorator.

    Recorded steps are answered from the log, and nothing is live until the program has made all of them. From there on
    the run is recorded into the same file, between ``recovery.started`` and ``recovery.completed``. An interrupted step
    that is ``read_only`` or ``reversible`` is repeated (after compensation, if the tool defines one).

    - ``supply``: outputs missing from the log (redacted, not serialisable), by step number.
    - ``accept_lost_tail``: cut off what a power loss left behind the last synced effect.
    - ``original_is_dead``: assert that the process that wrote the log is dead, where that can't be determined: it ran
      on another host, in another container, or before this host started.
    - ``redact`` and ``user_modules``: as in the recording.

    Raises ``RecoveryRefusedError`` (``reasons``) if resuming is not safe, and ``UnconsumedStepsError`` or
    ``DivergenceError`` if the code no longer follows the log. In all these cases nothing went live and the run is
    unchanged.

    Examples:
        >>> from tracekit import resume, traced_tool
        >>> @traced_tool(side_effect="irreversible")
        ... def pay(who):
        ...     print("(really paid)")
        ...     return f"paid {who}"
        >>> with resume(died):  # the id of a run whose process was killed after it had paid ann
        ...     pay("ann")
        ...     pay("bob")
        'paid ann'
        (really paid)
        'paid bob'
    """
    block.run_to_replay(run, Run, "resume")
    block.taken_as("store", store, (str, os.PathLike, Store), "a directory")
    block.outputs_by_step(supply)
    options = {
        **DEFAULTS,
        "name": None,
        "store": store,
        "redact": patterns_of(redact),
        "user_modules": block.strings("user_modules", user_modules),
    }
    return ResumeBlock(
        run,
        options,
        called_from(),
        supply=supply or {},
        accept_lost_tail=accept_lost_tail,
        original_is_dead=original_is_dead,
    )
