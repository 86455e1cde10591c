"""Programs on ``websockets``, on asyncio and on threads, each of what the library does.

A program takes the root of a :class:`~tests.support.talker.Talker` and returns what it saw. ``python -m
tests.integrations.websocket_programs STORE record|replay`` runs all of them for the matrix of versions.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import websockets
from websockets.asyncio.client import connect
from websockets.sync import client as sync

from tests.support.programs import main

Program = Callable[[str], Any]
PROGRAMS: dict[str, Program] = {}
#: What they see is another thing each time: by when what came.
UNSTEADY = ("looked_at", "side_by_side")


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def opened(*args: Any, **options: Any) -> Any:
    """A connection of the client on threads, in whatever version."""
    if "legacy" in inspect.signature(sync.connect).parameters:
        options["legacy"] = True
    return sync.connect(*args, **options)


def failed(error: BaseException) -> Any:
    received = getattr(error, "rcvd", None)
    return [type(error).__name__, str(error), None if received is None else received.code]


# -- on asyncio ----------------------------------------------------------------------------------------------------------------


@program
async def messages(root: str) -> Any:
    """Texts and bytes both ways, compressed and not, in frames, in pieces; pings; how it was closed."""
    out: list[Any] = []

    async def pieces() -> AsyncIterator[str]:
        for piece in ("pie", "ces"):
            yield piece
            await asyncio.sleep(0)

    for compression in ("deflate", None):
        async with connect(root + "/talk", compression=compression) as talk:
            for message in ("hello", "ü" * 400, "hello", ""):
                await talk.send(message)
                out.append(await talk.recv())
            await talk.send(b"\x00\xff" * 70)
            out.append((await talk.recv()).hex())  # type: ignore[union-attr]
            await talk.send(["fr", "ag", "ments"])
            out.append(await talk.recv())
            await talk.send(pieces())
            out.append(await talk.recv())
            await talk.send("burst")
            out += [await talk.recv() for _ in range(5)]
            await talk.send("split")
            out += [piece async for piece in talk.recv_streaming()]
            await talk.send("big")
            out.append(len(await talk.recv()))
            await talk.send("ping")
            out.append(await talk.recv())
            await (await talk.ping())
            await (await talk.ping("own"))
        out.append((talk.protocol.close_code, talk.protocol.close_reason))
    return out


@program
async def iterated(root: str) -> Any:
    """Messages as they come, up to the end of the connection."""
    out: list[Any] = []
    async with connect(root + "/talk") as talk:
        await talk.send("drip")
        await talk.send("close")
        try:
            async for message in talk:
                out.append(message)
        except websockets.ConnectionClosed as error:
            out.append(failed(error))
    return out


@program
async def ends(root: str) -> Any:
    """Connections that end: in order, with a code, cut off, after nonsense; what is sent after that; one that is left."""
    out: list[Any] = []
    for message in ("close", "kill", "nonsense"):
        try:
            async with connect(root + "/talk") as talk:
                await talk.send(message)
                await talk.recv()
        except websockets.ConnectionClosed as error:
            out.append((message, failed(error), talk.protocol.close_code))
        try:
            await talk.send("more")
        except websockets.ConnectionClosed as error:
            out.append(failed(error))
    talk = await connect(root + "/talk")
    await talk.send("drip")
    await talk.recv()
    await talk.close(code=4002, reason="enough")
    return [*out, talk.protocol.close_code, talk.protocol.close_reason]


@program
async def refusals(root: str) -> Any:
    """Servers that do not agree, or are not there; one that is elsewhere."""
    out: list[Any] = []
    for url in (root + "/forbidden", "ws://127.0.0.1:1/", "ws://nobody.invalid/"):
        try:
            async with connect(url):
                pass
        except (OSError, websockets.InvalidHandshake) as error:
            out.append((type(error).__name__, str(error)))
        except websockets.InvalidStatus as error:
            out.append(str(error))
    async with connect(root + "/moved") as talk:
        await talk.send("here")
        out.append(await talk.recv())
    return out


@program
async def time_limits(root: str) -> Any:
    """A message that does not come in time, and comes later."""
    async with connect(root + "/talk") as talk:
        await talk.send("slow")
        out: list[Any] = []
        try:
            async with asyncio.timeout(0.1):
                await talk.recv()
        except TimeoutError:
            out.append("not yet")
        return [*out, await talk.recv()]


@program
async def kept_alive(root: str) -> Any:
    """Pings of the library, each with another payload."""
    async with connect(root + "/talk", ping_interval=0.05) as talk:
        await talk.send("slow")
        return await talk.recv()


@program
async def side_by_side(root: str) -> Any:
    """Several conversations at once: the order of what comes."""
    order: list[str] = []

    async def one(i: int) -> None:
        async with connect(f"{root}/talk?{i}") as talk:
            await talk.send("drip")
            async for message in talk:
                order.append(f"{i} {message!r}")
                if message == "drop 4":
                    return

    async with asyncio.TaskGroup() as group:
        for i in range(4):
            group.create_task(one(i))
    return order


@program
async def looked_at(root: str) -> Any:
    """A task that looks whether there is a message each time that the loop comes round."""
    looks = []
    async with connect(root + "/talk") as talk:
        await talk.send("drip")
        for _ in range(5):
            asking, count = asyncio.ensure_future(talk.recv()), 0
            while not asking.done():
                count += 1
                await asyncio.sleep(0)
            looks.append((count, asking.result()))
    return looks


# -- on threads ----------------------------------------------------------------------------------------------------------------


@program
def threaded_messages(root: str) -> Any:
    """Texts and bytes both ways, in frames, in pieces; pings; how it was closed."""
    out: list[Any] = []
    with opened(root + "/talk") as talk:
        for message in ("hello", "ü" * 400, ""):
            talk.send(message)
            out.append(talk.recv())
        talk.send(b"\x00\xff")
        out.append(talk.recv().hex())
        talk.send(["fr", "ag", "ments"])
        out.append(talk.recv())
        talk.send("burst")
        out += [talk.recv() for _ in range(5)]
        talk.send("split")
        out += [*talk.recv_streaming()]
        talk.send("big")
        out.append(len(talk.recv()))
        talk.send("ping")
        out.append(talk.recv())
        talk.ping().wait()
    out.append(talk.protocol.close_code)
    with opened(root + "/talk") as talk:
        talk.send("drip")
        talk.send("close")
        try:
            out += [*talk]
        except websockets.ConnectionClosed as error:
            out.append(failed(error))
    return out


@program
def threaded_ends(root: str) -> Any:
    """Connections that end: with a code, cut off; one that is left; a server that does not agree, or is not there."""
    out: list[Any] = []
    for message in ("close", "kill"):
        try:
            with opened(root + "/talk") as talk:
                talk.send(message)
                talk.recv()
        except websockets.ConnectionClosed as error:
            out.append(failed(error))
        try:
            talk.send("more")
        except websockets.ConnectionClosed as error:
            out.append(failed(error))
    talk = opened(root + "/talk")
    talk.send("drip")
    talk.recv()
    talk.close(code=4002, reason="enough")
    out.append(talk.protocol.close_code)
    for url in (root + "/forbidden", "ws://127.0.0.1:1/"):
        try:
            with opened(url):
                pass
        except (OSError, websockets.InvalidHandshake) as error:
            out.append((type(error).__name__, str(error)))
    return out


@program
def threaded_time_limits(root: str) -> Any:
    """A message that does not come in time, and comes later."""
    with opened(root + "/talk") as talk:
        talk.send("slow")
        out: list[Any] = []
        try:
            talk.recv(timeout=0.05)
        except TimeoutError:
            out.append("not yet")
        return [*out, talk.recv(timeout=10)]


# -- on asyncio, by the library's older client ---------------------------------------------------------------------------------


def legacy(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from websockets.legacy.client import connect

        return connect(*args, **options)


@program
async def older(root: str) -> Any:
    """Messages, fragments, pings, redirects, ends and connections that fail."""
    out: list[Any] = []
    for compression in ("deflate", None):
        async with legacy(root + "/moved", compression=compression, ping_interval=0.05) as talk:
            for message in ("hello", "ü" * 400, ""):
                await talk.send(message)
                out.append(await talk.recv())
            await talk.send(b"\x00\xff" * 70)
            out.append((await talk.recv()).hex())
            await talk.send(["fr", "ag", "ments"])
            out.append(await talk.recv())
            for message, count in (("burst", 5), ("split", 1), ("big", 1), ("ping", 1)):
                await talk.send(message)
                out += [len(await talk.recv()) for _ in range(count)]
            await (await talk.ping("own"))
        out.append((talk.close_code, talk.close_reason))
    for message in ("close", "kill", "nonsense"):
        try:
            async with legacy(root + "/talk") as talk:
                await talk.send(message)
                await talk.recv()
        except websockets.ConnectionClosed as error:
            out.append((message, failed(error), talk.close_code))
    for url in (root + "/forbidden", "ws://127.0.0.1:1/"):
        try:
            await legacy(url)
        except (OSError, websockets.InvalidHandshake) as error:
            out.append((type(error).__name__, str(error)))
    return out


if __name__ == "__main__":
    main(PROGRAMS, str, "websockets")
