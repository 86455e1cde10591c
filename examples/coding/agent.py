"""A coding agent: it runs the tests of the project in the working directory, reads and edits files, until the tests pass.

python agent.py "Make the tests pass."
"""

from __future__ import annotations

import os
import sys

import anthropic

# Ready tools: captured steps. In a replay no process starts and no file changes; they return what they returned.
from tracekit.tools import read_file, run_process, write_file

STEPS = 10


def run_tests() -> str:
    """Run the project's tests and return what they print."""
    done = run_process(["python3", "-m", "unittest", "tests"], side_effect="read_only")
    return f"exit status {done.returncode}\n{done.stderr.decode()}"


def read(path: str) -> str:
    """Return the content of a file of the project."""
    return read_file(path)


def write(path: str, content: str) -> str:
    """Replace the content of a file of the project."""
    return f"{write_file(path, content).size} bytes written"


def described(tool) -> dict:
    names = [name for name in tool.__annotations__ if name != "return"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    return {"name": tool.__name__, "description": tool.__doc__, "input_schema": schema}


TOOLS = {tool.__name__: tool for tool in (run_tests, read, write)}
OFFERED = [described(tool) for tool in TOOLS.values()]


def work(task: str) -> str:
    client = anthropic.Anthropic()
    messages: list = [{"role": "user", "content": task}]
    for _ in range(STEPS):
        reply = client.messages.create(
            model=os.environ.get("MODEL", "claude-opus-4-6"), max_tokens=2000, tools=OFFERED, messages=messages
        )
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        wanted = [block for block in reply.content if block.type == "tool_use"]
        if not wanted:
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": TOOLS[block.name](**block.input)}
            for block in wanted
        ]
        messages.append({"role": "user", "content": results})
    return f"stopped after {STEPS} steps"


if __name__ == "__main__":
    print(work(" ".join(sys.argv[1:]) or "Make the tests pass."))
