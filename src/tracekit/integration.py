"""The interface for integrations and other extensions: how a library's calls become steps, and more.

An integration is an importable package with an object ``integration`` of type ``Integration``, announced in the
entry-point group ``tracekit.integrations``. It describes patches; ``tracekit.instrument()`` applies them when (and only
if) the library is imported, and ``tracekit.uninstrument()`` restores the originals. It never imports its library
itself.

There are three kinds of integration, often in one object:

- a **transport seam** wraps the function with which an HTTP client sends a request, and passes the request to ``begin``
  (see ``tracekit_httpx`` and ``tracekit docs extend``);
- a **dialect** reads requests and answers of one wire protocol: which requests are model calls, of which model, with
  which usage (``Dialect``; see ``tracekit_openai``);
- any other **capture point** describes the call as a ``Request``, and lets ``perform`` decide whether it is made or the
  log answers::

      request = Request.of("tool", "mcp.search", arguments, side_effect="read_only")
      return perform(request, lambda: original(*args, **kwargs))

In addition there are an extension's own lanes and work from outside (``Scope.own_lane``, ``Scope.task``,
``TaskSource``), runs that are opened by hand (``OpenRun``), traces (``Trace``, ``Store``) and other forms of them
(``Form``). ``tracekit.agents`` and ``tracekit.harness`` are built only on this module and the public names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._lazy import lazily

if TYPE_CHECKING:
    from ._capture.callers import own_code as own_code
    from ._capture.calls import Captured as Captured
    from ._capture.calls import capture as capture
    from ._capture.calls import captured_of as captured_of
    from ._capture.calls import closing as closing
    from ._capture.calls import drive as drive
    from ._capture.calls import live_async as live_async
    from ._capture.calls import perform as perform
    from ._capture.calls import perform_async as perform_async
    from ._capture.calls import signature_of as signature_of
    from ._capture.contracted import ReplaceableCall as ReplaceableCall
    from ._capture.guard import Attempt as Attempt
    from ._capture.guard import forbidding as forbidding
    from ._capture.guard import watching as watching
    from ._capture.http import AMBIENT as AMBIENT
    from ._capture.http import PASSING as PASSING
    from ._capture.http import Answer as Answer
    from ._capture.http import Exchange as Exchange
    from ._capture.http import Headers as Headers
    from ._capture.http import begin as begin
    from ._capture.http import body_not_kept as body_not_kept
    from ._capture.http import connection_failed as connection_failed
    from ._capture.http import message as message
    from ._capture.http import outside as outside
    from ._capture.http import passes_untouched as passes_untouched
    from ._capture.http import raw_headers as raw_headers
    from ._capture.http import refuse as refuse
    from ._capture.http import unconnected as unconnected
    from ._capture.http import withheld as withheld
    from ._capture.http1 import NOTHING as NOTHING
    from ._capture.http1 import Arrivals as Arrivals
    from ._capture.http1 import Chunks as Chunks
    from ._capture.http1 import Incoming as Incoming
    from ._capture.http1 import RequestHead as RequestHead
    from ._capture.http1 import served as served
    from ._capture.instrumentation import instrumented as instrumented
    from ._capture.notes import caused as caused
    from ._capture.notes import named as named
    from ._capture.patch import Patch as Patch
    from ._capture.plugins import GROUP as GROUP
    from ._capture.plugins import Ambient as Ambient
    from ._capture.plugins import Claim as Claim
    from ._capture.plugins import Dialect as Dialect
    from ._capture.plugins import Endpoint as Endpoint
    from ._capture.plugins import Form as Form
    from ._capture.plugins import Integration as Integration
    from ._capture.plugins import Native as Native
    from ._capture.plugins import QueueClass as QueueClass
    from ._capture.plugins import Reading as Reading
    from ._capture.plugins import Scheduler as Scheduler
    from ._capture.plugins import TaskSource as TaskSource
    from ._capture.plugins import Telemetry as Telemetry
    from ._capture.plugins import attach as attach
    from ._capture.plugins import detach as detach
    from ._capture.plugins import discover as discover
    from ._capture.plugins import register as register
    from ._capture.plugins import register_tasks as register_tasks
    from ._capture.plugins import shown as shown
    from ._capture.plugins import supply_placeholders as supply_placeholders
    from ._capture.plugins import trusted as trusted
    from ._capture.threads import kept_to_itself as kept_to_itself
    from ._capture.transports import ObservedTransport as ObservedTransport
    from ._capture.transports import ReplayedTransport as ReplayedTransport
    from ._capture.transports import StandIn as StandIn
    from ._capture.transports import keeping as keeping
    from ._capture.transports import opened as opened
    from ._capture.transports import reported as reported
    from ._capture.transports import serving as serving
    from ._capture.transports import transport_of as transport_of
    from ._capture.websocket import Conversation as Conversation
    from ._capture.websocket import ReplayedConversation as ReplayedConversation
    from ._capture.wire import ChatCompletions as ChatCompletions
    from ._capture.wire import EmbeddingVectors as EmbeddingVectors
    from ._capture.wire import answer_meta as answer_meta
    from ._capture.wire import completion_reading as completion_reading
    from ._capture.wire import completion_usage as completion_usage
    from ._capture.wire import event_data as event_data
    from ._capture.wire import json_lines as json_lines
    from ._capture.wire import json_value as json_value
    from ._capture.wire import parameters as parameters
    from ._capture.wire import stream_events as stream_events
    from ._capture.wire import token_usage as token_usage
    from ._capture.wire import tool_arguments as tool_arguments
    from ._journal.entry import READS as READS
    from ._journal.entry import SINGLES as SINGLES
    from ._journal.entry import event_id as event_id
    from ._journal.entry import family_of as family_of
    from ._journal.entry import info_of as info_of
    from ._journal.entry import meta_of as meta_of
    from ._journal.entry import span_id as span_id
    from ._journal.entry import trace_id as trace_id
    from ._journal.reader import Follower as Follower
    from ._journal.reader import Trace as Trace
    from ._journal.reader import Verdict as Verdict
    from ._journal.seals import PublicKeys as PublicKeys
    from ._journal.store import HasPath as HasPath
    from ._journal.store import Store as Store
    from ._journal.store import beside as segments_beside
    from ._journal.store import first_entry as first_entry
    from ._journal.store import is_segment as is_segment
    from ._journal.store import segment_in as segment_in
    from ._journal.store import valid_run_id as valid_run_id
    from ._policy.budget import cost_usd as cost_usd
    from ._policy.contract import check_transition as check_transition
    from ._runs.by_hand import OpenReplay as OpenReplay
    from ._runs.by_hand import OpenRun as OpenRun
    from ._runs.reading import Change as Change
    from ._runs.reading import Edit as Edit
    from ._runs.reading import FileView as FileView
    from ._runs.reading import ModelCall as ModelCall
    from ._runs.reading import Prompt as Prompt
    from ._runs.reading import PromptMessage as PromptMessage
    from ._runs.reading import RunView as RunView
    from ._runs.reading import StepView as StepView
    from ._runs.reading import Taken as Taken
    from ._runs.reading import ToolRequest as ToolRequest
    from ._runs.reading import plain as plain
    from ._runs.reading import prompt_of as prompt_of
    from ._runs.reading import read_run as read_run
    from ._runs.recording import lend as lend
    from ._runtime.effects import Below as Below
    from ._runtime.index import gives_anything as gives_anything
    from ._runtime.process import NextRun as NextRun
    from ._runtime.process import next_run as next_run
    from ._runtime.redaction import Redactor as Redactor
    from ._runtime.session import Outcome as Outcome
    from ._runtime.session import Scope as Scope
    from ._runtime.session import Session as Session
    from ._runtime.session import Step as Step
    from ._runtime.session import Timer as Timer
    from ._runtime.session import Unfinished as Unfinished
    from ._runtime.session import below_seam as below_seam
    from ._runtime.session import current as current
    from ._runtime.session import entered as entered
    from ._runtime.session import here as here
    from ._runtime.session import passing as passing
    from ._runtime.session import placed as placed
    from ._runtime.spending import Spending as Spending
    from ._runtime.step import HasSpecs as HasSpecs
    from ._runtime.step import Note as Note
    from ._runtime.step import Request as Request
    from ._runtime.step import Spec as Spec
    from ._sources import is_tracekit as is_tracekit
    from ._sources import is_user_code as is_user_code
    from ._values import dumps as canonical_json
    from ._values import exception_text as exception_text
    from ._values import not_serialisable as not_serialisable
    from ._values import register as register_codec
    from ._values import to_json as to_json
    from ._values.decoding import exception_from_json as exception_from_json
    from ._values.decoding import from_json as from_json

#: The module of each name; it is imported at the first use, so that a transport does not load what only a harness
#: needs.
_HOMES: Final = {
    "AMBIENT": "_capture.http",
    "Ambient": "_capture.plugins",
    "Answer": "_capture.http",
    "Arrivals": "_capture.http1",
    "Attempt": "_capture.guard",
    "Below": "_runtime.effects",
    "Captured": "_capture.calls",
    "ChatCompletions": "_capture.wire",
    "Chunks": "_capture.http1",
    "Claim": "_capture.plugins",
    "Conversation": "_capture.websocket",
    "Dialect": "_capture.plugins",
    "EmbeddingVectors": "_capture.wire",
    "Endpoint": "_capture.plugins",
    "Exchange": "_capture.http",
    "Follower": "_journal.reader",
    "Form": "_capture.plugins",
    "GROUP": "_capture.plugins",
    "HasPath": "_journal.store",
    "HasSpecs": "_runtime.step",
    "Headers": "_capture.http",
    "Incoming": "_capture.http1",
    "Integration": "_capture.plugins",
    "NOTHING": "_capture.http1",
    "Native": "_capture.plugins",
    "NextRun": "_runtime.process",
    "ObservedTransport": "_capture.transports",
    "OpenReplay": "_runs.by_hand",
    "OpenRun": "_runs.by_hand",
    "Outcome": "_runtime.session",
    "Patch": "_capture.patch",
    "Note": "_runtime.step",
    "PASSING": "_capture.http",
    "QueueClass": "_capture.plugins",
    "READS": "_journal.entry",
    "Reading": "_capture.plugins",
    "Scheduler": "_capture.plugins",
    "Redactor": "_runtime.redaction",
    "ReplaceableCall": "_capture.contracted",
    "ReplayedConversation": "_capture.websocket",
    "ReplayedTransport": "_capture.transports",
    "Request": "_runtime.step",
    "RequestHead": "_capture.http1",
    "SINGLES": "_journal.entry",
    "Scope": "_runtime.session",
    "Session": "_runtime.session",
    "Spec": "_runtime.step",
    "Spending": "_runtime.spending",
    "StandIn": "_capture.transports",
    "Step": "_runtime.session",
    "Change": "_runs.reading",
    "Edit": "_runs.reading",
    "FileView": "_runs.reading",
    "PromptMessage": "_runs.reading",
    "ModelCall": "_runs.reading",
    "Prompt": "_runs.reading",
    "RunView": "_runs.reading",
    "StepView": "_runs.reading",
    "Taken": "_runs.reading",
    "ToolRequest": "_runs.reading",
    "plain": "_runs.reading",
    "prompt_of": "_runs.reading",
    "read_run": "_runs.reading",
    "PublicKeys": "_journal.seals",
    "Store": "_journal.store",
    "TaskSource": "_capture.plugins",
    "Telemetry": "_capture.plugins",
    "Timer": "_runtime.session",
    "Trace": "_journal.reader",
    "Unfinished": "_runtime.session",
    "Verdict": "_journal.reader",
    "answer_meta": "_capture.wire",
    "attach": "_capture.plugins",
    "begin": "_capture.http",
    "below_seam": "_runtime.session",
    "body_not_kept": "_capture.http",
    "canonical_json": "_values:dumps",
    "capture": "_capture.calls",
    "captured_of": "_capture.calls",
    "caused": "_capture.notes",
    "check_transition": "_policy.contract",
    "closing": "_capture.calls",
    "completion_reading": "_capture.wire",
    "completion_usage": "_capture.wire",
    "connection_failed": "_capture.http",
    "cost_usd": "_policy.budget",
    "current": "_runtime.session",
    "detach": "_capture.plugins",
    "discover": "_capture.plugins",
    "drive": "_capture.calls",
    "entered": "_runtime.session",
    "event_data": "_capture.wire",
    "stream_events": "_capture.wire",
    "exception_from_json": "_values.decoding",
    "exception_text": "_values",
    "event_id": "_journal.entry",
    "family_of": "_journal.entry",
    "info_of": "_journal.entry",
    "meta_of": "_journal.entry",
    "span_id": "_journal.entry",
    "trace_id": "_journal.entry",
    "forbidding": "_capture.guard",
    "first_entry": "_journal.store",
    "from_json": "_values.decoding",
    "gives_anything": "_runtime.index",
    "here": "_runtime.session",
    "instrumented": "_capture.instrumentation",
    "is_segment": "_journal.store",
    "is_tracekit": "_sources",
    "is_user_code": "_sources",
    "json_lines": "_capture.wire",
    "json_value": "_capture.wire",
    "keeping": "_capture.transports",
    "kept_to_itself": "_capture.threads",
    "lend": "_runs.recording",
    "live_async": "_capture.calls",
    "message": "_capture.http",
    "named": "_capture.notes",
    "next_run": "_runtime.process",
    "not_serialisable": "_values",
    "opened": "_capture.transports",
    "outside": "_capture.http",
    "own_code": "_capture.callers",
    "parameters": "_capture.wire",
    "passes_untouched": "_capture.http",
    "passing": "_runtime.session",
    "perform": "_capture.calls",
    "perform_async": "_capture.calls",
    "placed": "_runtime.session",
    "raw_headers": "_capture.http",
    "refuse": "_capture.http",
    "register": "_capture.plugins",
    "register_codec": "_values:register",
    "register_tasks": "_capture.plugins",
    "reported": "_capture.transports",
    "segment_in": "_journal.store",
    "segments_beside": "_journal.store:beside",
    "served": "_capture.http1",
    "serving": "_capture.transports",
    "shown": "_capture.plugins",
    "signature_of": "_capture.calls",
    "supply_placeholders": "_capture.plugins",
    "to_json": "_values",
    "token_usage": "_capture.wire",
    "tool_arguments": "_capture.wire",
    "transport_of": "_capture.transports",
    "trusted": "_capture.plugins",
    "unconnected": "_capture.http",
    "valid_run_id": "_journal.store",
    "watching": "_capture.guard",
    "withheld": "_capture.http",
}

# Those that have another name in their module are spelled out for type checkers.
__all__ = ["canonical_json", "register_codec", "segments_beside"]
__all__ += sorted(_HOMES.keys() - {*__all__})  # noqa: PLE0605 - the tests compare it with the names above


if not TYPE_CHECKING:  # a type checker assumes that a module with __getattr__ has every name
    __getattr__, __dir__ = lazily(globals(), _HOMES)
