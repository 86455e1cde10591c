"""Steps of one entry: decisions, data sets, and what governance has to say. Recorded, and compared whole in a replay."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import Any

from .._engine.gate import here
from .._engine.scope import Scope, current
from .schemas import validate

__all__ = ["agent", "breaker", "data", "decision", "detection", "policy_check", "state_transition"]


def _note(kind: str, name: str, *, input: Any, output: Any, meta: Mapping[str, Any]) -> int | None:
    scope = here()
    if scope is None:
        return None
    return scope.session.note(scope, kind, name, input=input, output=output, signature=meta)


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


def state_transition(name: str, *, from_: Any, to: Any, **meta: Any) -> None:
    """Record that ``name`` (an agent, a workflow, an object) went from one state to another."""
    _note("state_transition", name, input=from_, output=to, meta=meta)


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
    """The acting agent of a block: ``with agent("planner", identity={"spiffe_id": …}):``.

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
