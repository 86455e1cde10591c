"""Spans that go to a collector over HTTP, in batches, and their ids in what the program says."""

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=50))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("ship")
client = OpenAI()
for text in ("How deep is the fjord?", "And the sea?"):
    with tracer.start_as_current_span("ask") as span:
        chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
        print(chat.choices[0].message.content, span.is_recording())
