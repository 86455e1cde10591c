"""A task of Langroid's with another below it, and a tool in the form of a message."""

import tiktoken


class Letters:
    """An encoding that needs no download."""

    def encode(self, text: str, **options: object) -> list[int]:
        return list(text.encode())


tiktoken.get_encoding = tiktoken.encoding_for_model = lambda name: Letters()

import langroid as lr  # noqa: E402
import langroid.language_models as lm  # noqa: E402
from langroid.utils.configuration import settings  # noqa: E402

settings.stream, settings.cache, settings.quiet = False, False, True
model = lm.OpenAIGPTConfig(chat_model="gpt-4o", stream=False)


def agent(name: str) -> lr.ChatAgent:
    return lr.ChatAgent(lr.ChatAgentConfig(name=name, llm=model, vecdb=None))


class Depth(lr.ToolMessage):
    request: str = "depth"
    purpose: str = "to find how deep a <place> is"
    place: str

    def handle(self) -> str:
        return f"{len(self.place)} metres"


one = agent("one")
one.enable_message(Depth)
print(one.llm_response("How deep is the fjord?").content)
print(one.agent_response('{"request": "depth", "place": "fjord"}').content)
task = lr.Task(agent("two"), interactive=False, single_round=True)
task.add_sub_task(lr.Task(agent("three"), interactive=False, single_round=True))
print(task.run("And the sea?").content)
