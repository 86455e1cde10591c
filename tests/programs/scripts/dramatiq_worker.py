"""Dramatiq with its stub broker: a worker of threads, a pipeline, a retried message, results."""

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from openai import OpenAI

backend = StubBackend()
broker = StubBroker()
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)
client = OpenAI()
tries = []


@dramatiq.actor(store_results=True, max_retries=2, min_backoff=10)
def ask(text):
    tries.append(text)
    if text == "lake 2" and tries.count(text) == 1:
        raise RuntimeError("once more")
    chat = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
worker.start()
messages = [ask.send(f"lake {n}") for n in range(6)]
for message in messages:
    print(message.get_result(backend=backend, block=True, timeout=30_000), message.message_id)
broker.join(ask.queue_name)
worker.join()
worker.stop()
print(sorted(tries))
