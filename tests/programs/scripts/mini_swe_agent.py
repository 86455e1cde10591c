"""mini-SWE-agent by its bindings, as its hello world has it: a shell for each command of the model."""

from pathlib import Path

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

settings = yaml.safe_load((Path(package_dir) / "config" / "default.yaml").read_text())
agent = DefaultAgent(
    LitellmModel(model_name="openai/gpt-4o", cost_tracking="ignore_errors"), LocalEnvironment(), **settings["agent"]
)
print(agent.run("Write a note"))
for message in agent.messages:
    print(message.get("role"), str(message.get("content"))[:300])
