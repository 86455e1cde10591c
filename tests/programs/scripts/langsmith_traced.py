"""Watched by LangSmith: its decorator and its OpenAI wrapper."""

from langsmith import traceable
from langsmith.wrappers import wrap_openai
from openai import OpenAI

client = wrap_openai(OpenAI())


@traceable
def ask(text):
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


@traceable
def both():
    return [ask("How deep is the fjord?"), ask("And the sea?")]


print(both())
