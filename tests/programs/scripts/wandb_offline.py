"""Weights & Biases without its server: its service is a process that the program speaks to."""

import random

import wandb
from openai import OpenAI

client = OpenAI()
with wandb.init(project="depths", mode="offline", config={"rate": 0.1}) as run:
    for step in range(3):
        chat = client.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": f"Step {step}"}])
        run.log({"depth": random.random(), "said": len(chat.choices[0].message.content)})
        print(step, chat.choices[0].message.content)
    run.summary["best"] = random.random()
    print(run.summary["best"], run.config["rate"])
