"""Requests and responses as values: on the exceptions of a tool, and as what a tool returns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

import tracekit
from tests.support.stub_provider import StubProvider
from tests.support.tracing import both
from tracekit.errors import NotReplayableError

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


def refusal(library: Any, **about: Any) -> Any:
    request = library.Request("POST", "http://x/y", headers={"authorization": f"Bearer {SECRET}", "x-a": "1"})
    headers = [("retry-after", "2"), ("set-cookie", f"session={SECRET}"), ("x-twice", "1"), ("x-twice", "2")]
    return library.Response(429, request=request, headers=headers, **about)


def raised(tool: Any) -> Any:
    try:
        tool()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_the_response_of_a_status_error(library: Any, instrumented: None) -> None:
    """Status, headers, body and request are those of the recording, but for credentials, which are nowhere in the trace."""

    @tracekit.traced_tool(side_effect="read_only")
    def fetch() -> None:
        refusal(library, json={"error": "slow down"}).raise_for_status()

    def program() -> Any:
        error = raised(fetch)
        response, request = error.response, error.request
        assert type(error) is library.HTTPStatusError
        assert (type(response), type(request)) == (library.Response, library.Request)
        return [
            str(error), response.status_code, response.reason_phrase, response.json(), response.text, request.method,
            response.headers["retry-after"], response.headers.get_list("x-twice"), request.headers["x-a"], request.url.host,
        ]  # fmt: skip

    run, first, second = both(program)
    assert first == second
    assert SECRET not in Path(run.path).read_text()


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_urls_and_queries(library: Any, instrumented: None) -> None:
    """They come back equal, as headers do; a secret in one is nowhere in the trace."""

    @tracekit.traced_tool(side_effect="read_only")
    def find(secret: bool) -> Any:
        if secret:
            url, query = f"http://ann:{SECRET}@a.example/?token={SECRET}", {"token": SECRET}
            return library.URL(url), library.QueryParams(query), library.Headers({"authorization": SECRET, "x": "y"})
        headers = library.Headers([(b"Set", b"a"), (b"set", b"\xe9")])
        return library.URL("http://a.example:8000/x%20y?b=1#c"), library.QueryParams("b=1&a=2&b="), headers

    def program() -> Any:
        url, query, headers = find(True)
        assert (url.host, [*query], headers["x"]) == ("a.example", ["token"], "y")
        return find(False)

    run, first, second = both(program)
    assert first == second
    assert [type(one) for one in second] == [library.URL, library.QueryParams, library.Headers]
    assert first[2].multi_items() == second[2].multi_items()
    assert SECRET not in Path(run.path).read_text()


@pytest.mark.parametrize("sdk", [openai, anthropic], ids=["openai", "anthropic"])
def test_the_status_errors_of_an_sdk(sdk: Any, instrumented: None) -> None:
    """``.status_code``, ``.body``, ``.response`` and ``.request`` are there when a tool raised one."""

    @tracekit.traced_tool(side_effect="read_only")
    def ask() -> None:
        raise sdk.RateLimitError("slow", response=refusal(httpx, json={"a": 1}), body={"a": 1})

    def program() -> Any:
        error = raised(ask)
        assert type(error) is sdk.RateLimitError
        return [
            error.status_code,
            error.body,
            error.response.headers["retry-after"],
            error.response.json(),
            error.request.method,
        ]

    _run, first, second = both(program)
    assert first == second == [429, {"a": 1}, "2", {"a": 1}, "POST"]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_tool_may_return_a_response(library: Any, instrumented: None, provider: StubProvider) -> None:
    """With body, elapsed time and a real request; the asynchronous client's too."""

    @tracekit.traced_tool(side_effect="read_only")
    def get() -> Any:
        return library.get(provider.url + "/a")

    @tracekit.traced_tool(side_effect="read_only")
    async def get_later() -> Any:
        async with library.AsyncClient() as client:
            return await client.get(provider.url + "/a")

    def program() -> Any:
        return [
            (type(each), each.status_code, each.content, each.elapsed, str(each.request.url), each.is_success)
            for each in (get(), asyncio.run(get_later()))
        ]

    _run, first, second = both(program)
    assert first == second


def test_the_response_of_an_error_of_requests(instrumented: None, provider: StubProvider) -> None:
    """An ``HTTPError`` that a tool raised has its response and request, without credentials; a tool may return a response."""

    @tracekit.traced_tool(side_effect="read_only")
    def fetch(status: str) -> requests.Response:
        headers = {"authorization": f"Bearer {SECRET}", "x-a": "1", "x-stub": status}
        response = requests.post(provider.url + "/a", json={"a": 1}, headers=headers)
        response.raise_for_status()
        return response

    def about(response: Any) -> Any:
        request = response.request
        assert (type(response), type(request)) == (requests.Response, requests.PreparedRequest)
        return [
            response.status_code, response.reason, response.text, response.url, response.encoding, response.elapsed,
            response.headers["Content-Type"], response.headers.get("content-length"), response.history, response.ok,
            request.method, request.url, request.body, request.headers["X-A"], list(response.iter_content(3)),
        ]  # fmt: skip

    def program() -> Any:
        error = raised(lambda: fetch("404"))
        assert type(error) is requests.HTTPError
        assert error.request.url == error.response.request.url
        return [str(error), about(error.response), about(fetch(""))]

    run, first, second = both(program)
    assert first == second
    assert first[1][0] == 404
    assert SECRET not in Path(run.path).read_text()


def test_a_response_of_requests_that_was_not_read(instrumented: None, provider: StubProvider) -> None:
    """Its head is there; reading the body, which is not in the trace, raises an error."""

    @tracekit.traced_tool(side_effect="read_only")
    def fetch() -> requests.Response:
        return requests.get(provider.url + "/a", stream=True)

    with tracekit.record() as run:
        fetch().close()
    with tracekit.replay(run.id):
        response = fetch()
    assert response.status_code == 200
    with pytest.raises(NotReplayableError, match="is not in the trace"):
        response.json()


def test_the_status_error_of_aiohttp(instrumented: None, provider: StubProvider) -> None:
    """A ``ClientResponseError`` that a tool raised comes back as one, with its request and headers, without credentials."""

    @tracekit.traced_tool(side_effect="read_only")
    async def fetch() -> None:
        headers = {"authorization": f"Bearer {SECRET}", "x-a": "1", "x-stub": "404"}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.get(provider.url + "/a", headers=headers),
        ):
            pass

    def program() -> Any:
        error = raised(lambda: asyncio.run(fetch()))
        assert type(error) is aiohttp.ClientResponseError
        about = error.request_info
        return [
            str(error), error.status, error.message, error.headers["Content-Type"], about.url, about.real_url, about.method,
            about.headers["X-A"],
        ]  # fmt: skip

    run, first, second = both(program)
    assert first == second
    assert SECRET not in Path(run.path).read_text()


def test_a_response_has_the_redirects_that_led_to_it(instrumented: None) -> None:
    """The answers before it, with their requests."""

    def answer(request: httpx.Request) -> httpx.Response:
        moved = request.url.path == "/old"
        return (
            httpx.Response(301, headers={"location": "/new"}, text="moved")
            if moved
            else httpx.Response(200, text="new")
        )

    @tracekit.traced_tool(side_effect="read_only")
    def get() -> httpx.Response:
        with httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True) as client:
            return client.get("http://shop/old")

    def program() -> Any:
        response = get()
        before = [
            (one.status_code, one.text, one.headers["location"], str(one.request.url)) for one in response.history
        ]
        return [response.text, str(response.url), before]

    _run, first, second = both(program)
    assert first == second == ["new", "http://shop/new", [(301, "moved", "/new", "http://shop/old")]]


def test_a_body_that_is_not_in_the_trace_says_so(instrumented: None) -> None:
    """A response that nobody has read, and the body of a request, are not taken for empty ones."""

    def pieces() -> Any:
        yield b"never read"

    @tracekit.traced_tool(side_effect="read_only")
    def fetch() -> httpx.Response:
        return refusal(httpx, content=pieces())  # type: ignore[no-any-return]

    run, first, second = both(fetch)
    assert first.read() == b"never read"
    for message in (second, second.request):
        with pytest.raises(NotReplayableError, match="not in the trace"):
            message.read()
    assert not run.warnings
