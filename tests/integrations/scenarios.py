"""What real programs do with the real SDKs, as functions of the provider's URL that return what the program got to see.

Run as a program it replays scenarios in a fresh process: ``python -m tests.integrations.scenarios STORE URL`` reads
``{"scenario": "run id"}`` on standard input and prints what each one saw.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

SCENARIOS: dict[str, Callable[[str], Any]] = {}

ASK: list[Any] = [{"role": "user", "content": "Wie spät ist es? 🕰"}]


def scenario(function: Callable[[str], Any]) -> Callable[[str], Any]:
    SCENARIOS[function.__name__] = function
    return function


def run(name: str, url: str) -> Any:
    """What a scenario returns, as JSON would bring it back."""
    result = SCENARIOS[name](url)
    if inspect.isawaitable(result):

        async def main() -> Any:
            try:
                return await result
            finally:
                while _opened:
                    closed = _opened.pop().close()
                    if inspect.isawaitable(closed):
                        await closed

        result = asyncio.run(main())
    close()
    return json.loads(json.dumps(result))


def close() -> None:
    """Close the clients that are open."""
    while _opened:
        _opened.pop().close()


_opened: list[Any] = []


def _made(client: Any) -> Any:
    _opened.append(client)
    return client


class _Closing:
    """Closes what a client sends through, where the client itself has no way to be closed."""

    def __init__(self, close: Callable[[], Any]) -> None:
        self.close = close


def openai(url: str, **options: Any) -> Any:
    from openai import OpenAI

    return _made(OpenAI(base_url=f"{url}/v1", api_key="sk-canary-7f3a9c2e5b8d1046", **options))


def openai_async(url: str, **options: Any) -> Any:
    from openai import AsyncOpenAI

    return _made(AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-canary-7f3a9c2e5b8d1046", **options))


def anthropic(url: str, **options: Any) -> Any:
    from anthropic import Anthropic

    return _made(Anthropic(base_url=url, api_key="sk-ant-canary-51d0c3b7", **options))


def anthropic_async(url: str, **options: Any) -> Any:
    from anthropic import AsyncAnthropic

    return _made(AsyncAnthropic(base_url=url, api_key="sk-ant-canary-51d0c3b7", **options))


def told(error: BaseException) -> dict[str, Any]:
    """All that a program can read off an SDK's exception."""
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    cause = error.__cause__
    return {
        "type": type(error).__name__,
        "text": str(error),
        "body": body if isinstance(body, dict | str | None) else repr(body),
        "status": getattr(error, "status_code", None),
        "request_id": getattr(error, "request_id", None),
        "headers": None if response is None else response.headers.get("retry-after-ms"),
        "cause": None if cause is None else [type(cause).__module__, type(cause).__name__, str(cause)],
        "request": str(error.request.url) if hasattr(error, "request") else None,  # type: ignore[attr-defined]
    }


def failing(call: Callable[[], Any]) -> Any:
    try:
        return ["no error", repr(call())]
    except Exception as error:
        return told(error)


def chat(client: Any, script: str = "", **more: Any) -> Any:
    headers = {"x-stub": script} if script else {}
    return client.chat.completions.create(model="gpt-stub", messages=ASK, extra_headers=headers, **more)


# -- answers -------------------------------------------------------------------------------------------------------------


@scenario
def openai_chat(url: str) -> Any:
    answer = chat(openai(url), temperature=0.25, seed=7)
    return [answer.model_dump(mode="json"), answer._request_id]


@scenario
async def openai_chat_async(url: str) -> Any:
    async with openai_async(url) as client:
        answers = [await chat(client), await chat(client)]
    return [answer.model_dump(mode="json") for answer in answers]


@scenario
def openai_tool_loop(url: str) -> Any:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    client, messages = openai(url), list(ASK)
    first = client.chat.completions.create(model="gpt-stub", messages=messages, tools=tools).choices[0].message
    call = first.tool_calls[0]
    messages += [
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": call.function.arguments},
    ]
    last = client.chat.completions.create(model="gpt-stub", messages=messages, tools=tools).choices[0].message
    return [call.model_dump(), last.content]


@scenario
def openai_stream(url: str) -> Any:
    stream = chat(openai(url), stream=True, stream_options={"include_usage": True})
    return [chunk.model_dump(mode="json") for chunk in stream]


@scenario
async def openai_stream_async(url: str) -> Any:
    stream = await chat(openai_async(url), stream=True)
    return [chunk.model_dump(mode="json") async for chunk in stream]


@scenario
def openai_raw_response(url: str) -> Any:
    raw = openai(url).chat.completions.with_raw_response.create(model="gpt-stub", messages=ASK)
    return [
        raw.status_code,
        dict(raw.headers).get("x-request-id"),
        raw.text,
        raw.elapsed.total_seconds(),
        raw.parse().id,
    ]


@scenario
def openai_streaming_response(url: str) -> Any:
    create = openai(url).chat.completions.with_streaming_response.create
    with create(model="gpt-stub", messages=ASK) as response:
        return [response.headers.get("x-request-id"), list(response.iter_lines())]


@scenario
def openai_parse(url: str) -> Any:
    import pydantic

    class Weather(pydantic.BaseModel):
        city: str
        degrees: int

    parse = openai(url).beta.chat.completions.parse
    answer = parse(model="gpt-stub", messages=ASK, response_format=Weather).choices[0].message.parsed
    return [type(answer).__name__, answer.model_dump()]


@scenario
def openai_responses(url: str) -> Any:
    answer = openai(url).responses.create(model="gpt-stub", input="Hello", reasoning={"effort": "low"})
    return [answer.output_text, answer.id, answer.usage.model_dump()]


@scenario
def openai_responses_stream(url: str) -> Any:
    with openai(url).responses.stream(model="gpt-stub", input="Hello") as stream:
        kinds = [event.type for event in stream]
        return [kinds, stream.get_final_response().output_text]


@scenario
def openai_embeddings(url: str) -> Any:
    answer = openai(url).embeddings.create(model="embed-stub", input=["one", "two"])
    return [item.embedding for item in answer.data]


@scenario
def openai_models(url: str) -> Any:
    return [model.id for model in openai(url).models.list()]


@scenario
def openai_file_upload(url: str) -> Any:
    upload = openai(url).files.create(file=("notes.txt", b"one\ntwo\xff"), purpose="assistants")
    return upload.model_dump()


@scenario
async def openai_file_upload_async(url: str) -> Any:
    upload = await openai_async(url).files.create(file=("notes.txt", b"one\ntwo\xff"), purpose="assistants")
    return upload.model_dump()


@scenario
def openai_binary_download(url: str) -> Any:
    return openai(url).files.content("file-1").read().hex()


@scenario
def openai_binary_stream(url: str) -> Any:
    speech = openai(url).audio.speech.with_streaming_response
    with speech.create(model="tts-stub", voice="alloy", input="Hello") as response:
        return b"".join(response.iter_bytes()).hex()


@scenario
def openai_gzip(url: str) -> Any:
    client = openai(url, default_headers={"x-stub-gzip": "1"})
    return [chat(client).model_dump(mode="json"), [c.model_dump(mode="json") for c in chat(client, stream=True)]]


@scenario
async def openai_gzip_async(url: str) -> Any:
    client = openai_async(url, default_headers={"x-stub-gzip": "1"})
    return [c.model_dump(mode="json") async for c in await chat(client, stream=True)]


@scenario
def openai_over_httpx(url: str) -> Any:
    import httpx

    client = openai(url, http_client=httpx.Client())
    return [chat(client).id, [c.model_dump(mode="json") for c in chat(client, stream=True)]]


@scenario
def anthropic_message(url: str) -> Any:
    answer = anthropic(url).messages.create(model="claude-stub", max_tokens=50, messages=ASK, stop_sequences=["END"])
    return [answer.model_dump(mode="json"), answer._request_id]


@scenario
async def anthropic_message_async(url: str) -> Any:
    answer = await anthropic_async(url).messages.create(model="claude-stub", max_tokens=50, messages=ASK)
    return answer.model_dump(mode="json")


@scenario
def anthropic_stream(url: str) -> Any:
    stream = anthropic(url).messages.create(model="claude-stub", max_tokens=50, messages=ASK, stream=True)
    return [event.model_dump(mode="json") for event in stream]


@scenario
def anthropic_stream_helper(url: str) -> Any:
    tools: Any = [{"name": "weather", "input_schema": {"type": "object"}}]
    with anthropic(url).messages.stream(model="claude-stub", max_tokens=50, messages=ASK, tools=tools) as stream:
        return [list(stream.text_stream), stream.get_final_message().model_dump(mode="json")]


@scenario
async def anthropic_stream_helper_async(url: str) -> Any:
    async with anthropic_async(url).messages.stream(model="claude-stub", max_tokens=50, messages=ASK) as stream:
        return [[text async for text in stream.text_stream], (await stream.get_final_message()).model_dump(mode="json")]


@scenario
async def fifty_at_once(url: str) -> Any:
    client = openai_async(url, timeout=60)

    async def ask(number: int) -> list[Any]:
        answer = await client.chat.completions.create(
            model="gpt-stub",
            messages=[{"role": "user", "content": f"question {number}"}],
            extra_headers={"x-gate": f"50:{number}"},
        )
        arrived.append(number)
        return [number, answer.choices[0].message.content]

    arrived: list[int] = []
    answers = await asyncio.gather(*(ask(number) for number in range(50)))
    return [answers, arrived]


# -- other providers -----------------------------------------------------------------------------------------------------

#: The SDKs of other providers, by how the names of their scenarios begin.
_SDKS = {
    "google": "google-genai",
    "ollama": "ollama",
    "cohere": "cohere",
    "mistral": "mistralai",
    "bedrock": "boto3",
    "anthropic_on_bedrock": "boto3",
}


def sdk_of(name: str) -> str | None:
    """The SDK that a scenario needs beside OpenAI's and Anthropic's."""
    return next((package for begin, package in _SDKS.items() if name.startswith(begin)), None)


TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def gemini(url: str, **options: Any) -> Any:
    from google import genai

    client = genai.Client(api_key="AIza-canary-0c4f17", http_options={"base_url": url, **options})
    _made(client if hasattr(client, "close") else _Closing(client._api_client._httpx_client.close))
    return client


@scenario
def google_generate(url: str) -> Any:
    client = gemini(url)
    config: Any = {"temperature": 0.5, "max_output_tokens": 50, "seed": 7}
    answer = client.models.generate_content(model="gemini-stub", contents="hello", config=config)
    called: Any = {"tools": [{"function_declarations": [{"name": "weather", "description": "of a place"}]}]}
    asked = client.models.generate_content(model="gemini-stub", contents="weather?", config=called)
    counted = client.models.count_tokens(model="gemini-stub", contents="hello")
    return [answer.text, answer.model_version, answer.usage_metadata.prompt_token_count,
            asked.function_calls[0].args, counted.total_tokens]  # fmt: skip


@scenario
def google_stream(url: str) -> Any:
    stream = gemini(url).models.generate_content_stream(model="gemini-stub", contents="hello")
    return [[chunk.text, chunk.candidates[0].finish_reason] for chunk in stream]


@scenario
async def google_async(url: str) -> Any:
    """Over aiohttp, where that is installed."""
    client = gemini(url)
    warnings.filterwarnings("ignore", "Inheritance class", DeprecationWarning)  # the SDK's own
    try:
        answer = await client.aio.models.generate_content(model="gemini-stub", contents="hello")
        stream = await client.aio.models.generate_content_stream(model="gemini-stub", contents="hello")
        pieces = [[chunk.text, chunk.candidates[0].finish_reason] async for chunk in stream]
    finally:
        if hasattr(client.aio, "aclose"):
            await client.aio.aclose()
    return [answer.text, answer.usage_metadata.prompt_token_count, pieces]


@scenario
def google_embeddings(url: str) -> Any:
    answer = gemini(url).models.embed_content(model="embedding-stub", contents=["one", "two"])
    return [embedding.values for embedding in answer.embeddings]


@scenario
def ollama_chat(url: str) -> Any:
    import ollama

    client = ollama.Client(host=url)
    _made(client._client)
    options = {"temperature": 0.5, "num_predict": 50}
    answer = client.chat("llama-stub", messages=[{"role": "user", "content": "hello"}], tools=[TOOL], options=options)
    call = answer.message.tool_calls[0].function
    vectors = client.embed("embed-stub", input="hello").embeddings
    pulled = client.pull("llama-stub").status
    return [answer.message.content, [call.name, dict(call.arguments)], answer.eval_count, vectors, pulled]


@scenario
def ollama_stream(url: str) -> Any:
    import ollama

    client = ollama.Client(host=url)
    _made(client._client)
    said = client.chat("llama-stub", messages=[{"role": "user", "content": "hello"}], stream=True)
    return [[part.message.content for part in said], [part.response for part in client.generate("m", "x", stream=True)]]


@scenario
async def ollama_stream_async(url: str) -> Any:
    import ollama

    client = ollama.AsyncClient(host=url)
    _made(_Closing(client._client.aclose))
    said = await client.chat("llama-stub", messages=[{"role": "user", "content": "hello"}], stream=True)
    return [part.message.content async for part in said]


@scenario
def cohere_chat(url: str) -> Any:
    import cohere

    client = cohere.ClientV2("canary-cohere-5f0d", base_url=url)
    _made(client._client_wrapper.httpx_client.httpx_client)
    answer = client.chat(model="command-stub", messages=[{"role": "user", "content": "hello"}], max_tokens=50, k=3)
    stream = client.chat_stream(model="command-stub", messages=[{"role": "user", "content": "hello"}])
    pieces = [event.delta.message.content.text for event in stream if event.type == "content-delta"]
    vectors = client.embed(texts=["hello"], model="embed-stub", input_type="search_query", embedding_types=["float"])
    billed = answer.usage.billed_units.input_tokens
    return [answer.message.content[0].text, billed, pieces, vectors.embeddings.float_]


@scenario
def cohere_first_version(url: str) -> Any:
    import cohere

    client = cohere.Client("canary-cohere-5f0d", base_url=url)
    _made(client._client_wrapper.httpx_client.httpx_client)
    pieces = [event.text for event in client.chat_stream(message="hello") if event.event_type == "text-generation"]
    ranked = client.rerank(model="rerank-stub", query="hello", documents=["one", "two"])
    return [client.chat(message="hello").text, pieces, [one.index for one in ranked.results]]


def mistral(url: str) -> Any:
    try:
        from mistralai.client import Mistral
    except ImportError:  # before version 2
        from mistralai import Mistral

    client = Mistral("canary-mistral-77a1", server_url=url)
    _made(client.sdk_configuration.client)
    return client


@scenario
def mistral_chat(url: str) -> Any:
    client = mistral(url)
    answer = client.chat.complete(model="mistral-stub", messages=[{"role": "user", "content": "hello"}], random_seed=7)
    stream = client.chat.stream(model="mistral-stub", messages=[{"role": "user", "content": "hello"}])
    pieces = [event.data.choices[0].delta.content or "" for event in stream]
    fim = client.fim.complete(model="codestral-stub", prompt="def f(", suffix="return 1")
    agent = client.agents.complete(agent_id="ag_1", messages=[{"role": "user", "content": "hello"}])
    vectors = client.embeddings.create(model="embed-stub", inputs=["one"])
    texts = [one.choices[0].message.content for one in (answer, fim, agent)]
    return [texts, pieces, vectors.data[0].embedding]


@scenario
async def mistral_chat_async(url: str) -> Any:
    client = mistral(url)
    _made(_Closing(client.sdk_configuration.async_client.aclose))
    answer = await client.chat.complete_async(model="mistral-stub", messages=[{"role": "user", "content": "hello"}])
    return answer.choices[0].message.content


@scenario
def anthropic_on_bedrock(url: str) -> Any:
    from anthropic import AnthropicBedrock

    client = _made(
        AnthropicBedrock(base_url=url, aws_region="us-east-1", aws_access_key="AKIACANARY", aws_secret_key="canary")
    )
    asked: Any = {"model": "anthropic.claude-stub-v1:0", "max_tokens": 50, "messages": ASK}
    stream = client.messages.create(stream=True, **asked)
    return [client.messages.create(**asked).content[0].text, [event.model_dump(mode="json") for event in stream]]


def bedrock(url: str) -> Any:
    import boto3

    keys: Any = {"aws_access_key_id": "AKIACANARY", "aws_secret_access_key": "canary-aws-9e1c"}
    return _made(boto3.client("bedrock-runtime", endpoint_url=url, region_name="us-east-1", **keys))


@scenario
def bedrock_converse(url: str) -> Any:
    client = bedrock(url)
    asked: Any = {"modelId": "amazon.nova-stub-v1:0", "messages": [{"role": "user", "content": [{"text": "hello"}]}]}
    answer = client.converse(**asked, inferenceConfig={"maxTokens": 50})
    stream = list(client.converse_stream(**asked)["stream"])
    return [answer["output"], answer["usage"], stream]


@scenario
def bedrock_invoke(url: str) -> Any:
    client, asked = bedrock(url), json.dumps({"prompt": "hello", "max_tokens": 50})
    answer = client.invoke_model(modelId="mistral.stub-v1:0", body=asked)["body"].read().decode()
    stream = client.invoke_model_with_response_stream(modelId="mistral.stub-v1:0", body=asked)["body"]
    return [json.loads(answer), [json.loads(event["chunk"]["bytes"]) for event in stream]]


# -- what goes wrong -----------------------------------------------------------------------------------------------------


@scenario
def retried_429(url: str) -> Any:
    return chat(openai(url), "429,503,ok:retried_429").model_dump(mode="json")


@scenario
def retried_stream(url: str) -> Any:
    stream = chat(openai(url), "429,ok:retried_stream", stream=True)
    return [chunk.model_dump(mode="json") for chunk in stream]


@scenario
async def retried_anthropic_async(url: str) -> Any:
    create = anthropic_async(url).messages.create
    answer = await create(model="claude-stub", max_tokens=9, messages=ASK, extra_headers={"x-stub": "529,ok:anthropic"})
    return answer.model_dump(mode="json")


@scenario
def error_400(url: str) -> Any:
    return failing(lambda: chat(openai(url), "400"))


@scenario
def error_400_stream(url: str) -> Any:
    return failing(lambda: chat(openai(url), "400,ok:stream", stream=True))


@scenario
def error_500(url: str) -> Any:
    create = anthropic(url, max_retries=0).messages.create
    return failing(lambda: create(model="claude-stub", max_tokens=9, messages=ASK, extra_headers={"x-stub": "500"}))


@scenario
def malformed_json(url: str) -> Any:
    return failing(lambda: chat(openai(url), "malformed"))


@scenario
def connection_refused(url: str) -> Any:
    return failing(lambda: chat(openai("http://127.0.0.1:9", max_retries=0)))


@scenario
async def connection_refused_async(url: str) -> Any:
    try:
        await chat(openai_async("http://127.0.0.1:9", max_retries=1))
    except Exception as error:
        return told(error)


@scenario
def connection_reset(url: str) -> Any:
    return failing(lambda: chat(openai(url, max_retries=0), "reset"))


@scenario
def timed_out(url: str) -> Any:
    return failing(lambda: chat(openai(url, max_retries=0, timeout=0.2), "timeout"))


@scenario
async def timed_out_async(url: str) -> Any:
    try:
        await chat(openai_async(url, max_retries=0, timeout=1), "timeout,ok:async")
    except Exception as error:
        return told(error)


@scenario
def cut_stream(url: str) -> Any:
    seen: list[Any] = []
    error = failing(lambda: seen.extend(c.model_dump(mode="json") for c in chat(openai(url), "cut,cut", stream=True)))
    return [seen, error]


@scenario
async def cut_stream_async(url: str) -> Any:
    seen: list[Any] = []
    try:
        async for chunk in await chat(openai_async(url), "cut", stream=True):
            seen.append(chunk.model_dump(mode="json"))
    except Exception as error:
        return [seen, told(error)]


@scenario
def abandoned_stream(url: str) -> Any:
    client = openai(url)
    with chat(client, stream=True) as stream:
        first = next(iter(stream)).model_dump(mode="json")
    return [first, chat(client).id]


@scenario
async def abandoned_stream_async(url: str) -> Any:
    client = openai_async(url)
    stream = await chat(client, stream=True)
    first = (await stream.__anext__()).model_dump(mode="json")
    await stream.close()
    return [first, (await chat(client)).id]


# -- plain HTTP ----------------------------------------------------------------------------------------------------------


@scenario
def plain_http(url: str) -> Any:
    import httpx2

    hooked: list[Any] = []

    def hook(response: Any) -> None:
        hooked.append([response.status_code, response.headers["x-request-id"]])

    with httpx2.Client(event_hooks={"response": [hook]}, follow_redirects=True) as client:
        got = client.get(f"{url}/things?api_key=query-canary-90&page=2")
        posted = client.send(
            request=client.build_request("POST", f"{url}/things", json={"a": 1.5}, cookies={"c": "cookie-canary"})
        )
        moved = client.get(f"{url}/old", headers={"x-stub": f"redirect:{url}/new,ok:{url}"})
    return [
        got.json(),
        posted.json(),
        posted.elapsed.total_seconds(),
        moved.json(),
        str(moved.url),
        [[past.request.method, str(past.request.url), past.request.headers["x-stub"]] for past in moved.history],
        [moved.request.method, sorted({*moved.request.headers} - {"cookie"}), moved.request.headers["x-stub"]],
        hooked,
    ]


@scenario
async def plain_http_async(url: str) -> Any:
    import httpx

    async def hook(response: Any) -> None:
        await response.aread()
        hooked.append(response.json())

    hooked: list[Any] = []
    async with httpx.AsyncClient(event_hooks={"response": [hook]}, auth=("user", "password-canary")) as client:
        return [(await client.get(f"{url}/things")).json(), hooked]


@scenario
def raising_hook(url: str) -> Any:
    import httpx

    def hook(response: Any) -> None:
        response.read()
        response.raise_for_status()

    with httpx.Client(event_hooks={"response": [hook]}) as client:
        try:
            client.get(f"{url}/things", headers={"x-stub": "404"})
        except httpx.HTTPStatusError as error:
            return [str(error), error.response.status_code, error.response.json(), str(error.request.url)]


def main() -> None:
    store, url = sys.argv[1:]
    import tracekit

    tracekit.instrument()
    seen: dict[str, Any] = {}
    for name, run_id in json.load(sys.stdin).items():
        try:
            with tracekit.replay(run_id, store=store) as session:
                result = run(name, url)
            seen[name] = {"result": result, "exact": session.report.exact, "warnings": session.report.warnings}
        except BaseException:
            seen[name] = {"error": traceback.format_exc()}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
