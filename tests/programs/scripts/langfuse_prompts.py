"""Langfuse as where prompts are kept: what is asked for belongs to the program, what is sent is telemetry."""

import os
import time

from langfuse import Langfuse
from langfuse.openai import OpenAI

langfuse = Langfuse(host=os.environ["SERVER_URL"], public_key="pk-stub", secret_key="sk-stub")
client = OpenAI()
for _ in range(2):
    prompt = langfuse.get_prompt("depth", cache_ttl_seconds=1)
    text = prompt.compile(place="fjord")
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    print(prompt.version, text, chat.choices[0].message.content)
    time.sleep(1.2)
refreshed = langfuse.get_prompt("depth", cache_ttl_seconds=1)
time.sleep(1)
print(langfuse.get_prompt("depth", cache_ttl_seconds=60).version >= refreshed.version)
try:
    langfuse.get_prompt("missing", max_retries=0)
except Exception as error:
    print(type(error).__name__)
langfuse.flush()
