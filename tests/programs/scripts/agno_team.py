"""Agno: an agent with a tool and its memory in SQLite, a team, streamed and side by side."""

import asyncio

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.team import Team


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


db = SqliteDb(db_file="agno.db")
agent = Agent(
    name="scout",
    model=OpenAIChat(id="gpt-4o"),
    tools=[depth],
    db=db,
    session_id="fjords",
    add_history_to_context=True,
    add_datetime_to_context=True,
)
first = agent.run("How deep is the fjord?")
print(first.content, first.run_id, first.created_at)
for event in agent.run("And the sea?", stream=True):
    print(getattr(event, "content", None), end="|")
print()
print([message.role for message in agent.get_session(session_id="fjords").get_messages()])


async def main():
    team = Team(name="team", model=OpenAIChat(id="gpt-4o"), members=[Agent(name="one", model=OpenAIChat(id="gpt-4o"))])
    for answer in await asyncio.gather(*(team.arun(f"Number {number}") for number in range(3))):
        print(answer.content, answer.run_id)


asyncio.run(main())
