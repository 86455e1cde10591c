"""Programs on ``aiohttp``'s client, each of what the library does.

A program takes the roots of the servers and returns what it saw. ``python -m tests.integrations.aiohttp_programs STORE record|replay``
runs all of them for the matrix of versions.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from tests.support.programs import main
from tests.support.web import CODED as BODIES
from tests.support.web import Roots

#: Headers that a replay gives otherwise: of a cookie not the value.
_OTHERWISE = ("set-cookie",)

#: Bodies of the servers, and in what they come.
CODED = [f"/coded?name={name}&how={how}" for name in BODIES if name != "twice" for how in ("whole", "chunks")]

Program = Callable[[Roots], Awaitable[Any]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


async def seen(asking: Any) -> dict[str, Any]:
    """All that a program can see of an answer."""
    async with asking as response:
        content = await response.read()
        return {
            "status": response.status,
            "reason": response.reason,
            "headers": sorted((k, v) for k, v in response.headers.items() if k.lower() not in _OTHERWISE),
            "text": content[:300].decode("latin-1"),
            "length": len(content),
            "url": response.url.path_qs,
            "history": [(past.status, past.url.path, past.method) for past in response.history],
            "method": response.method,
            "cookies": sorted(response.cookies),
            "version": list(response.version),
            "type": (response.content_type, response.charset),
            "released": response.closed,
        }


async def failure(asking: Any) -> list[str]:
    """The exceptions that a request raises, one below the other."""
    try:
        async with asking as response:
            return ["no failure", str(response.status), (await response.read())[:100].decode("latin-1")]
    except Exception as error:
        return failed(error)


def failed(error: BaseException) -> list[str]:
    found: list[str] = []
    one: BaseException | None = error
    while one is not None and len(found) < 3:
        text = re.sub(
            r"0x[0-9a-f]+|port=\d+|'127.0.0.1', \d+|127.0.0.1:\d+|localhost:\d+|\(_ssl.c:\d+\)", "*", str(one)
        )
        found.append(f"{type(one).__module__}.{type(one).__qualname__}: {text}")
        one = one.__cause__
    return found


def trusting(roots: Roots) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=roots.ca)


# -- requests ----------------------------------------------------------------------------------------------------------------


@program
async def calls(roots: Roots) -> Any:
    """Methods, bodies, headers, a session's connection used again."""
    url = roots.http + "/echo"
    async with aiohttp.ClientSession(headers={"authorization": "Bearer sk-" + "a1B2c3D4" * 5}) as session:
        out = [await seen(session.get(url, params={"q": "ä b"}))]
        out.append(await seen(session.post(url, json={"x": [1, None, "ü"]})))
        out.append(await seen(session.put(url, data={"form": "1", "b": "2"})))
        out.append(await seen(session.post(url, data=b"\x00\xff")))
        out.append(await seen(session.post(url, data="text", headers={"content-type": "text/plain"})))
        out.append(await seen(session.delete(url)))
        out.append(await seen(session.head(url)))
        out.append(await seen(session.options(url)))
        out.append(await seen(session.patch(url, json={})))
        out.append(await seen(session.get(roots.http + "/headers")))
        for code in (204, 304, 404, 500):
            out.append(await seen(session.get(roots.http + f"/status?code={code}")))
        out.append(await failure(session.get(roots.http + "/status?code=404", raise_for_status=True)))
    async with aiohttp.request("GET", url) as response:
        return [*out, await response.json()]


@program
async def redirects(roots: Roots) -> Any:
    """Each kind of redirect, with the method and body that the library goes on with, and the answer itself."""
    out = []
    async with aiohttp.ClientSession() as session:
        for status in (301, 302, 303, 307, 308):
            for method in ("GET", "POST"):
                data = b"x" if method == "POST" else None
                out.append(await seen(session.request(method, f"{roots.http}/redirect?status={status}", data=data)))
        out.append(await seen(session.get(roots.http + "/redirect?status=302", allow_redirects=False)))
        again = roots.http + "/redirect?status=302&to=/redirect?status=302%26to=/redirect"
        out.append({"failure": await failure(session.get(again, max_redirects=2))})
        out.append({"away": await failure(session.get(roots.http + "/redirect?status=302&to=ftp://x/"))})
    return out


@program
async def cookies(roots: Roots) -> Any:
    """Cookies are in the jar, and are sent on."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        first = await seen(session.get(roots.http + "/cookie"))
        second = await (await session.get(roots.http + "/echo", cookies={"own": "1"})).json()
        return first["cookies"], sorted(cookie.key for cookie in session.cookie_jar), second["jar"]


@program
async def codings(roots: Roots) -> Any:
    """Compressed bodies, whole and in pieces, one that says it is compressed and is not, and one that belongs to the program."""
    async with aiohttp.ClientSession() as session:
        out: list[Any] = [(await (await session.get(roots.http + "/gzip")).json())["text"][:20]]
        out.append(await (await session.get(roots.http + "/deflate")).text())
        async with session.get(roots.http + "/gzip-stream") as response:
            out.append([line.decode() async for line in response.content])
        async with session.get(roots.http + "/gzip-stream") as response:
            out.append([piece.decode() async for piece in response.content.iter_any()])
        for how in ("", "?later=1"):
            out.append(await failure(session.get(roots.http + "/bad-gzip" + how)))
    async with aiohttp.ClientSession(auto_decompress=False) as session, session.get(roots.http + "/object") as response:
        out.append((gzip.decompress(await response.read()).decode(), response.headers["content-encoding"]))
    return out


@program
async def as_it_travels(roots: Roots) -> Any:
    """Compressed bodies with their headers, with the coding undone or not, whole and in pieces."""
    out: list[Any] = []
    names = ("content-encoding", "content-length", "transfer-encoding")
    for undone in (False, True):
        async with aiohttp.ClientSession(auto_decompress=undone) as session:
            for path in CODED:
                for whole in (False, True):
                    try:
                        async with session.get(roots.http + path) as response:
                            out.append([response.headers.get(name) for name in names])
                            pieces = response.content.iter_any()
                            found = [await response.read()] if whole else [piece async for piece in pieces]
                            out.append([piece.decode("latin-1") for piece in found])
                    except aiohttp.ClientError as error:
                        out.append(failed(error))
    return out


@program
async def streams(roots: Roots) -> Any:
    """Pieces as they were received: lines, chunks, bytes, a body that is left, one that is never looked at."""
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        async with session.get(roots.http + "/sse") as response:
            out.append([line.decode() async for line in response.content])
        async with session.get(roots.http + "/sse") as response:
            out.append([piece.decode("latin-1") async for piece in response.content.iter_any()])
        async with session.post(roots.http + "/sse", json={"stream": True}) as response:
            out.append([(piece.decode("latin-1"), end) async for piece, end in response.content.iter_chunks()])
        async with session.get(roots.http + "/sse") as response:
            out.append([piece.decode("latin-1") async for piece in response.content.iter_chunked(7)])
        async with session.get(roots.http + "/chunks") as response:
            out.append(len(b"".join([piece async for piece in response.content.iter_chunked(30_000)])))
        async with session.get(roots.http + "/big") as response:
            out.append((len(await response.content.readexactly(100_000)), len(await response.content.read())))
        async with session.get(roots.http + "/until-close") as response:
            out.append([line.decode() async for line in response.content])
        out.append(await seen(session.get(roots.http + "/old")))
        async with session.get(roots.http + "/sse") as response:
            out.append((await response.content.readline()).decode())
        response = await session.get(roots.http + "/sse")
        response.close()
        response = await session.get(roots.http + "/sse")
        response.release()
        async with session.get(roots.http + "/chunks") as response:
            out.append((await response.read())[-300:-250].decode("latin-1"))
    return out


@program
async def uploads(roots: Roots) -> Any:
    """Files and generators are sent as they are produced, once."""
    drawn: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for i in range(4):
            drawn.append(i)
            yield b"piece %d;" % i
            await asyncio.sleep(0)

    url = roots.http + "/echo"
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        with tempfile.TemporaryFile() as file:
            file.write(b"0123456789" * 10_000)
            file.seek(0)
            out.append(len((await (await session.post(url, data=file)).json())["body"]))
        out.append((await (await session.post(url, data=pieces())).json())["body"])
        out.append(drawn[:])
        out.append((await (await session.post(url, data=io.BytesIO(b"in memory"))).json())["body"])
        out.append((await (await session.post(url, data=b"when asked for", expect100=True)).json())["body"])
        out.append((await (await session.post(url, data=pieces(), expect100=True)).json())["body"])
        packed = await (await session.post(url, data=b"packed " * 100, compress="deflate")).json()
        out.append(len(packed["body"]))
        for content in ("text", b"bytes", io.BytesIO(b"a file")):
            form = aiohttp.FormData()
            form.add_field("field", "value")
            form.add_field("file", content, filename="a.txt", content_type="text/plain")
            body = (await (await session.post(url, data=form)).json())["body"]
            out.append((body.count("--"), re.findall(r"name=\"\w+\"", body), len(body)))
    return out


@program
async def uploads_that_are_cut(roots: Roots) -> Any:
    """An upload of which the other side wants no more: how far it came."""
    drawn: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for i in range(200):
            drawn.append(i)
            yield b"x" * 10_000
            await asyncio.sleep(0)

    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        for path in ("/reset", "/status?code=401"):
            out.append(type((await failure(session.post(roots.http + path, data=pieces())))[0]).__name__)
            out.append(len(drawn))
    return out


@program
async def failures(roots: Roots) -> Any:
    """Refused, unknown, reset, hung up, cut off, no HTTP: the library's own exceptions, and their causes."""
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        out.append(await failure(session.get(f"http://127.0.0.1:{roots.closed}/")))
        out.append(await failure(session.get("http://nobody.invalid/")))
        for path in ("reset", "hang-up", "cut", "cut-chunks", "garbage"):
            for method in ("GET", "POST"):
                out.append((path, await failure(session.request(method, f"{roots.http}/{path}"))))
        out.append(await failure(session.get("http:///nowhere")))
        try:
            await session.get(f"http://127.0.0.1:{roots.closed}/")
        except aiohttp.ClientConnectorError as error:
            out.append((error.host, error.port == roots.closed, error.ssl, type(error.os_error).__name__))
    return out


@program
async def time_limits(roots: Roots) -> Any:
    """Limits of the library and of the program, before the answer and in the middle of it."""
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        for limit in (aiohttp.ClientTimeout(total=0.6), aiohttp.ClientTimeout(sock_read=0.2)):
            out.append(await failure(session.post(roots.http + "/slow", timeout=limit)))
            async with session.get(roots.http + "/stalls", timeout=limit) as response:
                pieces = []
                try:
                    async for piece in response.content.iter_any():
                        pieces.append(piece.decode())
                except TimeoutError as error:
                    out.append(("".join(pieces), failed(error)))
        for path in ("/slow", "/stalls"):
            try:
                async with asyncio.timeout(0.6), session.get(roots.http + path) as response:
                    await response.read()
            except TimeoutError as error:
                out.append(type(error).__name__)
        asking = asyncio.create_task(seen(session.get(roots.http + "/slow")))
        await asyncio.sleep(0.1)
        asking.cancel()
        out.append(isinstance((await asyncio.gather(asking, return_exceptions=True))[0], asyncio.CancelledError))
        out.append((await seen(session.get(roots.http + "/echo")))["status"])
    return out


@program
async def tls(roots: Roots) -> Any:
    """Certificates that are trusted, and that are not."""
    async with aiohttp.ClientSession() as session:
        out: list[Any] = [await seen(session.get(roots.https + "/echo", ssl=trusting(roots)))]
        out.append(await seen(session.post(roots.https + "/echo", ssl=False, json=1)))
        out.append(await failure(session.get(roots.https + "/echo")))
        out.append(await failure(session.get(roots.http.replace("http:", "https:") + "/echo")))
    return out


@program
async def proxies(roots: Roots) -> Any:
    """Requests that are forwarded, a tunnel, proxies that refuse, and proxies of the environment."""
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        out.append(await seen(session.get(roots.http + "/headers", proxy=roots.proxy)))
        secret = {"proxy-authorization": "Basic dXNlcjpodW50ZXIyaHVudGVyMg=="}
        out.append(await seen(session.get(roots.http + "/headers", proxy=roots.proxy, proxy_headers=secret)))
        out.append(await seen(session.get(roots.https + "/headers", proxy=roots.proxy, ssl=trusting(roots))))
        refused = {"x-user": "nobody"}
        out.append(await failure(session.get(roots.https + "/headers", proxy=roots.proxy, proxy_headers=refused)))
        out.append(await failure(session.get(roots.http + "/headers", proxy=f"http://127.0.0.1:{roots.closed}")))
    os.environ["HTTP_PROXY"] = roots.proxy
    try:
        async with aiohttp.ClientSession(trust_env=True) as session:
            out.append(await seen(session.get(roots.http + "/headers")))
    finally:
        del os.environ["HTTP_PROXY"]
    return out


@program
async def hooks(roots: Roots) -> Any:
    """What a program is told on the way, by the hooks of a session."""
    told: list[str] = []
    trace = aiohttp.TraceConfig()

    async def note(_session: Any, _context: Any, about: Any) -> None:
        told.append(type(about).__name__)
        await asyncio.sleep(0)

    for when in ("start", "redirect", "chunk_sent", "headers_sent", "end", "exception"):
        getattr(trace, f"on_request_{when}").append(note)
    trace.on_response_chunk_received.append(note)
    async with aiohttp.ClientSession(trace_configs=[trace]) as session:
        await seen(session.post(roots.http + "/redirect?status=307", data=b"x"))
        await failure(session.get(roots.http + "/hang-up"))
    return told


# -- beside one another --------------------------------------------------------------------------------------------------------


@program
async def beside_one_another(roots: Roots) -> Any:
    """Many requests at once, over few connections: the order of their ends."""
    order: list[str] = []
    connector = aiohttp.TCPConnector(limit=3)

    async def ask(session: Any, i: int) -> None:
        path = ("/echo", "/sse", "/gzip-stream")[i % 3]
        async with session.post(f"{roots.http}{path}?n={i}", json=i) as response:
            async for _ in response.content.iter_any():
                order.append(f"{i}")
        order.append(f"end {i}")

    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for i in range(9):
            group.create_task(ask(session, i))
    return order


@program
async def looked_at(roots: Roots) -> Any:
    """A task that looks at an answer each time that the loop comes round, from its request to the end of the session."""
    looks: dict[str, int] = {}

    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(roots.http + "/sse"))
        while not asking.done():
            looks["asked"] = looks.get("asked", 0) + 1
            await asyncio.sleep(0)
        response = asking.result()
        found = b""
        while not response.content.is_eof():
            more = response.content.read_nowait()
            found += more
            looks[f"{len(found)}"] = looks.get(f"{len(found)}", 0) + 1
            await asyncio.sleep(0)
        closing = asyncio.create_task(session.close())
        while not closing.done():
            looks["closing"] = looks.get("closing", 0) + 1
            await asyncio.sleep(0)
    return looks, len(found + response.content.read_nowait())


@program
async def whoever_is_first(roots: Roots) -> Any:
    """The first of several answers wins, and the others are cancelled."""
    async with aiohttp.ClientSession() as session:
        tasks = [
            asyncio.create_task(seen(session.get(f"{roots.http}{path}"))) for path in ("/slow", "/sse", "/echo?n=1")
        ]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return sorted(task.result()["url"] for task in done), len(pending)


if __name__ == "__main__":
    main(PROGRAMS, lambda roots: Roots(*json.loads(roots)), "aiohttp")
