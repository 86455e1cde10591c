"""Messages, streams, tools, token counts and batches."""

import asyncio

from anthropic import Anthropic, AsyncAnthropic

client = Anthropic()
model = {"model": "claude-sonnet-5", "max_tokens": 200}
question = [{"role": "user", "content": "Which fjord is the deepest?"}]
message = client.messages.create(messages=question, **model)
print(message.id, message.content[0].text, message.usage.input_tokens)
tool = {
    "name": "depth",
    "description": "How deep",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
with client.messages.stream(messages=question, tools=[tool], **model) as stream:
    for text in stream.text_stream:
        print(text, end="")
    last = stream.get_final_message()
print()
use = next(block for block in last.content if block.type == "tool_use")
answer = {"type": "tool_result", "tool_use_id": use.id, "content": f"1308 m at {use.input['place']}"}
turns = [*question, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in last.content]}]
print(client.messages.create(messages=[*turns, {"role": "user", "content": [answer]}], **model).content[0].text)
for event in client.messages.create(messages=question, stream=True, **model):
    print(event.type, end=" ")
print()
print(client.messages.count_tokens(messages=question, model="claude-sonnet-5").model_dump().get("said"))
batch = client.messages.batches.create(requests=[{"custom_id": "one", "params": {"messages": question, **model}}])
print(batch.model_dump().get("said"))
print([one.model_dump().get("id") for one in client.models.list()])


async def main():
    async with AsyncAnthropic() as client:
        for done in asyncio.as_completed([client.messages.create(messages=question, **model) for _ in range(8)]):
            print((await done).content[0].text)


asyncio.run(main())
