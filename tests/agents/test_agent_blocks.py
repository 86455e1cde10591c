"""Who acts: names that can't be one, and generators, whose consumer is somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.tracing import of_type, recorded, replayed
from tracekit import traced_tool
from tracekit.agents import agent, events, on_task, parse, send_task, serialize
from tracekit.errors import InvalidEventError

done: list[str] = []


@traced_tool(side_effect="irreversible")
def sign(what: str) -> str:
    done.append(what)
    return what


@agent("drafter")
def drafts() -> Iterator[Any]:
    try:
        given = yield sign("first")
        sign(f"given {given}")
        yield "second"
    except KeyError:
        yield sign("told")
    finally:
        sign("closed")


@agent("reader")
async def pages() -> AsyncIterator[Any]:
    sign("page one")
    await asyncio.sleep(0)
    yield 1
    sign("page two")
    yield 2


def by_agent(run: Any) -> list[tuple[str, str]]:
    return [(one["agent_id"], one["input"]["what"]) for one in of_type(run, "tool.call")]


def test_what_a_consumer_does_is_its_own() -> None:
    """A decorated generator's agent acts while it runs, whatever it is sent or told; who takes its items acts for itself."""

    def program() -> Any:
        with agent("boss"):
            one = drafts()
            sign(next(one))
            sign(one.send("more"))
            one.close()
            other = drafts()
            next(other)
            sign(other.throw(KeyError()))
            assert list(other) == []

            async def read() -> None:
                async for page in pages():
                    sign(f"seen {page}")

            asyncio.run(read())

    done.clear()
    run, _ = recorded(program)
    assert by_agent(run) == [
        ("drafter", "first"), ("boss", "first"), ("drafter", "given more"), ("boss", "second"), ("drafter", "closed"),
        ("drafter", "first"), ("drafter", "told"), ("boss", "told"), ("drafter", "closed"),
        ("reader", "page one"), ("boss", "seen 1"), ("reader", "page two"), ("boss", "seen 2"),
    ]  # fmt: skip
    made = list(done)
    assert replayed(run, program)[0].exact
    assert done == made


def test_a_block_that_a_yield_leaves_is_refused() -> None:
    """Within a run: what is done with the item would be told of another agent. Nothing is done."""

    def sync() -> Iterator[str]:
        with agent("drafter"):
            try:
                yield "a"
            finally:
                pass

    async def async_() -> AsyncIterator[str]:
        async with agent("drafter"):
            await asyncio.sleep(0)
            yield "a"

    async def take() -> None:
        async for one in async_():
            sign(one)

    def program() -> None:
        with pytest.raises(TypeError, match=r"sync\(\) contains a yield"):
            sign(next(sync()))
        with pytest.raises(TypeError, match="decorate the generator"):
            asyncio.run(take())

    done.clear()
    run, _ = recorded(program)
    assert not of_type(run, "tool.call")
    assert not done
    assert list(sync()) == ["a"]  # no run: nobody is told anything


def test_other_blocks_in_generators_are_fine() -> None:
    """One that ends before the item is given away, one that only awaits, and one that a context manager is made of."""

    def sync() -> Iterator[str]:
        with agent("drafter"):
            try:
                said = sign("inside")
            except KeyError:
                said = ""
        yield said

    async def async_() -> AsyncIterator[str]:
        with agent("reader"):
            await asyncio.sleep(0)
            said = sign("read")
        yield said

    @contextlib.contextmanager
    def acting(name: str) -> Iterator[None]:
        with agent(name):
            yield

    async def take() -> None:
        async for one in async_():
            sign(f"after {one}")

    def program() -> None:
        for one in sync():
            sign(f"after {one}")
        asyncio.run(take())
        with acting("borrowed"):
            sign("borrowed")

    run, _ = recorded(program)
    told = [(one.get("agent_id"), one["input"]["what"]) for one in of_type(run, "tool.call")]
    assert told == [
        ("drafter", "inside"), (None, "after inside"), ("reader", "read"), (None, "after read"), ("borrowed", "borrowed")
    ]  # fmt: skip
    assert replayed(run, program)[0].exact


class Plain(enum.Enum):
    WORKER = "worker"


class Text(str, enum.Enum):  # noqa: UP042 - as people write it
    WORKER = "worker"


@pytest.mark.parametrize("name", [3, b"x", ["a"], Plain.WORKER, None, {}])
def test_a_name_is_a_text(name: Any) -> None:
    """What is no text names no agent: that is told at once, in a run and outside."""
    for make in (agent, on_task, send_task):
        with pytest.raises(TypeError, match="is called by a text"):
            make(name)
    for make in (agent, on_task, send_task):
        with pytest.raises(ValueError, match="needs a name"):
            make("")
    assert send_task(Text.WORKER, 1).recipient == "worker"


def test_what_a_decorator_is_for() -> None:
    """A class, a class method above it, and nothing at all are refused; below ``@classmethod`` it works."""
    with pytest.raises(TypeError, match="functions and methods, not <class"):

        @agent("a")
        class A:
            pass

    with pytest.raises(TypeError, match="below @classmethod"):
        agent("a")(classmethod(lambda cls: 1))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="is called by a text"):
        agent(lambda: None)  # type: ignore[arg-type]

    class B:
        @classmethod
        @agent("b")
        def sign(cls) -> str:
            return sign("by b")

    run, _ = recorded(B.sign)
    assert by_agent(run) == [("b", "by b")]


def test_an_edited_view_is_told() -> None:
    """A payload that is not the one that was hashed, and a key that is there twice, name the line and the event."""

    def program() -> None:
        with agent("planner"):
            send_task("worker", {"city": "Rome"})

    run, _ = recorded(program)
    text = serialize(events(run, payloads=True)).decode()
    [event] = parse(text)
    for edited, problem in (
        (text.replace('"city":"Rome"', '"city":"Rime"'), "payload is not what payload_sha256 is the hash of"),
        (text.rstrip()[:-1] + ',"agent_id":"mallory"}', "the key 'agent_id' is there twice"),
        (text.replace('"city":"Rome"', '"city":"Rome","city":"Rome"'), "the key 'city' is there twice"),
    ):
        with pytest.raises(InvalidEventError, match=problem) as told:
            parse(edited)
        assert told.value.line == 1
        assert event["event_id"] in str(told.value)
