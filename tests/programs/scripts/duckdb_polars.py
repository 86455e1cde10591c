"""Tables that native libraries read and write: Polars, Arrow, pandas, DuckDB, an index of FAISS."""

import os
import random

import duckdb
import faiss
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
from openai import OpenAI

DEPTHS = "duckdb_polars_depths.csv"
client = OpenAI()


def ask(text):
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


def vector(text):
    found = client.embeddings.create(model="text-embedding-3-small", input=text)
    return np.array([found.data[0].embedding], dtype="float32")


known = pl.read_csv(DEPTHS)
print(ask(f"Which is the deepest? {known.to_dicts()}"))
rows = [{"place": place, "depth": random.randrange(9000), "said": ask(place)} for place in ("bay", "sea")]
pl.concat([known, pl.DataFrame(rows)]).write_csv(DEPTHS)
frame = pl.scan_csv(DEPTHS).filter(pl.col("depth") >= 0).sort("depth").collect()
print(frame["said"].to_list())
frame.write_parquet("depths.parquet")
print(pq.read_table("depths.parquet").num_rows, pd.read_csv(DEPTHS).depth.sum())
with duckdb.connect("depths.duckdb") as database:
    database.execute("create table if not exists seen (place text, depth bigint, added timestamp)")
    database.execute("insert into seen select place, depth, now() from 'depths.parquet'")
    print(database.execute("select count(*), max(depth) from seen").fetchall())
    deepest = database.execute("select place from seen order by depth desc limit 1").fetchone()[0]
print(ask(f"Why is the {deepest} so deep?"))
index = faiss.read_index("depths.faiss") if os.path.exists("depths.faiss") else faiss.IndexFlatL2(vector("x").shape[1])
for row in rows:
    index.add(vector(row["said"]))
faiss.write_index(index, "depths.faiss")
distances, found = faiss.read_index("depths.faiss").search(vector("deep"), 2)
print(index.ntotal, found.tolist(), distances.tolist())
