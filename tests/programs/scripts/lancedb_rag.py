"""LanceDB: a table on disk, asked, plain and asynchronously."""

import asyncio

import lancedb
from openai import OpenAI

client = OpenAI()
texts = ["The fjord is deep.", "The sea is wide.", "The lake is cold."]
vectors = [d.embedding for d in client.embeddings.create(model="text-embedding-3-small", input=texts).data]
db = lancedb.connect("./lance")
table = db.create_table(
    "depths", [{"text": t, "vector": v} for t, v in zip(texts, vectors, strict=True)], mode="overwrite"
)
question = client.embeddings.create(model="text-embedding-3-small", input="How deep?").data[0].embedding
found = table.search(question).limit(2).to_list()
print([(row["text"], row["_distance"]) for row in found])
said = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": found[0]["text"]}])
print(said.choices[0].message.content)


async def main():
    adb = await lancedb.connect_async("./lance")
    atable = await adb.open_table("depths")
    print(await atable.count_rows(), [r["text"] for r in await (await atable.search(question)).limit(1).to_list()])


asyncio.run(main())
