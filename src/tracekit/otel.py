"""Export runs as OpenTelemetry spans (generative AI conventions), afterwards or while they are being recorded.

::

    from tracekit.otel import emit_spans

    emit_spans()     # from now on each run that this process records also goes to OTEL_EXPORTER_OTLP_ENDPOINT

Spans are made from the trace file, in a separate thread; a slow or missing collector shows up only in the log of the
OpenTelemetry SDK and never delays the program. Prompts, answers, arguments and results are left out unless requested.
The extra ``otel`` installs the SDK and its exporter.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context as EmptyContext
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from . import _reality
from ._capture.plugins import Form
from ._journal.entry import ENDS, causes_of, meta_of, span_id
from ._journal.reader import Follower, Trace, Verdict
from ._journal.store import SUFFIX, HasPath, Store, first_entry, holder, is_segment, segment_in, writer
from ._runs.reading import FileView
from ._runs.spans import Context, FileSpans, Span, context_of
from ._runtime.process import process
from ._version import __version__
from .errors import RunStateError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["SpanEmitter", "emit_spans", "export_spans"]

# -- spans of the SDK --------------------------------------------------------------------------------------------------


class _Sdk:
    """Converts the spans of ``tracekit._runs.spans`` into spans of the SDK."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk import resources
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ModuleNotFoundError:
            raise RunStateError(
                "spans need the OpenTelemetry SDK, which is not installed",
                next_action="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            ) from None
        self._trace: Final = trace
        self._sdk: Final = sdk
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._resource: Final = resources.Resource.create({} if named else {"service.name": "tracekit"})
        self._scope: Final = InstrumentationScope("tracekit", __version__)
        self._kinds: Final = {kind.name.lower(): kind for kind in trace.SpanKind}

    def span(self, span: Span) -> ReadableSpan:
        trace = self._trace
        status = trace.Status(trace.StatusCode.UNSET)
        if span.error is not None:
            status = trace.Status(trace.StatusCode.ERROR, span.error[1])
        return self._sdk.ReadableSpan(
            span.name,
            context=self._context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else self._context(span.trace_id, span.parent_id),
            resource=self._resource,
            attributes=span.attributes,
            events=[self._sdk.Event(one.name, one.attributes, timestamp=one.at) for one in span.events],
            links=[trace.Link(self._context(one.trace_id, one.span_id)) for one in span.links],
            kind=self._kinds[span.kind],
            status=status,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )

    def _context(self, of_trace: str, of_span: str) -> Any:
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        return self._trace.SpanContext(int(of_trace, 16), int(of_span, 16), is_remote=False, trace_flags=flags)


def _exporter(endpoint: str | None) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise RunStateError(
            "sending spans needs the OTLP exporter of OpenTelemetry, which is not installed",
            next_action="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from None
    if endpoint is not None and urlsplit(endpoint).path in ("", "/"):
        endpoint = f"{endpoint.rstrip('/')}/v1/traces"
    return OTLPSpanExporter(endpoint=endpoint)


class _Contexts:
    """The span contexts of the runs of a store, by run id."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._known: Final[dict[str, Context]] = {}

    def __call__(self, run_id: str) -> Context:
        found = self._known.get(run_id)
        if found is None:
            try:
                first = first_entry(self._store.path(run_id))
            except (OSError, RunStateError):
                first = {}
            found = self._known[run_id] = context_of(first or {"run_id": run_id})
        return found


def _outer(first: dict[str, Any], reader: Callable[[str | None], FileSpans | None]) -> Callable[[], str | None]:
    """Return a function that finds the span in which a child process was started, given the child's first entry."""
    lane, causes = meta_of(first).get("lane"), [*causes_of(first)]

    def outer() -> str:
        for cause in causes:
            found = reader(cause.get("segment"))
            if found is not None:
                return found.enclosing(cause["seq"], lane if isinstance(lane, str) else None)
        return span_id(str(first.get("run_id")), None, 1)

    return outer


# -- export ------------------------------------------------------------------------------------------------------------

#: How many spans are sent in one batch.
_BATCH: Final = 512


def export_spans(
    *runs: str | os.PathLike[str] | HasPath,
    store: str | os.PathLike[str] | Store | None = None,
    exporter: SpanExporter | None = None,
    content: bool = False,
) -> int:
    """Send ``runs`` (ids, paths or ``Run`` objects), including their child processes, as spans; return the number of
    spans.

    The default ``exporter`` sends OTLP over HTTP, configured by ``OTEL_EXPORTER_OTLP_ENDPOINT`` and related variables.
    ``content`` adds messages, arguments and results. A run gets the same span ids at each export. Raises
    ``RunStateError`` if the spans could not be delivered, and ``TraceError`` if a trace is damaged.
    """
    with Store.at(store).files(*runs) as traces:
        return _send(traces, exporter or _exporter(None), content, ())


#: How much of what the exporter has logged is told, in characters.
_SAID: Final = 400


class _Listener(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said: Final = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


@contextmanager
def _heard() -> Iterator[list[str]]:
    """A block in which what the exporter logs goes into a list: an error that it does not raise is only there."""
    logger, said = logging.getLogger("opentelemetry"), list[str]()
    listener, onward = _Listener(said), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.propagate = onward
        logger.removeHandler(listener)


def _send(traces: Sequence[Trace], exporter: SpanExporter, content: bool, said: Sequence[str]) -> int:
    from opentelemetry.sdk.trace.export import SpanExportResult

    sdk, batch, sent = _Sdk(), [], 0
    try:
        for span in _spans_of(traces, content):
            batch.append(sdk.span(span))
            if len(batch) == _BATCH:
                sent += _export(exporter, batch, SpanExportResult.SUCCESS, said)
                batch = []
        return sent + (_export(exporter, batch, SpanExportResult.SUCCESS, said) if batch else 0)
    finally:
        exporter.shutdown()


def _export(exporter: SpanExporter, batch: Sequence[ReadableSpan], success: object, said: Sequence[str]) -> int:
    if exporter.export(batch) is not success:
        why = f": {said[0][:_SAID]}" if said else ""  # the first one has the cause; later ones say that it was given up
        raise RunStateError(
            f"{len(batch)} spans could not be delivered{why}",
            next_action="start the collector, or name another: --endpoint, OTEL_EXPORTER_OTLP_ENDPOINT",
        )
    return len(batch)


def _spans_of(traces: Sequence[Trace], content: bool) -> Iterator[Span]:
    readers: dict[tuple[str, str | None], FileSpans] = {}
    for trace in traces:
        run_id = trace.status.run_id or ""
        contexts = _Contexts(Store.of(trace.path))
        segment = segment_in(trace.path)
        first = trace.entry(1) if len(trace) else {}
        context, above = contexts(run_id) if segment else context_of(first), None
        if segment is not None:
            above = _outer(first, lambda of, run_id=run_id: readers.get((run_id, of)))  # type: ignore[misc]
        view = FileView(trace, trace.status, segment)
        reader = FileSpans(view, context, contexts, above=above, content=content)
        readers[run_id, segment] = reader
        for entry in trace.entries():
            yield from reader.take(entry)
        yield from reader.rest()


class Otlp(Form):
    """The ``Form`` that sends runs as OpenTelemetry spans."""

    name = "otlp"
    summary = "spans of OpenTelemetry, sent to a collector."
    payloads = True

    def send(self, traces: Sequence[Trace], *, endpoint: str | None = None, payloads: bool = False) -> str:
        exporter = _exporter(endpoint)
        with _heard() as said:
            sent = _send(traces, exporter, payloads, said)
        return f"{sent} spans were sent."


# -- live --------------------------------------------------------------------------------------------------------------
#
# A thread follows the files of the runs that this process records. It finds them through the directory alone, so a
# recording does no work for it and never waits for it.

#: Seconds between two rounds of the thread, so the longest delay of a span.
_PAUSE: Final = 0.5
#: Nanoseconds within which two changes of a directory may have the same time stamp, on any file system.
_COARSE: Final = 2_000_000_000

_log: Final = logging.getLogger("tracekit.otel")


def emit_spans(
    *,
    store: str | os.PathLike[str] | Store | None = None,
    processor: SpanProcessor | None = None,
    content: bool = False,
    exit_timeout: float = 5.0,
) -> SpanEmitter:
    """Emit each run that this process records in ``store`` as spans, from now on; runs that are already open are
    included.

    ``processor`` receives each span when it ends (``on_end``); the default is the SDK's ``BatchSpanProcessor`` with
    OTLP over HTTP, configured by ``OTEL_EXPORTER_OTLP_ENDPOINT`` and related variables. ``content`` adds messages,
    arguments and results. At its end, the process waits at most ``exit_timeout`` seconds for spans that are not yet
    sent.

    Child processes of a run are included; each worker process of a server has to call this itself. The part that a
    resumed run adds is exported once it is complete. Returns the emitter, whose ``stop`` ends it.
    """
    sdk = _Sdk()
    if processor is None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # In an empty context: the processor's thread is not part of a run that is active here.
        processor = EmptyContext().run(lambda: BatchSpanProcessor(_exporter(None)))
    return SpanEmitter(Store.at(store), processor, sdk, content, exit_timeout)


class SpanEmitter:
    """Emits runs as spans while they are being recorded; returned by ``emit_spans``. It stops by itself when the
    process ends."""

    def __init__(self, store: Store, processor: SpanProcessor, sdk: _Sdk, content: bool, exit_timeout: float) -> None:
        self._store: Final = store
        self._processor: Final = processor
        self._sdk: Final = sdk
        self._content: Final = content
        self._exit_timeout: Final = exit_timeout
        open_now = {os.path.basename(one.log.path) for one in process.sessions if one.recording}
        #: Names of the files that were examined.
        self._known: set[str] = set(_names(store.runs)) - open_now
        self._seen_at = 0
        self._contexts: Final = _Contexts(store)
        self._files: Final[dict[tuple[str, str | None], _Followed]] = {}
        self._own: Final[set[str]] = set()
        self._asked: list[threading.Event] = []
        self._wake: Final = threading.Event()
        self._stopping = False
        self._thread: Final = _reality.OwnThread(self._run, "tracekit-spans")
        self._thread.start()
        atexit.register(self.stop)

    def flush(self, timeout: float = 5.0) -> bool:
        """Send everything that is in the files now; return whether that was done within ``timeout`` seconds."""
        asked = threading.Event()
        self._asked.append(asked)
        self._wake.set()
        return asked.wait(timeout=timeout) and bool(self._processor.force_flush(int(timeout * 1000)))

    def stop(self, timeout: float | None = None) -> None:
        """Emit what is in the files, then stop. Calling it again does nothing.

        Spans that the collector has not accepted within ``timeout`` seconds (default: ``exit_timeout``) are dropped.
        """
        atexit.unregister(self.stop)
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=self._exit_timeout if timeout is None else timeout)

    # -- in the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            stopping, asked = self._stopping, self._asked
            self._asked = []
            self._round()
            self._thread.unlist()
            for one in asked:
                one.set()
            if stopping:
                break
            if not self._asked:
                self._wake.wait(timeout=_PAUSE)
            self._wake.clear()
        try:
            self._processor.shutdown()
        except Exception:
            _log.warning("the span processor failed when it was shut down", exc_info=True)

    def _round(self) -> None:
        try:
            self._look()
        except Exception:
            _log.warning("the runs of %s can't be read; they will be read again", self._store.root, exc_info=True)
        for file in [*self._files.values()]:
            try:
                for span in file.poll():
                    self._processor.on_end(self._sdk.span(span))
            except Exception:
                _log.warning("%s is no longer followed: no further spans of it", file.path, exc_info=True)
                file.ended = True
        for key, file in [*self._files.items()]:
            own = self._files.get((key[0], None))
            if own is not file and (own is None or own.ended) and not file.ended and not holder(file.path):
                self._emit_rest(file)  # its process died
            if file.ended and not (own is file and any(one[0] == key[0] and one != key for one in self._files)):
                del self._files[key]
                file.close()

    def _emit_rest(self, file: _Followed) -> None:
        for span in (*file.poll(), *file.reader.rest()):
            self._processor.on_end(self._sdk.span(span))
        file.ended = True

    def _look(self) -> None:
        """Look for new files in the directory."""
        try:
            changed = os.stat(self._store.runs).st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._seen_at:
            return
        names = _names(self._store.runs)
        waits = False
        # A run's own file is handled before those of its child processes.
        for name in sorted(names - self._known, key=lambda name: (is_segment(name), name)):
            first = first_entry(os.path.join(self._store.runs, name))
            if first:
                self._consider(name, first)
                self._known.add(name)
            waits = waits or not first  # the file is just being created
        self._known &= names
        young = _reality.time_ns() - changed < _COARSE  # another file may appear with the same time stamp
        self._seen_at = 0 if waits or young else changed

    def _consider(self, name: str, first: dict[str, Any]) -> None:
        """Follow a file if it belongs to a run that this process records."""
        path = os.path.join(self._store.runs, name)
        segment = segment_in(name)
        run_id = str(first.get("run_id"))
        if segment is not None:
            if run_id not in self._own:
                return
            context, above = self._contexts(run_id), _outer(first, lambda of: self._reader(run_id, of))
        else:
            recorded = meta_of(first).get("writer")
            if recorded is not None and recorded != writer(path):
                return
            context, above = context_of(first), None
            self._own.add(run_id)
        self._files[run_id, segment] = _Followed(path, segment, context, self._contexts, above, self._content)

    def _reader(self, run_id: str, of: str | None) -> FileSpans | None:
        file = self._files.get((run_id, of))
        return None if file is None else file.reader


class _Followed:
    """A file that is being written, and is followed as it grows."""

    def __init__(
        self,
        path: str,
        segment: str | None,
        context: Context,
        contexts: _Contexts,
        above: Callable[[], str | None] | None,
        content: bool,
    ) -> None:
        self.path: Final = path
        self.segment: Final = segment
        self.ended = False
        self._found: list[Span] = []
        self._follower: Final = Follower(path, self._take)
        self._trace: Final = Trace(path)
        nothing = Verdict("incomplete", 0, "")
        self.reader: Final = FileSpans(
            FileView(self._trace, nothing, segment, source=_Source(path, self._follower)),
            context,
            contexts,
            above=above,
            content=content,
            keep=False,
        )

    def poll(self) -> list[Span]:
        """Return the spans that have ended since the last call."""
        if self.ended:
            return []
        self._follower.poll()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._follower.close()
        self._trace.close()

    def _take(self, entry: dict[str, Any]) -> None:
        self._found += self.reader.take(entry)
        self.ended = entry["type"] in ENDS


class _Source:
    """The entries of a file that is being written."""

    def __init__(self, path: str, follower: Follower) -> None:
        self.path: Final = path
        self._follower: Final = follower

    def entry(self, seq: int) -> dict[str, Any]:
        return self._follower.entry(seq)

    def expand(self, value: Any, *, before: int | None = None) -> Any:
        assert before is not None
        return self._follower.expand(value, before)


def _names(directory: str) -> set[str]:
    try:
        return {name for name in os.listdir(directory) if name.endswith(SUFFIX)}
    except FileNotFoundError:
        return set()
