"""Mem0: memories in a local Qdrant, with a history in SQLite."""

from mem0 import Memory

memory = Memory.from_config(
    {
        "vector_store": {
            "provider": "qdrant",
            "config": {"path": "qdrant", "embedding_model_dims": 4, "on_disk": True},
        },
        "llm": {"provider": "openai", "config": {"model": "gpt-4o"}},
        "embedder": {"provider": "openai", "config": {"model": "text-embedding-3-small", "embedding_dims": 4}},
        "history_db_path": "history.db",
    }
)
print(memory.add("She likes deep fjords", user_id="ada", infer=False))
print(memory.add([{"role": "user", "content": "I dive"}, {"role": "assistant", "content": "How deep?"}], user_id="ada"))
print(memory.search("What does she like?", filters={"user_id": "ada"}))
print(memory.get_all(filters={"user_id": "ada"}))
