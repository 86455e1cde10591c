"""DBOS: workflows that start others, a queue, their state in SQLite."""

from dbos import DBOS, DBOSConfig
from openai import OpenAI

config = DBOSConfig(
    name="fjords", system_database_url="sqlite:///dbos.sqlite", run_admin_server=False, log_level="ERROR"
)
DBOS(config=config)


@DBOS.step(retries_allowed=True)
def ask(place: str) -> str:
    chat = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": place}])
    return chat.choices[0].message.content


@DBOS.workflow()
def one(place: str) -> str:
    return ask(place)


@DBOS.workflow()
def survey(places: list[str]) -> list[str]:
    first = ask("world")
    handles = [DBOS.start_workflow(one, place) for place in places]
    return [first, *(handle.get_result() for handle in handles)]


DBOS.launch()
print(survey(["fjord", "sea", "lake"]))
DBOS.register_queue("asks", worker_concurrency=2, polling_interval_sec=0.2)
handles = [DBOS.enqueue_workflow("asks", one, f"pond {n}") for n in range(3)]
print([handle.get_result() for handle in handles])
DBOS.destroy()
