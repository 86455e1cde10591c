"""Semantic Kernel: a process of two steps that go on asking."""

import asyncio

from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function
from semantic_kernel.processes import ProcessBuilder
from semantic_kernel.processes.kernel_process import KernelProcessEvent, KernelProcessStep, KernelProcessStepContext
from semantic_kernel.processes.local_runtime.local_kernel_process import start

said = []


class Ask(KernelProcessStep):
    @kernel_function
    async def ask(self, context: KernelProcessStepContext, kernel: Kernel, text: str = "How deep?"):
        found = await kernel.invoke_prompt(text)
        said.append(str(found))
        await context.emit_event("asked", data=str(found))


class Check(KernelProcessStep):
    @kernel_function
    async def check(self, context: KernelProcessStepContext, text: str):
        said.append(f"checked {len(text)}")
        await context.emit_event("again" if len(said) < 6 else "done", data="And the sea?")


async def main():
    kernel = Kernel()
    kernel.add_service(OpenAIChatCompletion(ai_model_id="gpt-4o"))
    builder = ProcessBuilder(name="fjords")
    ask, check = builder.add_step(Ask), builder.add_step(Check)
    builder.on_input_event("start").send_event_to(ask, parameter_name="text")
    ask.on_event("asked").send_event_to(check, parameter_name="text")
    check.on_event("again").send_event_to(ask, parameter_name="text")
    check.on_event("done").stop_process()
    event = KernelProcessEvent(id="start", data="How deep is the fjord?")
    await start(process=builder.build(), kernel=kernel, initial_event=event)
    print(said)


asyncio.run(main())
