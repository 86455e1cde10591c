"""Steps and timers that are being recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from .._canonical import dumps_in_order, quick, to_json
from .._journal.intern import Places
from ..errors import LogWriteError
from .arrivals import place
from .classified import of_step
from .gate import Outcome, here
from .redaction import StreamRedactor
from .scope import Scope
from .spending import Spending
from .step import Request

if TYPE_CHECKING:
    from .budget import Budget
    from .recording import Recording

__all__ = ["RecordedStep", "RecordedTimer", "UnloggedStep"]

#: Pieces of one stream are one text, in which a secret may be split.
_STREAMED: Final = frozenset((str, bytes))
#: A piece of a stream shorter than this needs no interning, however it is encoded.
_PIECE: Final = 256
#: What a loop brings: several may come before the program goes on.
IN_LOOP: Final = frozenset(("asyncio.timer", "future.arrival"))


class RecordedStep:
    """A step that is being recorded; see ``gate.Step``."""

    __slots__ = ("_inside", "_streams", "request", "scope", "seq", "session", "spec", "watched")

    live: Final = True
    deferred: Final = False

    def __init__(self, session: Recording, scope: Scope, request: Request, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        #: What looks for secrets in its pieces: the run's own, and the tool's where it has one.
        self._streams: tuple[StreamRedactor, ...] = ()
        #: The input and its encoding, where the step might change what it was given.
        self.watched: tuple[dict[str, Any], bytes] | None = None
        self._inside: Spending

    def body(self) -> Scope:
        scope, spec, seq = self.scope, self.spec, self.seq
        live = scope.live if spec.structural else seq
        if spec.budget is not None:
            return Scope(scope.session, scope.lane, seq, scope.agent, live, self._budget(spec.budget), scope.call)
        return Scope(scope.session, scope.lane, seq, scope.agent, live, scope.spending, scope.call)

    def _budget(self, budget: Budget) -> Spending:
        """What is spent in the body: one ledger, however often the body is entered."""
        try:
            return self._inside
        except AttributeError:
            self._inside = Spending(budget, name=self.spec.name, outer=self.scope.spending)
            return self._inside

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        session, spec = self.session, self.spec
        if session.ended:
            return
        stored, replaced = self._without_secrets(output) if type(output) in _STREAMED else (output, 0)
        scope = here()
        lane = scope.lane if scope is not None and scope.session is session else self.scope.lane
        try:
            if type(stored) is str and not replaced and not info and len(stored) < _PIECE:
                # The everyday piece: looked through for secrets already, as part of its stream.
                tail = b',"step":%d,"output":%b' % (self.seq, _text(stored))
            else:
                meta = dict(info) if info else {}
                fields = session.value(stored, meta, spec=spec, step=self.seq)
                if replaced:
                    meta["redacted"] = replaced
                    session.redacted_output(spec)
                tail = b',"step":%d%b%b' % (self.seq, fields, session.meta(meta))
            if lane.id < 0:
                session._enroll(lane)
            session.journal.append(spec.types.chunk, lane.id, self.seq, tail)
        except LogWriteError:
            if self._unwritten():
                raise

    def _without_secrets(self, output: Any) -> tuple[Any, int]:
        """A piece of text or bytes as it is to be stored: a secret may begin in one piece and end in another."""
        if not self._streams:
            own = self.spec.redactor
            run = self.session.redactor.stream()
            self._streams = (run,) if own is None else (run, own.stream())
        found = 0
        for stream in self._streams:
            output, replaced = stream.feed(output)
            found += replaced
        return output, found

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        session, spec = self.session, self.spec
        if session.ended:
            if info is None or not info.get("abandoned"):  # a generator that is forgotten later is no loss
                session._late_warning(f"the outcome of {spec.family} {spec.name!r}")
            return
        if self.watched is not None:
            info = self._looked(info)
        if info is None and self.scope.agent is None:
            plain = session._plain(output)
            if plain is not None:
                seq = self.seq
                tail = b',"step":%d,"output":%b' % (seq, plain)
                try:
                    session.journal.append(spec.types.outcome, self.scope.lane.id, seq, tail, spec.effect)
                except LogWriteError:
                    if self._unwritten():
                        raise
                return
        meta = dict(info) if info else {}
        places: Places | None = [] if spec.lists else None
        try:
            fields = session.value(output, meta, spec=spec, step=self.seq, places=places, data=data)
            self._finish(spec.types.outcome, fields, meta, places)
        except LogWriteError:
            if self._unwritten():
                raise

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        session = self.session
        if session.ended:
            return
        meta = dict(info) if info else {}
        meta["failure"] = of_step(error, session, self)
        try:
            fields = b"" if output is None else session.value(output, meta, spec=self.spec, step=self.seq)
            own = self.spec.redactor
            if own is not None:
                meta["failure"] = own.redact(meta["failure"])[0]
            self._finish(self.spec.types.error, fields + session.error(error, meta, own), meta)
        except LogWriteError:
            if self._unwritten():
                raise

    def _looked(self, info: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """``info``, and which arguments the step has changed: what a replay does not repeat."""
        assert self.watched is not None
        given, before = self.watched
        self.watched = None
        if quick(given) == before:
            return info
        was = orjson.loads(before)
        changed = [
            name
            for name, item in given.items()
            if self.session._plain({name: item}) != dumps_in_order({name: was.get(name)})
        ]
        tool = f"{self.spec.family} {self.spec.name!r}"
        names = ", ".join(changed)
        self.session.warn(
            f"{tool} changes what it is given ({names}): a replay does not repeat that. Return it instead."
        )
        return {**(info or {}), "mutated": changed}

    def _finish(self, kind: str, fields: bytes, meta: dict[str, Any], places: Places | None = None) -> None:
        session = self.session
        if "suspended" in meta:
            burst = place()
            if burst is not None:
                meta["burst"] = burst
        seq = session.outcome(self, kind, fields, meta, sync=self.spec.effect)
        if places:
            session.encoder.remember(places, seq)

    def _unwritten(self) -> bool:
        """An outcome could not be logged. Whether the caller must be told so: an effect stays in doubt in the log."""
        self.session.journal.lost += 1
        self.session.warn("the log could not be written for a while: outcomes are missing from it")
        return self.spec.effect

    def answer(self) -> Outcome:
        raise AssertionError("a live step is not answered from the log")

    async def answer_async(self) -> Outcome:
        raise AssertionError("a live step is not answered from the log")

    def next_chunk(self) -> Outcome | None:
        raise AssertionError("a live step is not answered from the log")

    async def next_chunk_async(self) -> Outcome | None:
        raise AssertionError("a live step is not answered from the log")

    def lazy(self) -> str | None:
        raise AssertionError("a live step is not answered from the log")

    def go(self) -> RecordedStep:
        return self

    async def go_async(self) -> RecordedStep:
        return self


def _text(text: str) -> bytes:
    """The stored bytes of a text."""
    try:
        return dumps_in_order(text)
    except TypeError:  # half a surrogate pair
        return dumps_in_order(to_json(text))


class UnloggedStep(RecordedStep):
    """A read-only step that could not be logged, or came after the end: it is made, and nothing is written."""

    __slots__ = ()

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        pass

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        pass


class RecordedTimer:
    """A sleep or deadline that is armed; see ``gate.Timer``."""

    __slots__ = ("_after", "_function", "_n", "_scope", "_session")

    live: Final = True
    #: Whether it fired in a recording that is being replayed.
    comes: Final = False

    def __init__(self, session: Recording, scope: Scope, function: str, after: int, n: int) -> None:
        self._session = session
        self._scope = scope
        self._function = function
        self._after = after
        self._n = n

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        if self._session.ended:
            return
        after = b',"after":%d' % self._after if self._after else b""
        if about:
            after += b"," + orjson.dumps(about)[1:-1]
        tail = b',"name":%b,"input":{"n":%d%b}' % (orjson.dumps(self._function), self._n, after)
        burst = place() if self._function in IN_LOOP else None
        if burst is not None:
            tail += b',"meta":{"burst":%d}' % burst
        try:
            self._session.append(self._scope, "clock", tail)
        except LogWriteError:
            self._session.warn("the log could not be written for a while: timers are missing from it")

    def wait(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    async def wait_async(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def cancel(self) -> None:
        pass
