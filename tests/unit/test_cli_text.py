"""``tracekit text``: a trace as text for a review."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tracekit import decision, record, traced_tool
from tracekit.cli import main


@traced_tool(side_effect="reversible", version="3")
def look_up(order: str, note: object = None) -> dict[str, Any]:
    if order == "none":
        raise LookupError("no such order")
    return {"order": order, "lines": ["one", "two"], "note": note}


async def beside(first: str) -> None:
    async def one(order: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        look_up(order)

    async def a() -> None:
        await one("a", 3 if first == "b" else 0)

    async def b() -> None:
        await one("b", 0 if first == "b" else 3)

    await asyncio.gather(a(), b())


def recorded(path: Path, program: Callable[[], object]) -> str:
    with record("orders", path=path) as run:
        run.set_result(program())
    return shown(path)


def shown(path: Path) -> str:
    done = CliRunner().invoke(main, ["text", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_it_says_what_was_asked_for_and_what_came_of_it(tmp_path: Path) -> None:
    """Each call with its arguments and its result or error, a text of several lines as those; decisions; how it ended."""

    def program() -> str:
        look_up("A-1", "first\nsecond")
        with pytest.raises(LookupError):
            look_up("none")
        decision("give up", input={"tries": 2}, output=True)
        return "lost"

    assert recorded(tmp_path / "run.jsonl", program) == (
        "run orders\n\n"
        "tool look_up 3 reversible\n  order: A-1\n  note: |\n    first\n    second\n"
        '  =\n    order: A-1\n    lines: ["one", "two"]\n    note: |\n      first\n      second\n\n'
        "tool look_up 3 reversible\n  order: none\n  note: null\n  failed: LookupError: no such order\n\n"
        "decision give up\n  tries: 2\n  = true\n\n"
        "complete\n  result: lost\n"
    )


def test_recorded_again_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock readings, random numbers, ids, addresses, secrets, ports, temporary files and the order of tasks make no difference."""
    texts = []
    for n, home in enumerate(("/home/ann", "/Users/bob")):
        monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / f"store{n}"))  # each with a secret of its own

        def program(n: int = n, home: str = home) -> None:
            look_up(f"{datetime.now()} {datetime.now():%Y-%m-%d} {time.time()} {random.random()}")
            look_up(str(uuid.uuid4()), [uuid.uuid4(), uuid.uuid4().hex, secrets.token_hex(8)])
            look_up(
                f"{object()!r} http://127.0.0.1:{4000 + n}/x /tmp/pytest-of-me/pytest-{n}/test0/x /tmp/tmpab{n}defgh/y {home}/shop/z"
            )
            look_up("key", {"api_key": "sk-proj-aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7bC9"})
            asyncio.run(beside("ab"[n]))

        texts.append(recorded(tmp_path / f"{n}.jsonl", program))
    assert texts[0] == texts[1]
    assert "<datetime.datetime.now 1>" in texts[0]
    assert "http://127.0.0.1:<port 1>/x <tmp>/test0/x <tmp>/y ~/shop/z" in texts[0]
    assert texts[0].count("in beside.<locals>.") == 2


def test_uuids_are_uuids_whatever_their_digits(tmp_path: Path) -> None:
    """Of 64 draws of 16 bytes one has the bits of a UUID already: it has the name that the others have."""

    def program() -> None:
        look_up("orders", [uuid.uuid4().hex for _ in range(300)])

    assert "<os.urandom" not in recorded(tmp_path / "1.jsonl", program)


def test_what_did_change_is_in_it(tmp_path: Path) -> None:
    """Another argument, another result, one more call: each is a line."""
    before = recorded(tmp_path / "1.jsonl", lambda: look_up("A-1", "first")["order"])
    assert recorded(tmp_path / "2.jsonl", lambda: look_up("A-1", "second")["order"]) != before
    assert recorded(tmp_path / "3.jsonl", lambda: look_up("A-1", "first")["note"]) != before
    assert (
        recorded(tmp_path / "4.jsonl", lambda: look_up("A-1", "first") and look_up("A-1", "first")["order"]) != before
    )


def test_a_damaged_trace_says_so(tmp_path: Path) -> None:
    """The first line of the text names the damage; what verifies follows. No such run is exit code 2."""
    path = tmp_path / "run.jsonl"
    recorded(path, lambda: look_up("A-1"))
    path.write_bytes(path.read_bytes().replace(b'"A-1"', b'"A-2"', 1))
    assert shown(path).startswith("broken: ")
    assert CliRunner().invoke(main, ["text", str(tmp_path / "none.jsonl")]).exit_code == 2


def test_git_shows_it(tmp_path: Path) -> None:
    """The documented configuration: the differences of two commits are lines of the text."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b"}
    environment |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q")
    git("config", "diff.tracekit.textconv", f"{sys.executable} -m tracekit text")
    (tmp_path / ".gitattributes").write_text("*.jsonl diff=tracekit\n")
    path = tmp_path / "run.jsonl"
    recorded(path, lambda: look_up("A-1", random.random())["order"])
    git("add", "run.jsonl", ".gitattributes")
    git("commit", "-qm", "one")
    path.unlink()
    recorded(path, lambda: look_up("A-2", random.random())["order"])
    changed = [line for line in git("diff", "-U0").splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-  order: A-1",
        "+  order: A-2",
        "-    order: A-1",
        "+    order: A-2",
        "-  result: A-1",
        "+  result: A-2",
    ]
