"""RQ with a Redis in the process: jobs that ask a model, one that depends on another, one that is tried again, a callback."""

import random

from fakeredis import FakeStrictRedis
from openai import OpenAI
from rq import Callback, Queue, Retry, SimpleWorker
from rq.job import Job

redis = FakeStrictRedis()
queue = Queue(connection=redis)


def ask(text: str) -> str:
    chat = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


def flaky(text: str) -> str:
    if random.random() < 0.5:
        raise ConnectionError("try again")
    return ask(text)


def done(job: Job, connection, result, *args) -> None:
    print("done", job.id, result)


if __name__ == "__main__":
    from rq_jobs import ask, done, flaky  # as the worker knows them

    first = queue.enqueue(ask, "How deep is the fjord?", on_success=Callback(done))
    second = queue.enqueue(ask, "And the sea?", depends_on=first, on_success=Callback(done))
    third = queue.enqueue(flaky, "And the lake?", retry=Retry(max=20), on_success=Callback(done))
    SimpleWorker([queue], connection=redis).work(burst=True, logging_level="ERROR")
    for job in (first, second, third):
        job.refresh()
        print(job.id, job.get_status(), job.return_value(), job.enqueued_at, job.ended_at)
