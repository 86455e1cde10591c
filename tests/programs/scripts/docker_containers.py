"""Docker's client: HTTP over a Unix socket, with streams."""

import os

import docker
from openai import OpenAI

model = OpenAI()
client = docker.DockerClient(base_url=f"unix://{os.path.abspath('../docker.sock')}")
print(client.version()["Version"], client.ping())
for line in client.api.pull("depths", tag="1", stream=True, decode=True):
    print(line["status"])
container = client.containers.run("depths:1", ["measure"], detach=True, environment={"PLACE": "fjord"})
print(container.short_id, container.status)
said = b"".join(container.logs(stream=True)).decode()
print(said.strip())
chat = model.chat.completions.create(model="gpt-5.2", messages=[{"role": "user", "content": said}])
print(chat.choices[0].message.content)
print(container.wait())
container.remove(force=True)
try:
    client.containers.get("gone")
except docker.errors.NotFound as error:
    print(error.explanation)
client.close()
