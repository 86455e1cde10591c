"""Intentions: what an agent asks for, as data that is carried out for it; and the events that follow, each with its cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from ..errors import DanglingCauseError, IntentionError, LogWriteError, RunStateError
from ..integration import Note, Session, here, not_serialisable, segment_in, to_json
from .ids import Origin

__all__ = [
    "ANSWERS",
    "CAUSES",
    "EVENTS",
    "FAILURES",
    "Event",
    "Intention",
    "Ledger",
    "Ref",
    "ask",
    "call",
    "check_cause",
    "create",
    "deciding",
    "deep_copy",
    "json_object",
    "patch",
]

# -- intentions --------------------------------------------------------------------------------------------------------
#
# An intention is a request as data: what a responder wants to happen. An event is what did happen, with a reference to
# its cause.
#
# ::
#
#     ask("Summarise this page", model="gpt-5-mini", object="page-1")     # a question to a model
#     call("fetch", {"url": url}, object="page-1")                         # a tool call
#     create("page-1", {"url": url, "status": "new"})                      # an object of the world
#     patch("page-1", {"status": "done"})                                  # a change: a JSON merge patch (RFC 7396)
#
# Creating one has no effect. A ``tracekit.agents.Loop`` records it, then has an executor execute it, or changes the
# world.

#: The kind of the answer to a request, by the request's kind.
ANSWERS: Final = {"llm.request": "llm.response", "tool.call": "tool.return"}
#: The kind of the failure of a request, by the request's kind.
FAILURES: Final = {"llm.request": "llm.error", "tool.call": "tool.error"}
#: The kinds of event that a responder may respond to.
EVENTS: Final = frozenset({"object.created", "object.patched", *ANSWERS.values(), *FAILURES.values()})
#: More deeply nested JSON is refused.
_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to an event: its kind, its run and its entry. ``run_id`` is ``None`` outside of any run."""

    type: str
    seq: int
    run_id: str | None = None
    segment: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which an entry names its cause."""
        return {"type": self.type, "seq": self.seq}

    def __str__(self) -> str:
        return f"{self.type} {self.seq}"


@dataclass(frozen=True, slots=True)
class Intention:
    """A request as data. ``kind`` is ``"llm.request"``, ``"tool.call"``, ``"object.created"`` or ``"object.patched"``.

    ``name`` is the model (or ``"model"``), the tool or the object; ``object`` the object of the world that it is for;
    ``cause`` the event that it responds to, if that is not the one its responder was called with. Create one with
    ``ask``, ``call``, ``create`` or ``patch``.
    """

    kind: str
    name: str
    data: Mapping[str, Any]
    object: str | None = None
    cause: Ref | None = None

    def alone(self) -> Intention:
        """Return a copy with data of its own, which nothing else can change."""
        return replace(self, data=deep_copy(dict(self.data)))


@dataclass(frozen=True, slots=True)
class Event:
    """An event: ``ref`` is the reference to it, ``cause`` the reference to its cause.

    ``data`` is the same in a replay. For an ``"llm.response"`` it has ``text``, ``model``, ``usage``, ``cost_usd``,
    ``tool_calls``, ``finish_reason`` and ``message``; for a ``"tool.return"`` ``output``; for an error ``type`` and
    ``text``; for an object's event ``value`` or ``patch``. ``object`` is the object concerned. ``replayed`` says
    whether the log answered.
    """

    kind: str
    ref: Ref
    cause: Ref | None
    data: Mapping[str, Any]
    object: str | None = None
    request: Intention | None = None
    replayed: bool = False
    error: BaseException | None = field(default=None, compare=False)

    def about(self) -> dict[str, Any]:
        """Return its facts in short: ``seq``, ``kind``, ``name`` (of the model, the tool, the object) and ``object``."""
        name = self.object if self.request is None else self.request.name
        return {"seq": self.ref.seq, "kind": self.kind, "name": name, "object": self.object}

    def __str__(self) -> str:
        one = self.about()
        about = f" for object {self.object!r}" if self.request is not None and self.object is not None else ""
        return f"{self.kind} of {one['name']!r}{about} (entry {self.ref.seq})"

    @property
    def text(self) -> str:
        """The text of a model's answer; ``""`` if there is none."""
        found = self.data.get("text")
        return found if isinstance(found, str) else ""

    @property
    def output(self) -> Any:
        """What the tool returned."""
        return self.data.get("output")

    @property
    def cost_usd(self) -> float | None:
        """Its present cost: 0 if the log answered, ``None`` if unknown.

        ``data["cost_usd"]`` is the cost when the call was made, also in a replay.
        """
        return 0.0 if self.replayed else self.data.get("cost_usd")


# -- making intentions -----------------------------------------------------------------------------------------------------


def ask(
    messages: str | Iterable[Mapping[str, Any]],
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    object: str | None = None,
    cause: Ref | Event | None = None,
    **parameters: Any,
) -> Intention:
    """Return a question to a model. A text is one user message.

    ``parameters`` (``temperature``, ``tools``, ``system`` …) are passed unchanged to the executor's callable or client.
    ``object`` is the object that the answer is for: it must exist when the question is asked. Raises ``IntentionError``
    if there is no message, or something in it is not data.
    """
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not turns:
        raise IntentionError("a question needs a message", next_action="give `ask` a text, or a list of messages")
    data: dict[str, Any] = {"messages": turns, **parameters}
    if model is not None:
        data["model"] = model
    if max_tokens is not None:
        data["max_tokens"] = max_tokens
    return Intention("llm.request", model or "model", _plain(data, "a question"), object, _ref(cause))


def call(
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    object: str | None = None,
    cause: Ref | Event | None = None,
) -> Intention:
    """Return a call of the named tool with these arguments by name.

    Raises ``IntentionError`` if there is no name, or an argument is not data.
    """
    if not tool:
        raise IntentionError("a call needs the name of its tool")
    return Intention("tool.call", tool, _plain(dict(arguments or {}), f"the call of {tool!r}"), object, _ref(cause))


def create(id: str, value: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Intention:
    """Return the creation of an object of the world. ``value`` is a JSON object. Creating an object that exists already
    is an error."""
    return Intention("object.created", _id(id), json_object(value, f"object {id!r}"), id, _ref(cause))


def patch(id: str, patch: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Intention:
    """Return a change of an object: a JSON merge patch (RFC 7396), in which ``None`` removes a member."""
    return Intention("object.patched", _id(id), json_object(patch, f"the patch of {id!r}"), id, _ref(cause))


def _id(id: Any) -> str:
    if not isinstance(id, str) or not id:
        raise IntentionError(f"an object's id must be a non-empty string, not {id!r}")
    return str(id)


def _ref(cause: Ref | Event | None) -> Ref | None:
    return cause.ref if isinstance(cause, Event) else cause


def _plain(data: dict[str, Any], what: str) -> dict[str, Any]:
    found = not_serialisable(to_json(data))
    if found is not None:
        raise IntentionError(
            f"{what} contains something that is not data: {found}",
            next_action="an intention is written down before it is done: give it values, not handles, clients or functions",
        )
    made: dict[str, Any] = deep_copy(data)
    return made


def deep_copy(value: Any) -> Any:
    """Return a deep copy of a value's dictionaries and lists."""
    if isinstance(value, dict):
        return {key: deep_copy(item) for key, item in value.items()}
    return [deep_copy(item) for item in value] if isinstance(value, list) else value


def json_object(value: Any, what: str) -> dict[str, Any]:
    """Return a copy of ``value``, which must be a JSON object; the ``IntentionError`` otherwise names the place of what
    is not JSON."""
    if not isinstance(value, Mapping):
        raise IntentionError(f"{what} must be a JSON object, not {value!r:.80}")
    made: dict[str, Any] = _json(dict(value), what, "", 0)
    return made


def _json(value: Any, what: str, path: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise IntentionError(f"{what} is nested deeper than {_DEPTH}")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise IntentionError(f"{what} has a key that is not a text{_at(path)}: {key!r:.80}")
        return {key: _json(item, what, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if type(value) is list:
        return [_json(item, what, f"{path}[{place}]", depth + 1) for place, item in enumerate(value)]
    if value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    raise IntentionError(
        f"{what} contains a value that is not JSON{_at(path)}: {value!r:.80}",
        next_action="objects of the world are JSON: texts, finite numbers, booleans, null, lists and objects",
    )


def _at(path: str) -> str:
    return f" at {path.removeprefix('.')}" if path else ""


# -- events with causes ------------------------------------------------------------------------------------------------------------
#
# The events of a world, each with its cause, which is checked when the event is written.
#
# An event is an entry of the run's trace (outside of any run: a number in memory). Its cause must be an event of the
# same world, of the kind that the reference names, and of a kind that can cause it.

#: The active responder: it must not change anything.
deciding: Final[ContextVar[str | None]] = ContextVar("tracekit.deciding", default=None)

#: The numbers of events outside of any run.
_numbers: Final = count(1)


class _Names(dict[str, "Ledger"]):
    """The owner of each world name in a run: a trace identifies a world by its name."""


#: The only kind that can cause an event, if there is just one: a request causes its answer.
CAUSES: Final = {
    **{answer: request for request, answer in ANSWERS.items()},
    **{failure: request for request, failure in FAILURES.items()},
}


def check_cause(kind: str, cause: Ref | None, known: str | None) -> None:
    """Raise ``DanglingCauseError`` unless ``cause``, recorded with the kind ``known``, can cause a ``kind``."""
    needs = CAUSES.get(kind)
    if cause is None:
        if needs is not None:
            raise _dangling(f"a {kind} answers a {needs}, and none is named", None)
        return
    if known is None:
        raise _dangling(f"a {kind} names {cause} as its cause, and there is no such event", cause)
    if known != cause.type:
        raise _dangling(f"a {kind} names {cause} as its cause, and {cause.seq} is of another kind: {known}", cause)
    if needs is None and known in ANSWERS:
        raise _dangling(f"a {kind} names {cause} as its cause: a request causes its answer, and that the rest", cause)
    if needs is not None and known != needs:
        raise _dangling(f"a {kind} answers a {needs}, and {cause} is not one", cause)


class Ledger:
    """The events of the world of this ``name``. Within one run, and in one lane: the order of the log is the order of
    events."""

    def __init__(self, name: str = "world") -> None:
        self.name: Final = name
        self._kinds: Final[dict[tuple[str | None, str | None, int], str]] = {}
        #: The run of its first event, in a tuple: ``None`` is no run.
        self._run: tuple[str | None] | None = None
        #: The last conversation about each object: the request's ``seq``, its messages.
        self._conversations: Final[dict[str | None, tuple[int, list[Any]]]] = {}

    def kind_of(self, ref: Ref) -> str | None:
        """Return the kind of the event that ``ref`` refers to, or ``None``."""
        return self._kinds.get((ref.run_id, ref.segment, ref.seq))

    def ask(self, by: str, kind: str, name: str, data: Mapping[str, Any], object: str | None, cause: Ref | None) -> Ref:
        """Write a request; return the reference to it.

        Messages that the last request about this object already had are replaced by its number (``after``), so that a
        long conversation is recorded once.
        """
        content: dict[str, Any] = {"kind": kind, "name": name, "object": object, "data": dict(data)}
        messages = data.get("messages") if kind == "llm.request" else None
        before = self._conversations.get(object)
        if before is not None and messages is not None and messages[: len(before[1])] == before[1]:
            content["data"]["messages"] = messages[len(before[1]) :]
            content["after"] = before[0]
        on = None if cause is None else cause.as_dict()
        ref = self.write("decision", by, kind, input=on, output=content, cause=cause)
        if messages is not None:
            self._conversations[object] = ref.seq, deep_copy(messages)
        return ref

    def write(
        self,
        entry: str,
        name: str,
        kind: str,
        *,
        input: Any,
        output: Any = None,
        cause: Ref | None = None,
        about: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Ref:
        """Check an event's cause and write it as an entry of this type; return the reference to it.

        ``about`` is compared in a replay, ``info`` is not. Raises ``LogWriteError`` if there is a log that can't be
        written.
        """
        self._nobody_decides()
        check_cause(kind, cause, None if cause is None else self.kind_of(cause))
        self._in_one_run(kind)
        ref = self._written(entry, name, kind, input, output, cause, about, dict(info or {}))
        self._kinds[ref.run_id, ref.segment, ref.seq] = kind
        return ref

    def _nobody_decides(self) -> None:
        scope = here()
        who = deciding.get()
        if who is not None or (scope is not None and scope.session.decides):
            raise IntentionError(
                f"{'a responder' if who is None else f'responder {who!r}'} changed the world directly",
                next_action="let it return `create(…)` or `patch(…)`",
            )

    def _in_one_run(self, kind: str) -> None:
        scope = here()
        run = (None if scope is None else scope.session.run_id,)
        if self._run not in (None, run):
            raise IntentionError(
                f"a {kind} in another run than the world's first event: its trace would not say how the world began",
                run_id=run[0],
                next_action="make the world inside the run; `World.of(run).as_dict()` has the objects of an earlier one",
            )
        if scope is not None and not scope.live:
            self._take_name(scope.session)
        self._run = run

    def _take_name(self, session: Session) -> None:
        owner = session.state.extras.of(_Names).setdefault(self.name, self)
        if owner is not self:
            raise RunStateError(
                f"this run has another world of the name {self.name!r}: its trace could not distinguish them; nothing was written",
                run_id=session.run_id,
                next_action="give it a name of its own, `World('…')`, or let the loops share one world",
            )

    def _written(
        self,
        entry: str,
        name: str,
        kind: str,
        input: Any,
        output: Any,
        cause: Ref | None,
        about: Mapping[str, Any] | None,
        info: dict[str, Any],
    ) -> Ref:
        scope = here()
        if scope is None:
            return Ref(kind, next(_numbers))
        if scope.live:
            raise IntentionError(
                f"a {kind} inside a step that a replay does not run: there it would be missing",
                run_id=scope.session.run_id,
                step=scope.parent,
                next_action="let the tool return what it found, and a responder patch the world",
            )
        meta: dict[str, Any] = {"event": kind, **(about or {})}
        if cause is not None:
            meta["on"] = cause.as_dict()
            if cause.run_id is not None:
                info["cause"] = [Origin(cause.run_id, cause.segment, cause.seq).as_dict()]
        session = scope.session
        seq = session.note(scope, Note(entry, name, input, output, meta, info, must=True))
        if not seq:
            raise LogWriteError(
                f"the {kind} of {name!r} could not be written; it did not happen",
                run_id=session.run_id,
                path=session.log.path,
                executed=False,
                next_action="see why the log can't be written, or why the run had ended",
            )
        return Ref(kind, seq, session.run_id, segment_in(session.log.path))


def _dangling(what: str, cause: Ref | None) -> DanglingCauseError:
    return DanglingCauseError(
        what,
        cause=cause,
        next_action="name the event that the responder was given (`event.ref`), or one that came before",
    )
