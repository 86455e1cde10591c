"""Tasks of a Huey consumer with two processes: each is a run of its own."""

import subprocess
import sys
from pathlib import Path

from huey import SqliteHuey
from openai import OpenAI

import tracekit

tracekit.instrument()
huey = SqliteHuey(filename=str(Path(__file__).parent / "queue.sqlite"))


@tracekit.record("task")
def answered(text: str) -> str:
    chat = OpenAI().chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    answer = f"{text} | {chat.choices[0].message.content}"
    print(answer)
    return answer


@huey.task()
def ask(text: str) -> str:
    return answered(text)


if __name__ == "__main__":
    consumer = [sys.executable, "-m", "huey.bin.huey_consumer", "huey_tasks.huey", "-w", "2", "-k", "process", "-q"]
    worker = subprocess.Popen(consumer)
    try:
        from huey_tasks import ask  # as the consumer knows it

        asked = [ask(f"question {n}") for n in range(4)]
        for one in asked:
            print(one(blocking=True, timeout=60))
    finally:
        worker.terminate()
        worker.wait()
