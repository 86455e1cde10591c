"""Jobs of two schedulers, one on an event loop, one with threads; each asks its server."""

import asyncio
import os
import threading

import httpx
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

URL = os.environ["STUB_URL"]


async def on_a_loop() -> list[str]:
    answers: list[str] = []
    enough = asyncio.Event()

    async def job() -> None:
        async with httpx.AsyncClient() as client:
            answers.append((await client.get(f"{URL}/job")).json()["said"])
        if len(answers) == 3:
            enough.set()

    scheduler = AsyncIOScheduler()
    scheduler.add_job(job, "interval", seconds=0.1)
    scheduler.start()
    await enough.wait()
    scheduler.shutdown()
    return answers


def in_threads() -> list[str]:
    answers: list[str] = []
    enough = threading.Event()

    def job() -> None:
        answers.append(httpx.get(f"{URL}/job").json()["said"])
        if len(answers) == 2:
            enough.set()

    scheduler = BackgroundScheduler()
    scheduler.start()
    scheduler.add_job(job, "interval", seconds=0.2)
    enough.wait()
    scheduler.shutdown()
    return answers


print(*asyncio.run(on_a_loop()), sep="\n")
print(*in_threads(), sep="\n")
