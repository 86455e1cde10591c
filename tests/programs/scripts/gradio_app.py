"""Gradio: an application served in the process, and its client."""

import random

import gradio as gr
from gradio_client import Client
from openai import OpenAI

model = OpenAI()


def answer(text, history):
    chat = model.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": text}])
    return f"{chat.choices[0].message.content} {random.randrange(1000)}"


def counted(text):
    for number in range(3):
        yield f"{text} {number} {random.randrange(1000)}"


with gr.Blocks() as app:
    gr.ChatInterface(answer, api_name="chat")
    text, out = gr.Textbox(), gr.Textbox()
    gr.Button("Count").click(counted, text, out, api_name="count")

_, url, _ = app.queue().launch(prevent_thread_lock=True, quiet=True)
client = Client(url, verbose=False)
print(client.predict("How deep is the fjord?", api_name="/chat"))
job = client.submit("lake", api_name="/count")
print(job.result(), job.outputs())
jobs = [client.submit(f"sea {number}", api_name="/chat") for number in range(3)]
print([job.result() for job in jobs])
app.close()
