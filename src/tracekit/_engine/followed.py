"""The log of a run that is to be resumed, followed to its end by the program before anything goes live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .._journal.reader import Trace
from ..errors import ReplayError
from . import failures
from .gate import Outcome
from .index import INTENTION, QUEUES, READ, SINGLE, LaneKey
from .redaction import Redactor
from .replay import Replay
from .replayed import ReplayedStep, ReplayedTimer
from .scope import Scope

__all__ = ["Followed"]


class Followed(Replay):
    """A replay that may come to the end of its log: it says where the program is past it.

    ``supplied`` holds outputs that the log does not have, by step (an operator knows what was redacted).
    """

    def __init__(self, trace: Trace, redactor: Redactor, supplied: Mapping[int, Any]) -> None:
        super().__init__(trace, redactor)
        self.supplied: Final = dict(supplied)
        self._cursor = 1
        #: What threads have yet to put into queues, and to take, as the log has it.
        self._moves: Final = {seq for (_, name, _, _), seq in self.index.timers.items() if name in QUEUES}

    @property
    def complete(self) -> bool:
        """Whether the program has made every recorded step, and its threads have handed over what they had.

        An item that is taken by one thread now, and was taken by another then, would lead them elsewhere.
        """
        return self.stepped and all(self._used[seq] for seq in self._moves.copy())

    def handed_over(self, seq: int) -> None:
        self._used[seq] = 1
        self._moves.discard(seq)
        self.face.look()

    @property
    def stepped(self) -> bool:
        """Whether the program has made every recorded step."""
        role, used, count = self.index.role, self._used, len(self.index)
        with self._lock:
            i = self._cursor
            while i <= count and (used[i] or role[i] not in (INTENTION, SINGLE)):
                i += 1
            self._cursor = i
        return i > count

    def going(self) -> None:
        """Raise the failure, if there is one."""
        with self._lock:
            self._check()

    def next_step(self, scope: Scope, kind: str) -> int | None:
        """The next recorded step of a kind in the scope's lane; ``None``: what comes now is past the end of the log.

        Being past it, the lane must have nothing left that was recorded: else this is the replay's failure.
        """
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, kind)
            if seq is None:
                for left in state.rest():
                    if self.index.role[left] == READ:
                        self._unread(state, left)
                    elif self.index.role[left] in (INTENTION, SINGLE) and not self._used[left]:
                        self._fail(failures.out_of_order(self.trace.entry(left)))
        return seq

    def read_past_end(self, scope: Scope, function: str) -> bool:
        """Whether a read of ``function`` now comes after all that was recorded in its lane."""
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            if any(name == function and state.taken(seq) < len(values) for seq, name, values in self._window(state)):
                return False
            return all(self.index.role[seq] not in (INTENTION, SINGLE) or self._used[seq] for seq in state.rest())

    def timer_at(self, scope: Scope, function: str, after: int, n: int) -> int | None:
        """Where the timer that the scope's lane arms now fired, or ``None``; see ``Lane.armed``."""
        with self._lock:
            self._check()
            return self.index.timers.get((self._state(scope.lane).lane, function, after, n))

    def timer(self, seq: int) -> ReplayedTimer:
        """The timer that fired at ``seq``."""
        return ReplayedTimer(self, seq)

    def undone(self, seq: int) -> bool:
        """Whether an earlier recovery has undone a step."""
        compensation = self.index.compensations.get(seq)
        return compensation is not None and self.answered(compensation)

    def answered(self, seq: int) -> bool:
        """Whether the log has the outcome of a step."""
        return bool(self.index.answer[seq])

    def told_of(self, step: int) -> Iterator[dict[str, Any]]:
        """The entries of a step: its intention, all that happened inside, and its outcome, where there is one."""
        answer = self.index.answer[step]
        for seq in sorted({step, *self.index.inside(step), *((answer,) if answer else ())}):
            yield self.trace.entry(seq)

    def number_of(self, parent: int, name: str, n: int, under: int) -> int:
        """The number of a lane in the log, or 0."""
        return self.index.lanes.get(LaneKey(parent, name, n, under), 0)

    def last_read(self, function: str) -> Any:
        """The last recorded value of a clock, or ``None``."""
        for seq in range(len(self.index), 0, -1):
            if self.index.role[seq] == READ and self.trace.entry(seq)["name"] == function:
                return self.trace.expand(self.trace.entry(seq)["values"])[-1]
        return None

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        if step.seq not in self.supplied:
            return super().outcome(step, seq)
        with self._lock:
            self._used[seq] = 1
            state = self._state(step.scope.lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
        entry = self.trace.entry(seq)
        return Outcome(self._decode(self.supplied[step.seq], step.spec.hint()), None, entry.get("meta") or {}, entry)

    def _stuck(self, waiting: list[str]) -> ReplayError | None:
        if self.stepped and self.face.open_now():  # what is left to hand over, nobody asks for
            return None
        return self.fail(failures.not_followed(self.run_id, self._unconsumed()))

    def unfollowed(self) -> ReplayError:
        """The program has ended, and the log has more: its failure."""
        return self.fail(failures.not_followed(self.run_id, self._unconsumed()))
