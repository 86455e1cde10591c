"""LiteLLM: sync, async, streams, several providers; ids and times that it makes itself."""

import asyncio

import litellm

question = [{"role": "user", "content": "How deep is the fjord?"}]
answer = litellm.completion(model="openai/gpt-4o", messages=question)
print(answer.id, answer.created, answer.choices[0].message.content)
answer = litellm.completion(model="anthropic/claude-sonnet-4-5", messages=question)
print(answer.id, answer.created, answer.choices[0].message.content)
for chunk in litellm.completion(model="openai/gpt-4o", messages=question, stream=True):
    print(chunk.id, chunk.created, chunk.choices[0].delta.content)
for chunk in litellm.completion(model="anthropic/claude-sonnet-4-5", messages=question, stream=True):
    print(chunk.id, chunk.created, chunk.choices[0].delta.content)
print(litellm.embedding(model="openai/text-embedding-3-small", input=["one"]).data[0]["embedding"])


async def main():
    asked = [litellm.acompletion(model="openai/gpt-4o", messages=question) for _ in range(4)]
    for done in asyncio.as_completed(asked):
        answer = await done
        print(answer.id, answer.choices[0].message.content)


asyncio.run(main())
router = litellm.Router(model_list=[{"model_name": "any", "litellm_params": {"model": "openai/gpt-4o"}}], num_retries=1)
print(router.completion(model="any", messages=question).choices[0].message.content)
