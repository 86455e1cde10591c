"""Pipecat: a pipeline of processors, two of them side by side, each with a queue and a task of its own; a streamed model."""

import asyncio
import os

from pipecat.frames.frames import EndFrame, Frame, LLMContextFrame, LLMTextFrame
from pipecat.pipeline.parallel_pipeline import ParallelPipeline
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService


class Printer(FrameProcessor):
    def __init__(self, name):
        super().__init__()
        self.called = name

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame):
            print(self.called, frame.text)
        await self.push_frame(frame, direction)


async def main():
    llm = OpenAILLMService(api_key="sk-stub", model="gpt-4o", base_url=os.environ["STUB_URL"] + "/v1")
    pipeline = Pipeline([llm, ParallelPipeline([Printer("one")], [Printer("two")])])
    task = PipelineTask(pipeline)
    for place in ("fjord", "lake"):
        await task.queue_frame(LLMContextFrame(LLMContext([{"role": "user", "content": f"How deep is the {place}?"}])))
    await task.queue_frame(EndFrame())
    await PipelineRunner(handle_sigint=False).run(task)


asyncio.run(main())
