"""A run as spans of distributed tracing, by OpenTelemetry's conventions for generative AI; needs no library.

Ids are derived from the places of entries, times are those of the log: exporting a run twice gives the same spans.

The conventions are those of the repository `semantic-conventions-genai` as of November 2026, still in development:
their names are written out here, in one table each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import orjson

from .._journal.entry import FAMILIES, REFUSALS, SINGLES, causes_of, info_of, meta_of, span_id, trace_id
from .reading import FileView, PromptMessage, StepView, error_text, plain

__all__ = ["Context", "FileSpans", "Link", "Span", "SpanEvent", "context_of"]

Kind = Literal["internal", "client", "producer", "consumer"]
Attributes = dict[str, Any]

_TRACEPARENT: Final = re.compile(
    r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII
)
#: What has a span of its own, besides the run: calls, and messages between agents.
_CALLS: Final = frozenset(FAMILIES) - {"pipe"}
_MESSAGES: Final[dict[str, Kind]] = {"task_sent": "producer", "response_sent": "producer", "task_received": "consumer"}
#: What is an event of the span around it.
_EVENTS: Final = (
    SINGLES | REFUSALS | {"recovery.started", "recovery.completed", "recovery.settled"}
) - _MESSAGES.keys()
_ATTEMPT: Final = ("agent.attempt.start", "agent.attempt.end")

#: By the name of a parameter in ``meta`` of a request.
_PARAMETERS: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "random_seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stream": "gen_ai.request.stream",
    "reasoning_effort": "gen_ai.request.reasoning.level",
    "dimensions": "gen_ai.embeddings.dimension.count",
}
#: By the name of a count in ``meta.usage``. Cache writes also have their old name, which backends still read.
_USAGE: Final = {
    "input_tokens": ("gen_ai.usage.input_tokens",),
    "output_tokens": ("gen_ai.usage.output_tokens",),
    "cache_read_input_tokens": ("gen_ai.usage.cache_read.input_tokens",),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
    ),
    "reasoning_output_tokens": ("gen_ai.usage.reasoning.output_tokens",),
}
#: The maximum length of an error's text; the trace itself has the rest.
_LONGEST: Final = 500


class SpanEvent(NamedTuple):
    """Something that happened in a span at one instant."""

    name: str
    at: int
    attributes: Attributes


class Link(NamedTuple):
    """A cause of a span that is not its parent."""

    trace_id: str
    span_id: str


class Span(NamedTuple):
    """One span: ids in hex digits, times in ns since the epoch; ``error`` is the type and the text of its failure."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: Kind
    start: int
    end: int
    attributes: Attributes
    error: tuple[str, str] | None = None
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()


class Context(NamedTuple):
    """Where the spans of a file belong: its trace, and the parent of all of them, which may be another program's span."""

    trace_id: str
    parent_id: str | None


def context_of(first: Mapping[str, Any]) -> Context:
    """Return the context of a run from its first entry: the trace (W3C ``traceparent``) in which it was recorded, else
    one of its own."""
    traceparent = meta_of(first).get("traceparent")
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is not None:
        return Context(found[1], found[2])
    return Context(trace_id(str(first.get("run_id"))), None)


class FileSpans:
    """The spans of one file, entry by entry: each is returned when it has ended.

    ``other`` returns the context of another run, ``above`` the span around a child process, called when it has ended;
    ``content`` adds messages, arguments and results.
    """

    def __init__(
        self,
        view: FileView,
        context: Context,
        other: Callable[[str], Context],
        *,
        above: Callable[[], str | None] | None = None,
        content: bool = False,
        keep: bool = True,
    ) -> None:
        self._view: Final = view
        self._context: Final = context
        self._other: Final = other
        self._outer: Final = above
        self._content: Final = content
        #: Whether the view keeps the steps whose spans have been returned.
        self._keep: Final = keep
        self._open: Final[dict[int, StepView]] = {}
        self._events: Final[dict[int, list[SpanEvent]]] = {}
        #: The active attempts of a router, by their lane.
        self._attempts: Final[dict[int, StepView]] = {}
        #: The steps that started a process, by the path of its lane.
        self._processes: Final[dict[str, int]] = {}
        self._root = 0

    def take(self, entry: dict[str, Any]) -> Iterator[Span]:
        """Take the next entry; yield the spans that end with it."""
        kind = entry["type"]
        step = self._view.feed(entry)
        self._root = self._root or entry["seq"]
        if kind in ("run.completed", "run.failed", "run.aborted"):
            yield from self._end(entry, kind)
            return
        if step is None:
            return
        if step.seq == entry["seq"]:
            yield from self._began(step, entry)
        elif step.seq in self._open:
            del self._open[step.seq]
            yield self._call(step, entry)
        if not self._keep and step.seq not in self._open and step != self._attempts.get(step.lane_number):
            self._view.forget(step)

    def rest(self) -> Iterator[Span]:
        """Yield the spans of a file without an end: what is open in it ends with its last entry."""
        if self._root and self._view.ended is None:
            yield from self._end(self._view.last, None)

    # -- one entry -------------------------------------------------------------------------------------------------------

    def _began(self, step: StepView, entry: Mapping[str, Any]) -> Iterator[Span]:
        kind = step.kind
        if kind in _CALLS:
            self._open[step.seq] = step
            if kind == "process" and isinstance(step.facts.get("process"), str):
                self._processes[step.facts["process"]] = step.seq
        elif kind in _MESSAGES:
            yield self._message(step, entry)
        elif kind == _ATTEMPT[0]:
            self._attempts[step.lane_number] = step
        elif kind == _ATTEMPT[1] and step.lane_number in self._attempts:
            yield self._attempt(self._attempts.pop(step.lane_number), entry)
        elif kind in _EVENTS:
            around = self._above(step)
            about: Attributes = {"tracekit.seq": step.seq, "tracekit.name": step.name}
            if "error" in entry:
                about |= {"error.type": _error(entry)[0], "error.message": _error(entry)[1]}
            if self._content:
                about |= {
                    f"tracekit.{key}": _json(plain(getattr(step, key))) for key in ("input", "output") if key in entry
                }
            self._events.setdefault(around, []).append(SpanEvent(kind, step.ts_ns, about))

    def _end(self, last: Mapping[str, Any], kind: str | None) -> Iterator[Span]:
        at = int(last.get("ts_ns", 0))
        for step in [*self._open.values()]:
            yield self._call(step, {"ts_ns": at})
        for step in [*self._attempts.values()]:
            yield self._attempt(step, {"ts_ns": at})
        self._open.clear()
        self._attempts.clear()
        yield self._whole(last, kind)

    # -- spans -----------------------------------------------------------------------------------------------------------

    def _whole(self, last: Mapping[str, Any], kind: str | None) -> Span:
        """Return the span of the run itself, or of a child process."""
        view, first = self._view, self._view.first
        attributes = self._common(self._root, None)
        name = view.process or view.segment or "process"
        if view.segment is None:
            agent = str(first.get("agent_id") or first.get("name") or "run")
            attributes |= {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": agent,
                "tracekit.run.name": str(first.get("name") or "run"),
            }
            name = f"invoke_agent {agent}"
        environment = meta_of(first).get("environment")
        if isinstance(environment, Mapping):
            attributes |= {
                there: str(environment[here])
                for here, there in (("host", "host.name"), ("python", "process.runtime.version"))
                if environment.get(here)
            }
        attributes["tracekit.state"] = {None: "no end", "run.completed": "complete"}.get(
            kind, str(kind).removeprefix("run.")
        )
        if self._content:
            for key, end in (("input", first), ("output", last)):
                if end.get(key) is not None:
                    attributes[f"tracekit.{key}"] = _json(plain(view.source.expand(end[key], before=end["seq"])))
        error = _error(last) if "error" in last else None
        if error is not None:
            attributes["error.type"] = error[0]
        links = tuple(self._links(first)) if view.segment is None else ()
        return self._span(self._root, name, "internal", int(first.get("ts_ns", 0)), last, attributes, error, links)

    def _call(self, step: StepView, last: Mapping[str, Any]) -> Span:
        """Return the span of a call, which ends with this entry; without an outcome, with the file."""
        attributes = self._common(step.seq, step)
        name, kind = _NAMED[step.kind](step, attributes)
        error = _error(last) if "error" in last else None
        if error is None and step.kind in ("llm", "http"):
            status = step.status
            if status is not None:
                attributes["http.response.status_code"] = status
                error = (str(status), f"HTTP {status}") if status >= 400 else None
        if step.outcome is None:
            attributes["tracekit.state"] = "cut off"
            error = ("no_outcome", "it has no outcome")
        elif step.outcome.endswith(".skipped"):
            attributes["tracekit.state"] = "skipped"
        if error is not None:
            attributes["error.type"] = error[0]
        if self._content:
            _add_content(step, attributes)
        return self._span(step.seq, name, kind, step.ts_ns, last, attributes, error, (), self._above(step))

    def _message(self, step: StepView, entry: Mapping[str, Any]) -> Span:
        attributes = self._common(step.seq, step) | {
            "messaging.system": "tracekit",
            "messaging.operation.name": step.kind,
        }
        attributes["messaging.destination.name"] = step.name
        if isinstance(step.meta.get("task"), str):
            attributes["gen_ai.task.name"] = step.meta["task"]
        if self._content and "output" in entry:
            attributes["tracekit.output"] = _json(plain(step.output))
        name = f"{step.kind.replace('_', ' ')} {step.name}"
        links = tuple(self._links(entry))
        return self._span(
            step.seq, name, _MESSAGES[step.kind], step.ts_ns, entry, attributes, None, links, self._above(step)
        )

    def _attempt(self, step: StepView, last: Mapping[str, Any]) -> Span:
        """Return the span of an agent that a router called."""
        attributes = self._common(step.seq, step)
        attributes |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": step.name}
        failure = info_of(last).get("failure")
        error = None
        if isinstance(failure, Mapping):
            error = str(failure.get("type")), str(failure.get("reason"))[:_LONGEST]
            attributes["error.type"] = error[0]
        return self._span(
            step.seq,
            f"invoke_agent {step.name}",
            "internal",
            step.ts_ns,
            last,
            attributes,
            error,
            (),
            self._above(step),
        )

    def _span(
        self,
        seq: int,
        name: str,
        kind: Kind,
        start: int,
        last: Mapping[str, Any],
        attributes: Attributes,
        error: tuple[str, str] | None,
        links: tuple[Link, ...],
        above: int = 0,
    ) -> Span:
        parent = self._id(above or self._root) if seq != self._root else self._parent()
        events = tuple(self._events.pop(seq, ()))
        end = max(start, int(last.get("ts_ns", start)))
        return Span(
            self._context.trace_id, self._id(seq), parent, name, kind, start, end, attributes, error, events, links
        )

    def _parent(self) -> str | None:
        return self._context.parent_id if self._outer is None else self._outer()

    def _id(self, seq: int) -> str:
        return span_id(str(self._view.first.get("run_id")), self._view.segment, seq)

    def _common(self, seq: int, step: StepView | None) -> Attributes:
        attributes: Attributes = {"tracekit.run_id": str(self._view.first.get("run_id")), "tracekit.seq": seq}
        if self._view.segment is not None:
            attributes["tracekit.segment"] = self._view.segment
        if step is not None:
            if step.lane.path:
                attributes["tracekit.lane"] = step.lane.path
            if step.side_effect is not None:
                attributes["tracekit.side_effect"] = step.side_effect
            if step.attempt > 1:
                attributes["tracekit.attempt"] = step.attempt
            if step.agent is not None:
                attributes["gen_ai.agent.name"] = step.agent
        return attributes

    def _above(self, step: StepView) -> int:
        """Return the nearest step around this one that has a span, or the run's own first entry."""
        seq = step.parent
        while seq and seq != self._root:
            around = self._view.steps.get(seq)
            if around is None:
                break
            if around.kind in _CALLS:
                return seq
            seq = around.parent
        attempt = self._attempts.get(step.lane_number)
        return self._root if attempt is None or attempt.seq == step.seq else attempt.seq

    def enclosing(self, seq: int, process: str | None = None) -> str:
        """Return the id of the span that contains entry ``seq``, or of the step that started ``process``, the path of a
        lane, if there is one."""
        if process in self._processes:
            return self._id(self._processes[process])
        step = self._view.steps.get(seq)
        if step is None or seq == self._root:
            return self._id(self._root or 1)
        return self._id(seq if step.kind in _CALLS else self._above(step))

    def _links(self, entry: Mapping[str, Any]) -> Iterator[Link]:
        for cause in causes_of(entry):
            if isinstance(cause.get("run_id"), str):
                run_id, segment = cause["run_id"], cause.get("segment")
                own = run_id == self._view.first.get("run_id")
                context = self._context if own else self._other(run_id)
                yield Link(
                    context.trace_id, span_id(run_id, segment if isinstance(segment, str) else None, cause["seq"])
                )


# -- names and attributes by kind --------------------------------------------------------------------------------------


def _of_model(step: StepView, attributes: Attributes) -> tuple[str, Kind]:
    meta, facts, ended = step.meta, step.facts, step.ended_with
    operation = str(meta.get("operation") or "chat")
    model = meta.get("model")
    attributes["gen_ai.operation.name"] = operation
    if facts.get("provider"):
        attributes["gen_ai.provider.name"] = str(facts["provider"])
    if isinstance(model, str):
        attributes["gen_ai.request.model"] = model
    for name, there in _PARAMETERS.items():
        if isinstance(meta.get(name), str | int | float | bool):
            attributes[there] = meta[name]
    for name, there in (("model", "gen_ai.response.model"), ("id", "gen_ai.response.id")):
        if isinstance(ended.get(name), str):
            attributes[there] = ended[name]
    reasons = ended.get("finish_reasons")
    if isinstance(reasons, list) and reasons:
        attributes["gen_ai.response.finish_reasons"] = [str(one) for one in reasons]
    call = step.call
    usage = {} if call is None else call.usage
    for name, names in _USAGE.items():
        if type(usage.get(name)) is int:
            attributes |= dict.fromkeys(names, usage[name])
    if call is not None and call.cost_usd is not None:
        attributes["tracekit.cost_usd"] = call.cost_usd
    if step.chunks:
        first = step.file.source.entry(step.chunks[0])["ts_ns"] - step.ts_ns
        attributes["gen_ai.response.time_to_first_chunk"] = first / 1e9
    _server(facts.get("origin"), attributes)
    return f"{operation} {model}" if isinstance(model, str) else operation, "client"


def _of_tool(step: StepView, attributes: Attributes) -> tuple[str, Kind]:
    attributes |= {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": step.name,
        "gen_ai.tool.type": "function",
    }
    return f"execute_tool {step.name}", "internal"


def _of_request(step: StepView, attributes: Attributes) -> tuple[str, Kind]:
    request = step.entry.get("input")
    method = str(request.get("method") or "HTTP") if isinstance(request, Mapping) else "HTTP"
    attributes["http.request.method"] = method
    url = request.get("url") if isinstance(request, Mapping) else None
    origin = step.facts.get("origin")
    if isinstance(url, str):
        attributes["url.path"] = urlsplit(url).path
    _server(origin or url, attributes)
    return method, "client"


def _of_process(step: StepView, attributes: Attributes) -> tuple[str, Kind]:
    attributes["process.executable.name"] = step.name
    return f"process {step.name}", "internal"


def _of_span(step: StepView, attributes: Attributes) -> tuple[str, Kind]:
    return step.name, "internal"


_NAMED: Final[dict[str, Callable[[StepView, Attributes], tuple[str, Kind]]]] = {
    "llm": _of_model,
    "tool": _of_tool,
    "http": _of_request,
    "process": _of_process,
    "span": _of_span,
}


def _server(origin: object, attributes: Attributes) -> None:
    try:
        found = urlsplit(origin) if isinstance(origin, str) else None
        if found is not None and found.hostname:
            attributes["server.address"] = found.hostname
            attributes["server.port"] = found.port or {"http": 80, "https": 443}.get(found.scheme, 0)
    except ValueError:
        pass


def _error(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type of a recorded exception, as it is imported, and its text."""
    error = entry.get("error")
    kind = str(error.get("type") or "_OTHER") if isinstance(error, Mapping) else "_OTHER"
    return kind.replace(":", ".").removeprefix("builtins."), error_text(error)[:_LONGEST]


# -- content -----------------------------------------------------------------------------------------------------------


def _add_content(step: StepView, attributes: Attributes) -> None:
    """Add messages, arguments and results as JSON texts."""
    call = step.call
    if call is not None:
        messages = call.prompt.messages
        system = [{"type": "text", "content": one.text} for one in messages if one.role == "system"]
        if system:
            attributes["gen_ai.system_instructions"] = _json(system)
        attributes["gen_ai.input.messages"] = _json([_message_json(one) for one in messages if one.role != "system"])
        if call.prompt.tools:
            attributes["gen_ai.tool.definitions"] = _json(
                [{"type": "function", "name": name} for name in call.prompt.tools]
            )
        parts: list[dict[str, Any]] = [{"type": "text", "content": call.answer.text}] if call.answer.text else []
        parts += [
            {"type": "tool_call", "id": one.id, "name": one.name, "arguments": one.arguments} for one in call.requested
        ]
        if parts:
            reasons = attributes.get("gen_ai.response.finish_reasons") or ["stop"]
            attributes["gen_ai.output.messages"] = _json(
                [{"role": "assistant", "parts": parts, "finish_reason": reasons[0]}]
            )
    elif step.kind == "tool":
        attributes["gen_ai.tool.call.arguments"] = _json(plain(step.input))
        if step.has_output:
            attributes["gen_ai.tool.call.result"] = _json(plain(step.output))
    else:
        attributes["tracekit.input"] = _json(plain(step.input))
        if step.has_output:
            attributes["tracekit.output"] = _json(plain(step.output))


def _message_json(message: PromptMessage) -> dict[str, Any]:
    if message.answers is not None:
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": message.answers, "result": message.text}],
        }
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.text}] if message.text else []
    parts += [
        {"type": "tool_call", "id": one.id, "name": one.name, "arguments": one.arguments} for one in message.requests
    ]
    parts += [{"type": other} for other in message.others]
    return {"role": message.role, "parts": parts}


def _json(value: Any) -> str:
    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
