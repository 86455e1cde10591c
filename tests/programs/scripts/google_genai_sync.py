"""Gemini: texts, streams, tools that the SDK calls by itself, embeddings, a chat."""

from google import genai
from google.genai import types


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{len(place)} m"


client = genai.Client()
answer = client.models.generate_content(model="gemini-3-flash", contents="How deep is the fjord?")
print(answer.text, answer.usage_metadata.total_token_count)
for chunk in client.models.generate_content_stream(model="gemini-3-flash", contents="And the sea?"):
    print(chunk.text, end="|")
print()
config = types.GenerateContentConfig(tools=[depth], temperature=0.5, seed=7)
called = client.models.generate_content(model="gemini-3-flash", contents="Ask the tool", config=config)
print(called.text)
print([type(part).__name__ for content in called.automatic_function_calling_history or () for part in content.parts])
print(client.models.embed_content(model="gemini-embedding-001", contents=["one", "two"]).embeddings[0].values)
print(client.models.count_tokens(model="gemini-3-flash", contents="hello").total_tokens)
chat = client.chats.create(model="gemini-3-flash")
print(chat.send_message("One").text)
print(chat.send_message("Two").text, len(chat.get_history()))
