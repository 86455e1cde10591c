"""Prefect with the server that it starts itself: a flow with tasks side by side, one of them tried again."""

from openai import OpenAI
from prefect import flow, task

tried = []


@task(retries=2, retry_delay_seconds=0.01)
def ask(place: str) -> str:
    tried.append(place)
    if place == "sea" and tried.count(place) == 1:
        raise RuntimeError("once more")
    chat = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": place}])
    return chat.choices[0].message.content


@flow
def survey(places: list[str]) -> list[str]:
    return [one.result() for one in ask.map(places)]


print(survey(["fjord", "sea", "lake"]))
