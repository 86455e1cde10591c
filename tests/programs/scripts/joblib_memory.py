"""Answers kept on disk by joblib and diskcache, asked for in threads."""

import os

from diskcache import Cache
from joblib import Memory, Parallel, delayed
from openai import OpenAI

memory = Memory("joblib-cache", verbose=0)
answers = Cache("answers")


@memory.cache
def ask(question: str) -> str:
    chat = OpenAI().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": question}])
    return chat.choices[0].message.content


@answers.memoize(expire=600)
def embed(text: str) -> list[float]:
    return OpenAI().embeddings.create(model="text-embedding-3-small", input=text).data[0].embedding


if __name__ == "__main__":
    questions = [f"How deep is lake {n % 4}?" for n in range(8)]
    print([ask(question) for question in questions])
    print(Parallel(n_jobs=3, prefer="threads")(delayed(ask)(f"How wide is lake {n}?") for n in range(6)))
    for result in Parallel(n_jobs=3, backend="threading", return_as="generator_unordered")(
        delayed(embed)(f"lake {n}") for n in range(6)
    ):
        print(result)
    print(len(answers), sorted(os.listdir("joblib-cache")))
