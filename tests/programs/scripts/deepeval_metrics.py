"""Three cases that DeepEval has judged by a model, side by side."""

from deepeval import evaluate
from deepeval.metrics import GEval
from deepeval.test_case import LLMTestCase, SingleTurnParams

metric = GEval(
    name="Correctness",
    evaluation_steps=["Compare the two."],
    evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT, SingleTurnParams.EXPECTED_OUTPUT],
    model="gpt-4o-mini",
)
cases = [LLMTestCase(input=f"Fjord {n}?", actual_output="deep", expected_output="deep") for n in range(3)]
for result in evaluate(test_cases=cases, metrics=[metric]).test_results:
    print(result.name, [(one.score, one.reason) for one in result.metrics_data])
