"""Flask, asked in the process: answers, one that streams, an asynchronous view, work that goes on after the answer."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from flask import Flask, Response, jsonify, request, session, stream_with_context
from openai import AsyncOpenAI, OpenAI

app = Flask(__name__)
app.secret_key = "stub"
client = OpenAI()
jobs: dict[str, str] = {}
pool = ThreadPoolExecutor(2)


def chat(text: str, **given):
    return client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}], **given)


@app.post("/ask")
def ask():
    session["asked"] = session.get("asked", 0) + 1
    answer = chat(request.json["text"]).choices[0].message.content
    return jsonify(answer=answer, asked=session["asked"])


@app.get("/stream")
def stream():
    @stream_with_context
    def parts():
        for chunk in chat(request.args["text"], stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield f"data: {chunk.choices[0].delta.content}\n\n"

    return Response(parts(), mimetype="text/event-stream")


@app.get("/async")
async def later():
    async with AsyncOpenAI() as client:
        answer = await client.embeddings.create(model="text-embedding-3-small", input=request.args["text"])
    return jsonify(answer.data[0].embedding)


@app.post("/jobs")
def start():
    job = str(uuid.uuid4())
    jobs[job] = "running"

    def work(text: str) -> None:
        jobs[job] = chat(text).choices[0].message.content

    pool.submit(work, request.json["text"])
    return {"job": job}, 202


with app.test_client() as web:
    for text in ("How deep is the fjord?", "And the sea?"):
        print(web.post("/ask", json={"text": text}).json)
    print(web.get("/stream", query_string={"text": "And the lake?"}).text)
    print(web.get("/async", query_string={"text": "well"}).json)
    started = [web.post("/jobs", json={"text": f"Lake {n}?"}).json["job"] for n in range(3)]
    pool.shutdown()
    print({job: jobs[job] for job in started})


def visit(n: int) -> None:
    with app.test_client() as web:
        answers[n] = web.post("/ask", json={"text": f"Pond {n}?"}).json


answers: dict[int, dict] = {}
threads = [threading.Thread(target=visit, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(answers)
