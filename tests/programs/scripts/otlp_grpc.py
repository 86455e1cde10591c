"""Spans that go to a collector over gRPC, which is not there."""

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(insecure=True, timeout=2), schedule_delay_millis=50))
trace.set_tracer_provider(provider)
with trace.get_tracer("ship").start_as_current_span("ask"):
    chat = OpenAI().chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": "How deep?"}])
    print(chat.choices[0].message.content)
provider.shutdown()
