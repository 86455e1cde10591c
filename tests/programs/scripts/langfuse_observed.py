"""Watched by Langfuse: its decorator and its OpenAI client."""

from langfuse import get_client, observe
from langfuse.openai import OpenAI

client = OpenAI()


@observe()
def ask(text):
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


@observe()
def both():
    return [ask("How deep is the fjord?"), ask("And the sea?")]


print(both())
get_client().flush()
