"""Messages between agents: sent, received, answered, each a step of one entry that names what caused it.

::

    with agent("planner"):
        message = send_task("worker", {"find": "a flat"})

    with agent("worker"):
        task = receive_task(message)
        answer = respond(task, find(task.payload))

    with agent("planner"):
        send_task("writer", summary, causes=[answer, other_answer])       # a join carries all that it waited for

How a message gets from one to the other is the program's own affair: an argument, a queue, a file, HTTP. What travels is the
:class:`Message` itself (it pickles, and becomes a dictionary and back), or its headers (``inject``, ``extract``). In a replay the steps
are compared with the recorded ones, causes included, and a message is what it was. Outside a run nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from .._capture.notes import caused, named
from .._engine.gate import Session, here
from .._journal.names import valid_run_id
from ..errors import InvalidMessageError
from .ids import Origin, segment_of_path

__all__ = [
    "OUTSIDE",
    "Message",
    "MessageType",
    "as_message",
    "origin_of",
    "receive_task",
    "respond",
    "send_task",
    "state_transition",
]

#: What the log has for the other side of a message where that side did not say who it is.
OUTSIDE: Final = "(outside)"

MessageType: TypeAlias = Literal["task_sent", "task_received", "response_sent", "state_transition"]
#: What caused something: messages, or one.
Causes: TypeAlias = "Iterable[Message] | Message"
_TYPES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})
_HEX: Final = frozenset("0123456789abcdef")
#: A ``seq`` above this is nobody's: JSON readers elsewhere would round it.
_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class Message:
    """A message between two agents, its receipt, or a change of state: what can cause something. It never changes, and may go anywhere.

    ``origin`` says where it stands in a trace, and ``event_id`` is its id there; both are ``None`` for a message that is on no log: it
    was sent outside every run.
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
        """As a dictionary, for a transport of your own; JSON if the payload is."""
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
    def from_dict(cls, told: Mapping[str, Any]) -> Message:
        """A message from its dictionary. ``InvalidMessageError`` for anything else."""
        try:
            kind, origin = told["type"], told["origin"]
            names = [told["sender"], told["recipient"], told["task"]]
            payload = told["payload"]
        except (KeyError, TypeError) as error:
            raise _invalid(f"a message needs type, sender, recipient, task, payload and origin: {error!r}") from None
        if kind not in _TYPES:
            raise _invalid(f"{kind!r} is no type of message")
        if not all(name is None or isinstance(name, str) for name in names):
            raise _invalid(f"sender, recipient and task of a message are texts, not {names}")
        where = None if origin is None else origin_of(origin)
        return cls(kind, names[0], names[1], payload, names[2], where)


def origin_of(told: Any) -> Origin:
    """Where a message stands, from what came from elsewhere. ``InvalidMessageError`` if that can't be."""
    if not isinstance(told, Mapping):
        raise _invalid(f"the origin of a message is an object, not {told!r:.80}")
    run_id, segment, seq = told.get("run_id"), told.get("segment"), told.get("seq")
    if not isinstance(run_id, str) or not valid_run_id(run_id):
        raise _invalid(f"{run_id!r:.80} can't be a run id")
    if segment is not None and (not isinstance(segment, str) or len(segment) != 16 or not _HEX.issuperset(segment)):
        raise _invalid(f"{segment!r:.80} can't be a segment")
    if type(seq) is not int or not 0 < seq <= _MOST:
        raise _invalid(f"{seq!r:.80} can't be the number of an entry")
    return Origin(run_id, segment, seq)


def send_task(
    recipient: str, payload: Any = None, *, task: str | None = None, causes: Causes = (), **meta: Any
) -> Message:
    """Record that the acting agent gives ``recipient`` something to do, and return the message to hand over.

    ``task`` names what is to be done. ``causes`` are the messages that this one answers to: a join that waited for two answers names
    both. ``meta`` is recorded, and compared in a replay.
    """
    return _said("task_sent", named(recipient, "the recipient of a task"), payload, task, causes, meta)


def receive_task(message: Message | Mapping[str, Any], **meta: Any) -> Message:
    """Record that the acting agent has got ``message`` (or its dictionary), and return the receipt: what ``respond`` is given.

    A response may be received in the same way, where that is a step of its own; else name it in ``causes`` of what it leads to.
    """
    message = as_message(message, "receive_task()")
    scope = here()
    acting = scope.agent if scope is not None else None
    origin = _note("task_received", message.sender or OUTSIDE, message.payload, message.task, [message], meta)
    return Message("task_received", message.sender, acting or message.recipient, message.payload, message.task, origin)


def respond(message: Message | Mapping[str, Any], payload: Any = None, *, causes: Causes = (), **meta: Any) -> Message:
    """Record the answer to ``message`` (what ``receive_task`` returned), and return it, to be handed back.

    ``causes`` are further messages that went into it: answers of other agents.
    """
    message = as_message(message, "respond()")
    return _said("response_sent", message.sender, payload, message.task, [message, *_messages(causes)], meta)


def state_transition(from_: Any, to: Any, *, name: str | None = None, causes: Causes = (), **meta: Any) -> Message:
    """Record that the acting agent (or ``name``) went from one state to another; the event can be a cause in its turn.

    ``causes`` are the messages that brought it about.
    """
    scope = here()
    acting = scope.agent if scope is not None else None
    signature, info = caused(meta, _messages(causes))
    origin = _noted("state_transition", name or acting or "state", from_, to, signature, info)
    return Message("state_transition", acting, None, to, None, origin)


def _said(
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
    seq = session.note(scope, kind, name, input=input, output=output, signature=signature, info=info)
    # 0: the log could not be written, or the run has ended. What is on no log can't be referred to.
    return Origin(session.run_id, segment_of_path(_path(session), session.run_id), seq) if seq else None


def _path(session: Session) -> str:
    """The file that a session writes, or answers from."""
    holders = (session, getattr(session, "replay", None))
    files = (getattr(holder, name, None) for holder in holders for name in ("journal", "trace"))
    return str(next(file.path for file in files if file is not None))


def as_message(given: Any, by: str) -> Message:
    """A message that was given to ``by``: itself, or made of its dictionary. ``InvalidMessageError`` for anything else."""
    if isinstance(given, Message):
        return given
    if isinstance(given, Mapping):
        return Message.from_dict(given)
    raise InvalidMessageError(
        f"{by} needs a message, not {given!r:.80}",
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
