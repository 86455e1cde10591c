"""pydantic-graph and pydantic-evals: agents side by side in a graph, then over a dataset, two at a time."""

import asyncio
from dataclasses import dataclass, field

from pydantic_ai import Agent
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

agent = Agent("openai-chat:gpt-4o", instructions="Be brief.")


@dataclass
class State:
    measured: list[str] = field(default_factory=list)


builder = GraphBuilder(state_type=State, output_type=list[str])


@builder.step
async def places(ctx: StepContext[State, None, None]) -> list[str]:
    return ["fjord", "sea", "lake", "pond"]


@builder.step
async def measure(ctx: StepContext[State, None, str]) -> str:
    found = await agent.run(f"How deep is the {ctx.inputs}?")
    ctx.state.measured.append(ctx.inputs)
    return found.output


collect = builder.join(reduce_list_append, initial_factory=list[str])
builder.add(
    builder.edge_from(builder.start_node).to(places),
    builder.edge_from(places).map().to(measure),
    builder.edge_from(measure).to(collect),
    builder.edge_from(collect).to(builder.end_node),
)


@dataclass
class Length(Evaluator):
    def evaluate(self, ctx: EvaluatorContext) -> float:
        return len(ctx.output) / 100


async def ask(question: str) -> str:
    return (await agent.run(question)).output


async def main():
    state = State()
    print(await builder.build().run(state=state), state.measured)
    cases = [Case(name=f"case {n}", inputs=f"Question {n}") for n in range(5)]
    report = await Dataset(name="depths", cases=cases, evaluators=[Length()]).evaluate(
        ask, max_concurrency=2, progress=False
    )
    for case in report.cases:
        print(case.name, case.output, case.scores["Length"].value, case.task_duration)


asyncio.run(main())
