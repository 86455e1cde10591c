"""Cohere: chat, stream, embeddings, ranking, sync and async."""

import asyncio

import cohere

client = cohere.ClientV2()
question = [{"role": "user", "content": "How deep is the fjord?"}]
print(client.chat(model="command-a", messages=question).message.content[0].text)
for event in client.chat_stream(model="command-a", messages=question):
    if event.type == "content-delta":
        print(event.delta.message.content.text, end="|")
print()
embedded = client.embed(texts=["hello"], model="embed-v4", input_type="search_query", embedding_types=["float"])
print(embedded.embeddings.float_)
print(
    [
        (one.index, one.relevance_score)
        for one in client.rerank(model="rerank-v4", query="q", documents=["a", "b"]).results
    ]
)


async def main():
    client = cohere.AsyncClientV2()
    for answer in await asyncio.gather(*(client.chat(model="command-a", messages=question) for _ in range(4))):
        print(answer.message.content[0].text)


asyncio.run(main())
