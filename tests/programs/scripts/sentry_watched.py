"""Watched by Sentry: traces of all, and an error that is reported."""

import os

import sentry_sdk
from openai import OpenAI

host = os.environ["COLLECTOR_URL"].removeprefix("http://")
sentry_sdk.init(dsn=f"http://key@{host}/1", traces_sample_rate=1.0, send_default_pii=True)
with sentry_sdk.start_transaction(op="task", name="ask"):
    chat = OpenAI().chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": "How deep?"}])
    print(chat.choices[0].message.content)
try:
    raise LookupError("no such fjord")
except LookupError as error:
    print(bool(sentry_sdk.capture_exception(error)))
