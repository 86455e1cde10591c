"""Hugging Face's inference client: chat, stream, async."""

import asyncio
import os

from huggingface_hub import AsyncInferenceClient, InferenceClient

question = [{"role": "user", "content": "How deep is the fjord?"}]
client = InferenceClient(base_url=os.environ["STUB_URL"] + "/v1", api_key="key")
print(client.chat_completion(question, model="qwen").choices[0].message.content)
for chunk in client.chat_completion(question, model="qwen", stream=True):
    print(chunk.choices[0].delta.content or "", end="|")
print()


async def main():
    async with AsyncInferenceClient(base_url=os.environ["STUB_URL"] + "/v1", api_key="key") as client:
        for answer in await asyncio.gather(*(client.chat_completion(question, model="qwen") for _ in range(3))):
            print(answer.choices[0].message.content)


asyncio.run(main())
