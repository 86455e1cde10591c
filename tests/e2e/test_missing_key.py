"""A program whose SDK has no key, or gets it only while it runs, takes the same path in its replay."""

from __future__ import annotations

import pytest

from tests.support import processes
from tests.support.place import Place
from tests.support.stub_provider import stub_provider

PROGRAM = """
import os, pathlib
import openai

def load_keys():
    if os.path.exists(".env"):
        for line in pathlib.Path(".env").read_text().splitlines():
            name, _, value = line.partition("=")
            os.environ[name] = value

load_keys()
try:
    client = openai.OpenAI(base_url=os.environ["PROVIDER"])
except openai.OpenAIError as error:
    print("no client:", type(error).__name__)
else:
    answer = client.chat.completions.create(model="gpt-stub", messages=[{"role": "user", "content": "hello"}])
    print(answer.choices[0].message.content)
"""


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("key"), imports=processes.SDKS)
    place.program(PROGRAM, "agent.py")
    return place


def test_a_run_without_a_key_replays_without_one(place: Place) -> None:
    """A run that failed because no key was set fails in the same way in its replay, which supplies no placeholder."""
    recorded = place.cli("run", "agent.py", OPENAI_API_KEY="", PROVIDER="http://127.0.0.1:9/v1")
    assert (recorded.returncode, recorded.stdout) == (0, "no client: OpenAIError\n"), recorded.stderr
    replayed = place.cli("replay", "last", OPENAI_API_KEY="", PROVIDER="http://127.0.0.1:9/v1")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


def test_a_key_that_the_program_reads_itself_needs_not_be_there(place: Place) -> None:
    """If the program sets a key from a file that the recording does not keep, a replay without the file has a
    placeholder."""
    env = place.directory / ".env"
    env.write_text("OPENAI_API_KEY=sk-from-a-file-0123456789abcdef")
    with stub_provider() as provider:
        address = provider.url + "/v1"
        recorded = place.cli("run", "agent.py", OPENAI_API_KEY="", PROVIDER=address)
    assert recorded.returncode == 0, recorded.stderr
    env.unlink()
    replayed = place.cli("replay", "last", OPENAI_API_KEY="", PROVIDER=address)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
