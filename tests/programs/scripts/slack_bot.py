"""A bot of Slack: an event that it was sent, answered in a thread of its own; messages, plain and side by side."""

import asyncio
import hashlib
import hmac
import json
import os
import time

from openai import OpenAI
from slack_bolt import App, BoltRequest
from slack_sdk import WebClient
from slack_sdk.web.async_client import AsyncWebClient

url = f"{os.environ['SERVER_URL']}/slack/"
app = App(client=WebClient(token="xoxb-stub", base_url=url), signing_secret="stub", token_verification_enabled=False)
model = OpenAI()


@app.event("app_mention")
def mentioned(event, say) -> None:
    chat = model.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": event["text"]}])
    print(say(text=chat.choices[0].message.content, channel=event["channel"])["ts"])


event = {"type": "app_mention", "user": "U1", "channel": "C1", "text": "How deep is the fjord?"}
by = [{"team_id": "T1", "user_id": "U2", "is_bot": True}]
body = json.dumps({"type": "event_callback", "event": event, "team_id": "T1", "authorizations": by})
now = str(int(time.time()))
signed = hmac.new(b"stub", f"v0:{now}:{body}".encode(), hashlib.sha256).hexdigest()
headers = {"content-type": "application/json", "x-slack-request-timestamp": now, "x-slack-signature": f"v0={signed}"}
print(app.dispatch(BoltRequest(body=body, headers=headers)).status)
app.listener_runner.listener_executor.shutdown()


async def main() -> None:
    client = AsyncWebClient(token="xoxb-stub", base_url=url)
    posted = await asyncio.gather(*(client.chat_postMessage(channel="C1", text=str(number)) for number in range(4)))
    print([one["ts"] for one in posted])


asyncio.run(main())
