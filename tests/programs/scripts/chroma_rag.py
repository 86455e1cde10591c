"""Chroma: a collection on disk, embedded by a model, and answers from what is found in it."""

import os

import chromadb
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from openai import OpenAI

embedding = OpenAIEmbeddingFunction(model_name="text-embedding-3-small", api_base=os.environ["OPENAI_BASE_URL"])
places = chromadb.PersistentClient("chroma").get_or_create_collection("places", embedding_function=embedding)
places.add(ids=[str(n) for n in range(6)], documents=[f"Lake {n} is {n * 100} m deep" for n in range(6)])
for question in ("Which is the deepest?", "And the flattest?"):
    found = places.query(query_texts=[question], n_results=2)
    print(found["documents"], found["distances"])
    answer = OpenAI().chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": f"{question} {found['documents']}"}]
    )
    print(answer.choices[0].message.content)
print(places.count())
