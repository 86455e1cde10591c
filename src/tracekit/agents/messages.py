"""Messages between agents: sent and received as steps, carried in headers, and handled as tasks."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote, unquote_to_bytes

from tracekit import agent

from ..errors import InvalidMessageError, ReplayError, RunStateError
from ..integration import (
    Note,
    Scope,
    Trace,
    caused,
    entered,
    from_json,
    here,
    meta_of,
    named,
    register_tasks,
    segment_in,
    valid_run_id,
)
from .ids import Origin, span_id, trace_id

__all__ = [
    "OUTSIDE",
    "Handler",
    "Headers",
    "Message",
    "MessageType",
    "as_message",
    "change_state",
    "extract",
    "inject",
    "on_task",
    "origin_of",
    "receive_task",
    "replay_tasks",
    "replay_tasks_async",
    "respond",
    "send_task",
]

# -- messages ----------------------------------------------------------------------------------------------------------
#
# Messages between agents: sending, receiving and answering are steps of one entry each that name their causes.
#
# ::
#
#     with agent("planner"):
#         message = send_task("worker", {"find": "a flat"})
#
#     with agent("worker"):
#         task = receive_task(message)
#         answer = respond(task, find(task.payload))
#
#     with agent("planner"):
#         send_task("writer", summary, causes=[answer, other_answer])       # a join names all that it waited for
#
# The program transports messages itself: as an argument, by a queue, a file, HTTP. A ``Message`` can be pickled, or
# converted to a dictionary and back, or carried in headers (``inject``, ``extract``). In a replay the steps are
# compared with the recorded ones, including causes, and a message equals the recorded one. Outside of a run nothing is
# recorded.

#: The name in the log for the other party of a message if it has none.
OUTSIDE: Final = "(outside)"

MessageType: TypeAlias = Literal["task_sent", "task_received", "response_sent", "state_transition"]
#: The causes of an event: one message or several.
Causes: TypeAlias = "Iterable[Message] | Message"
_TYPES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})
_HEX: Final = frozenset("0123456789abcdef")
#: The largest valid ``seq``: other JSON readers would round a larger one.
_MAX_SEQ: Final = 2**53


@dataclass(frozen=True, slots=True)
class Message:
    """A message between two agents, its receipt, or a change of state: anything that can be a cause. It is immutable,
    and can be passed anywhere.

    ``origin`` is its place in a trace, and ``event_id`` its id there; both are ``None`` for a message that was sent
    outside of any run.
    """

    type: MessageType
    sender: str | None
    recipient: str | None
    payload: Any = None
    task: str | None = None
    origin: Origin | None = field(default=None)

    @property
    def event_id(self) -> str | None:
        """The id of the event, in the form of a UUID v4; the same in a replay."""
        return None if self.origin is None else self.origin.event_id

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary, for a transport of your own; JSON if the payload is."""
        origin = None if self.origin is None else self.origin.as_dict()
        return {
            "type": self.type,
            "sender": self.sender,
            "recipient": self.recipient,
            "task": self.task,
            "payload": self.payload,
            "origin": origin,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Message:
        """Create a message from its dictionary. Raises ``InvalidMessageError`` for anything else."""
        try:
            kind, origin = fields["type"], fields["origin"]
            names = [fields["sender"], fields["recipient"], fields["task"]]
            payload = fields["payload"]
        except (KeyError, TypeError) as error:
            raise _invalid(f"a message needs type, sender, recipient, task, payload and origin: {error!r}") from None
        if kind not in _TYPES:
            raise _invalid(f"{kind!r} is not a type of message")
        if not all(name is None or isinstance(name, str) for name in names):
            raise _invalid(f"sender, recipient and task of a message must be strings, not {names}")
        where = None if origin is None else origin_of(origin)
        return cls(kind, names[0], names[1], payload, names[2], where)


def origin_of(fields: Any) -> Origin:
    """Return the origin of a message from its untrusted fields. Raises ``InvalidMessageError`` if they are invalid."""
    if not isinstance(fields, Mapping):
        raise _invalid(f"the origin of a message must be an object, not {fields!r:.80}")
    run_id, segment, seq = fields.get("run_id"), fields.get("segment"), fields.get("seq")
    if not isinstance(run_id, str) or not valid_run_id(run_id):
        raise _invalid(f"{run_id!r:.80} can't be a run id")
    if segment is not None and (not isinstance(segment, str) or len(segment) != 16 or not _HEX.issuperset(segment)):
        raise _invalid(f"{segment!r:.80} can't be a segment")
    if type(seq) is not int or not 0 < seq <= _MAX_SEQ:
        raise _invalid(f"{seq!r:.80} can't be the number of an entry")
    return Origin(run_id, segment, seq)


def send_task(
    recipient: str, payload: Any = None, *, task: str | None = None, causes: Causes = (), **meta: Any
) -> Message:
    """Record that the acting agent sends ``recipient`` a task, and return the message to pass on.

    ``task`` names what is to be done. ``causes`` are the messages that this one responds to: a join that waited for two
    answers names both. ``meta`` is recorded, and compared in a replay.
    """
    return _send("task_sent", named(recipient, "the recipient of a task"), payload, task, causes, meta)


def receive_task(message: Message | Mapping[str, Any], **meta: Any) -> Message:
    """Record that the acting agent has received ``message`` (or its dictionary), and return the receipt, for
    ``respond``.

    A response may be received in the same way, if that is a step of its own; otherwise name it in the ``causes`` of
    what it leads to. Raises ``InvalidMessageError`` for anything but a message.
    """
    message = as_message(message, "receive_task()")
    scope = here()
    acting = scope.agent if scope is not None else None
    origin = _note("task_received", message.sender or OUTSIDE, message.payload, message.task, [message], meta)
    return Message("task_received", message.sender, acting or message.recipient, message.payload, message.task, origin)


def respond(message: Message | Mapping[str, Any], payload: Any = None, *, causes: Causes = (), **meta: Any) -> Message:
    """Record the answer to ``message`` (the result of ``receive_task``), and return it, to be sent back.

    ``causes`` are further messages that it is based on: answers of other agents. Raises ``InvalidMessageError`` if
    ``message`` is none.
    """
    message = as_message(message, "respond()")
    return _send("response_sent", message.sender, payload, message.task, [message, *_messages(causes)], meta)


def change_state(from_: Any, to: Any, *, name: str | None = None, causes: Causes = (), **meta: Any) -> Message:
    """Record that the acting agent (or ``name``) changed from one state to another; the returned event can itself be a
    cause.

    ``causes`` are the messages that caused the change.
    """
    scope = here()
    acting = scope.agent if scope is not None else None
    signature, info = caused(meta, _messages(causes))
    origin = _noted("state_transition", name or acting or "state", from_, to, signature, info)
    return Message("state_transition", acting, None, to, None, origin)


def _send(
    kind: MessageType, recipient: str | None, payload: Any, task: str | None, causes: Causes, meta: Any
) -> Message:
    scope = here()
    acting = scope.agent if scope is not None else None
    origin = _note(kind, recipient or OUTSIDE, payload, task, causes, meta)
    return Message(kind, acting, recipient, payload, task, origin)


def _note(
    kind: str, other: str, payload: Any, task: str | None, causes: Causes, meta: Mapping[str, Any]
) -> Origin | None:
    signature, info = caused(meta if task is None else {**meta, "task": task}, _messages(causes))
    return _noted(kind, other, None, payload, signature, info)


def _noted(
    kind: str, name: str, input: Any, output: Any, signature: Mapping[str, Any], info: Mapping[str, Any] | None
) -> Origin | None:
    scope = here()
    if scope is None:
        return None
    session = scope.session
    seq = session.note(scope, Note(kind, name, input, output, signature, info))
    # 0: the log could not be written, or the run has ended. An event that is not recorded can't be referred to.
    return Origin(session.run_id, segment_in(session.log.path), seq) if seq else None


def as_message(value: Any, by: str) -> Message:
    """Return the message in an argument of function ``by``: a message, or its dictionary. Raises
    ``InvalidMessageError`` for anything else."""
    if isinstance(value, Message):
        return value
    if isinstance(value, Mapping):
        return Message.from_dict(value)
    raise InvalidMessageError(
        f"{by} needs a message, not {value!r:.80}",
        next_action="give what send_task(), receive_task(), respond() or extract() returned, or Message.as_dict() of it",
    )


def _messages(causes: Any) -> list[Message]:
    if isinstance(causes, (Message, Mapping)):
        causes = [causes]
    try:
        found = list(causes)
    except TypeError:
        found = [causes]
    return [as_message(one, "causes=") for one in found]


def _invalid(what: str) -> InvalidMessageError:
    return InvalidMessageError(what, next_action="refuse the message: it was damaged on the way, or made up")


# -- headers -----------------------------------------------------------------------------------------------------------
#
# Messages over any transport with headers: W3C ``traceparent`` and ``baggage``.
#
# ``baggage`` has the message's origin (run, segment, entry), sender, recipient and task; the payload belongs in the
# body. A ``traceparent`` is added if there is none, so that other tools see one trace; an existing one stays, and so do
# other members of ``baggage``.
#
# Incoming headers are untrusted. Headers without members of tracekit are a message from outside of any run; malformed
# members (truncated, or forged) are an ``InvalidMessageError``.

#: Headers as frameworks represent them: an object with ``items()``, or pairs; names and values are text or bytes.
Headers: TypeAlias = Any

_PREFIX: Final = "tracekit."
_FIELDS: Final = ("run", "segment", "seq", "type", "sender", "recipient", "task")
#: The characters allowed unquoted in a baggage value, besides those that ``quote`` leaves.
_SAFE: Final = "!#$&'()*+/:<=>?@[]^`{|}"
_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*", re.ASCII)
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
#: The limits of the W3C recommendation, beyond which a receiver may refuse.
_LONGEST: Final = 8192
_HEADER_TYPES: Final[dict[str, MessageType]] = {
    "sent": "task_sent",
    "received": "task_received",
    "response": "response_sent",
    "transition": "state_transition",
}
_WORDS: Final = {kind: word for word, kind in _HEADER_TYPES.items()}


def inject(headers: MutableMapping[str, str], message: Message) -> MutableMapping[str, str]:
    """Put ``message``, except for its payload, into the headers of a request or response; return ``headers``.

    Raises ``InvalidMessageError`` if ``baggage`` would be longer than the 8,192 bytes that receivers must accept.
    """
    message = as_message(message, "inject()")
    name, others = _present(headers)
    members = [*others, *(f"{_PREFIX}{key}={quote(value, safe=_SAFE)}" for key, value in _baggage_members(message))]
    baggage = ",".join(members)
    if len(baggage) > _LONGEST:
        raise InvalidMessageError(
            f"the baggage of this message is {len(baggage)} bytes long; {_LONGEST} may be sent",
            next_action="use shorter names of agents and tasks, or send Message.as_dict() in the body",
        )
    headers[name] = baggage
    origin = message.origin
    if origin is not None:
        there = next((key for key in headers if key.lower() == "traceparent"), "traceparent")
        ours = f"00-{trace_id(origin.run_id)}-"
        if there not in headers or headers[there].startswith(ours):
            headers[there] = f"{ours}{span_id(*origin)}-01"
    return headers


def extract(headers: Headers, payload: Any = None) -> Message:
    """Return the message in headers, with ``payload`` from the body.

    Without members of tracekit this is a message from outside: its ``origin`` is ``None``. Raises
    ``InvalidMessageError`` for malformed members.
    """
    found = _collected(headers)
    members = _members(found.get("baggage", []))
    if not members:
        return Message("task_sent", None, None, payload)
    origin = _origin(members)
    _agree(found.get("traceparent", []))
    kind = _HEADER_TYPES.get(members.get("type", "sent"))
    if kind is None:
        raise _malformed(f"{members['type']!r:.80} is not a type of message")
    return Message(kind, members.get("sender"), members.get("recipient"), payload, members.get("task"), origin)


def _baggage_members(message: Message) -> Iterable[tuple[str, str]]:
    origin = message.origin
    if origin is not None:
        yield "run", origin.run_id
        if origin.segment is not None:
            yield "segment", origin.segment
        yield "seq", str(origin.seq)
    yield "type", _WORDS[message.type]
    for key, value in (("sender", message.sender), ("recipient", message.recipient), ("task", message.task)):
        if value is not None:
            yield key, value


def _present(headers: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the spelling of the baggage header here, and its members that are not tracekit's."""
    for name, value in headers.items():
        if name.lower() == "baggage":
            members = [member.strip() for member in value.split(",")]
            return name, [member for member in members if member and not member.startswith(_PREFIX)]
    return "baggage", []


# -- parsing -----------------------------------------------------------------------------------------------------------


def _collected(headers: Headers) -> dict[str, list[str]]:
    """Return all values of the headers ``traceparent`` and ``baggage``, in any spelling."""
    try:
        pairs = [(raw, value) for raw, value in (headers.items() if hasattr(headers, "items") else headers)]
    except (TypeError, ValueError):
        raise InvalidMessageError(
            f"extract() needs headers, a mapping or pairs of name and value, not {headers!r:.80}",
            next_action="give the headers of the request, {} where there are none",
        ) from None
    found: dict[str, list[str]] = {}
    for raw, value in pairs:
        name = _text(raw).lower()
        if name in ("traceparent", "baggage"):
            values = value if isinstance(value, (list, tuple)) else (value,)
            found.setdefault(name, []).extend(_text(item).strip() for item in values)
    return found


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _members(lines: Iterable[str]) -> dict[str, str]:
    """Return the decoded baggage members of tracekit; others are ignored."""
    found: dict[str, str] = {}
    for line in lines:
        for member in line.split(","):
            key, equals, rest = member.strip().partition("=")
            key = key.rstrip()
            if not key.startswith(_PREFIX):
                continue
            key, value = key[len(_PREFIX) :], rest.partition(";")[0].strip()
            if key not in _FIELDS:
                continue  # of a later version
            if not equals or key in found:
                raise _malformed(f"baggage has {_PREFIX}{key} {'twice' if key in found else 'without a value'}")
            found[key] = _decoded(key, value)
    return found


def _decoded(key: str, value: str) -> str:
    if len(value) > _LONGEST or not _VALUE.fullmatch(value) or _PERCENT.search(value):
        raise _malformed(f"the value of {_PREFIX}{key} in baggage is malformed: {value!r:.80}")
    try:
        return unquote_to_bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed(f"the value of {_PREFIX}{key} in baggage is not UTF-8: {value!r:.80}") from None


def _origin(members: Mapping[str, str]) -> Origin | None:
    run_id, seq = members.get("run"), members.get("seq")
    if run_id is None and seq is None and "segment" not in members:
        return None
    if run_id is None or seq is None or not _NUMBER.fullmatch(seq):
        raise _malformed(f"baggage needs {_PREFIX}run and {_PREFIX}seq together, not {run_id!r:.80} and {seq!r:.80}")
    return origin_of({"run_id": run_id, "segment": members.get("segment"), "seq": int(seq)})


def _agree(lines: list[str]) -> None:
    """Check that a ``traceparent`` next to tracekit's baggage is well-formed.

    Only baggage names the causing event: a proxy that follows the standard puts its own span into ``traceparent``, or
    begins a trace of its own.
    """
    if len(lines) > 1:
        raise _malformed("there are two traceparent headers")
    for line in lines:
        found = _TRACEPARENT.fullmatch(line)
        if (
            found is None
            or found[1] == "ff"
            or (found[1] == "00" and found[5] is not None)
            or not found[2].strip("0")
            or not found[3].strip("0")
        ):
            raise _malformed(f"traceparent is malformed: {line!r:.80}")


def _malformed(what: str) -> InvalidMessageError:
    return InvalidMessageError(
        what, next_action="refuse the request (HTTP status 400): its headers were cut or made up"
    )


# -- tasks -------------------------------------------------------------------------------------------------------------
#
# Handlers of tasks that arrive from outside, and a replay that calls them without the server or queue.
#
# ::
#
#     @on_task("worker")
#     def handle(task: Message) -> dict:
#         return find(task.payload)
#
#     answer = handle(extract(request.headers, body))         # in the server: received, done, answered
#
#     with replay(run):
#         replay_tasks(handle)                                        # no server: each recorded task, in recorded order
#
# Each task runs in a lane of its own, numbered per handler as tasks arrive, in whatever thread or task the server calls
# it; so a replay needs no server.

P = ParamSpec("P")
R = TypeVar("R")


#: The handlers of this process.
_handlers: Final[dict[str, Handler[Any]]] = {}


class Handler(Generic[R]):
    """A function that does tasks for an agent. Call it with a message; it returns the response, which is a message,
    too.

    ``None`` from the function is an answer like any other. What it raises propagates to the caller, and no response is
    recorded.
    """

    def __init__(self, function: Callable[[Message], R], name: str) -> None:
        self.function: Final = function
        self.name: Final = name
        functools.update_wrapper(self, function)

    @property
    def lane(self) -> str:
        """The name of the lanes in which its tasks run."""
        return f"task:{self.name}"

    def __call__(self, message: Message) -> Any:
        scope = here()
        if scope is None or scope.live:  # inside a live tool: a replay does not run it, so it is not recorded
            return self._run(message, None)
        return self._run(message, scope.task(self.lane))

    def _run(self, message: Message, scope: Scope | None) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return self._done_async(message, scope)
        with _within(scope), agent(self.name):
            task = receive_task(message, handler=self.name)
            return respond(task, self.function(task))

    async def _done_async(self, message: Message, scope: Scope | None) -> Message:
        with _within(scope), agent(self.name):
            task = receive_task(message, handler=self.name)
            return respond(task, await self.function(task))  # type: ignore[misc]


def on_task(name: str) -> Callable[[Callable[[Message], R]], Handler[R]]:
    """Make a function, sync or async, the handler of agent ``name``'s tasks: it receives a message and returns the
    answer's payload."""
    name = named(name, "the agent of a handler")

    def decorate(function: Callable[[Message], R]) -> Handler[R]:
        handler = _handlers[name] = Handler(function, name)
        register_tasks(_handled)
        return handler

    return decorate


def _within(scope: Scope | None) -> AbstractContextManager[None]:
    """The block with a lane of its own."""
    return nullcontext() if scope is None else entered(scope, ends=True)


# -- replay --------------------------------------------------------------------------------------------------------------


def replay_tasks(*handlers: Handler[Any]) -> list[Message | Exception]:
    """Inside ``with replay(run):``, pass every recorded task to its handler again, concurrently as recorded.

    Returns the result of each, in recorded order: the response, or the recorded exception of the handler. Raises the
    replay's failure, and ``RunStateError`` outside of a replay, or if a task's handler is not among ``handlers``.
    """
    work = _work(handlers)
    found: list[Message | Exception] = [RunStateError("not done")] * len(work)
    failures: list[BaseException] = []

    def do(place: int, handler: Handler[Any], message: Message, scope: Scope) -> None:
        try:
            done = handler._run(message, scope)
            found[place] = asyncio.run(done) if inspect.iscoroutine(done) else done
        except Exception as error:
            found[place] = error
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=do, args=(place, *task), name=f"tracekit-task-{place}")
        for place, task in enumerate(work)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


async def replay_tasks_async(*handlers: Handler[Any]) -> list[Message | Exception]:
    """Do the same as ``replay_tasks``, in the running loop, for async handlers."""
    work = _work(handlers)
    results = await asyncio.gather(
        *(handler._run(message, lane) for handler, message, lane in work), return_exceptions=True
    )
    found: list[Message | Exception] = []
    for result in results:
        if isinstance(result, ReplayError) or (isinstance(result, BaseException) and not isinstance(result, Exception)):
            raise result
        found.append(result)
    return found


def _work(handlers: tuple[Handler[Any], ...]) -> list[tuple[Handler[Any], Message, Scope]]:
    """Return handler, message and lane of each recorded task, in recorded order."""
    scope = here()
    trace = None if scope is None else scope.session.log.trace
    if scope is None or trace is None:
        raise RunStateError(
            "replay_tasks() gives the tasks of a recorded run to their handlers: it works inside a replay, or a resumed run",
            next_action="call it inside `with replay(run):` or `with resume(run):`",
        )
    known = {handler.name: handler for handler in handlers}
    found = []
    for name, n, message in _received(trace):
        handler = known.get(name)
        if handler is None:
            raise RunStateError(
                f"the recorded run got tasks for {name!r}, and no such handler was given",
                run_id=trace.status.run_id,
                next_action=f"name the handler that @on_task({name!r}) made in replay_tasks(…)",
            )
        found.append((handler, message, scope.task(handler.lane, n)))
    scope.session.skip_deliveries(scope.lane, {handler.lane for handler in known.values()})
    return found


class _Handled:
    """The handlers of this process, as the source of its tasks."""

    def has_tasks(self, trace: Trace) -> bool:
        return next(_received(trace), None) is not None

    def replay_tasks(self) -> None:
        replay_tasks(*_handlers.values())


_handled: Final = _Handled()


def _received(trace: Trace) -> Iterator[tuple[str, int, Message]]:
    """Yield the handler's name, the lane's number and the message of each task that a handler received."""
    lanes: dict[int, tuple[str, int]] = {}
    for entry in trace.entries():
        if entry["type"] == "lane":
            about = entry["input"]
            lanes[about["id"]] = about["name"], about["n"]
        elif entry["type"] == "task_received":
            meta = meta_of(entry)
            name = meta.get("handler")
            lane, n = lanes.get(entry["lane"], ("", 0))
            if not isinstance(name, str) or lane != f"task:{name}":
                continue
            sender = None if entry["name"] == OUTSIDE else entry["name"]
            causes = entry.get("cause") or [None]
            origin = None if causes[0] is None else origin_of(causes[0])
            payload = from_json(trace.expand(entry["output"], before=entry["seq"]))
            task = meta.get("task")
            yield name, n, Message("task_sent", sender, name, payload, task, origin)
