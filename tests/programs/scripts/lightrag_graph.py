"""LightRAG: texts put into a graph and vectors in files, then asked in three modes."""

import asyncio

import numpy as np
from lightrag import LightRAG, QueryParam
from lightrag.llm.openai import gpt_4o_mini_complete, openai_embed
from lightrag.utils import EmbeddingFunc, Tokenizer


class Words:
    """Tokens of one character: the usual table comes from the network."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


async def embed(texts: list[str]) -> np.ndarray:
    return await openai_embed.func(texts, model="text-embedding-3-small", embedding_dim=4)


async def main() -> None:
    rag = LightRAG(
        working_dir="rag",
        llm_model_func=gpt_4o_mini_complete,
        embedding_func=EmbeddingFunc(embedding_dim=4, func=embed, max_token_size=8192),
        tokenizer=Tokenizer("words", Words()),
    )
    await rag.initialize_storages()
    try:
        await rag.ainsert(["The fjord is deep.", "The sea is wide. The diver likes the sea."])
        for mode in ("naive", "local", "hybrid"):
            print(mode, await rag.aquery("How deep is the fjord?", param=QueryParam(mode=mode)))
    finally:
        await rag.finalize_storages()


asyncio.run(main())
