"""One HTTP request and its answer, as an open step.

A live exchange tells what came back (:meth:`Exchange.whole`, or :meth:`~Exchange.head`, :meth:`~Exchange.piece`,
:meth:`~Exchange.end`), one that is not live gives :class:`~.answer.Answer` objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from .._engine.gate import Outcome, Step
from .._engine.scope import Scope, current
from .._reality import monotonic_ns
from ..errors import LiveCallBlockedError, ReplayError, RunStateError, TraceExhaustedError
from .answer import Answer, piece_of
from .bodies import NOT_JSON, parsed
from .messages import Headers, message, response_headers, textual, whole
from .plugins import Dialect

__all__ = ["Exchange", "refuse", "within"]

_SUSPENDED: Final = {"suspended": True}

#: The exchange that the running code is inside of: a send inside a send is one request.
within: Final[ContextVar[Exchange | None]] = ContextVar("tracekit.exchange", default=None)


def refuse(scope: Scope, what: str) -> None:
    """Say that this way out is not supported, instead of letting it pass unseen."""
    if scope.session.recording:
        raise RunStateError(
            f"{what} can't be recorded yet",
            run_id=scope.session.run_id,
            next_action="use the HTTP interface of the same service, or make the call outside the run",
        )
    raise LiveCallBlockedError(
        f"{what} was opened during a replay", run_id=scope.session.run_id, operation=what,
        next_action="use the HTTP interface of the same service: websockets are not captured yet",
    )  # fmt: skip


class Exchange:
    """One request and its answer, as an open step."""

    __slots__ = ("_dialect", "_kept", "_scope", "_started", "_text", "_told", "body", "elapsed", "open", "step")

    def __init__(self, step: Step, scope: Scope, dialect: Dialect | None) -> None:
        self.step = step
        self._scope: Final = scope
        self._dialect: Final = dialect
        self._kept: list[bytes] | None = None
        self._text = True
        self._told = False
        self._started = monotonic_ns()
        #: Seconds from the request to the end of its answer, once that is known.
        self.elapsed = 0.0
        #: While true, a request made from inside is part of this one.
        self.open = True
        #: The scope of the live call.
        self.body = step.body() if step.live else scope

    def go(self) -> bool:
        """Whether the call is to be made; where a resumed run has first to follow its log to the end, this waits for that."""
        if self.step.deferred:
            self._go(self.step.go())
        return self.step.live

    async def go_async(self) -> bool:
        if self.step.deferred:
            self._go(await self.step.go_async())
        return self.step.live

    def _go(self, step: Step) -> None:
        self.step = step
        self.body = step.body() if step.live else self._scope
        self._started = monotonic_ns()

    # -- live ------------------------------------------------------------------------------------------------------------

    def whole(
        self,
        status: int,
        headers: Headers,
        content: bytes,
        *,
        also: Mapping[str, Any],
        elapsed: float | None,
        suspended: bool,
    ) -> None:
        """The answer came, its body is read: ``content`` with content coding undone, ``elapsed`` in seconds."""
        value = parsed(content)
        output, data = whole(status, headers, content, value, also)
        info: dict[str, Any] = {"elapsed": self._lasted() if elapsed is None else elapsed}
        if suspended:
            info["suspended"] = True
        if self._dialect is not None and status < 400 and value is not NOT_JSON:
            info.update(_safely(self._dialect.response, value))
        self._told = True
        self.step.done(output, info=info, data=data)

    def head(self, status: int, headers: Headers, *, also: Mapping[str, Any], suspended: bool) -> None:
        """Status and headers came, the body is going to be read piece by piece."""
        told, content_type = response_headers(headers)
        self._text = textual(content_type)
        if self._dialect is not None and status < 400:
            self._kept = []
        self.step.chunk({"head": {"status": status, "headers": told, **also}}, info=_SUSPENDED if suspended else None)

    def piece(self, data: bytes, *, suspended: bool = False) -> None:
        """One piece of the body, before the caller gets it."""
        if self._kept is not None:
            self._kept.append(data)
        value: Any = data
        if self._text:
            try:
                value = data.decode()
            except UnicodeDecodeError:
                pass
        self.step.chunk(value, info=_SUSPENDED if suspended else None)

    def end(self, *, suspended: bool = False) -> None:
        """The stream ended in order."""
        self._finish({"complete": True}, {"suspended": True} if suspended else {})

    def left(self) -> None:
        """The caller went away before the end; ``complete`` says whether the stream had said all it had to say by then."""
        if self._told:
            return
        kept = self._kept
        said = self._dialect is not None and kept and _safely_true(self._dialect.finished, b"".join(kept[-16:]))
        self._finish({"complete": bool(said)}, {"abandoned": True})

    def _finish(self, output: dict[str, Any], info: dict[str, Any]) -> None:
        if self._told:
            return
        self._told = True
        info["elapsed"] = self._lasted()
        if self._kept and self._dialect is not None:
            info.update(_safely(self._dialect.stream, self._kept))
        self.step.done(output, info=info)

    def _lasted(self) -> float:
        self.elapsed = (monotonic_ns() - self._started) // 1000 / 1_000_000
        return self.elapsed

    def broke(
        self,
        error: BaseException,
        kind: str | None = None,
        *,
        response: tuple[int, Headers, bytes] | None = None,
        suspended: bool = False,
    ) -> None:
        """The call or the stream raised ``error``; ``kind`` is its name in the library's own set of exceptions.

        ``response`` is the answer that hangs on the exception, where one does.
        """
        if self._told or isinstance(error, ReplayError):
            return
        self._told = True
        output: dict[str, Any] | None = None
        if kind is not None:
            output = {"raised": kind, "text": str(error)}
            if response is not None:
                output.update(message(*response))
        self.step.failed(error, output=output, info=_SUSPENDED if suspended else None)

    # -- answered from the log -------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(self.step.answer())

    async def answer_async(self) -> Answer:
        return Answer(await self.step.answer_async())

    def first(self) -> Answer:
        """The head of a recorded stream; or the whole answer, or what was raised, where there was none."""
        chunk = self.step.next_chunk()
        return self.answer() if chunk is None else Answer(chunk)

    async def first_async(self) -> Answer:
        chunk = await self.step.next_chunk_async()
        return await self.answer_async() if chunk is None else Answer(chunk)

    def next_piece(self) -> bytes | Answer:
        """The next piece of a recorded stream, or how it ended."""
        chunk = self.step.next_chunk()
        return piece_of(chunk) if chunk is not None else self._ended(self.step.answer())

    async def next_piece_async(self) -> bytes | Answer:
        chunk = await self.step.next_chunk_async()
        return piece_of(chunk) if chunk is not None else self._ended(await self.step.answer_async())

    def _ended(self, outcome: Outcome) -> Answer:
        if outcome.abandoned:
            raise TraceExhaustedError(
                "the recorded program left this stream here; the replayed one reads on",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="see which code reads further than when it was recorded, and record it again",
            )
        return Answer(outcome)

    # -- what both need --------------------------------------------------------------------------------------------------

    def enter(self) -> tuple[Any, Any]:
        """Set the scope of the live call, and that it is inside a request; give the result to :meth:`leave`."""
        return current.set(self.body), within.set(self)

    def leave(self, tokens: tuple[Any, Any]) -> None:
        self.open = False
        current.reset(tokens[0])
        within.reset(tokens[1])

    def refuse(self, what: str) -> None:
        """The answer is of a kind that can't be captured: say so."""
        try:
            refuse(self._scope, what)
        except RunStateError as error:
            self.broke(error)
            raise


def _safely(read: Any, value: Any) -> Mapping[str, Any]:
    """What a dialect reads while recording; an answer that it does not understand must not break the program."""
    try:
        found: Mapping[str, Any] = read(value)
    except Exception:
        return {}
    return found


def _safely_true(ask: Any, value: Any) -> bool:
    try:
        return bool(ask(value))
    except Exception:
        return False
