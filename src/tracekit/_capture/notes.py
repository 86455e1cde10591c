"""Steps of one entry: decisions, data sets, and what governance has to say. Recorded, and compared whole in a replay."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar

from .._engine.gate import here
from .._engine.scope import Scope, current
from .schemas import validate

__all__ = ["agent", "breaker", "caused", "data", "decision", "detection", "policy_check", "state_transition"]

F = TypeVar("F", bound=Callable[..., Any])


def _note(
    kind: str, name: str, *, input: Any, output: Any, meta: Mapping[str, Any], info: Mapping[str, Any] | None = None
) -> int | None:
    scope = here()
    if scope is None:
        return None
    return scope.session.note(scope, kind, name, input=input, output=output, signature=meta, info=info)


def caused(meta: Mapping[str, Any], causes: Iterable[Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a step says of its causes (messages between agents): their ids, to be compared, and where they stand.

    A message that is on no log, since it was sent outside every run, is no cause.
    """
    if hasattr(causes, "origin"):
        causes = [causes]
    origins = list(dict.fromkeys(cause.origin for cause in causes if cause.origin is not None))
    if not origins:
        return dict(meta), None
    ids = [origin.event_id for origin in origins]
    return {**meta, "causes": ids}, {"cause": [origin.as_dict() for origin in origins]}


def decision(name: str, *, input: Any, output: Any, schema: Any = None, **meta: Any) -> Any:
    """Record that the agent decided ``output`` on ``input`` (a plan, the choice of a tool), and return ``output``.

    ``schema`` is a pydantic model or a JSON Schema that the output must satisfy: else ``contract.violated`` is recorded and
    ``ContractViolationError`` raised. ``meta`` is recorded and compared in a replay.
    """
    if schema is not None:
        validate(name, output, schema)
    _note("decision", name, input=input, output=output, meta=meta)
    return output


def data(name: str, path_or_bytes: str | os.PathLike[str] | bytes, **meta: Any) -> str:
    """Record which version of a data set the run used; returns its ``sha256:`` hash.

    A replay on other data is a divergence that names the data set.
    """
    if isinstance(path_or_bytes, bytes):
        digest, size = hashlib.sha256(path_or_bytes), len(path_or_bytes)
    else:
        with open(path_or_bytes, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            size = file.tell()
    version = "sha256:" + digest.hexdigest()
    _note("data", name, input={"size": size}, output=version, meta=meta)
    return version


def state_transition(name: str, *, from_: Any, to: Any, causes: Iterable[Any] = (), **meta: Any) -> None:
    """Record that ``name`` (an agent, a workflow, an object) went from one state to another.

    ``causes`` are messages of ``tracekit.agents`` that brought it about.
    """
    signature, info = caused(meta, causes)
    _note("state_transition", name, input=from_, output=to, meta=signature, info=info)


def policy_check(name: str, *, input: Any, output: Any, **meta: Any) -> Any:
    """Record what a policy engine was asked (``{action, agent_id, payload}``) and said (``{decision, reason}``); returns ``output``."""
    _note("policy.check", name, input=input, output=output, meta=meta)
    return output


def breaker(name: str, *, input: Any = None, output: Any, **meta: Any) -> Any:
    """Record that a kill switch or circuit breaker was consulted or fired; returns ``output``."""
    _note("breaker", name, input=input, output=output, meta=meta)
    return output


def detection(name: str, *, input: Any = None, output: Any, **meta: Any) -> Any:
    """Record what an adversarial detector or filter found (flags, scores); returns ``output``."""
    _note("detection", name, input=input, output=output, meta=meta)
    return output


class agent:
    """The acting agent of a block, ``with agent("planner", identity={"spiffe_id": …}):``, or of a function: ``@agent("planner")``.

    Every step inside carries ``agent_id``; ``identity`` (SPIFFE id, attestation, configuration) is recorded once, and compared in a
    replay.
    """

    def __init__(self, name: str, identity: Mapping[str, Any] | None = None) -> None:
        if not name:
            raise ValueError("an agent needs a name")
        self.name = name
        self.identity = identity
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> agent:
        scope = here()
        if scope is not None:
            scope.session.identify(self.name, self.identity)
            self._token = current.set(scope.acting(self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.reset(self._token)
            self._token = None

    async def __aenter__(self) -> agent:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """``function``, sync or async, so that this agent acts in each call of it."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: say who acts in a block inside it")
        name, identity = self.name, self.identity
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def act_async(*args: Any, **kwargs: Any) -> Any:
                with agent(name, identity):
                    return await function(*args, **kwargs)

            return act_async  # type: ignore[return-value]

        @functools.wraps(function)
        def act(*args: Any, **kwargs: Any) -> Any:
            with agent(name, identity):
                return function(*args, **kwargs)

        return act  # type: ignore[return-value]
