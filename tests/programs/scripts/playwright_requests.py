"""Playwright's driver, a process of its own that is spoken to by pipes: requests from it, plain and asynchronous."""

import asyncio
import os

from openai import OpenAI
from playwright.async_api import async_playwright
from playwright.sync_api import Error, sync_playwright

URL = os.environ["STUB_URL"]
client = OpenAI()


def ask(text):
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


def one_by_one():
    with sync_playwright() as playwright:
        print(sorted(playwright.devices)[:2])
        context = playwright.request.new_context(base_url=URL, extra_http_headers={"x-from": "a program"})
        page = context.get("/pages/fjord").json()
        print(page["said"], ask(f"What does {page['said']} say?"))
        print(context.post("/pages/lake", data={"depth": 254}).ok)
        try:
            playwright.request.new_context().get("http://127.0.0.1:9/nowhere", timeout=2_000)
        except Error as error:
            print(error.message.splitlines()[0])
        context.dispose()


async def side_by_side():
    async with async_playwright() as playwright:
        context = await playwright.request.new_context(base_url=URL)
        pages = await asyncio.gather(*(context.get(f"/pages/{number}") for number in range(4)))
        print([(await page.json())["said"] for page in pages])
        await context.dispose()


one_by_one()
asyncio.run(side_by_side())
