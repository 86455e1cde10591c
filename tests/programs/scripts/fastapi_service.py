"""A service: each request is a run of its own. Started by itself, it asks itself a dozen questions at once."""

import asyncio
import threading

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI

import tracekit

tracekit.instrument()
app = FastAPI()


@tracekit.record("question")
async def ask(text: str) -> str:
    async with AsyncOpenAI() as client:
        asked = [
            client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": f"{text} {part}"}])
            for part in ("first", "second")
        ]
        answers = [(await done).choices[0].message.content for done in asyncio.as_completed(asked)]
    print(text, *answers, sep=" | ", flush=True)
    return " ".join(answers)


@app.post("/ask/{text}")
async def endpoint(text: str):
    return {"answer": await ask(text)}


async def load(url: str):
    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(client.post(f"{url}/ask/question-{n}") for n in range(12)))


if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        pass
    port = server.servers[0].sockets[0].getsockname()[1]
    asyncio.run(load(f"http://127.0.0.1:{port}"))
    server.should_exit = True
    thread.join()
