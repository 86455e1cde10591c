"""A2A: an agent served in the process, its client beside it: messages side by side, updates of a task streamed."""

import asyncio

import httpx
from a2a.client import ClientConfig, create_client
from a2a.helpers.proto_helpers import (
    get_stream_response_text,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, Role, SendMessageRequest
from openai import AsyncOpenAI
from starlette.applications import Starlette

model = AsyncOpenAI()


class Depths(AgentExecutor):
    async def execute(self, context, event_queue):
        task = context.current_task or new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        chat = await model.chat.completions.create(
            model="gpt-5.2", messages=[{"role": "user", "content": context.get_user_input()}]
        )
        await updater.add_artifact([new_text_part(chat.choices[0].message.content)])
        await updater.complete()

    async def cancel(self, context, event_queue):
        raise NotImplementedError


card = AgentCard(
    name="Depths",
    description="How deep a place is",
    version="1",
    supported_interfaces=[AgentInterface(protocol_binding="JSONRPC", url="http://agent.test/")],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
)
handler = DefaultRequestHandler(agent_executor=Depths(), task_store=InMemoryTaskStore(), agent_card=card)
app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


async def main():
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent.test") as http:
        client = await create_client("http://agent.test", ClientConfig(httpx_client=http), resolver_http_kwargs={})

        async def ask(place):
            request = SendMessageRequest(message=new_text_message(f"How deep is the {place}?", role=Role.ROLE_USER))
            return [
                (one.WhichOneof("payload"), get_stream_response_text(one)) async for one in client.send_message(request)
            ]

        print(await ask("fjord"))
        for found in await asyncio.gather(*(ask(f"lake {number}") for number in range(3))):
            print(found)


asyncio.run(main())
