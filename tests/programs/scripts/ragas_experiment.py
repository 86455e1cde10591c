"""An experiment over a dataset in files, judged side by side by a model, and an evaluation with Ragas' own metrics."""

import asyncio

from openai import AsyncOpenAI
from ragas import Dataset, experiment
from ragas.llms import llm_factory
from ragas.metrics import DiscreteMetric
from ragas.metrics.collections import ExactMatch

client = AsyncOpenAI()
llm = llm_factory("gpt-4o", client=client)
dataset = Dataset(name="depths", backend="local/csv", root_dir="evals")
for n in range(5):
    dataset.append({"question": f"How deep is lake {n}?", "expected": f"{n} m"})
dataset.save()

correctness = DiscreteMetric(
    name="correctness",
    prompt="Does {response} say {expected}? Answer pass or fail.",
    allowed_values=["pass", "fail"],
)
exact = ExactMatch()


@experiment()
async def run_experiment(row):
    chat = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": row["question"]}])
    response = chat.choices[0].message.content
    score = await correctness.ascore(llm=llm, response=response, expected=row["expected"])
    same = await exact.ascore(reference=row["expected"], response=response)
    return {**row, "response": response, "score": score.value, "reason": score.reason, "exact": same.value}


async def main():
    results = await run_experiment.arun(dataset)
    print(results.name)
    for one in results:
        print(one["question"], one["response"], one["score"], one["reason"], one["exact"])


asyncio.run(main())
