"""Calls in a pool of threads, each tried again with Tenacity, at most two at a time, with a cache; then the same on a loop."""

import asyncio
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
from aiocache import Cache, cached
from aiocache.serializers import JsonSerializer
from cachetools import TTLCache
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

URL = os.environ["STUB_URL"]


class Flaky(Exception):
    pass


cache: TTLCache = TTLCache(maxsize=100, ttl=300)
cache_lock = threading.Lock()
at_a_time = threading.BoundedSemaphore(2)
tries = threading.local()


def note(state: RetryCallState) -> None:
    print(f"try {state.attempt_number} of {state.args[0]} failed after {state.seconds_since_start:.4f} s")


@retry(
    wait=wait_random_exponential(multiplier=0.01, max=0.1),
    stop=stop_after_attempt(6),
    retry=retry_if_exception_type((httpx.HTTPError, Flaky)),
    before_sleep=note,
)
def price(name: str) -> float:
    with cache_lock:
        if name in cache:
            return cache[name]
    with at_a_time:
        said = httpx.get(f"{URL}/prices/{name}").raise_for_status().json()["said"]
    if random.random() < 0.3:
        raise Flaky(name)
    found = int(said.split()[1], 16) / 100
    with cache_lock:
        cache[name] = found
    return found


def in_threads() -> None:
    names = [f"lake {n}" for n in range(8)] + ["lake 0", "lake 1"]
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="price") as pool:
        futures = {pool.submit(price, name): name for name in names}
        for future in as_completed(futures):
            print(futures[future], future.result())
    print(sorted(cache))
    print(list(ThreadPoolExecutor(3).map(price, names)), price.statistics)


@cached(ttl=60, cache=Cache.MEMORY, serializer=JsonSerializer(), key_builder=lambda f, *a, **k: a[1])
async def width(client: httpx.AsyncClient, name: str) -> str:
    async for attempt in AsyncRetrying(wait=wait_random_exponential(multiplier=0.01, max=0.05)):
        with attempt:
            response = await client.get(f"{URL}/widths/{name}")
            if random.random() < 0.4:
                raise Flaky(name)
    return response.json()["said"]


async def on_a_loop() -> None:
    limits = httpx.Limits(max_connections=3)
    async with httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(30)) as client:
        for done in asyncio.as_completed([width(client, f"lake {n}") for n in range(8)]):
            print(await done)
        print(await asyncio.gather(*(width(client, f"lake {n % 3}") for n in range(6))))


in_threads()
asyncio.run(on_a_loop())
