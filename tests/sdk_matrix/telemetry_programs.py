"""A small agent beside each package that sends telemetry, which goes to a server on loopback: ``NAME PROVIDER COLLECTOR GRPC [before]``.

``before``: the telemetry, its threads with it, is there before the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

#: What begins a piece of work, and what sends all that is left.
Telemetry = tuple[Callable[[str], AbstractContextManager[Any]], Callable[[], object]]


def langsmith(collector: str, grpc: str, *, queue: bool = True) -> Telemetry:
    os.environ |= {"LANGSMITH_TRACING": "true"}
    from langsmith import Client, trace
    from langsmith.wrappers import wrap_openai

    client = Client(api_url=collector, api_key="k", auto_batch_tracing=queue)
    wrapped.append(lambda openai: wrap_openai(openai, tracing_extra={"client": client}))
    return lambda name: trace(name, client=client), client.flush


def langsmith_at_once(collector: str, grpc: str) -> Telemetry:
    return langsmith(collector, grpc, queue=False)


def langfuse(collector: str, grpc: str) -> Telemetry:
    from langfuse import Langfuse

    client = Langfuse(public_key="pk-lf-1", secret_key="sk-lf-1", base_url=collector)

    def flush() -> None:
        client.create_score(name="good", value=1, trace_id="0" * 31 + "1")
        client.flush()

    return lambda name: client.start_as_current_observation(name=name), flush


def _otel(exporter: Any, *, batch: bool = True) -> Telemetry:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor((BatchSpanProcessor if batch else SimpleSpanProcessor)(exporter))
    return provider.get_tracer("t").start_as_current_span, provider.force_flush


def otlp_http(collector: str, grpc: str, *, batch: bool = True) -> Telemetry:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return _otel(OTLPSpanExporter(collector + "/collect/anything"), batch=batch)


def otlp_http_at_once(collector: str, grpc: str) -> Telemetry:
    return otlp_http(collector, grpc, batch=False)


def otlp_grpc(collector: str, grpc: str, *, batch: bool = True) -> Telemetry:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return _otel(OTLPSpanExporter(grpc, insecure=True), batch=batch)


def otlp_grpc_at_once(collector: str, grpc: str) -> Telemetry:
    return otlp_grpc(collector, grpc, batch=False)


def otlp_metrics(collector: str, grpc: str) -> Telemetry:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter(collector + "/collect/metrics"), 100)
    provider = MeterProvider([reader])
    count = provider.get_meter("t").create_counter("work")

    def begin(name: str) -> AbstractContextManager[None]:
        count.add(1)
        return nullcontext()

    return begin, provider.force_flush


def exporter_of_its_own(collector: str, grpc: str) -> Telemetry:
    """An exporter that is user code, called by the thread of a batch processor."""
    import requests
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Exporter(SpanExporter):
        def export(self, spans: Any) -> Any:
            requests.post(collector + "/mine", json=[span.name for span in spans], timeout=5)
            return SpanExportResult.SUCCESS

    return _otel(Exporter())


def sentry(collector: str, grpc: str) -> Telemetry:
    import sentry_sdk

    sentry_sdk.init(collector.replace("://", "://key@") + "/1", traces_sample_rate=1.0)

    def flush() -> None:
        sentry_sdk.capture_message("done")
        sentry_sdk.flush()

    return lambda name: sentry_sdk.start_transaction(name=name), flush


def posthog(collector: str, grpc: str, *, queue: bool = True) -> Telemetry:
    from posthog import Posthog

    client = Posthog("phc_key", host=collector, sync_mode=not queue)

    def begin(name: str) -> AbstractContextManager[None]:
        client.capture(name, distinct_id="ada")
        return nullcontext()

    return begin, client.flush


def posthog_at_once(collector: str, grpc: str) -> Telemetry:
    return posthog(collector, grpc, queue=False)


def posthog_flags(collector: str, grpc: str) -> Telemetry:
    """A feature flag is no telemetry: what is read there is the program's."""
    from posthog import Posthog

    client = Posthog("phc_key", host=collector)

    def begin(name: str) -> AbstractContextManager[None]:
        print("flag", client.get_feature_flag("new-prompt", "ada", send_feature_flag_events=False))
        client.capture(name, distinct_id="ada")
        return nullcontext()

    return begin, client.flush


def logfire(collector: str, grpc: str) -> Telemetry:
    import logfire

    logfire.configure(
        token="pylf_v1_us_key",
        advanced=logfire.AdvancedOptions(base_url=collector),
        console=False,
        inspect_arguments=False,
    )
    logfire.instrument_openai()
    return lambda name: logfire.span(name), logfire.force_flush


def traceloop(collector: str, grpc: str) -> Telemetry:
    os.environ |= {"TRACELOOP_TELEMETRY": "true"}
    from opentelemetry import trace
    from traceloop.sdk import Traceloop

    Traceloop.init(app_name="agent", api_endpoint=collector, api_key="k")
    provider: Any = trace.get_tracer_provider()
    return trace.get_tracer("t").start_as_current_span, provider.force_flush


def openinference(collector: str, grpc: str) -> Telemetry:
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return provider.get_tracer("t").start_as_current_span, provider.force_flush


def ddtrace(collector: str, grpc: str) -> Telemetry:
    os.environ |= {"DD_TRACE_AGENT_URL": collector, "DD_DOGSTATSD_URL": "udp://" + grpc}
    from ddtrace.trace import tracer

    return tracer.trace, tracer.flush


PROGRAMS: dict[str, Callable[[str, str], Telemetry]] = {
    made.__name__: made
    for made in (
        langsmith, langsmith_at_once, langfuse, otlp_http, otlp_http_at_once, otlp_grpc, otlp_grpc_at_once, otlp_metrics,
        exporter_of_its_own, sentry, posthog, posthog_at_once, posthog_flags, logfire, traceloop, openinference, ddtrace,
    )
}  # fmt: skip

#: What wraps the client of the program.
wrapped: list[Callable[[Any], Any]] = []


def main(name: str, provider: str, collector: str, grpc: str, before: str = "") -> None:
    import tracekit

    begin, flush = PROGRAMS[name](collector, grpc)
    if before:
        with begin("before"):
            pass
        flush()
    with tracekit.record("agent") if before else nullcontext():
        import openai
        import requests

        client: Any = openai.OpenAI(base_url=provider + "/v1", api_key="k")
        for wrap in wrapped:
            client = wrap(client)
        for number in range(2):
            with begin(f"work {number}"):
                asked: Any = [{"role": "user", "content": f"say {number}"}]
                print(client.chat.completions.create(model="gpt-5", messages=asked).choices[0].message.content)
                print(requests.get(provider + "/random", timeout=5).text)
        flush()
    if before:
        with begin("after"):
            pass
        flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
