"""Steps of one entry that a program reports itself: decisions, data sets, policy checks, agents."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeVar

from .._reality import off_loop
from .._runtime.session import Scope, current, here
from .._runtime.step import Note
from ..errors import ContractViolationError

__all__ = [
    "agent",
    "breaker",
    "caused",
    "data",
    "decision",
    "detection",
    "named",
    "policy_check",
    "state_transition",
    "validate",
]

# -- blocks left by a yield --------------------------------------------------------------------------------------------
#
# A ``with`` block of a generator that contains a ``yield``: what the block sets would also apply to the consumer of the item.

#: In an async generator, CALL_INTRINSIC_1 with this argument precedes a ``yield`` (3.11 has an instruction for it).
_WRAP: Final = "ASYNC_GEN_WRAP"


def yields_inside(frame: FrameType | None) -> bool:
    """Return whether the block that ``frame`` is about to enter contains a ``yield``, unless the generator is a context
    manager.

    Generators that ``contextlib`` and pytest run up to their ``yield`` set something for others on purpose.
    """
    if frame is None or not frame.f_code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return False
    driver = frame.f_back
    if driver is not None:
        file, name = driver.f_code.co_filename, driver.f_globals.get("__name__", "")
        if file == contextlib.__file__ or str(name).startswith(("_pytest", "pytest_asyncio")):
            return False
    return _yields(frame.f_code, frame.f_lasti)


@lru_cache(256)
def _yields(code: CodeType, at: int) -> bool:
    steps = list(dis.get_instructions(code))
    after = dict(zip((step.offset for step in steps), steps[1:], strict=False))
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    blocks = [
        entry
        for entry in table
        if entry.start > at and entry.target in after and after[entry.target].opname == "WITH_EXCEPT_START"
    ]
    if not blocks:
        return False
    handler = min(blocks, key=lambda entry: entry.start).target
    return any(
        step.opname == "YIELD_VALUE" and _gives(code, previous) and _leads(table, step.offset, handler)
        for previous, step in zip([None, *steps], steps, strict=False)
    )


def _leads(table: list[Any], offset: int, handler: int) -> bool:
    """Return whether an unhandled exception at ``offset`` ends up at ``handler``, which means that ``offset`` is inside
    the block."""
    seen: set[int] = set()
    while offset not in seen:
        seen.add(offset)
        target = next((entry.target for entry in table if entry.start <= offset < entry.end), None)
        if target is None or target == handler:
            return target == handler
        offset = target
    return False


def _gives(code: CodeType, before: dis.Instruction | None) -> bool:
    """Return whether the yield after ``before`` yields an item; in an async generator, other yields are awaits."""
    if not code.co_flags & CO_ASYNC_GENERATOR:
        return True
    return before is not None and (before.opname == _WRAP or _WRAP in before.argrepr)


# -- validation --------------------------------------------------------------------------------------------------------
#
# Checks structured output against its schema: a pydantic model, or a JSON Schema.


def validate(name: str, output: Any, schema: Any) -> None:
    """Raise ``ContractViolationError``, recorded as ``contract.violated``, if ``output`` does not satisfy ``schema``."""
    problem = _problem(output, schema)
    if problem is None:
        return
    scope = here()
    seq = None
    if scope is not None:
        seq = scope.session.note(scope, Note("contract.violated", name, output, problem))
    raise ContractViolationError(
        f"the decision {name!r} does not satisfy its schema: {problem}",
        run_id=None if scope is None else scope.session.run_id,
        step=seq,
        output=output,
        next_action="ask the model for structured output of this shape, or fix the schema",
    )


def _problem(output: Any, schema: Any) -> str | None:
    if hasattr(schema, "model_validate"):
        try:
            schema.model_validate(output.model_dump() if hasattr(output, "model_dump") else output, strict=False)
        except ValueError as error:
            return str(error)
        return None
    if isinstance(schema, dict):
        return _against_json_schema(output, schema)
    raise TypeError(f"a schema must be a pydantic model or a JSON Schema (dict), not {schema!r}")


def _against_json_schema(output: Any, schema: dict[str, Any]) -> str | None:
    try:
        with off_loop():  # it reads files of its own
            import jsonschema
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "checking a decision against a JSON Schema needs jsonschema: pip install jsonschema"
        ) from None
    try:
        jsonschema.validate(output, schema)
    except jsonschema.ValidationError as error:
        return f"{error.json_path}: {error.message}"
    return None


# -- entries -----------------------------------------------------------------------------------------------------------
#
# Steps of one entry: decisions, data sets, and governance records. They are compared whole in a replay.

F = TypeVar("F", bound=Callable[..., Any])


def _note(
    kind: str, name: str, *, input: Any, output: Any, meta: Mapping[str, Any], info: Mapping[str, Any] | None = None
) -> int | None:
    scope = here()
    if scope is None:
        return None
    return scope.session.note(scope, Note(kind, name, input, output, meta, info))


def _decided(kind: str, name: str, input: Any, output: Any, meta: Mapping[str, Any]) -> Any:
    """Note a decision and return the output that applies: in a partial replay it may be replaced."""
    scope = here()
    if scope is None:
        return output
    output = scope.session.decided(kind, name, input, output)
    scope.session.note(scope, Note(kind, name, input, output, meta))
    return output


def caused(meta: Mapping[str, Any], causes: Iterable[Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Split a step's causes (messages between agents) into event ids, which a replay compares, and their positions in
    the log.

    A message sent outside every run is on no log and is left out.
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

    If ``output`` does not satisfy ``schema`` (a pydantic model or a JSON Schema), ``contract.violated`` is recorded and
    ``ContractViolationError`` raised. ``meta`` is recorded, and compared in a replay.

    Examples:
        >>> from tracekit import decision, record
        >>> with record("trip"):
        ...     decision("turn", input="crossing", output="left")
        'left'
    """
    if schema is not None:
        validate(name, output, schema)
    _note("decision", name, input=input, output=output, meta=meta)
    return output


def data(name: str, path_or_bytes: str | os.PathLike[str] | bytes, **meta: Any) -> str:
    """Record which version of a data set (a file, or its bytes) the run uses; return its ``sha256:`` hash.

    A replay with other data is a divergence that names the data set.
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
    """Record that ``name`` (an agent, a workflow, an object) changed from one state to another.

    ``causes`` are the messages of ``tracekit.agents`` that caused the change.
    """
    signature, info = caused(meta, causes)
    _note("state_transition", name, input=from_, output=to, meta=signature, info=info)


def policy_check(name: str, *, input: Any, output: Any, **meta: Any) -> Any:
    """Record a policy engine's request (``{action, agent_id, payload}``) and decision (``{decision, reason}``); return
    ``output``."""
    return _decided("policy.check", name, input, output, meta)


def breaker(name: str, *, input: Any = None, output: Any, **meta: Any) -> Any:
    """Record that a kill switch or circuit breaker was consulted or fired; returns ``output``."""
    return _decided("breaker", name, input, output, meta)


def detection(name: str, *, input: Any = None, output: Any, **meta: Any) -> Any:
    """Record what an adversarial detector or filter found (flags, scores); returns ``output``."""
    return _decided("detection", name, input, output, meta)


def named(name: Any, what: str) -> str:
    """Return ``name`` if it is a non-empty string (or string enumeration); else raise ``TypeError`` or ``ValueError``
    about ``what``."""
    if not isinstance(name, str):
        raise TypeError(f'{what} is called by a text, as in "planner", not by {name!r:.80}')
    if not name:
        raise ValueError(f"{what} needs a name")
    return name


class agent:
    """Set the acting agent of a block, ``with agent("planner", identity={"spiffe_id": …}):``, or of a function:
    ``@agent("planner")``.

    Every step inside carries ``agent_id``. ``identity`` (SPIFFE id, attestation, configuration) is recorded once, and
    compared in a replay.
    """

    def __init__(self, name: str, identity: Mapping[str, Any] | None = None) -> None:
        self.name = named(name, "an agent")
        self.identity = identity
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> agent:
        return self._enter(sys._getframe(1))

    def _enter(self, frame: FrameType | None) -> agent:
        scope = here()
        if scope is not None:
            if yields_inside(frame):
                assert frame is not None
                raise TypeError(
                    f"`with agent({self.name!r})` in {frame.f_code.co_qualname}() contains a yield: what the caller does with an item "
                    f"would count as the agent's too; decorate the generator with @agent({self.name!r}), or yield outside the block"
                )
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
        return self._enter(sys._getframe(1))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorate a sync or async function so that this agent acts in each of its calls (in a generator: while it
        runs)."""
        if isinstance(function, (type, classmethod, staticmethod)) or not callable(function):
            raise TypeError(
                f"@agent({self.name!r}) is for functions and methods, not {function!r:.80}: "
                "decorate the methods in which the agent acts, below @classmethod or @staticmethod"
            )
        name, identity = self.name, self.identity
        if inspect.isgeneratorfunction(function):
            return _generating(function, name, identity)  # type: ignore[return-value]
        if inspect.isasyncgenfunction(function):
            return _generating_async(function, name, identity)  # type: ignore[return-value]
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


def _generating(function: Callable[..., Any], name: str, identity: Mapping[str, Any] | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Any:
        items = function(*args, **kwargs)
        go, sent = items.send, None
        while True:
            try:
                with agent(name, identity):
                    item = go(sent)
            except StopIteration as end:
                return end.value
            try:
                go, sent = items.send, (yield item)
            except GeneratorExit:
                with agent(name, identity):
                    items.close()
                raise
            except BaseException as error:
                go, sent = items.throw, error

    return generate


def _generating_async(
    function: Callable[..., Any], name: str, identity: Mapping[str, Any] | None
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> Any:
        items = function(*args, **kwargs)
        go, sent = items.asend, None
        while True:
            try:
                with agent(name, identity):
                    item = await go(sent)
            except StopAsyncIteration:
                return
            try:
                go, sent = items.asend, (yield item)
            except GeneratorExit:
                with agent(name, identity):
                    await items.aclose()
                raise
            except BaseException as error:
                go, sent = items.athrow, error

    return generate
