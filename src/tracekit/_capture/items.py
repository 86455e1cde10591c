"""Generators and async generators around the gate: a chunk an item, live or from the log.

What the caller sends or throws in is recorded with the chunk that answers it, and compared in a replay. Closing one, or
forgetting it, is no step: what was delivered is kept, and the recording says that it was left there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from .._canonical import to_json
from .._engine.callsite import caller
from .._engine.gate import Outcome
from .._engine.scope import Scope, current
from ..errors import DivergenceError, NotReplayableError, ReplayError, TraceExhaustedError
from .driving import drive

__all__ = ["failed", "given", "live_async_items", "live_items", "recorded_async_items", "recorded_items"]

_SUSPENDED: Final = {"suspended": True}


def failed(step: Any, error: BaseException, suspended: bool = False, info: Mapping[str, Any] | None = None) -> None:
    """Tell that the live call raised, unless it was a replay's failure that came through it."""
    if not isinstance(error, ReplayError):
        step.failed(error, info={**(info or {}), **_SUSPENDED} if suspended else info)


def given(outcome: Outcome) -> Any:
    """What was recorded: returned or raised."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.output


def live_items(step: Any, generator: Any, told: dict[str, Any] | None = None) -> Any:
    """The items of a live generator; ``told`` goes into the ``meta`` of the first."""
    body: Scope = step.body()
    resume: Callable[[], Any] = generator.__next__
    while True:
        token = current.set(body)
        try:
            item = resume()
        except StopIteration as stop:
            current.reset(token)
            step.done(stop.value, info=told)
            return stop.value
        except BaseException as error:
            current.reset(token)
            failed(step, error, info=told)
            raise
        current.reset(token)
        step.chunk(item, info=told)
        resume, told = generator.__next__, None
        try:
            sent = yield item
        except GeneratorExit:
            token = current.set(body)
            try:
                generator.close()
            finally:
                current.reset(token)
                step.done(None, info={"abandoned": True})
            raise
        except BaseException as thrown:
            resume, told = partial(generator.throw, thrown), {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                resume, told = partial(generator.send, sent), {"sent": sent}


def recorded_items(step: Any) -> Any:
    """The recorded items; the caller must do with them what was done then."""
    told: dict[str, Any] = {}
    count = 0
    while True:
        chunk = step.next_chunk()
        if chunk is None:
            outcome = step.answer()
            _same(step, told, outcome)
            finished = given(_finished(step, outcome))
            if not _settled(outcome):
                return finished
            return (yield from _rest(step, finished, count))
        _same(step, told, chunk)
        told = {}
        count += 1
        try:
            sent = yield chunk.output
        except GeneratorExit:
            raise
        except BaseException as thrown:
            told = {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                told = {"sent": sent}


async def live_async_items(step: Any, generator: Any, told: dict[str, Any] | None = None) -> Any:
    """The items of a live async generator; also told is whether the event loop ran while each was made."""
    body: Scope = step.body()
    resume = generator.__anext__()
    while True:
        driven = drive(resume)
        token = current.set(body)
        try:
            item = await driven
        except StopAsyncIteration:
            current.reset(token)
            step.done(None, info=_about(driven, told))
            return
        except BaseException as error:
            current.reset(token)
            failed(step, error, driven.suspended, told)
            raise
        current.reset(token)
        step.chunk(item, info=_about(driven, told))
        told = None
        try:
            sent = yield item
        except GeneratorExit:
            token = current.set(body)
            try:
                await generator.aclose()
            finally:
                _back(token)
                step.done(None, info={"abandoned": True})
            raise
        except BaseException as thrown:
            resume, told = generator.athrow(thrown), {"thrown": _shown(thrown)}
        else:
            resume = generator.asend(sent)
            if sent is not None:
                told = {"sent": sent}


def _back(token: Any) -> None:
    try:
        current.reset(token)
    except ValueError:  # closed by the event loop at its end, in another context
        pass


def _about(driven: drive, told: dict[str, Any] | None) -> dict[str, Any] | None:
    return {**(told or {}), **_SUSPENDED} if driven.suspended else told


async def recorded_async_items(step: Any) -> Any:
    """The recorded items of an async generator."""
    told: dict[str, Any] = {}
    count = 0
    while True:
        chunk = await step.next_chunk_async()
        if chunk is None:
            outcome = await step.answer_async()
            _same(step, told, outcome)
            finished = given(_finished(step, outcome))
            if _settled(outcome):
                for item in _rest(step, finished, count):
                    yield item
            return
        _same(step, told, chunk)
        told = {}
        count += 1
        try:
            sent = yield chunk.output
        except GeneratorExit:
            raise
        except BaseException as thrown:
            told = {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                told = {"sent": sent}


def _settled(outcome: Outcome) -> bool:
    """Whether a person has said what the generator gave."""
    return "settled" in ((outcome.meta or {}).get("info") or {})


def _rest(step: Any, output: Any, count: int) -> Any:
    """Of all items, as a person has told them, those after the ``count`` that the log has."""
    if type(output) is not list or len(output) < count:
        raise step.session.fail(
            NotReplayableError(
                "what a person said that a generator gave is no list of its items",
                run_id=step.session.run_id,
                step=step.seq,
                location=caller(),
                next_action="settle the step again: `--done` takes a JSON list of all its items, those that the log has first",
            )
        )
    yield from output[count:]


def _shown(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"


def _same(step: Any, told: dict[str, Any], outcome: Outcome) -> None:
    """What was sent or thrown into the generator must be what was then."""
    for key in ("sent", "thrown"):
        recorded = outcome.meta.get(key)
        if recorded is None and key not in told:
            continue
        actual = step.session.redactor.redact(to_json(told.get(key)))[0]
        if not step.session.equal(recorded, actual):
            raise step.session.fail(
                DivergenceError(
                    f"the program put something else into the generator ({key}): recorded {recorded!r}, now {actual!r}",
                    run_id=step.session.run_id,
                    step=step.seq,
                    location=caller(),
                    next_action="look at what changed in the code that drives this generator",
                    recorded=recorded,
                    actual=actual,
                    differences=[{"path": key, "recorded": recorded, "actual": actual}],
                )
            )


def _finished(step: Any, outcome: Outcome) -> Outcome:
    if outcome.abandoned:
        raise step.session.fail(
            TraceExhaustedError(
                "the program asks for more of a generator than it took in the recording, where it was left at this point",
                run_id=step.session.run_id,
                step=step.seq,
                location=caller(),
                next_action="take no more items than then, or record again",
            )
        )
    return outcome
