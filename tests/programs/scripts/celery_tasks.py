"""Tasks of a Celery worker with its default pool of processes: each is a run of its own."""

import subprocess
import sys
from pathlib import Path

from celery import Celery
from openai import OpenAI

import tracekit

tracekit.instrument()
here = Path(__file__).parent / "queue"
(here / "results").mkdir(parents=True, exist_ok=True)
(here / "control").mkdir(exist_ok=True)
app = Celery("celery_tasks", broker="filesystem://", backend=f"file://{here}/results")
app.conf.broker_transport_options = {
    "data_folder_in": str(here), "data_folder_out": str(here), "control_folder": str(here / "control"),
}  # fmt: skip


@app.task
@tracekit.record("task")
def ask(text: str) -> str:
    chat = OpenAI().chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    answer = f"{text} | {chat.choices[0].message.content}"
    print(answer)
    return answer


if __name__ == "__main__":
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", "2", "-l", "error"]
    )
    try:
        asked = [ask.delay(f"question {n}") for n in range(4)]
        for one in asked:
            print(one.get(timeout=60))
    finally:
        worker.terminate()
        worker.wait()
