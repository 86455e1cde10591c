"""Azure's deployments, with a key and with a token."""

import asyncio
import os

from openai import AsyncAzureOpenAI, AzureOpenAI

place = {"azure_endpoint": os.environ["STUB_URL"], "api_version": "2025-04-01-preview"}
question = [{"role": "user", "content": "Which deployment is this?"}]
client = AzureOpenAI(api_key="azure-key", azure_deployment="gpt-prod", **place)
print(client.chat.completions.create(model="gpt-prod", messages=question).choices[0].message.content)
with client.chat.completions.stream(model="gpt-prod", messages=question) as stream:
    print([event.type for event in stream][-1], stream.get_final_completion().choices[0].message.content)


async def main():
    tokens = 0

    async def token():
        nonlocal tokens
        tokens += 1
        return f"token-{tokens}"

    async with AsyncAzureOpenAI(azure_ad_token_provider=token, **place) as client:
        asked = (client.chat.completions.create(model="gpt-prod", messages=question) for _ in range(3))
        for chat in await asyncio.gather(*asked):
            print(chat.id, chat.choices[0].message.content)
    print(tokens)


asyncio.run(main())
