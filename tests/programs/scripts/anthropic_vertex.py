"""Claude on Vertex, with a token."""

import os

from anthropic import AnthropicVertex

asked = {"model": "claude-sonnet-5", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
client = AnthropicVertex(
    base_url=os.environ["STUB_URL"] + "/v1", region="europe-west1", project_id="p", access_token="token"
)
message = client.messages.create(**asked)
print(message.model_dump().get("said") or message.content[0].text)
message = client.messages.create(**asked)
print(message.model_dump().get("said") or message.content[0].text)
