"""The session that records: an intention before the live call, its outcome before the caller gets it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import orjson

from .._canonical import dumps_in_order, exception_to_json, to_json
from .._journal.intern import Places
from .._journal.writer import Journal
from ..errors import LogWriteError, ReplayError, RunEndedError
from .arrivals import place
from .gate import Call, Outcome, here
from .lanes import Lane
from .redaction import Redactor, StreamRedactor
from .scope import Scope
from .step import Spec
from .values import Encoded, Encoder

__all__ = ["Recording"]

T = TypeVar("T")

#: A piece of a stream shorter than this needs no interning, however it is encoded.
_PIECE: Final = 256
#: ``seq`` of ``run.started``: the parent of whatever has no other.
ROOT: Final = 1
#: Pieces of one stream are one text, in which a secret may be split.
_STREAMED: Final = frozenset((str, bytes))


class Recording:
    """One run being recorded into ``journal``.

    ``warn`` receives a sentence for each thing that the run must say at its end (no silent gaps).
    """

    recording: Final = True

    def __init__(self, journal: Journal, redactor: Redactor) -> None:
        self.journal = journal
        self.redactor: Final = redactor
        self.run_id: Final = journal.run_id
        self.encoder: Final = Encoder(redactor, self._write_blob)
        self._plain: Final = self.encoder.plain
        self.warnings: list[str] = []
        self.remarks: list[str] = []
        #: The run's own line of execution.
        self.root: Lane | None = None
        self.ended = False
        #: Given up for a run of the program's own: whatever comes here happens as if outside every run.
        self.discarded = False
        #: Whether this is the new run of a what-if: what happens in it is meant to be live, inside a replay.
        self.what_if = False
        self.steps = 0
        self.open_steps = 0
        self._lanes: list[Lane] = []
        self._identities: set[str] = set()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def open(self, scope: Scope, call: Call) -> RecordedStep:
        return self.begin(scope, Spec.of(call), call.input, info=call.info, key=call.key)

    def begin(
        self, scope: Scope, spec: Spec, input: object, *, info: Mapping[str, Any] | None = None, key: object = None
    ) -> RecordedStep:
        """Write the intention of a step; an effect's is on the device when this returns, or it raises ``LogWriteError``."""
        if self.ended:
            return self._late(scope, spec)
        lane = scope.lane
        places: Places | None = [] if spec.lists else None
        data = None
        if info is None and key is None and scope.agent is None and not spec.lists:
            data = self._plain(input)
        try:
            if data is not None:
                tail = spec.prefix + data + (spec.suffix if spec.bare else self._signature(spec))
            else:  # what is large in it is written on the way
                tail = self._intention(scope, spec, input, info, key, places)
            if lane.id < 0:
                self._enroll(lane)
            seq = lane.last = self.journal.append(spec.types.intention, lane.id, scope.parent, tail, spec.effect)
        except LogWriteError:
            if spec.effect:
                raise
            return self._unlogged(scope, spec)
        if places:
            self.encoder.remember(places, seq)
        self.steps += 1
        return RecordedStep(self, scope, spec, seq)

    def _intention(
        self,
        scope: Scope,
        spec: Spec,
        input: object,
        info: Mapping[str, Any] | None,
        key: object,
        places: Places | None,
    ) -> bytes:
        encoded = self.encoder.encode(input, lists=spec.lists, places=places)
        tail = self._agent(scope) + spec.prefix + encoded.data
        if key is not None:
            tail += b',"input_hash":"%b"' % self.encoder.fingerprint(spec.name, self.encoder.encode(key)).encode()
        elif not encoded.whole:
            tail += b',"input_hash":"%b"' % self.encoder.fingerprint(spec.name, encoded).encode()
        about = dict(info or {})
        self._mark(about, encoded)
        if not about:
            return tail + (spec.suffix if spec.bare else self._signature(spec))
        return tail + self._tree({**spec.meta, "info": to_json(about)})

    def _signature(self, spec: Spec) -> bytes:
        """``,"meta":{…}`` of a step whose signature holds values of the program's own."""
        return spec.suffix if not self.redactor.suspicious(spec.suffix) else self._tree(spec.meta)

    def outcome(
        self, step: RecordedStep, kind: str, fields: bytes, meta: Mapping[str, Any] | None, *, sync: bool
    ) -> int:
        tail = b',"step":%d%b' % (step.seq, fields)
        if meta:
            tail += self.meta(meta)
        scope = step.scope
        if scope.agent is not None:
            tail = self._agent(scope) + tail
        return self.journal.append(kind, scope.lane.id, step.seq, tail, sync)

    def value(
        self, key: bytes, value: object, meta: dict[str, Any], *, spec: Spec, places: Places | None = None
    ) -> bytes:
        """``,"output":…`` for a value, and what there is to say of it put into ``meta``."""
        data = self.encoder.plain(value) if places is None else None
        if data is None:
            encoded = self.encoder.encode(value, places=places, at="output")
            self._mark(meta, encoded)
            if encoded.redacted:
                self.redacted_output(spec)
            data = encoded.data
        return b',"%b":%b' % (key, data)

    def redacted_output(self, spec: Spec) -> None:
        self.warn(f"the output of {spec.family} {spec.name!r} was redacted: a replay hands on the placeholder")

    def error(self, error: BaseException, meta: dict[str, Any]) -> bytes:
        notes: list[str] = []
        tree, redacted = self.redactor.redact(exception_to_json(error, notes))
        if notes:
            meta["notes"] = notes
        if redacted:
            meta["redacted"] = redacted
        return b',"error":%b' % dumps_in_order(tree)

    def meta(self, meta: Mapping[str, Any]) -> bytes:
        """``,"meta":{…}``, redacted, or nothing."""
        if not meta:
            return b""
        data = self._plain(meta)
        return self._tree(to_json(dict(meta))) if data is None else b',"meta":%b' % data

    def _tree(self, tree: Any) -> bytes:
        data = dumps_in_order(tree)
        if self.redactor.suspicious(data):
            data = dumps_in_order(self.redactor.redact(tree)[0])
        return b',"meta":%b' % data

    def _mark(self, meta: dict[str, Any], encoded: Encoded) -> None:
        if encoded.notes:
            meta["notes"] = encoded.notes
            for note in encoded.notes:
                self.warn(note)
        if encoded.redacted:
            meta["redacted"] = encoded.redacted

    def _agent(self, scope: Scope) -> bytes:
        return b"" if scope.agent is None else b',"agent_id":%b' % orjson.dumps(scope.agent)

    # -- one-entry steps, clock and dice ---------------------------------------------------------------------------------

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> int:
        try:
            return self._note(scope, type, name, input, output, dict(signature or {}), dict(info or {}))
        except LogWriteError:
            self._unnoted()
            return 0

    def _note(
        self,
        scope: Scope,
        type: str,
        name: str,
        input: object,
        output: object,
        meta: dict[str, Any],
        about: dict[str, Any],
    ) -> int:
        encoded = self.encoder.encode(input)
        answer = self.encoder.encode(output)
        self._mark(about, encoded)
        self._mark(about, answer)
        if about:
            meta["info"] = about
        tail = self._agent(scope) + b',"name":%b,"input":%b,"output":%b' % (
            orjson.dumps(name), encoded.data, answer.data,
        )  # fmt: skip
        if not encoded.whole:
            tail += b',"input_hash":"%b"' % self.encoder.fingerprint(name, encoded).encode()
        self.steps += 1
        return self.append(scope, type, tail + self.meta(meta))

    def append(self, scope: Scope, kind: str, tail: bytes, *, sync: bool = False) -> int:
        """One entry in the scope's lane."""
        if self.ended:
            self._late_warning(kind)
            return 0
        if scope.lane.id < 0:
            self._enroll(scope.lane)
        return self.journal.append(kind, scope.lane.id, scope.parent, tail, sync)

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = real()
        self._read("clock", scope, function, value)
        return value

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = real()
        self._read("random", scope, function, value)
        return value

    def _read(self, kind: str, scope: Scope, function: str, value: object) -> None:
        if self.ended:
            return
        lane = scope.lane
        if lane.id < 0:
            try:
                self._enroll(lane)
            except LogWriteError:
                self._unnoted()
                return
        self.journal.read(kind, lane.id, scope.parent, function, value)

    def snapshot(self, name: str, state: Any) -> Any:
        if not self.ended:
            tail = b',"name":%b,"output":%b' % (orjson.dumps(name), dumps_in_order(state))
            self.journal.append("random", 0, ROOT, tail)
        return None

    def arm(self, scope: Scope, function: str, seconds: float) -> RecordedTimer:
        return RecordedTimer(self, scope, function, *scope.lane.armed(function))

    # -- lanes and blobs -------------------------------------------------------------------------------------------------

    def _enroll(self, lane: Lane) -> None:
        """Give a lane its number and its entry; its ancestors first."""
        parent = lane.parent
        assert parent is not None
        if parent.id < 0:
            self._enroll(parent)
        with self.journal.held():
            if lane.id >= 0:
                return
            number = len(self._lanes) + 1
            about = {"id": number, "parent": parent.id, "name": lane.name, "n": lane.n}
            if lane.under:
                about["under"] = lane.under
            self.journal.append("lane", parent.id, lane.under or ROOT, b',"input":%b' % orjson.dumps(about))
            self._lanes.append(lane)
            lane.id = number

    def _write_blob(self, data: bytes) -> int:
        return self.journal.append("blob", 0, ROOT, b',"output":%b' % data)

    def open_lanes(self) -> list[Lane]:
        """The lanes whose task, thread or call has not ended."""
        return [lane for lane in self._lanes if lane.open]

    # -- the run's own entries -------------------------------------------------------------------------------------------

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """Say who ``agent`` is, once; entries refer to it by ``agent_id``."""
        if agent in self._identities:
            return
        try:
            encoded = self.encoder.encode(dict(identity or {}))
            tail = b',"agent_id":%b,"name":%b,"input":%b' % (orjson.dumps(agent), orjson.dumps(agent), encoded.data)
            self.journal.append("identity", 0, ROOT, tail)
        except LogWriteError:
            self._unnoted()
        else:
            self._identities.add(agent)

    def result(self, value: object, meta: dict[str, Any]) -> bytes:
        encoded = self.encoder.encode(value)
        self._mark(meta, encoded)
        return b',"output":%b' % encoded.data

    def discard(self) -> None:
        """Give this run up, and its file with it."""
        self.ended = self.discarded = True
        self.journal.close()
        os.unlink(self.journal.path)

    def fail(self, error: ReplayError) -> ReplayError:
        return error

    # -- what the run must say -------------------------------------------------------------------------------------------

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < 100:
            self.warnings.append(sentence)

    def remark(self, sentence: str) -> None:
        """As ``warn``, for what may well be meant so: kept in the trace, not told as a Python warning."""
        if sentence not in self.remarks and len(self.remarks) < 100:
            self.remarks.append(sentence)

    def _unnoted(self) -> None:
        self.journal.lost += 1
        self.warn("the log could not be written for a while: steps are missing from it")

    def _unlogged(self, scope: Scope, spec: Spec) -> RecordedStep:
        self._unnoted()
        return UnloggedStep(self, scope, spec, scope.parent)

    def _late(self, scope: Scope, spec: Spec) -> RecordedStep:
        if self.discarded:
            return UnloggedStep(self, scope, spec, scope.parent)
        if spec.effect:
            raise RunEndedError(
                f"{spec.family} {spec.name!r} ({spec.side_effect}) was called after run {self.run_id} had ended; it was not executed",
                run_id=self.run_id,
                next_action="wait for the task or thread that calls it before the record() block ends",
            )
        self._late_warning(f"{spec.family} {spec.name!r}")
        return UnloggedStep(self, scope, spec, scope.parent)

    def _late_warning(self, what: str) -> None:
        if self.discarded:
            return
        warnings.warn(
            f"tracekit: {what} came after run {self.run_id} had ended and is not in its trace",
            RuntimeWarning,
            stacklevel=4,
        )


class RecordedStep:
    """A step that is being recorded; see ``gate.Step``."""

    __slots__ = ("_stream", "scope", "seq", "session", "spec")

    live: Final = True

    def __init__(self, session: Recording, scope: Scope, spec: Spec, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.spec: Final = spec
        self.seq: Final = seq
        self._stream: StreamRedactor | None = None

    def body(self) -> Scope:
        scope = self.scope
        seq = self.seq
        return Scope(scope.session, scope.lane, seq, scope.agent, scope.live if self.spec.structural else seq)

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        session, spec = self.session, self.spec
        if session.ended:
            return
        meta = dict(info) if info else {}
        stored, replaced = self._without_secrets(output) if type(output) in _STREAMED else (output, 0)
        scope = here()
        lane = scope.lane if scope is not None and scope.session is session else self.scope.lane
        try:
            if type(stored) is str and not replaced and not meta and len(stored) < _PIECE:
                # The everyday piece: looked through for secrets already, as part of its stream.
                tail = b',"step":%d,"output":%b' % (self.seq, dumps_in_order(to_json(stored)))
            else:
                fields = session.value(b"output", stored, meta, spec=spec)
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
        if self._stream is None:
            self._stream = self.session.redactor.stream()
        return self._stream.feed(output)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        session, spec = self.session, self.spec
        if session.ended:
            if info is None or not info.get("abandoned"):  # a generator that is forgotten later is no loss
                session._late_warning(f"the outcome of {spec.family} {spec.name!r}")
            return
        if info is None and self.scope.agent is None:
            data = session._plain(output)
            if data is not None:
                seq = self.seq
                tail = b',"step":%d,"output":%b' % (seq, data)
                try:
                    session.journal.append(spec.types.outcome, self.scope.lane.id, seq, tail, spec.effect)
                except LogWriteError:
                    if self._unwritten():
                        raise
                return
        meta = dict(info) if info else {}
        places: Places | None = [] if spec.lists else None
        try:
            fields = session.value(b"output", output, meta, spec=spec, places=places)
            self._finish(spec.types.outcome, fields, meta, places)
        except LogWriteError:
            if self._unwritten():
                raise

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        session = self.session
        if session.ended:
            return
        meta = dict(info) if info else {}
        try:
            fields = b"" if output is None else session.value(b"output", output, meta, spec=self.spec)
            self._finish(self.spec.types.error, fields + session.error(error, meta), meta)
        except LogWriteError:
            if self._unwritten():
                raise

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


class UnloggedStep(RecordedStep):
    """A read-only step that could not be logged, or came after the end: it is made, and nothing is written."""

    __slots__ = ()

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        pass


class RecordedTimer:
    """A sleep or deadline that is armed; see ``gate.Timer``."""

    __slots__ = ("_after", "_function", "_n", "_scope", "_session")

    live: Final = True

    def __init__(self, session: Recording, scope: Scope, function: str, after: int, n: int) -> None:
        self._session = session
        self._scope = scope
        self._function = function
        self._after = after
        self._n = n

    def fired(self) -> None:
        if self._session.ended:
            return
        after = b',"after":%d' % self._after if self._after else b""
        tail = b',"name":%b,"input":{"n":%d%b}' % (orjson.dumps(self._function), self._n, after)
        burst = place() if self._function == "asyncio.timer" else None
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


def encode_reads(values: list[Any]) -> bytes:
    """The values of clock and random reads as JSON."""
    return dumps_in_order(to_json(values))
