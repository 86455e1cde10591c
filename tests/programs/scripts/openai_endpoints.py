"""Each endpoint once, as a script that somebody tries the API with."""

import io
import json

from openai import NotFoundError, OpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


client = OpenAI()
question = [{"role": "user", "content": "What is the weather in Tromsø?"}]

chat = client.chat.completions.create(model="gpt-5.2", messages=question)
print(chat.id, chat.choices[0].message.content, chat.usage.total_tokens)

for chunk in client.chat.completions.create(model="gpt-5.2", messages=question, stream=True):
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="")
print()

parsed = client.chat.completions.parse(model="gpt-5.2", messages=question, response_format=Weather)
print(repr(parsed.choices[0].message.parsed))

tool = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}
asked = client.chat.completions.create(model="gpt-5.2", messages=question, tools=[tool])
call = asked.choices[0].message.tool_calls[0]
answer = {
    "role": "tool",
    "tool_call_id": call.id,
    "content": json.dumps({"degrees": -4, **json.loads(call.function.arguments)}),
}
told = client.chat.completions.create(
    model="gpt-5.2", messages=[*question, asked.choices[0].message, answer], tools=[tool]
)
print(told.choices[0].message.content)

response = client.responses.create(model="gpt-5.2", input="Hello")
print(response.id, response.output_text)
with client.responses.stream(model="gpt-5.2", input="Hello again") as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="")
    print("", stream.get_final_response().id)

print(client.embeddings.create(model="text-embedding-3-small", input=["one", "two"]).data[1].embedding)
print([model.id for model in client.models.list()])
print(client.moderations.create(model="omni-moderation-latest", input="nice").model_dump().get("said"))
print(client.images.generate(model="gpt-image-1", prompt="a fjord").model_dump().get("said"))
print(
    client.images.edit(model="gpt-image-1", image=("fjord.png", b"\x89PNG"), prompt="with a boat")
    .model_dump()
    .get("said")
)
speech = client.audio.speech.create(model="gpt-4o-mini-tts", voice="alloy", input="Hello")
print(len(speech.content), speech.content[:8].hex())
with client.audio.speech.with_streaming_response.create(
    model="gpt-4o-mini-tts", voice="alloy", input="Hello"
) as speech:
    print(sum(map(len, speech.iter_bytes(512))))
print(
    client.audio.transcriptions.create(model="whisper-1", file=("hello.wav", io.BytesIO(b"RIFF")))
    .model_dump()
    .get("said")
)
uploaded = client.files.create(file=("notes.jsonl", io.BytesIO(b"{}\n")), purpose="batch")
print(uploaded.id, len(client.files.content(uploaded.id).read()))
print(client.files.delete(uploaded.id).model_dump().get("said"))
print(
    client.batches.create(input_file_id=uploaded.id, endpoint="/v1/responses", completion_window="24h")
    .model_dump()
    .get("said")
)
print(client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=uploaded.id).model_dump().get("said"))
print(client.vector_stores.create(name="notes").model_dump().get("said"))
print(client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Once").model_dump().get("said"))
try:
    client.chat.completions.create(model="gpt-5.2", messages=question, metadata={"stub": "404"})
except NotFoundError as error:
    print(type(error).__name__, error)
raw = client.chat.completions.with_raw_response.create(model="gpt-5.2", messages=question)
print(raw.headers["x-request-id"], raw.parse().choices[0].message.content)
