"""Two notebooks, each in a kernel of its own: one records a cell, the other replays it."""

import sys

import nbformat
from nbclient import NotebookClient

ASK = """
import asyncio, tracekit
from openai import AsyncOpenAI
tracekit.instrument()

async def ask():
    client = AsyncOpenAI()
    asked = [client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": f"{n}"}]) for n in range(4)]
    return [(await done).choices[0].message.content for done in asyncio.as_completed(asked)]
"""
RECORD = """
async with tracekit.record("cell") as run:
    print(await ask())
open("run.txt", "w").write(run.id)
"""
REPLAY = """
async with tracekit.replay(open("run.txt").read()) as session:
    print(await ask())
assert session.report.exact, session.report
"""


def printed(*cells: str) -> str:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120).execute()
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)


print(printed(ASK, RECORD if sys.argv[1] == "record" else REPLAY))
