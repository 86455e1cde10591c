"""A Haystack pipeline and its agent with a tool."""

from typing import Annotated

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool


@tool
def depth(place: Annotated[str, "its name"]) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


pipeline = Pipeline()
pipeline.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user("Say {{word}}")]))
pipeline.add_component("model", OpenAIChatGenerator(model="gpt-4o"))
pipeline.connect("prompt.prompt", "model.messages")
print(pipeline.run({"prompt": {"word": "fjord"}})["model"]["replies"][0].text)
agent = Agent(chat_generator=OpenAIChatGenerator(model="gpt-4o"), tools=[depth])
for message in agent.run(messages=[ChatMessage.from_user("How deep is the fjord?")])["messages"]:
    print(message.role, message.text, [result.result for result in message.tool_call_results])
