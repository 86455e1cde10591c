"""Code that sends telemetry: of observability packages, and of frameworks that report on their own use.

The code named here only sends. A package's other parts read things for the program (prompts, feature flags, data sets),
or wrap the program's own calls (decorators, instrumented clients, evaluations); these belong to the run.
"""

from __future__ import annotations

import sys
from typing import Any

from tracekit.integration import Ambient, Telemetry

__all__ = ["ENDPOINTS", "SENDERS", "traceparent"]


def traceparent() -> str | None:
    """Return the current span of OpenTelemetry, if the program has loaded that: a run that begins now belongs to it."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


SENDERS = (
    Telemetry(
        "LangSmith",
        (
            "langsmith._internal._background_thread",
            "langsmith._internal.otel",
            # Without a queue these send in the caller's thread.
            *(f"langsmith.client:Client.{name}" for name in ("create_run", "update_run", "_create_run", "_update_run")),
            *(f"langsmith.client:Client.{name}" for name in ("batch_ingest_runs", "multipart_ingest", "_send_")),
        ),
        packages=("langsmith",),
        reads=("langsmith.prompt_cache",),
    ),
    Telemetry(
        "Langfuse",
        ("langfuse._task_manager", "langfuse._client.span_exporter"),
        packages=("langfuse",),
        reads=("langfuse._utils.prompt_cache",),
    ),
    Telemetry(
        "OpenTelemetry",
        ("opentelemetry.exporter", "opentelemetry.sdk"),
        packages=("opentelemetry",),
        exporting=(
            "opentelemetry.sdk._shared_internal:BatchProcessor._export",
            "opentelemetry.sdk.trace.export:SimpleSpanProcessor.on_end",
            "opentelemetry.sdk.trace.export:BatchSpanProcessor._export",  # before 1.33
            "opentelemetry.sdk._logs._internal.export:SimpleLogRecordProcessor.",
            "opentelemetry.sdk._logs._internal.export:BatchLogRecordProcessor._export",  # before 1.33
            "opentelemetry.sdk.metrics._internal.export:PeriodicExportingMetricReader._receive_metrics",
        ),
    ),
    Telemetry(
        "Logfire",
        (
            "logfire._internal.exporters",
            "logfire._internal.config:LogfireConfig._initialize.<locals>.check_tokens",
            "logfire._internal.config:get_git_revision_hash",
        ),
        packages=("logfire",),
    ),
    Telemetry(
        "Sentry",
        (
            *(f"sentry_sdk.{name}" for name in ("_batcher", "monitor", "profiler", "sessions", "spotlight")),
            *(f"sentry_sdk.{name}" for name in ("transport", "utils:get_git_revision", "worker")),
        ),
        packages=("sentry_sdk",),
    ),
    Telemetry(
        "PostHog",
        (
            *(f"posthog.{name}" for name in ("_async_consumer", "_metrics_autocapture", "capture_v1", "consumer")),
            *(f"posthog.{name}" for name in ("metrics_capture", "request:batch_post", "tracing")),
            "posthog.client:Client._start_span_flush",
        ),
        # Not `posthog.request`: its requests contain times.
        packages=tuple(f"posthog.{name}" for name in ("client", "consumer", "capture_v1", "tracing", "async_client")),
    ),
    Telemetry(
        "Datadog",
        (
            *(f"ddtrace.internal.{name}" for name in ("agent", "datastreams", "dogstatsd", "metrics", "periodic")),
            *(f"ddtrace.internal.{name}" for name in ("remoteconfig", "runtime", "symbol_db", "telemetry", "writer")),
            *(
                f"ddtrace.{name}"
                for name in ("debugging", "llmobs._log_writer", "llmobs._writer", "profiling", "vendor")
            ),
            "datadog.dogstatsd",
            "datadog.threadstats",
        ),
        packages=("ddtrace", "datadog"),
    ),
    Telemetry("Traceloop", ("traceloop.sdk.images", "traceloop.sdk.telemetry"), packages=("traceloop",)),
    Telemetry("OpenInference", (), packages=("openinference",)),
    Telemetry("OpenAI Agents", ("agents.tracing",), packages=("agents.tracing",)),
    Telemetry(
        "CrewAI", ("crewai.telemetry", "crewai_core.telemetry"), packages=("crewai.telemetry", "crewai_core.telemetry")
    ),
    Telemetry("Agno", ("agno.api.api",), packages=("agno.api",)),
    Telemetry("Haystack", ("haystack.telemetry",), packages=("haystack.telemetry",)),
    Telemetry("Hugging Face", ("huggingface_hub.utils._telemetry",)),
)

#: The destinations of telemetry, whoever sends it.
ENDPOINTS = (
    *(
        Ambient(host, path, methods=("POST",), variable=variable)
        for host, variable in (
            ("api.smith.langchain.com", "LANGSMITH_ENDPOINT"),
            ("*.api.smith.langchain.com", "LANGCHAIN_ENDPOINT"),
        )
        for path in ("/runs/batch", "/runs/multipart", "/otel/")
    ),
    *(
        Ambient(host, path, methods=("POST",), variable=variable)
        for host, variable in (("cloud.langfuse.com", "LANGFUSE_HOST"), ("*.cloud.langfuse.com", "LANGFUSE_BASE_URL"))
        for path in ("/api/public/ingestion", "/api/public/otel/")
    ),
    *(
        Ambient("*:4318", f"/v1/{signal}", methods=("POST",), variable="OTEL_EXPORTER_OTLP_ENDPOINT")
        for signal in ("traces", "metrics", "logs")
    ),
    Ambient("*.ingest.sentry.io"),
    Ambient("*.ingest.us.sentry.io"),
    Ambient("*.i.posthog.com", "/batch"),
    Ambient("telemetry.crewai.com"),
    Ambient("huggingface.co", "/api/telemetry/"),
)
