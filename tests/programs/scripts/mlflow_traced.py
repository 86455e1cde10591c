"""MLflow: an experiment and its traces in a local store, OpenAI's calls traced."""

import mlflow
from openai import OpenAI

mlflow.set_tracking_uri("sqlite:///mlflow_traced.db")
mlflow.set_experiment("depths")
mlflow.openai.autolog()
client = OpenAI()


@mlflow.trace
def ask(text):
    chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


with mlflow.start_run() as run:
    mlflow.log_param("place", "fjord")
    said = [ask(f"How deep is the {place}?") for place in ("fjord", "lake")]
    mlflow.log_metric("length", len(said[0]))
    print(run.info.run_id, said)
found = mlflow.search_traces(return_type="list")
print(len(found), sorted(len(trace.data.spans) for trace in found), mlflow.get_run(run.info.run_id).data.params)
