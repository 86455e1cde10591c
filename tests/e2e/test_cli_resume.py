"""``tracekit recovery resume``: a program that was killed runs again as it is, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import processes
from tests.support.place import PACKAGES, Place
from tests.support.stub_provider import stub_provider
from tracekit.cli import main

HEAD = """
import os, random, signal, sys, threading, time
import tracekit
from tracekit import record, traced_tool

def did(what):
    with open("ledger", "a") as file:
        file.write(what + "\\n")
    if os.environ.get("DIE") == what:
        os.kill(os.getpid(), signal.SIGKILL)

@traced_tool(side_effect="read_only")
def look(n):
    did(f"look {n}")
    return random.random()

@traced_tool(side_effect="reversible")
def put(n):
    did(f"put {n}")

@traced_tool(side_effect="irreversible")
def pay(n):
    did(f"pay {n}")
    return f"paid {n}"
"""

THREE = (
    HEAD
    + """
for customer in range(3):
    with record(f"customer {customer}") as run:
        run.set_result([look(customer), put(customer), pay(customer)])
        print(customer, run.result, flush=True)
"""
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def done(place: Place) -> Counter[str]:
    return Counter((place.directory / "ledger").read_text().split("\n")[:-1])


def python(place: Place, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program as its user starts it, without tracekit's command line."""
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES), **variables}
    return processes.python(script, cwd=place.directory, env=environment, imports=place.imports)


def resumed(place: Place, run: str, *more: str, **variables: str) -> tuple[dict[str, Any], Any]:
    """The decision that was printed, on stderr where the program ran again, and the process."""
    process = place.cli("recovery", "resume", "--json", run, *more, **variables)
    printed = process.stdout if process.stdout.startswith('{"run_id":') else process.stderr
    return json.loads(printed.splitlines()[0]), process


def complete(place: Place) -> list[str]:
    return [json.loads(place.cli("verify", "--json", path.stem).stdout)["state"] for path in place.runs]


@pytest.mark.parametrize("die", ["look 1", "put 1"])
def test_a_program_of_several_runs(place: Place, die: str) -> None:
    """The runs that it had finished are replayed, the one that crashed goes on, later ones are recorded; each effect happens once."""
    script = place.program(THREE)
    assert python(place, script, DIE=die).returncode == -9
    assert complete(place) == ["complete", "incomplete"]
    decision, process = resumed(place, place.runs[1].stem)
    assert (decision["decision"], process.returncode) == ("resume", 0), process.stderr
    assert complete(place) == ["complete"] * 3
    expected = Counter({f"{what} {n}": 1 for what in ("look", "put", "pay") for n in range(3)})
    expected[die] += 1
    assert done(place) == expected
    for path in place.runs:
        replayed = place.cli("replay", path.stem)
        assert replayed.returncode == 0, replayed.stderr
    assert done(place) == expected
    _, again = resumed(place, place.runs[1].stem)
    assert again.returncode == 4
    assert done(place) == expected


def test_an_irreversible_effect_in_doubt_is_refused_settled_and_resumed(place: Place) -> None:
    """Killed inside an irreversible effect: refused (4) until a person says whether it was done; then the run goes on with that."""
    script = place.program(THREE)
    python(place, script, DIE="pay 1")
    run = place.runs[1].stem
    decision, process = resumed(place, run)
    assert (decision["decision"], process.returncode) == ("abort", 4)
    [step] = decision["in_doubt"]
    assert any(reason["code"] == "irreversible_pending" for reason in decision["reasons"])
    (place.directory / "output.json").write_text('"paid by hand"')
    settled = place.cli(
        "recovery", "settle", run, str(step), "--done", "output.json", "--reason", "the bank says so", "--by", "Ada"
    )
    assert settled.returncode == 0, settled.stderr
    decision, process = resumed(place, run)
    assert process.returncode == 0, process.stderr
    assert "paid by hand" in process.stdout
    assert done(place)["pay 1"] == 1
    assert place.cli("replay", run).returncode == 0


def test_settled_as_not_done_it_is_made(place: Place) -> None:
    """Where a person says that it was not done, resuming does it: once."""
    script = place.program(
        THREE.replace('did(f"pay {n}")', 'os.environ.get("DIE") and n and os.kill(os.getpid(), 9)\n    did(f"pay {n}")')
    )
    python(place, script, DIE="now")
    run = place.runs[1].stem
    decision, _ = resumed(place, run)
    [step] = decision["in_doubt"]
    settled = place.cli("recovery", "settle", run, str(step), "--not-done", "--reason", "no such payment")
    assert settled.returncode == 0, settled.stderr
    _, process = resumed(place, run)
    assert process.returncode == 0, process.stderr
    assert done(place)["pay 1"] == 1
    assert place.cli("replay", run).returncode == 0


def test_a_program_without_a_record_of_its_own(place: Place) -> None:
    """A run of ``tracekit run`` goes on as well; its status and output are the program's own."""
    script = place.program(HEAD + "print(look(1), put(1), pay(1), flush=True)\nsys.exit(3)\n")
    assert place.cli("run", script, DIE="put 1").returncode == -9
    _, process = resumed(place, "last")
    assert process.returncode == 3, process.stderr
    assert "paid 1" in process.stdout
    assert done(place) == {"look 1": 1, "put 1": 2, "pay 1": 1}
    assert place.cli("replay", place.run).returncode == 0


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_stdout_of_a_resumption_is_the_programs_own(place: Place, more: tuple[str, ...]) -> None:
    """Whoever pipes it gets what the program prints and nothing else: the decision is on stderr, as text or (``--json``) as JSON."""
    python(place, place.program(THREE), DIE="put 1")
    process = place.cli("recovery", "resume", *more, place.runs[1].stem)
    assert process.returncode == 0, process.stderr
    assert [line.split(maxsplit=1)[0] for line in process.stdout.splitlines()] == ["0", "1", "2"]
    first = process.stderr.splitlines()[0]
    assert json.loads(first)["decision"] == "resume" if more else first.startswith("resume ")


def test_a_missing_sibling_is_refused(place: Place) -> None:
    """Where a run that the program had finished before is gone, running the program again would repeat it: refused, with what to do."""
    script = place.program(THREE)
    python(place, script, DIE="put 1")
    place.runs[0].unlink()
    process = place.cli("recovery", "resume", "--json", place.run)
    assert process.returncode == 4
    assert json.loads(process.stdout.splitlines()[-1])["reasons"][0]["code"] == "sibling_missing"
    assert "--entry" in process.stderr
    assert done(place)["put 1"] == 1


SERVER = (
    HEAD
    + """
def work(n):
    return [look(n), put(n), pay(n)]

def serve(n, barrier):
    with record(f"request {n}", input={"n": n}):
        barrier.wait()
        work(n)

if __name__ == "__main__":
    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=serve, args=(n, barrier)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
)


def test_a_server_is_refused_and_its_request_resumed_alone(place: Place) -> None:
    """Runs that were open at once can't be told apart when the program runs again: refused; with ``--entry`` the one goes on."""
    script = place.program(SERVER, "server.py")
    python(place, script, DIE="put 1")
    path = next(path for path in place.runs if b'"name":"request 1"' in path.read_bytes())
    process = place.cli("recovery", "resume", "--json", path.stem)
    assert process.returncode == 4
    assert json.loads(process.stdout.splitlines()[-1])["reasons"][0]["code"] == "concurrent_runs"
    before = done(place)
    _, process = resumed(place, path.stem, "--entry", "server:work")
    assert process.returncode == 0, process.stderr
    assert done(place) - before == Counter({"put 1": 1, "pay 1": 1})
    assert json.loads(place.cli("verify", "--json", path.stem).stdout)["state"] == "complete"


def test_an_effect_outside_the_run_is_not_repeated(place: Place) -> None:
    """A tool that the program calls before its run opens would happen again: it is refused, and nothing is live."""
    script = place.program(HEAD + "pay(0)\nwith record('one'):\n    look(1); put(1); pay(1)\n")
    python(place, script, DIE="put 1")
    _, process = resumed(place, place.run)
    assert process.returncode == 1
    assert "pay" in process.stderr
    assert done(place) == {"pay 0": 1, "look 1": 1, "put 1": 1}


def test_a_changed_program_is_told(place: Place) -> None:
    """A file that changed is a warning; code that no longer follows the log ends with 1, and nothing of it was live."""
    script = place.program(THREE)
    python(place, script, DIE="put 1")
    run = place.runs[1].stem
    place.program(THREE.replace("look(customer), put", "put"))
    _, process = resumed(place, run)
    assert process.returncode == 1, process.stderr
    assert done(place)["pay 1"] == 0
    place.program(THREE + "# another line\n")
    _, process = resumed(place, run)
    assert process.returncode == 0, process.stderr
    assert "has changed since" in process.stderr
    assert done(place)["pay 1"] == 1


def test_only_the_decision(place: Place) -> None:
    """``--check`` prints the decision and runs nothing; damaged, finished and unknown runs have their own exit codes."""
    script = place.program(THREE)
    python(place, script, DIE="put 1")
    run = place.runs[1].stem
    before = place.runs[1].read_bytes()
    decision, process = resumed(place, run, "--check")
    assert (process.returncode, decision["decision"]) == (0, "resume")
    assert place.runs[1].read_bytes() == before
    decision, process = resumed(place, place.runs[0].stem)
    assert (process.returncode, decision["reasons"][0]["code"]) == (4, "finished")
    assert place.cli("recovery", "resume", "nothing").returncode == 2
    lines = before.splitlines(keepends=True)
    place.runs[1].write_bytes(b"".join(lines[:1] + lines[2:]))
    decision, process = resumed(place, run)
    assert (process.returncode, decision["reasons"][0]["code"]) == (4, "damaged")


WHERE = {  # where Ctrl-C comes in the program that runs again
    "before its run": "raise KeyboardInterrupt",
    "before its log has ended": "with record('one'):\n    look(1)\n    raise KeyboardInterrupt",
    "after that": "with record('one'):\n    look(1); put(1)\n    raise KeyboardInterrupt",
    "in an effect": "with record('one'):\n    look(1); put(1)\n    threading.Thread(target=pay, args=[2], daemon=True).start()\n"
    "    paying.wait()\n    raise KeyboardInterrupt",
}


@pytest.mark.parametrize("where", WHERE)
def test_after_ctrl_c_it_is_said_how_the_run_stands(place: Place, where: str) -> None:
    """Ctrl-C in a program that is resumed: whether its run has ended now, whether a step is in doubt, and the next command."""
    head = HEAD + "paying = threading.Event()\ndef interrupted():\n    paying.set()\n    threading.Event().wait()\n"
    python(place, place.program(head + "with record('one'):\n    look(1); put(1); pay(1)\n"), DIE="put 1")
    place.program(head.replace('    did(f"pay {n}")', "    interrupted()") + WHERE[where] + "\n")
    before = place.runs[0].read_bytes()
    done = place.cli("recovery", "resume", "last")
    assert done.returncode == -signal.SIGINT, done.stderr
    said = done.stderr[done.stderr.index("KeyboardInterrupt") :]
    run = place.runs[0].stem
    if where in ("before its run", "before its log has ended"):
        assert place.runs[0].read_bytes() == before
        assert f"tracekit: the run {run} has no end\ntracekit: next: `tracekit recovery resume {run} --check`" in said
    elif where == "after that":
        assert f"the run {run} has ended (run.failed), and is not resumed again\n" in said
        assert f"tracekit: next: `tracekit show {run}`" in said
    else:
        assert "it left a step in doubt\ntracekit: next: `tracekit in-doubt` says how to settle it\n" in said


def test_ctrl_c_while_a_resumption_is_prepared(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the program runs, the command says that the run is where it was, too, with status 130."""
    python(place, place.program(THREE), DIE="put 1")
    run = place.runs[1].stem

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracekit.cli.recovery.program_of", interrupted)
    monkeypatch.setenv("TRACEKIT_DIR", str(place.store))
    done = CliRunner().invoke(main, ["recovery", "resume", run])
    assert done.exit_code == 130
    said = f"interrupted\ntracekit: the run {run} has no end\ntracekit: next: `tracekit recovery resume {run} --check` "
    assert said in done.stderr


def test_a_hard_exit_ends_the_run(place: Place) -> None:
    """A program that leaves by ``os._exit`` after it went live has its run complete."""
    script = place.program(HEAD + "with record('one'):\n    look(1); put(1); pay(1)\n    os._exit(5)\n")
    python(place, script, DIE="put 1")
    _, process = resumed(place, place.run)
    assert process.returncode == 5, process.stderr
    assert complete(place) == ["complete"]


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_a_model_call_that_was_cut_off_is_made_again(place: Place, client: str) -> None:
    """A model call without an answer in the log is asked again with the next attempt number, and the ones before are not."""
    place.imports = processes.SDKS
    ask = {
        "openai": "OpenAI(base_url=os.environ['STUB'] + '/v1').chat.completions.create(model='m', "
        "messages=[{'role': 'user', 'content': text}]).choices[0].message.content",
        "anthropic": "Anthropic(base_url=os.environ['STUB']).messages.create(model='m', max_tokens=9, "
        "messages=[{'role': 'user', 'content': text}]).content[0].text",
    }[client]
    script = place.program(
        HEAD
        + f"""
from {client} import {"OpenAI" if client == "openai" else "Anthropic"}
tracekit.instrument()
with record("asking") as run:
    for text in ("one", "two", "three"):
        print({ask})
        put(text)
        if os.environ.get("CUT") == text:
            did("cut")
    pay(1)
"""
    )
    with stub_provider() as stub:
        keys = {"STUB": stub.url, "OPENAI_API_KEY": "k" * 20, "ANTHROPIC_API_KEY": "k" * 20}
        process = python(place, script, CUT="two", DIE="cut", **keys)
        assert process.returncode == -9, process.stderr
        asked = sum(stub.requests.values())
        assert asked == 2
        # As if it had been killed before the second answer came.
        path = place.runs[0]
        lines = path.read_bytes().splitlines(keepends=True)
        last = max(i for i, line in enumerate(lines) if b'"type":"llm.request"' in line)
        path.write_bytes(b"".join(lines[: last + 1]))
        _, process = resumed(place, place.run, **keys)
        assert process.returncode == 0, process.stderr
        assert sum(stub.requests.values()) == asked + 2
    requests = [json.loads(line) for line in path.read_bytes().splitlines() if b'"type":"llm.request"' in line]
    assert [entry["meta"]["info"]["attempt"] for entry in requests] == [1, 1, 2, 1]
    replayed = place.cli("replay", place.run, STUB=keys["STUB"])
    assert replayed.returncode == 0, replayed.stderr


INSIDE = (
    HEAD
    + """
def handle(n):
    with record("request", input={"n": n}) as run:
        run.set_result([look(n), put(n), pay(n)])
    return "handled"

async def handle_later(n):
    async with record("later", input={"n": n}) as run:
        run.set_result([look(n), put(n), pay(n)])

def takes_others(thing, other):
    put(thing)

if __name__ == "__main__":
    import asyncio
    if "later" in sys.argv:
        asyncio.run(handle_later(1))
    else:
        handle(1)
"""
)


@pytest.mark.parametrize("function", ["handle", "handle_later"])
def test_a_function_that_opens_its_run_inside(place: Place, function: str) -> None:
    """``--entry`` takes a function that says ``record()`` itself: that is the run, resumed and replayed."""
    import os

    script = place.program(INSIDE, "server.py")
    arguments = ["later"] if function == "handle_later" else []
    place.cli("run", script, *arguments, DIE="put 1")
    for path in place.runs[1:]:
        os.unlink(path)
    _, process = resumed(place, place.run, "--entry", f"server:{function}")
    assert process.returncode == 0, process.stderr
    assert done(place) == {"look 1": 1, "put 1": 2, "pay 1": 1}
    replayed = place.cli("replay", place.run, "--entry", f"server:{function}")
    assert replayed.returncode == 0, replayed.stderr
    assert done(place) == {"look 1": 1, "put 1": 2, "pay 1": 1}


@pytest.mark.parametrize("entry", ["nope:f", "server", "", "server:nope", "server:handle.x", "server:takes_others"])
@pytest.mark.parametrize("command", [["recovery", "resume"], ["replay"]])
def test_an_entry_that_is_none(place: Place, entry: str, command: list[str]) -> None:
    """A function that is not there is wrong use: exit code 2 and one sentence, no traceback, nothing run."""
    script = place.program(INSIDE, "server.py")
    python(place, script, DIE="put 1")
    process = place.cli(*command, place.run, "--entry", entry)
    assert process.returncode == 2, process.stderr
    assert "--entry" in process.stderr
    assert "Traceback" not in process.stderr
    assert done(place) == {"look 1": 1, "put 1": 1}


def test_a_disk_that_is_full_resumes_nothing(place: Place) -> None:
    """Where the log can't be written the resumption says so, the run is as it was, and later it goes on."""
    script = place.program(THREE)
    python(place, script, DIE="put 1")
    path = place.runs[1]
    before = path.read_bytes()
    program = place.directory / "sitecustomize.py"
    program.write_text(
        "import resource, os\n"
        "if os.environ.get('FULL'):\n"
        "    import signal\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before)}, {len(before)}))\n"
    )
    # Python's own cache files would be cut off as well.
    _, process = resumed(place, path.stem, FULL="1", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=_with(place))
    assert process.returncode == 1, process.stderr
    assert "resumed run" not in process.stderr
    assert "log-write" in process.stderr
    assert path.read_bytes() == before
    assert done(place)["pay 1"] == 0
    _, process = resumed(place, path.stem)
    assert process.returncode == 0, process.stderr
    assert done(place)["pay 1"] == 1


def _with(place: Place) -> str:
    import os

    from tests.support.place import PACKAGES

    return os.pathsep.join([str(place.directory), *PACKAGES])


LOGIN = (
    HEAD
    + """
def work(token):
    look(1)
    pay(len(token))

if __name__ == "__main__":
    with record("login", input={"token": sys.argv[1]}):
        work(sys.argv[1])
"""
)
TOKEN = "sk-ant-api03-" + "fZx9qT7mB2" * 4


def test_a_program_is_not_given_a_placeholder_for_a_secret(place: Place) -> None:
    """Where its arguments, or the input of its run, have lost a secret, nothing runs until they are named as they were."""
    script = place.program(LOGIN, "login.py")
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    died = processes.python(script, TOKEN, cwd=place.directory, env={**environment, "DIE": "look 1"})
    assert died.returncode == -9
    before = place.runs[0].read_bytes()
    assert TOKEN.encode() not in before
    for given, code in ([], "redacted_arguments"), (["--entry", "login:work"], "redacted_input"):
        process = place.cli("recovery", "resume", "--json", place.run, *given)
        refused = json.loads(process.stdout.splitlines()[-1])
        assert (process.returncode, [reason["code"] for reason in refused["reasons"]]) == (4, [code]), process.stderr
        assert place.runs[0].read_bytes() == before
    assert done(place) == {"look 1": 1}
    _, process = resumed(place, place.run, "--", script, TOKEN)
    assert process.returncode == 0, process.stderr
    assert done(place) == {"look 1": 2, f"pay {len(TOKEN)}": 1}
    assert complete(place) == ["complete"]
    assert place.cli("replay", place.run, "--", script, TOKEN).returncode == 0
