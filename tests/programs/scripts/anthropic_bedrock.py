"""Claude on Bedrock, asked and streamed."""

import asyncio
import os

from anthropic import AnthropicBedrock, AsyncAnthropicBedrock

asked = {
    "model": "anthropic.claude-sonnet-5-v1:0",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Hello"}],
}
client = AnthropicBedrock(base_url=os.environ["STUB_URL"], aws_region="us-east-1")
print(client.messages.create(**asked).content[0].text)
with client.messages.stream(**asked) as stream:
    for text in stream.text_stream:
        print(text, end="|")
print()


async def main():
    client = AsyncAnthropicBedrock(base_url=os.environ["STUB_URL"], aws_region="us-east-1")
    for message in await asyncio.gather(*(client.messages.create(**asked) for _ in range(3))):
        print(message.content[0].text)


asyncio.run(main())
