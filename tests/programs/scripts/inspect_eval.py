"""An evaluation of three samples with Inspect."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def depths() -> Task:
    samples = [Sample(input=f"How deep is fjord {n}?", target="deep") for n in range(3)]
    return Task(dataset=samples, solver=[generate()], scorer=includes())
