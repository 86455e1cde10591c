"""An application called by its test client: dependencies, background tasks, a stream, a websocket."""

import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from typing import Annotated

import httpx
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

URL = os.environ["STUB_URL"]
log: list[str] = []


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=URL) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    text: str
    id: str = Field(default_factory=lambda: str(uuid.uuid4()))


async def model() -> httpx.AsyncClient:
    return app.state.client


@app.post("/ask")
async def ask(question: Question, later: BackgroundTasks, client: Annotated[httpx.AsyncClient, Depends(model)]) -> dict:
    answer = await client.post("/ask", json=question.model_dump())
    later.add_task(note, question.id)
    return {"id": question.id, "said": answer.json()["said"]}


def note(id: str) -> None:
    log.append(f"{id}: {httpx.get(f'{URL}/note').json()['said']}")


@app.get("/plain")
def plain() -> dict:
    return httpx.get(f"{URL}/plain").json()


@app.get("/stream")
async def stream() -> StreamingResponse:
    async def pieces() -> AsyncIterator[str]:
        async with app.state.client.stream("GET", "/pieces") as answer:
            async for piece in answer.aiter_text():
                yield piece

    return StreamingResponse(pieces())


@app.websocket("/talk")
async def talk(socket: WebSocket) -> None:
    await socket.accept()
    while (text := await socket.receive_text()) != "bye":
        await socket.send_json((await app.state.client.get(f"/{text}")).json())
    await socket.close()


with TestClient(app) as client:
    for text in ("one", "two"):
        print(client.post("/ask", json={"text": text}).json())
    print(client.get("/plain").json(), client.get("/stream").text)
    with client.websocket_connect("/talk") as socket:
        socket.send_text("three")
        print(socket.receive_json())
        socket.send_text("bye")
print(*log, sep="\n")
