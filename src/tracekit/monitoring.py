"""Health and metrics of a store of runs, for operators.

As an ASGI application, or in your own Prometheus registry.

::

    from tracekit.monitoring import asgi_app

    app.mount("/tracekit", asgi_app())     # FastAPI, Starlette: /tracekit/health and /tracekit/metrics

``tracekit serve`` runs the same application in a process of its own. Answers contain counts, model names and states,
never anything from prompts, inputs or results. The extra ``metrics`` installs ``prometheus-client``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextvars import Context
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import _reality
from ._journal.store import Store
from ._runs.figures import STATES, Figures, Histogram, StepInDoubt, StoreFigures
from .errors import RunStateError
from .failures import FailureType

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["Check", "Health", "RunCollector", "asgi_app", "check_health"]

# -- health ------------------------------------------------------------------------------------------------------------
#
# Whether runs can be recorded and read here: problems that a restart, another disk or another node would solve. A
# payment in doubt or a damaged trace is not such a problem; the metrics report those.

#: The default for the bytes that must be free: what a busy agent writes in a few minutes.
MIN_FREE: Final = 100 << 20


class Check(NamedTuple):
    """One health check: its name, whether it passed, and what was found."""

    name: str
    ok: bool
    detail: str


class Health(NamedTuple):
    """Whether runs can be recorded in a store and read from it, with the result of each check."""

    store: str
    checks: tuple[Check, ...]
    time: datetime

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``/health`` answers with."""
        return {
            "status": "healthy" if self.ok else "unhealthy",
            "store": self.store,
            "checks": {check.name: {"ok": check.ok, "detail": check.detail} for check in self.checks},
            "timestamp": self.time.isoformat(),
        }


@_reality.off_loop()
def check_health(store: str | os.PathLike[str] | Store | None = None, *, min_free: int = MIN_FREE) -> Health:
    """Check a store: whether its runs can be listed, a file can be written, and ``min_free`` bytes are free.

    A store that does not exist yet is healthy if it could be created. The write check creates a file and removes it at
    once; no run is touched.
    """
    return _health_of(Store.at(store), min_free, existed=False)


def _health_of(store: Store, min_free: int, *, existed: bool) -> Health:
    checks = (_readable(store, existed), _writable(store), _space(store, min_free))
    return Health(store.root, checks, datetime.fromtimestamp(_reality.time(), UTC))


def _readable(store: Store, existed: bool) -> Check:
    """``existed``: the directory of runs has been there before."""
    try:
        with os.scandir(store.runs) as files:
            next(files, None)
    except FileNotFoundError:
        if existed or os.path.isdir(store.tips):  # which is made after the first run
            return Check("readable", False, f"the runs are gone: there is no {store.runs} any more")
        return Check("readable", True, "nothing has been recorded yet")
    except OSError as error:
        return _failed("readable", "the runs can't be listed", error)
    return Check("readable", True, "the runs can be listed")


def _writable(store: Store) -> Check:
    """Write a file where the next run would be written, or check whether that directory could be created."""
    directory = store.runs if os.path.isdir(store.runs) else _existing(store.runs)
    if directory != store.runs:
        ok = os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)
        return Check("writable", ok, "the store can be made" if ok else "the store can't be made")
    path = os.path.join(directory, f".health-{os.getpid()}-{_reality.urandom(4).hex()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.unlink(path)
            _reality.write(fd, b"\n")
            _reality.fdatasync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return _failed("writable", "a file can't be written", error)
    return Check("writable", True, "a file was written and synced")


def _space(store: Store, least: int) -> Check:
    try:
        free = _free(store)
    except OSError as error:
        return _failed("space", "the free space is not known", error)
    return Check("space", free >= least, f"{free:,} bytes are free, {least:,} are required")


def _failed(name: str, what: str, error: OSError) -> Check:
    return Check(name, False, f"{what}: {error.strerror or type(error).__name__}")


def _free(store: Store) -> int:
    facts = os.statvfs(_existing(store.runs))
    return facts.f_bavail * facts.f_frsize


def _existing(path: str) -> str:
    """Return the nearest existing directory at or above a path."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


# -- metrics -----------------------------------------------------------------------------------------------------------


class RunCollector:
    """A ``prometheus-client`` collector for the runs of a store, to be registered in a registry of your own.

    ::

        from prometheus_client import REGISTRY

        REGISTRY.register(RunCollector("/var/lib/agent/.tracekit"))

    The first collection reads every run once; later ones read only what was added. Damaged and unreadable runs are
    counted as such.
    """

    def __init__(self, store: str | os.PathLike[str] | Store | None = None) -> None:
        _prometheus()
        self._figures: Final = StoreFigures(Store.at(store))

    @property
    def store(self) -> str:
        """The directory of the store."""
        return self._figures.store.root

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector does not read the whole store."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        with self._figures.lock:
            found = [*_metrics(self._figures.refresh(), _reality.time_ns())]
        free = _gauge("tracekit_store_free_bytes", "Bytes that are free where the runs are")
        try:
            free.add_metric([], _free(self._figures.store))
        except OSError:
            pass  # there is no figure
        yield from (*found, free)


def _metrics(figures: Figures, now: int) -> Iterator[Metric]:
    totals = figures.totals
    yield _labelled(_gauge, "tracekit_runs", "Runs of the store by state", ["state"], figures.runs)
    ended: dict[str, Histogram] = {state: totals.run_seconds[state] for state in STATES if state in totals.run_seconds}
    yield _histogram("tracekit_run_duration_seconds", "Runs that have ended, from first to last entry", "state", ended)
    yield _labelled(
        _counter, "tracekit_steps", "Steps that have ended, by kind and outcome", ["kind", "outcome"], totals.steps
    )
    yield _histogram("tracekit_step_duration_seconds", "Steps that have ended, by kind", "kind", totals.step_seconds)
    yield _labelled(
        _counter,
        "tracekit_tokens",
        "Tokens of model calls; cached ones are in input, too",
        ["model", "type"],
        totals.tokens,
    )
    yield _labelled(
        _counter, "tracekit_cost_usd", "US dollars of model calls with a known price", ["model"], totals.cost_usd
    )
    calls = {(model, "known" if known else "unknown"): count for (model, known), count in totals.calls.items()}
    yield _labelled(
        _counter, "tracekit_model_calls", "Model calls by whether their price is known", ["model", "price"], calls
    )
    failures = {kind.value: totals.failures[kind.value] for kind in FailureType}
    yield _labelled(_counter, "tracekit_failures", "Recorded failures by type", ["type"], failures)
    yield from _doubts(figures, now)
    yield _gauge("tracekit_store_readable", "1 if the directory of runs can be listed", int(figures.readable))
    yield _gauge("tracekit_store_bytes", "Bytes of all traces", figures.bytes)
    yield _gauge("tracekit_store_files", "Trace files, those of child processes included", figures.files)
    yield _labelled(
        _counter, "tracekit_read_bytes", "Bytes of traces that were read for these figures", [], {(): totals.bytes_read}
    )


def _doubts(figures: Figures, now: int) -> Iterator[Metric]:
    """Yield the metrics of steps in doubt. Label ``declared`` is true where the program declared the effect, so that
    somebody has to look at it; the effect of an undeclared process is unknown."""
    doubts = [doubt for doubt in figures.doubts if not doubt.running]
    counted = {str(declared).lower(): sum(doubt.declared is declared for doubt in doubts) for declared in (True, False)}
    yield _labelled(
        _gauge,
        "tracekit_in_doubt_steps",
        "Irreversible steps that may or may not have happened",
        ["declared"],
        counted,
    )
    oldest = "Age of the oldest declared step in doubt; 0 if there is none"
    yield _gauge("tracekit_in_doubt_oldest_seconds", oldest, _age([one for one in doubts if one.declared], now))
    running = [doubt for doubt in figures.doubts if doubt.running]
    yield _gauge("tracekit_running_effects", "Irreversible steps that are being made right now", len(running))
    yield _gauge(
        "tracekit_running_effects_oldest_seconds", "Age of the oldest of them; 0 if there is none", _age(running, now)
    )
    began = figures.oldest_running
    age = 0.0 if began is None else max(0.0, (now - began) / 1e9)
    yield _gauge("tracekit_running_oldest_seconds", "Age of the oldest run that is going on; 0 if there is none", age)


def _age(doubts: Iterable[StepInDoubt], now: int) -> float:
    return max((max(0.0, (now - doubt.since) / 1e9) for doubt in doubts), default=0.0)


def _gauge(name: str, text: str, value: float | None = None, labels: list[str] | None = None) -> Any:
    return _prometheus().metrics_core.GaugeMetricFamily(name, text, value=value, labels=labels)


def _counter(name: str, text: str, value: float | None = None, labels: list[str] | None = None) -> Any:
    return _prometheus().metrics_core.CounterMetricFamily(name, text, value=value, labels=labels)


def _labelled(make: Callable[..., Any], name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Any:
    family = make(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric([key] if isinstance(key, str) else [*key], value)
    return family


def _histogram(name: str, text: str, label: str, histograms: Mapping[str, Histogram]) -> Any:
    family = _prometheus().metrics_core.HistogramMetricFamily(name, text, labels=[label])
    for key, histogram in sorted(histograms.items()):
        below, buckets = 0, []
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric([key], buckets, histogram.sum)
    return family


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError:
        raise RunStateError(
            "metrics need the package prometheus-client, which is not installed",
            next_action="pip install prometheus-client uvicorn",
        ) from None
    return prometheus_client


# -- the application ---------------------------------------------------------------------------------------------------

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_TEXT: Final = "text/plain; charset=utf-8"


def asgi_app(store: str | os.PathLike[str] | Store | None = None, *, min_free: int = MIN_FREE) -> ASGIApp:
    """Return an ASGI application that serves ``/health`` and ``/metrics`` of a store, to be mounted or served by
    itself.

    ``/health`` answers 200, or 503 if a check of ``check_health`` fails, with all checks as JSON. ``/metrics`` answers
    in the Prometheus text format, or in OpenMetrics format if the client asks for it. Both do their work in a thread,
    off the event loop.
    """
    collector = RunCollector(store)
    registry: CollectorRegistry = _prometheus().CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return _Application(collector.store, registry, min_free)


class _Application:
    def __init__(self, store: str, registry: CollectorRegistry, min_free: int) -> None:
        self._store: Final = store
        self._registry: Final = registry
        self._min_free: Final = min_free
        #: Whether the directory of runs was there when it was last asked.
        self._existed = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: MutableMapping[str, Any], send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        make = {"/health": self._health, "/metrics": self._metrics}.get(path)
        headers: dict[str, str] = {}
        if make is None:
            status, kind, body = 404, _TEXT, b"there are /health and /metrics\n"
        elif scope["method"] not in ("GET", "HEAD"):
            status, kind, body = 405, _TEXT, b"it can be read only\n"
            headers["allow"] = "GET, HEAD"
        else:
            accepted = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept").decode(
                "latin-1"
            )
            status, kind, body = await _in_a_thread(lambda: make(accepted))
        headers |= {"content-type": kind, "content-length": str(len(body)), "cache-control": "no-store"}
        head = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _health(self, accepted: str) -> tuple[int, str, bytes]:
        import orjson

        store = Store(self._store)
        health = _health_of(store, self._min_free, existed=self._existed)
        self._existed = self._existed or os.path.isdir(store.runs)
        return (
            200 if health.ok else 503,
            "application/json",
            orjson.dumps(health.as_dict(), option=orjson.OPT_APPEND_NEWLINE),
        )

    def _metrics(self, accepted: str) -> tuple[int, str, bytes]:
        encode, kind = _prometheus().exposition.choose_encoder(accepted)
        return 200, kind, encode(self._registry)


async def _in_a_thread(work: Callable[[], tuple[int, str, bytes]]) -> tuple[int, str, bytes]:
    """Run ``work`` in a thread and in an empty context, so that it is not part of a run that is active around the
    request."""
    import asyncio

    loop = asyncio.get_running_loop()
    return await Context().run(loop.run_in_executor, None, work)
