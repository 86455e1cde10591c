"""A ``record()`` in a process that has joined a run: no run of its own, but a span of that one."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

from .._canonical import to_json
from .._engine.divergence import describe, differences
from .._engine.gate import here
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope, current, enter
from .._engine.step import Request, Spec
from ..errors import DivergenceError
from .runs import UNSET, Run, register, registered, unregister

if TYPE_CHECKING:
    from .recorded import Record

__all__ = ["Part"]


class Part:
    """The span that stands in for a ``record()``."""

    def __init__(self, block: Record) -> None:
        self._block: Final = block
        self._step: Any = None
        self._token: Token[Scope | None] | None = None
        self._outer: Run | None = None

    def stand_in(self, options: Mapping[str, Any]) -> Run:
        scope = here()
        assert scope is not None
        session: Any = scope.session
        if options["agent"] is not None or options["identity"] is not None:
            session.identify(options["agent"] or "agent", options["identity"])
        self._step = session.begin(scope, Request(Spec("span", options["name"] or "run"), {"input": self._block.given}))
        inside = self._step.body()
        self._token = enter(inside if options["agent"] is None else inside.acting(options["agent"]))
        run = Run(session, _path(session), options["name"])
        self._outer = registered(session)
        register(session, run)
        return run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                current.reset(token)
            except ValueError:  # left in another context than it was entered in
                current.set(None)
        session = run._session
        unregister(session)
        if self._outer is not None:
            register(session, self._outer)
        if error is not None:
            self._step.failed(error)
            return
        result = None if run.result is UNSET else run.result
        self._step.done(result)
        if isinstance(session, Replay):
            self._compare(session, result)

    def _compare(self, session: Replay, result: Any) -> None:
        answer = session.index.answer[self._step.seq]
        if not answer:
            return
        recorded = session.trace.expand(session.trace.entry(answer).get("output"))
        actual = session.redactor.redact(to_json(result))[0]
        found = differences(recorded, actual)
        if found and not session.equal(recorded, actual):
            raise session.fail(
                DivergenceError(
                    f"the part {self._step.spec.name!r} of the run came to another result\n" + describe(found),
                    run_id=session.run_id,
                    step=answer,
                    recorded=recorded,
                    actual=actual,
                    differences=found,
                    next_action="every step matched and the result differs: look for what is not captured (docs/not-captured.md)",
                )
            )


def _path(session: Recording | Replay) -> str:
    return session.trace.path if isinstance(session, Replay) else session.journal.path
