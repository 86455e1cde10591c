"""``tracekit route`` and ``tracekit list --envelope-hash``: a request on the record, and the runs of a request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.place import PACKAGES, Place
from tests.support.processes import python
from tracekit.agents import ExecutionRecord, IntentEnvelope

APP = """
from tracekit.agents import AgentRegistry, IntentRouter

registry = AgentRegistry()
router = IntentRouter(registry)
nothing = 5

def make():
    return registry

def note(what):
    with open("effects", "a") as file:
        file.write("x")
    return what

@registry.agent(intent="greet", side_effect="read_only")
def greeter(payload):
    return note({"hello": payload["who"]})

@registry.agent(intent="fail", side_effect="read_only")
def fails(payload):
    note(0)
    raise ValueError("no such thing")

@registry.agent(intent="both", side_effect="read_only")
def good(payload):
    return note(1)

@registry.agent(intent="both", side_effect="read_only", priority=200)
def bad(payload):
    raise ValueError("no")

@registry.agent(intent="bound", side_effect="irreversible", contract={"max_cost_units": 1}, cost_units=lambda payload: 2)
def bound(payload):
    note(0)

@registry.agent(intent="bare")
def bare(payload):
    return note("bare")
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.program(APP, "app.py")
    return found


def envelope(place: Place, **tree: object) -> str:
    return place.program(json.dumps(tree), "envelope.json")


def test_a_request_is_routed_and_recorded(place: Place) -> None:
    """The response is on stdout, the run's id on stderr, and the run can be replayed without asking anybody."""
    name = envelope(place, intent="greet", payload={"who": "you"})
    done = place.cli("route", name, "--app", "app:registry", "--run-name", "greeting")
    assert done.returncode == 0, done.stderr
    response = json.loads(done.stdout)
    assert (response["status"], response["payload"], response["error"]) == ("success", {"hello": "you"}, None)
    assert place.run in done.stderr
    record = ExecutionRecord.of(str(place.runs[0]))
    assert record.final_response == response
    assert json.loads(place.runs[0].read_text().splitlines()[0])["name"] == "greeting"
    assert json.loads(place.cli("verify", "--json", place.run).stdout)["state"] == "complete"
    assert place.effects() == 1


def test_the_recorded_command_replays(place: Place) -> None:
    """``tracekit replay`` runs the same command again; the agent is not called."""
    program = place.program("from tracekit.cli import main\nmain()\n", "command.py")
    name = envelope(place, intent="greet", payload={"who": "you"})
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    first = python(program, "route", name, "--app", "app:registry", cwd=place.directory, env=environment)
    assert first.returncode == 0, first.stderr
    again = place.cli("replay", place.run)
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert place.effects() == 1


@pytest.mark.parametrize("app", ["app:router", "app:make", "app:registry"])
def test_the_app_may_be_a_registry_a_router_or_a_function(place: Place, app: str) -> None:
    """Whatever leads to a router; the envelope may come from standard input."""
    done = place.cli("route", "-", "--app", app, input='{"intent": "greet", "payload": {"who": "you"}}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["payload"] == {"hello": "you"}


@pytest.mark.parametrize(
    ("tree", "options", "status", "kind"),
    [
        ({"intent": "fail"}, (), 1, "agent_error"),
        ({"intent": "both", "routing": {"strategy": "broadcast"}}, (), 1, "agent_error"),
        ({"intent": "nobody"}, (), 2, "no_agent_found"),
        ({"intent": "bound"}, (), 4, "contract_violation"),
        ({"intent": "greet", "payload": {"who": "x"}}, ("--budget", "0.5"), 4, "budget_exceeded"),
    ],
    ids=["failure", "partial", "nobody", "contract", "budget"],
)
def test_the_exit_code_says_what_came_of_it(
    place: Place, tree: dict[str, object], options: tuple[str, ...], status: int, kind: str
) -> None:
    """1 an agent failed, 2 nobody to ask, 4 refused; the response says the same, and what was refused did not happen."""
    done = place.cli("route", envelope(place, **tree), "--app", "app:registry", *options)
    assert done.returncode == status, done.stderr
    assert json.loads(done.stdout)["error"]["type"] == kind
    assert kind in done.stderr
    assert len(place.runs) == 1
    assert place.effects() == (1 if status == 1 else 0)


def test_a_class_can_be_given_for_agents_without_one(place: Place) -> None:
    """With it the agent's answer is on the log as a whole."""
    name = envelope(place, intent="bare")
    assert place.cli("route", name, "--app", "app:registry", "--side-effect", "read_only").returncode == 0
    assert '"tool.call"' in place.runs[0].read_text()


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("{", ("--app", "app:registry"), "[envelope]"),
        ('{"intentt": "x"}', ("--app", "app:registry"), "did you mean `intent`"),
        (None, ("--app", "app:registry"), "can't be read"),
        ('{"intent": "x"}', ("--app", "app"), "MODULE:NAME"),
        ('{"intent": "x"}', ("--app", "no_such_module:registry"), "no module 'no_such_module'"),
        ('{"intent": "x"}', ("--app", "app:absent"), "no 'app:absent'"),
        ('{"intent": "x"}', ("--app", "app:nothing"), "is int"),
        ('{"intent": "x"}', ("--app", "app:registry", "--budget", "-1"), "--budget"),
        ('{"intent": "x"}', (), "--app"),
    ],
    ids=str,
)
def test_wrong_use_is_told_and_leaves_no_run(
    place: Place, text: str | None, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2, the reason on stderr, nothing on stdout."""
    if text is not None:
        place.program(text, "envelope.json")
    done = place.cli("route", "envelope.json", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert place.runs == []


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("import something_that_is_not_there", "registry", "ModuleNotFoundError: No module named 'something_that_is_not_there'"),
        ("def broken(:", "registry", "SyntaxError"),
        ("\nraise AttributeError('mine')", "registry", "AttributeError: mine"),
        ("import sys\nsys.exit(0)", "registry", "it ended the program, with status 0"),
        ("def make():\n    raise OSError('the database is down')", "make", "the database is down"),
        ("def make(url):\n    return url", "make", "missing 1 required positional argument: 'url'"),
        ("from tracekit.errors import RunStateError\ndef make():\n    raise RunStateError('not now')", "make", "not now"),
    ],
    ids=["import", "syntax", "attribute", "exit", "factory", "argument", "ours"],
)  # fmt: skip
def test_a_program_that_goes_wrong_before_anybody_is_asked(place: Place, text: str, name: str, said: str) -> None:
    """Exit code 2: nobody was asked. What went wrong is told in one line, below the traceback of the program's own code alone."""
    place.program(text, "broken.py")
    done = place.cli("route", envelope(place, intent="x"), "--app", f"broken:{name}")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    message = done.stderr[done.stderr.index("[registry]") :]
    assert said in message
    assert "no agent was called" in message
    assert "tracekit" + os.sep + "cli" not in done.stderr
    assert "importlib" not in done.stderr
    if name == "registry":
        assert "broken.py" in done.stderr
    assert place.runs == []


@pytest.mark.parametrize("app", ["./app.py:registry", "app.py:registry", "app:make()", "a-p:registry"])
def test_a_module_is_named_as_in_an_import(place: Place, app: str) -> None:
    """A file is none; the name that is meant is suggested, and nothing is imported."""
    place.program("print('imported')", "app.py")
    done = place.cli("route", envelope(place, intent="x"), "--app", app)
    assert done.returncode == 2
    assert "MODULE:NAME" in done.stderr
    assert ("did you mean app:registry?" in done.stderr) == ("py" in app)
    assert "imported" not in done.stderr


def test_a_coroutine_function_makes_no_registry(place: Place) -> None:
    """It is said what it gave, and nothing of what was never awaited."""
    place.program("async def make():\n    return 5\n", "later.py")
    done = place.cli("route", envelope(place, intent="x"), "--app", "later:make")
    assert done.returncode == 2
    assert "'later:make' is coroutine" in done.stderr
    assert "never awaited" not in done.stderr


def test_an_answer_that_can_not_be_written_is_in_the_run(place: Place) -> None:
    """The run's id is told all the same, and nothing else is said of it."""
    name = envelope(place, intent="greet", payload={"who": "you"})
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from tracekit.cli import main; main()", "route", name, "--app", "app:registry"],
            cwd=place.directory, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"recorded as run {place.run}" in done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert ExecutionRecord.of(str(place.runs[0])).final_response is not None


@pytest.mark.parametrize(("intent", "status"), [("greet", 0), ("fail", 1), ("nobody", 2)])
def test_the_exit_code_counts_though_nobody_reads_the_answer(place: Place, intent: str, status: int) -> None:
    """A reader that has left (`| head`) makes no failure a success."""
    name = envelope(place, intent=intent, payload={"who": "you"})
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from tracekit.cli import main; main()", "route", name, "--app", "app:registry"],
            cwd=place.directory, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.returncode == status, done.stderr
    assert f"recorded as run {place.run}" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_runs_are_found_by_the_hash_of_their_request(place: Place) -> None:
    """By the envelope's hash the very request, by its identity every request that asked the same, by the beginning of either too."""
    trees = [
        {"intent": "greet", "payload": {"who": who}, "metadata": {"requestId": request}}
        for who, request in (("you", "1"), ("you", "2"), ("him", "3"))
    ]
    for tree in trees:
        assert place.cli("route", envelope(place, **tree), "--app", "app:registry").returncode == 0
    one, other, third = (IntentEnvelope.from_dict(tree) for tree in trees)

    def found(digest: str) -> list[str]:
        done = place.cli("list", "--json", "--envelope-hash", digest)
        assert done.returncode == 0, done.stderr
        return sorted(json.loads(line)["run_id"] for line in done.stdout.splitlines())

    runs = sorted(path.stem for path in place.runs)
    assert found(one.envelope_hash) == runs[:1]
    assert found(other.envelope_hash.removeprefix("sha256:")) == runs[1:2]
    assert found(one.identity_hash) == found(other.identity_hash[:20]) == runs[:2]
    assert found(third.identity_hash) == runs[2:]
    assert found("sha256:" + "0" * 64) == []


@pytest.mark.parametrize("digest", ["sha256:xyz", "12", "md5:" + "0" * 32, ""])
def test_a_hash_that_is_none_is_refused(place: Place, digest: str) -> None:
    """Rather than finding nothing."""
    done = place.cli("list", "--json", "--envelope-hash", digest)
    assert done.returncode == 2
    assert "--envelope-hash" in done.stderr
    assert ("too short" in done.stderr) == (digest == "12")


def test_the_schema_of_records_is_printed(place: Place) -> None:
    """``tracekit schema execution`` is the schema that records keep to."""
    done = place.cli("schema", "execution")
    assert json.loads(done.stdout)["$id"] == "urn:tracekit:execution:1"


CRASHING = """
import os, signal
from tracekit import record
from tracekit.agents import AgentRegistry, IntentRouter

registry = AgentRegistry()

def note(what):
    with open(what, "a") as file:
        file.write("x")

@registry.agent(intent="look", side_effect="read_only", priority=1)
def away(payload):
    note("away")
    raise ConnectionError("away")

@registry.agent(intent="look", side_effect="read_only", priority=2)
def looker(payload):
    note("looker")
    if not os.path.exists("second-life"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "seen"

@registry.agent(intent="pay", side_effect="irreversible")
def payer(payload):
    note("payer")
    return "paid"

with record("crashing") as run:
    router = IntentRouter(registry)
    print(router.route({"intent": "pay"}).payload)
    print(router.route({"intent": "look", "routing": {"strategy": "fallback"}}).payload)
"""


def test_a_killed_execution_is_resumed(place: Place) -> None:
    """What the log has is answered from it, the attempt that was cut off is made again, and the record is whole."""
    program = place.program(CRASHING)
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    done = python(program, cwd=place.directory, env=environment)
    assert done.returncode == -signal.SIGKILL
    paid, looked = ExecutionRecord.all(str(place.runs[0]))
    assert (paid.header.replayable, looked.header.replayable) == (True, False)

    (place.directory / "second-life").touch()
    again = place.cli("recovery", "resume", place.run)
    assert again.returncode == 0, again.stderr
    counts = {name: len((place.directory / name).read_text()) for name in ("away", "looker", "payer")}
    assert counts == {"away": 1, "looker": 2, "payer": 1}
    records = ExecutionRecord.all(str(place.runs[0]))
    assert [record.final_response["payload"] for record in records] == ["paid", "seen"]  # type: ignore[index]

    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == "paid\nseen\n"
    assert {name: len((place.directory / name).read_text()) for name in counts} == counts


def _route(place: Place, *arguments: str, input: str | None = None, status: int = 0) -> str:
    """``tracekit route`` as a program that can be run again; returns what it printed."""
    program = place.program("from tracekit.cli import main\nmain()\n", "command.py")
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    words = (program, "route", *arguments, "--app", "app:registry")
    done = python(*words, cwd=place.directory, env=environment, input=input or "")
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_a_replay_has_the_request_from_the_trace(place: Place, source: str) -> None:
    """Neither what was on standard input nor the envelope's file must be there again."""
    text = '{"intent": "greet", "payload": {"who": "you"}}'
    if source == "stdin":
        shown = _route(place, "-", input=text)
    else:
        shown = _route(place, place.program(text, "gone.json"))
        (place.directory / "gone.json").unlink()
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, shown), again.stderr
    assert place.effects() == 1


KILLED = """
import os, signal
from tracekit.agents import AgentRegistry

registry = AgentRegistry()

@registry.agent(intent="look", side_effect="read_only", priority=1)
def looker(payload):
    with open("effects", "a") as file:
        file.write("x")
    if not os.path.exists("second-life"):
        os.kill(os.getpid(), signal.SIGKILL)
    return payload["for"]
"""


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_a_resumed_route_has_its_request_from_the_trace(place: Place, source: str) -> None:
    """The process was killed in the middle; what it was asked is in the trace alone."""
    place.program(KILLED, "app.py")
    text = '{"intent": "look", "payload": {"for": "keys"}}'
    if source == "stdin":
        _route(place, "-", input=text, status=-signal.SIGKILL)
    else:
        _route(place, place.program(text, "gone.json"), status=-signal.SIGKILL)
        (place.directory / "gone.json").unlink()
    (place.directory / "second-life").touch()
    resumed = place.cli("recovery", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    response = resumed.stdout.splitlines(keepends=True)[-1]  # after what was decided about the resumption
    assert json.loads(response)["payload"] == "keys"
    assert place.effects() == 2
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, response), replayed.stderr
    assert place.effects() == 2


def test_a_resumed_request_never_has_a_placeholder_for_a_secret(place: Place) -> None:
    """What the log does not keep has to be given again; then the agent gets it as it was."""
    place.program(KILLED, "app.py")
    secret = "sk-" + "a1B2" * 12
    text = json.dumps({"intent": "look", "payload": {"for": secret}})
    _route(place, "-", input=text, status=-signal.SIGKILL)
    (place.directory / "second-life").touch()
    refused = place.cli("recovery", "resume", "last")
    assert refused.returncode != 0
    assert "[envelope]" in refused.stderr
    assert place.effects() == 1
    assert place.cli("recovery", "resume", "last", input=text).returncode == 0
    assert place.effects() == 2
    assert secret not in place.runs[0].read_text()


@pytest.mark.parametrize("beside", ["gone", "another", "same"])
def test_a_request_with_secrets_is_given_again_on_standard_input(place: Place, beside: str) -> None:
    """Standard input counts, whatever the file that was named holds by now, or whether it is there at all."""
    place.program(KILLED, "app.py")
    text = json.dumps({"intent": "look", "payload": {"for": "keys", "password": "a1B2c3D4"}})
    _route(place, place.program(text, "asked.json"), status=-signal.SIGKILL)
    if beside == "gone":
        (place.directory / "asked.json").unlink()
    elif beside == "another":
        place.program(text.replace("a1B2c3D4", "x"), "asked.json")
    (place.directory / "second-life").touch()
    resumed = place.cli("recovery", "resume", "last", input=text)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1])["payload"] == "keys"
    assert place.effects() == 2
    assert "a1B2c3D4" not in place.runs[0].read_text()
    assert place.cli("replay", "last").returncode == 0
    assert place.effects() == 2


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_a_run_is_not_gone_on_with_by_another_request(place: Place, source: str) -> None:
    """Secrets that the trace does not keep are compared all the same: another one reaches no agent, and the right one still may."""
    place.program(KILLED, "app.py")
    text = json.dumps({"intent": "look", "payload": {"for": "keys", "password": "a1B2c3D4"}})
    _route(place, place.program(text, "asked.json"), status=-signal.SIGKILL)
    (place.directory / "second-life").touch()
    other = text.replace("a1B2c3D4", "b1B2c3D4")
    if source == "file":
        place.program(other, "asked.json")
        refused = place.cli("recovery", "resume", "last")
        assert "asked.json is not the one" in refused.stderr
    else:
        refused = place.cli("recovery", "resume", "last", input=other)
        assert "standard input is not the one" in refused.stderr
    assert refused.returncode == 4
    assert place.effects() == 1
    assert place.cli("recovery", "resume", "last", input=text).returncode == 0
    assert place.effects() == 2


def test_without_the_stores_secret_the_request_counts_and_that_is_told(place: Place) -> None:
    """What can't be compared is said to be so. What is no request is told with where it stands."""
    place.program(KILLED, "app.py")
    text = json.dumps({"intent": "look", "payload": {"for": "keys", "password": "a1B2c3D4"}})
    _route(place, place.program(text, "asked.json"), status=-signal.SIGKILL)
    (place.directory / "second-life").touch()
    wrong = place.cli("recovery", "resume", "last", input="asked.json")
    assert (wrong.returncode, "in standard input: an envelope must be a JSON object" in wrong.stderr) == (2, True)
    (place.store / "secret").unlink()
    resumed = place.cli("recovery", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert "is not known" in resumed.stderr
    assert place.effects() == 2


def test_a_request_without_secrets_leaves_standard_input_alone(place: Place) -> None:
    """It is in the trace: what stands on standard input is somebody else's, and the store needs no secret."""
    place.program(KILLED, "app.py")
    text = json.dumps({"intent": "look", "payload": {"for": "keys"}})
    _route(place, "-", input=text, status=-signal.SIGKILL)
    (place.directory / "second-life").touch()
    resumed = place.cli("recovery", "resume", "last", input="no request")
    assert resumed.returncode == 0, resumed.stderr
    assert "standard input" not in resumed.stderr
    assert not (place.store / "secret").exists()


@pytest.mark.parametrize("how", ["sys.exit(0)", "raise SystemExit", "sys.exit(3)"])
def test_an_agent_that_ends_the_program_is_no_success(place: Place, how: str) -> None:
    """Exit code 1, said on stderr with the run; its replay ends the same way."""
    place.program(
        f"import sys\nfrom tracekit.agents import AgentRegistry\nregistry = AgentRegistry()\n"
        f"@registry.agent(intent='leave', side_effect='read_only')\ndef leaver(payload):\n    {how}\n",
        "app.py",
    )
    assert _route(place, "-", input='{"intent": "leave"}', status=1) == ""
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    assert "an agent ended the program" in again.stderr
    assert place.run in again.stderr


@pytest.mark.parametrize("budget", ["nan", "inf", "-inf", "0"])
def test_a_budget_is_a_finite_number(place: Place, budget: str) -> None:
    """Else wrong use, and no run."""
    done = place.cli("route", envelope(place, intent="greet"), "--app", "app:registry", "--budget", budget)
    assert (done.returncode, done.stdout, place.runs) == (2, "", [])
    assert "--budget" in done.stderr
    assert "Traceback" not in done.stderr


def test_stdout_is_the_response_alone(place: Place) -> None:
    """What the app and its agents print, their child processes too, is on stderr; so it is in a replay."""
    place.program(
        "import os, sys\nfrom tracekit.agents import AgentRegistry\nregistry = AgentRegistry()\nprint('imported')\n"
        "@registry.agent(intent='talk')\ndef talker(payload):\n    print('talking')\n"
        "    sys.__stdout__.write('by the side door\\n')\n"
        "    os.write(1, b'as a child would\\n')\n    return 1\n",
        "app.py",
    )
    shown = _route(place, "-", input='{"intent": "talk"}')
    assert json.loads(shown)["payload"] == 1
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout) == (0, shown), again.stderr
    for line in ("imported", "talking", "by the side door", "as a child would"):
        assert line in again.stderr
