"""Requests on their way: who does each, what it came to, and where in the log that is."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from .._engine.gate import here
from .._engine.prices import Prices
from .._engine.scope import current, enter
from ..errors import IntentionError, RunStateError, UnknownPriceError
from .executors import Executor
from .intentions import Intention, Ref
from .ledger import trace_of

__all__ = ["Answer", "Request"]


class Answer(NamedTuple):
    """What a request came to: ``data``, or ``error``. ``exchange`` is the step in which it was done, 0 where there is none."""

    data: Mapping[str, Any]
    error: BaseException | None = None
    exchange: int = 0
    replayed: bool = False


class Request:
    """An intention that is to be done by ``executor``; ``None``: nobody takes it."""

    def __init__(self, ref: Ref, intention: Intention, executor: Executor | None, by: str) -> None:
        self.ref: Final = ref
        self.intention: Final = intention
        self.executor: Final = executor
        #: The responder that intends it.
        self.by: Final = by
        #: What it waits for before anything is done.
        self.held: asyncio.Event | None = None
        self.begun = False

    def about(self) -> dict[str, Any]:
        """Its facts, for whoever asks what is pending."""
        one = self.intention
        return {"seq": self.ref.seq, "kind": one.kind, "name": one.name, "object": one.object, "by": self.by}

    @property
    def step_name(self) -> str:
        """The name of the step in which it is done."""
        return self.intention.name if self.executor is None else self.executor.name_of(self.intention)

    def __str__(self) -> str:
        one = self.intention
        about = "" if one.object is None else f" for object {one.object!r}"
        return f"{one.kind} {one.name!r}{about} (entry {self.ref.seq}, from {self.by})"

    def make(self) -> Answer:
        """Have it done. What makes a run or a replay fail is raised; any other exception is the answer."""
        executor = self._executor()
        with self._place() as place:
            try:
                return place.answer(executor.perform(self.intention.alone()))
            except IntentionError:
                raise
            except Exception as error:
                return place.failed(error)

    async def make_async(self) -> Answer:
        """The same, beside others: what is not to be awaited runs in a thread."""
        if self.held is not None:
            await self.held.wait()
        self.begun = True
        executor = self._executor()
        if not executor.asynchronous_for(self.intention):
            return await asyncio.to_thread(self.make)
        with self._place() as place:
            try:
                return place.answer(await executor.perform(self.intention.alone()))
            except IntentionError:
                raise
            except Exception as error:
                return place.failed(error)

    def _executor(self) -> Executor:
        assert self.executor is not None
        return self.executor

    @contextmanager
    def _place(self) -> Iterator[_Place]:
        """Inside the entry of the intention."""
        scope = here()
        place = _Place(self)
        if scope is None:
            yield place
            return
        token = enter(scope.inside(self.ref.seq, live=False))
        try:
            yield place
        finally:
            current.reset(token)


class _Place:
    """Where a request is done: it knows whether anything came on the log."""

    def __init__(self, request: Request) -> None:
        self._request: Final = request
        scope = here()
        self._scope: Final = scope
        self._before: Final = 0 if scope is None else scope.lane.last

    def answer(self, data: Any) -> Answer:
        request = self._request
        if inspect.isawaitable(data) or not isinstance(data, Mapping):
            raise IntentionError(
                f"the executor of {request} answered {data!r:.80}, which is no event's data",
                next_action="`perform` returns a mapping; a coroutine of one where `asynchronous` is true",
            )
        exchange = self._exchange()
        if self._scope is not None and not exchange:
            raise IntentionError(
                f"{request} was done, and nothing of that is on the log: a replay would do it again",
                run_id=self._scope.session.run_id,
                next_action="call `tracekit.instrument()`, or `wrap` the client; an executor of your own calls traced tools",
            )
        return Answer(self._priced(data), None, exchange, self._replayed(exchange))

    def failed(self, error: Exception) -> Answer:
        exchange = self._exchange()
        told = {"type": f"{type(error).__module__}:{type(error).__qualname__}", "text": str(error)}
        return Answer(told, error, exchange, self._replayed(exchange))

    def _exchange(self) -> int:
        """The last step that was made here; 0 where there is none."""
        scope = self._scope
        return 0 if scope is None or scope.lane.last == self._before else scope.lane.last

    def _replayed(self, exchange: int) -> bool:
        """Whether the log answered: the step is one of it, and none that a what-if lets go live."""
        scope = self._scope
        if scope is None or not exchange:
            return False
        session: Any = scope.session
        trace = trace_of(session)
        if trace is None or exchange > len(trace):
            return False
        family = "llm" if self._request.intention.kind == "llm.request" else "tool"
        live = getattr(session, "live", ())
        return family not in live and f"{family}:{self._request.step_name}" not in live

    def _priced(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of a model's answer with its price, where that is known: by the budget's prices, if there is one."""
        usage, model = data.get("usage"), data.get("model")
        if self._request.intention.kind != "llm.request" or data.get("cost_usd") is not None or not (usage and model):
            return data
        spending = None if self._scope is None else self._scope.spending
        prices = Prices() if spending is None else spending.prices
        try:
            return {
                **data,
                "cost_usd": round(prices.of_answer(model, self._request.intention.name, None, None, usage), 9),
            }
        except (UnknownPriceError, RunStateError):
            return data
