"""A LangChain agent with a tool, its stream, a batch, and structured output."""

import asyncio

from langchain.agents import create_agent
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


@tool
def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


model = ChatOpenAI(model="gpt-5.2")
agent = create_agent(model, [depth])
state = agent.invoke({"messages": [("user", "How deep is the fjord?")]})
for message in state["messages"]:
    print(message.type, message.id, message.content)
chain = ChatPromptTemplate.from_messages([("user", "Say {word}")]) | ChatOpenAI(model="gpt-5.2")
for answer in chain.batch([{"word": word} for word in ("one", "two", "three")]):
    print(answer.content)
for chunk in chain.stream({"word": "four"}):
    print(chunk.content, end="|")
print()
print(model.with_structured_output(Weather).invoke("Tromsø?"))
print(OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False).embed_query("fjord"))


async def main():
    print([answer.content for answer in await chain.abatch([{"word": word} for word in ("five", "six")])])
    async for event in agent.astream({"messages": [("user", "And the sea?")]}, stream_mode="updates"):
        for node, update in event.items():
            print(node, [(message.id, message.content) for message in update["messages"]])


asyncio.run(main())
