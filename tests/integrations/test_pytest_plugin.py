"""The pytest plugin: recorded runs beside the tests that replay them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import processes
from tests.support.processes import python
from tracekit.cli import main
from tracekit.integration import Trace
from tracekit.testing import ScriptedModel

AGENT = """
import os, random
from datetime import date
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def send(to, text):
    with open(os.path.join(os.path.dirname(__file__), "effects"), "a") as file:
        file.write(to + "\\n")
    return f"sent to {to}"

def remind(customer, prompt="Hello"):
    return send(customer, f"{prompt} {customer} {date.today()} {random.random()}")

@record
def recorded(customer):
    return remind(customer)
"""
#: One test of each kind.
KINDS = """
import asyncio, unittest
import pytest
from agent import recorded, remind

@pytest.fixture
def sent():
    return remind("fixture")

@pytest.fixture(scope="module")
def for_all():
    return remind("for all")

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="module")
async def of_the_module(anyio_backend):
    return 1

@pytest.mark.tracekit
def test_marked():
    assert remind("marked") == "sent to marked"

def test_fixture(tracekit_run):
    tracekit_run.set_result(remind("named"))
    assert tracekit_run.recording or tracekit_run.result == "sent to named"

@pytest.mark.tracekit
def test_of_a_fixture(sent):
    assert sent == "sent to fixture"

@pytest.mark.tracekit
def test_that_records_itself():
    assert [recorded("one"), recorded("two")] == ["sent to one", "sent to two"]

@pytest.mark.tracekit
@pytest.mark.parametrize("who", ["a", "a/b", "a-b"])
def test_of_parameters(who):
    remind(who)

@pytest.mark.tracekit
class TestOfUnittest(unittest.TestCase):
    def test_it(self):
        self.assertEqual(remind("unittest"), "sent to unittest")

@pytest.mark.tracekit
class TestOfAsyncUnittest(unittest.IsolatedAsyncioTestCase):
    async def test_it(self):
        self.assertEqual(remind("async unittest"), "sent to async unittest")

class TestOfAClass:
    pytestmark = pytest.mark.tracekit

    def test_it(self):
        remind("class")

@pytest.mark.tracekit
@pytest.mark.asyncio
async def test_of_asyncio():
    first = await asyncio.gather(asyncio.to_thread(remind, "asyncio"), asyncio.sleep(0))
    assert first == ["sent to asyncio", None]

@pytest.mark.tracekit
@pytest.mark.anyio
async def test_of_anyio(of_the_module):
    await asyncio.sleep(0)
    assert remind("anyio") == "sent to anyio"

@pytest.mark.tracekit("kept/elsewhere.jsonl")
def test_of_a_path():
    remind("path")

def test_without():
    pass
"""
#: Each test runs pytest several times.
pytestmark = pytest.mark.timeout(300)
#: By their modules: an entry point named asyncio would be taken for the module that is imported already.
PLUGINS = ("tracekit_pytest", "xdist.plugin", "anyio.pytest_plugin", "pytest_asyncio.plugin")
PYTEST = ("-m", "pytest", "-q", *(part for name in PLUGINS for part in ("-p", name)))
#: In a forked process the plugins have been imported before pytest could rewrite them.
IS_LOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


class Suite:
    """A directory with an agent and its tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "agent.py").write_text(AGENT)
        (root / "pytest.ini").write_text(
            "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
        )

    def file(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)

    def run(self, *arguments: str, fresh: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        left_out = ("TRACEKIT_DIR", "CI", "PYTEST_ADDOPTS")
        variables = {name: value for name, value in os.environ.items() if name not in left_out}
        variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", **environment}
        line = (*PYTEST, *(() if fresh else IS_LOADED), *arguments)
        return python(*line, cwd=self.root, env=variables, fresh=fresh, imports=processes.PYTEST, seeds=("0",))

    @property
    def effects(self) -> list[str]:
        """What has been sent since it was last asked."""
        file = self.root / "effects"
        found = sorted(file.read_text().splitlines()) if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    def traces(self, directory: str = "traces") -> list[str]:
        return sorted(str(path.relative_to(self.root / directory)) for path in (self.root / directory).rglob("*.jsonl"))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def passed(done: subprocess.CompletedProcess[str], count: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{count} passed", done.stdout, re.MULTILINE), done.stdout


def reports(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The report of each test that failed, by its title."""
    found: dict[str, list[str]] = {}
    title = None
    for line in done.stdout.splitlines():
        heading = re.fullmatch(r"_{3,} (.+?) _{3,}", line)
        if heading:
            title = heading[1]
            found[title] = []
        elif line.startswith(("====", "----")):
            title = None
        elif title is not None:
            found[title].append(line)
    return found


def outcomes(done: subprocess.CompletedProcess[str]) -> Counter[str]:
    return Counter(re.findall(r"^(FAILED|ERROR) ", done.stdout, re.MULTILINE))


def counted(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """How many tests passed, failed, were skipped …, by pytest's last line."""
    return {
        what: int(count)
        for count, what in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1].partition(" in ")[0])
    }


def test_every_kind_of_test_is_recorded_once_and_replayed(suite: Suite) -> None:
    """Functions, parameters, fixtures, unittest, pytest-asyncio and anyio: each has a trace of its own, and replays it, with xdist too.

    What a fixture does for several tests is in none of their runs. Nothing else is written beside the tests, and git ignores the rest.
    """
    suite.file("test_kinds.py", KINDS)
    expected = sorted(
        [
            "a",
            "a-b",
            "a/b",
            "anyio",
            "async unittest",
            "asyncio",
            "class",
            "fixture",
            "marked",
            "named",
            "one",
            "path",
            "two",
            "unittest",
        ]
    )
    passed(suite.run("--record-mode=once"), 14)
    assert suite.effects == expected
    assert [*suite.traces("kept"), *suite.traces()] == [
        "elsewhere.jsonl",
        "test_kinds/TestOfAClass.test_it.jsonl",
        "test_kinds/TestOfAsyncUnittest.test_it.jsonl",
        "test_kinds/TestOfUnittest.test_it.jsonl",
        "test_kinds/test_fixture.jsonl",
        "test_kinds/test_marked.jsonl",
        "test_kinds/test_of_a_fixture.jsonl",
        "test_kinds/test_of_anyio.jsonl",
        "test_kinds/test_of_asyncio.jsonl",
        "test_kinds/test_of_parameters[a-b]-89617d5e.jsonl",
        "test_kinds/test_of_parameters[a-b].jsonl",
        "test_kinds/test_of_parameters[a].jsonl",
        "test_kinds/test_that_records_itself.jsonl",
    ]
    assert (suite.root / ".tracekit/.gitignore").read_text() == "*\n"
    assert list((suite.root / ".tracekit/tests").iterdir()) == []
    passed(suite.run("-n", "2"), 14)
    assert suite.effects == []
    passed(suite.run("--record-mode=once"), 14)
    assert suite.effects == []


def test_a_test_without_a_recording_fails_before_it_does_anything(suite: Suite) -> None:
    """In the mode ``none``, the default, and the one of CI unless the command line says otherwise, which its report names."""
    suite.file("test_one.py", "import pytest\nfrom agent import remind\n@pytest.fixture\ndef sent(): return remind('x')\n"
               "@pytest.mark.tracekit\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(sent, n): pass\n")  # fmt: skip
    with (suite.root / "pytest.ini").open("a") as file:
        file.write("tracekit_record_mode = once\n")
    done = suite.run(CI="true")
    assert outcomes(done) == {"FAILED": 2}, done.stdout
    assert reports(done)["test_it[2]"] == [
        "the test has no recording",
        "  trace   traces/test_one/test_it[2].jsonl",
        "  record  pytest 'test_one.py::test_it[2]' --record-mode=once",
    ]
    assert suite.effects == []
    passed(suite.run(), 2)
    assert suite.effects == ["x", "x"]


def test_a_test_in_which_nothing_is_captured_fails_when_it_is_recorded(suite: Suite) -> None:
    """It does not wait until its replay fails in CI; no trace is written, and nothing offers to record the same again."""
    suite.file("test_none.py", "import os, pytest\nfrom agent import remind\n@pytest.fixture(autouse=True)\ndef around():\n    yield\n"
               "@pytest.mark.tracekit\ndef test_it():\n    if os.path.exists('sends'): remind('x')\n")  # fmt: skip
    trace = suite.root / "traces/test_none/test_it.jsonl"
    advice = [
        "  next    have the test's calls captured: a client that tracekit knows, or @traced_tool; then record it:",
        "          pytest test_none.py::test_it --record-mode=once",
        "          a test that asks for nothing needs no recording: take the mark, or the fixture tracekit_run, off it",
    ]
    for mode in ("once", "new_episodes", "all", "rewrite"):
        done = suite.run(f"--record-mode={mode}")
        assert outcomes(done) == {"FAILED": 1}, done.stdout
        assert "nothing was captured while the test was recorded" in done.stdout
        assert reports(done)["test_it"][-len(advice) :] == advice
        assert not trace.exists()
    suite.file("sends", "")
    passed(suite.run("--record-mode=once"), 1)
    (suite.root / "sends").unlink()
    before = trace.read_bytes()
    done = suite.run("--tracekit-update")
    assert outcomes(done) == {"FAILED": 1}, done.stdout
    assert trace.read_bytes() == before


SKIPPED = """
import os, sys
import pytest
from agent import remind

pytestmark = pytest.mark.tracekit(live_env=["WHOM"])

@pytest.mark.skip(reason="not here")
def test_skip(): remind("skip")
@pytest.mark.skipif(True, reason="not here")
def test_skipif(): remind("skipif")
@pytest.mark.xfail(run=False, reason="hangs")
def test_not_run(): remind("not run")
@pytest.mark.xfail(reason="known")
def test_expected():
    remind(os.environ.get("WHOM", "expected"))
    assert 0
def test_ok(): remind("ok")
"""


def test_what_is_skipped_or_fails_as_expected(suite: Suite) -> None:
    """A skipped test asks for no recording, and one that fails as expected has one: it is replayed as far as it goes."""
    suite.file("test_skips.py", SKIPPED)
    expected = {"passed": 1, "skipped": 2, "xfailed": 2}
    assert counted(suite.run("--record-mode=once")) == expected
    assert suite.effects == ["expected", "ok"]
    for how in ((), ("-n", "2")):
        assert counted(suite.run(*how)) == expected
    assert suite.effects == []
    done = suite.run(WHOM="somebody else")  # no failure that was expected
    assert counted(done) == {**expected, "xfailed": 1, "failed": 1}, done.stdout
    assert "the test does something else" in done.stdout
    (suite.root / "traces/test_skips/test_expected.jsonl").unlink()
    done = suite.run()
    assert counted(done) == {**expected, "xfailed": 1, "failed": 1}, done.stdout
    assert "the test has no recording" in done.stdout
    assert suite.effects == []


def test_one_that_skips_itself_is_listed_where_it_was_to_be_recorded(suite: Suite) -> None:
    """Where it would skip in CI nobody knows: it has no recording, and whoever records hears that."""
    suite.file("test_skips.py", "import pytest\nfrom agent import remind\n@pytest.mark.tracekit\ndef test_it():\n"
               "    remind('x')\n    pytest.skip('not here')\n")  # fmt: skip
    done = suite.run("--record-mode=once")
    assert counted(done) == {"skipped": 1}, done.stdout
    assert re.search(r"not recorded: the test skipped itself.*\n.*test_skips.py::test_it\n", done.stdout), done.stdout
    assert not (suite.root / "traces").exists()


def test_an_input_that_is_another_one_names_the_mark_that_lets_it_count(suite: Suite) -> None:
    """All of them, in the form in which a test takes them."""
    suite.file("test_in.py", "import os, pytest\nfrom agent import remind\n@pytest.mark.tracekit\ndef test_it():\n"
               "    os.environ.get('PLACE'), os.environ.get('WAY')\n    remind('x')\n")  # fmt: skip
    passed(suite.run("--record-mode=once"), 1)
    done = suite.run(PLACE="here", WAY="there")
    assert outcomes(done) == {"FAILED": 1}, done.stdout
    assert "let today's count: @pytest.mark.tracekit(live_env=['PLACE', 'WAY'])" in done.stdout
    assert "--live-env" not in done.stdout


FAILING = """
import os, socket
import pytest
from agent import remind, send

@pytest.fixture
def sent():
    return remind("fixture", os.environ.get("PROMPT", "Hello"))

@pytest.mark.tracekit(live_env=["PROMPT"])
def test_changed():
    try:
        remind("changed", os.environ.get("PROMPT", "Hello"))
    except Exception:
        pass

@pytest.mark.tracekit(live_env=["PROMPT"])
def test_fixture(sent):
    pass

@pytest.mark.tracekit(live_env=["PROMPT"])
def test_less():
    remind("first")
    if "PROMPT" not in os.environ:
        remind("second")

@pytest.mark.tracekit(live_env=["PROMPT"])
def test_live():
    remind("first")
    if "PROMPT" in os.environ:
        socket.create_connection(("127.0.0.1", 9))

@pytest.mark.tracekit(live_env=["PROMPT"])
def test_assertion():
    assert remind("x") == ("sent to x" if "PROMPT" not in os.environ else "another")
"""


def test_a_failure_is_one_short_report(suite: Suite) -> None:
    """At most 40 lines: what differs, the lines of the user's own code, the trace, and what to do; once, whichever part of the test failed.

    An ordinary failure of a test is shown as ever, without frames of tracekit.
    """
    suite.file("test_failing.py", FAILING)
    passed(suite.run("--record-mode=once"), 5)
    prompt = "\n".join(f"line {n} of a long prompt" for n in range(300))
    done = suite.run(PROMPT=prompt, CI="1")  # where pytest's summary cuts no message
    assert outcomes(done) == {"FAILED": 5}, done.stdout
    summary = done.stdout.partition("short test summary info")[2]
    assert "the test does less than its recording" in summary
    assert not any(line.startswith(("  trace ", "  where ", "  update ")) for line in summary.splitlines()), summary
    found = reports(done)
    assert all(len(lines) <= 40 for lines in found.values())
    changed = found["test_changed"]
    assert changed[0].startswith(
        "the test does something else than its recording: the program's tool 'send' is not the recorded step"
    )
    assert any(line.startswith("    +line 0 of a long prompt") for line in changed)
    assert changed[-5].startswith("  where   test_failing.py:13 in test_changed: remind(")
    assert changed[-4].startswith("          agent.py:13 in remind: return send(")
    assert re.fullmatch(r"  trace   traces/test_failing/test_changed.jsonl, step \d+", changed[-3])
    assert re.fullmatch(r"  show    tracekit show traces/test_failing/test_changed.jsonl \d+", changed[-2])
    assert changed[-1].startswith("  update  pytest test_failing.py::test_changed --tracekit-update")
    assert found["test_fixture"][0].startswith("the test does something else than its recording")
    assert found["test_less"][0].startswith("the test does less than its recording: ")
    assert found["test_live"][0].startswith("the test would go live: the replay was about to connect to 127.0.0.1:9")
    assert any("assert remind(" in line for line in found["test_assertion"])
    for frames in ("site-packages", "src/tracekit", "tracekit_pytest", "the replay has failed", "Captured stderr"):
        assert frames not in done.stdout
    assert len(suite.effects) == 6


ASYNCHRONOUS = """
import asyncio, os, unittest
import pytest
from agent import send

pytestmark = pytest.mark.tracekit(live_env=["PROMPT"])

class Client:
    async def __aenter__(self):
        return self
    async def __aexit__(self, *error):
        send("closed", "the client")

async def remind(customer):
    async with Client():
        return send(customer, os.environ.get("PROMPT", "Hello"))

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.asyncio
async def test_of_asyncio():
    await remind("asyncio")

@pytest.mark.anyio
async def test_of_anyio():
    await asyncio.gather(remind("gather"), asyncio.sleep(0))

@pytest.mark.anyio
async def test_of_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(remind("group"))

class TestClass(unittest.IsolatedAsyncioTestCase):
    async def test_of_unittest(self):
        await remind("unittest")
"""


def test_a_failure_in_an_asynchronous_test_is_one_short_report(suite: Suite) -> None:
    """Whatever runs the test's task: it does not end with the replay's failure, and asyncio prints nothing at its end. The line of the
    test is the first, also where code on the way, such as the end of an ``async with``, is refused too."""
    suite.file("test_async.py", ASYNCHRONOUS)
    passed(suite.run("--record-mode=once"), 4)
    done = suite.run(PROMPT="Good evening")
    assert outcomes(done) == {"FAILED": 4}, done.stdout
    assert "never retrieved" not in done.stdout + done.stderr
    found = reports(done)
    for title, line in {
        "test_of_asyncio": 'in test_of_asyncio: await remind("asyncio")',
        "test_of_anyio": 'in test_of_anyio: await asyncio.gather(remind("gather"), asyncio.sleep(0))',
        "TestClass.test_of_unittest": 'in test_of_unittest: await remind("unittest")',
    }.items():
        (first,) = (one for one in found[title] if one.startswith("  where "))
        assert line in first, found[title]
    for lines in found.values():
        assert len(lines) <= 40
        assert lines[0].startswith("the test does something else than its recording"), lines
        assert any("in remind: return send(customer" in line for line in lines)
    done = suite.run("--tracekit-update", PROMPT="Good evening")
    passed(done, 4)
    assert "never retrieved" not in done.stdout + done.stderr


def test_both_sides_of_a_text_are_shown_where_every_line_has_changed(suite: Suite) -> None:
    """A prompt that was rewritten: the report has lines of the recorded one and of the present one."""
    suite.file("test_failing.py", FAILING)
    prompts = ["\n".join(f"{word} {n} of a long prompt" for n in range(60)) for word in ("rule", "line")]
    passed(suite.run("--record-mode=once", "-k", "changed", PROMPT=prompts[0]), 1)
    (lines,) = reports(suite.run("-k", "changed", PROMPT=prompts[1])).values()
    assert len(lines) <= 40
    for sign, word in zip("-+", ("rule", "line"), strict=True):
        assert sum(line.startswith(f"    {sign}") and word in line for line in lines) >= 8, lines
    assert sum("more lines" in line for line in lines) == 2, lines


def test_an_update_that_fails_shows_its_own_failure_alone(suite: Suite) -> None:
    """A recording that fails after the replay did: the report is of the recording."""
    text = "from agent import remind\nimport os, pytest\n@pytest.mark.tracekit(live_env=['NOW'])\ndef test_it():\n"
    suite.file("test_it.py", text + "    remind(os.environ.get('NOW', 'then'))\n    assert 'NOW' not in os.environ\n")
    passed(suite.run("--record-mode=once"), 1)
    done = suite.run("--tracekit-update", NOW="now")
    assert outcomes(done) == {"FAILED": 1}
    assert "the test failed while it was recorded" in done.stdout
    assert "the replay has failed" not in done.stdout
    assert "divergence" not in done.stdout


def test_a_temporary_directory_that_differs_is_named(suite: Suite) -> None:
    """pytest's ``tmp_path`` is another one in each run: a report in whose difference it stands says so, and how to leave the field out."""
    suite.file(
        "test_path.py", "from agent import remind\ndef test_it(tmp_path, tracekit_run): remind('x', str(tmp_path))\n"
    )
    place = {"PYTEST_DEBUG_TEMPROOT": str(suite.root)}
    passed(suite.run("--record-mode=once", **place), 1)
    done = suite.run(**place)
    assert "  note    pytest's tmp_path is a new directory each time" in done.stdout
    assert "@pytest.mark.tracekit(ignore={'tool:send': ['input.text']})," in done.stdout
    always = f"--basetemp={suite.root / 'always'}"
    passed(suite.run("--record-mode=all", always), 1)
    passed(suite.run(always), 1)
    suite.file(
        "test_path.py",
        "import pytest\nfrom agent import remind\n@pytest.mark.tracekit(ignore={'tool:send': ['input.text']})\n"
        "def test_it(tmp_path, tracekit_run): remind('x', str(tmp_path))\n",
    )
    passed(suite.run(**place), 1)


def test_a_whole_session_is_not_recorded_around_tests_with_runs_of_their_own(suite: Suite) -> None:
    """Under ``tracekit run``, or in a ``record()`` block, such a test fails before it does anything, and its report says how to go on:
    in every mode, so that no trace is made in which other tests are not."""
    suite.file("test_one.py", "import pytest\nfrom agent import remind\n@pytest.mark.tracekit\ndef test_it(): remind('x')\n"
               "def test_other(): remind('y')\n")  # fmt: skip
    passed(suite.run("--record-mode=once"), 2)
    before = (suite.root / "traces/test_one/test_it.jsonl").read_bytes()
    suite.file(
        "conftest.py",
        "import pytest\nfrom tracekit import record\n@pytest.fixture(scope='session', autouse=True)\ndef whole():\n"
        "    with record('session'): yield\n",
    )
    for mode in ("none", "all"):
        assert suite.effects
        done = suite.run(f"--record-mode={mode}")
        assert outcomes(done) == {"FAILED": 1}, done.stdout
        report = reports(done)["test_it"]
        assert report[0].startswith("the test has a run of its own, and another one is open around it (`tracekit run`")
        assert report[-2].startswith("  next    pytest test_one.py::test_it    (without `tracekit run`")
    assert suite.effects == ["y"]
    assert (suite.root / "traces/test_one/test_it.jsonl").read_bytes() == before


def test_a_trace_of_a_test_is_replayed_and_debugged_by_its_command(suite: Suite) -> None:
    """``tracekit replay`` and ``debug`` name the command for such a trace; there the test's own replay is the one that they watch, with
    what its mark says, and another test reaches nothing live."""
    suite.file("test_one.py", "import pytest\nfrom agent import remind\n@pytest.mark.tracekit(ignore={'tool:send': ['input.text']})\n"
               "def test_it(tmp_path): remind('x', str(tmp_path))\ndef test_other(): remind('y')\n")  # fmt: skip
    passed(suite.run("--record-mode=once"), 2)
    assert suite.effects == ["x", "y"]
    trace = "traces/test_one/test_it.jsonl"
    environment = {name: value for name, value in os.environ.items() if name != "TRACEKIT_DIR"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

    def tracekit(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        main = ("-c", "from tracekit.cli import main; main()")
        return python(*main, *arguments, cwd=suite.root, env=environment, input=typed, imports=processes.PYTEST)

    refused = tracekit("debug", trace)
    assert refused.returncode == 2
    assert f"tracekit debug {trace} -- -m pytest test_one.py::test_it" in refused.stderr
    one = (trace, "--", *PYTEST, *IS_LOADED, "test_one.py::test_it")
    done = tracekit("replay", *one)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact but for" in done.stderr
    done = tracekit("debug", *one, typed="p customer\nc\nq\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "send(to=x" in done.stdout
    assert "(debug) 'x'" in done.stdout
    both = tracekit("replay", *one[:-1], "test_one.py")
    assert both.returncode == 1
    assert "the test would go live: tool 'send' was called outside the replayed run" in both.stdout
    assert suite.effects == []


def test_update_records_those_again_that_are_not_as_they_were(suite: Suite) -> None:
    """Those whose replay fails, or that have no recording, and no others. What no test uses any more is listed."""
    suite.file(
        "test_update.py",
        """
import os, pytest
from agent import remind
pytestmark = pytest.mark.tracekit(live_env=["NOW"])
def test_same(): remind("same")
def test_other(): remind(os.environ.get("NOW", "then"))
def test_new(): remind("new")
""",
    )
    passed(suite.run("--record-mode=once", "-k", "not new"), 2)
    assert suite.effects == ["same", "then"]
    same, other = (suite.root / "traces/test_update" / name for name in ("test_same.jsonl", "test_other.jsonl"))
    before = same.read_bytes(), other.read_bytes()
    (suite.root / "traces/test_update/test_old.jsonl").write_bytes(before[0])
    done = suite.run("--tracekit-update", "-n", "1", NOW="now")
    passed(done, 3)
    assert suite.effects == ["new", "now"]
    assert same.read_bytes() == before[0]
    assert other.read_bytes() != before[1]
    summary = done.stdout.partition("traces recorded -")[2]
    recorded, _, unused = summary.partition("traces that no test uses -")
    assert re.findall(r"^traces/.*$", recorded, re.MULTILINE) == [
        "traces/test_update/test_new.jsonl",
        "traces/test_update/test_other.jsonl",
    ]
    assert re.findall(r"^traces/.*$", unused, re.MULTILINE) == ["traces/test_update/test_old.jsonl"]
    passed(suite.run(NOW="now"), 3)
    assert "test_old" not in suite.run("test_update.py::test_same", NOW="now").stdout


def test_new_episodes_are_appended_past_the_end_only(suite: Suite) -> None:
    """What the recording has is answered, what comes after it is made and appended; a call in between is a difference."""
    body = "import os, pytest\nfrom agent import remind\npytestmark = pytest.mark.tracekit\nWHO = os.environ.get('MORE', 'a b')\n"
    suite.file(
        "test_more.py", body + "def test_it():\n    print('the test runs')\n    for who in WHO.split(): remind(who)\n"
    )
    passed(suite.run("--record-mode=once"), 1)
    trace = suite.root / "traces/test_more/test_it.jsonl"
    before = trace.read_bytes()
    assert suite.effects == ["a", "b"]
    passed(suite.run("--record-mode=new_episodes"), 1)
    assert (suite.effects, trace.read_bytes()) == ([], before)
    done = suite.run("--record-mode=new_episodes", "-s", "-p", "no:xdist", MORE="a x b")
    assert (outcomes(done), suite.effects, trace.read_bytes()) == ({"FAILED": 1}, [], before), done.stdout
    assert done.stdout.count("the test runs") == 1
    assert "--tracekit-update" in reports(done)["test_it"][-1]
    passed(suite.run("--record-mode=new_episodes", MORE="a b c d"), 1)
    assert suite.effects == ["c", "d"]
    passed(suite.run(MORE="a b c d"), 1)
    with Trace(str(trace)) as opened:
        assert opened.check().state == "complete"


def test_the_recording_of_a_test_that_fails_takes_no_place(suite: Suite) -> None:
    """The trace stays as it was, and what was recorded is kept elsewhere, which the report says."""
    suite.file(
        "test_bad.py",
        """
import os, pytest
from agent import remind
BAD = "BAD" in os.environ
@pytest.mark.tracekit
def test_it():
    remind("x")
    assert not BAD
""",
    )
    passed(suite.run("--record-mode=once"), 1)
    trace = suite.root / "traces/test_bad/test_it.jsonl"
    before = trace.read_bytes()
    done = suite.run("--record-mode=all", BAD="1")
    assert outcomes(done) == {"FAILED": 1}
    assert trace.read_bytes() == before
    (kept,) = re.findall(r"^  recorded  (\S+)$", done.stdout, re.MULTILINE)
    assert f"  show      tracekit show {kept}\n" in done.stdout
    assert "so traces/test_bad/test_it.jsonl is as it was\n" in done.stdout
    with Trace(str(suite.root / kept)) as opened:
        assert opened.check().end == "run.failed"
    done = suite.run("--record-mode=rewrite", BAD="1")
    assert (outcomes(done), trace.exists()) == ({"FAILED": 1}, False)
    assert "so there is no traces/test_bad/test_it.jsonl\n" in done.stdout


def test_the_network_can_be_blocked_for_all_tests(suite: Suite) -> None:
    """``--block-network``: no test reaches it, whatever it catches, but for allowed hosts, and for those that are being recorded."""
    suite.file(
        "test_network.py",
        """
import socket, threading
import pytest
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def reach(port):
    with socket.create_connection(("127.0.0.1", port)):
        return "reached"

@pytest.fixture(scope="module")
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]

def test_plain(port):
    try:
        reach(port)
    except Exception:
        pass

@pytest.mark.tracekit
def test_recorded():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert reach(server.getsockname()[1]) == "reached"
""",
    )
    done = suite.run("--block-network", "--record-mode=once")
    assert outcomes(done) == {"FAILED": 1}, done.stdout
    lines = reports(done)["test_plain"]
    assert lines[0].startswith("the network is blocked: the program was about to connect to 127.0.0.1:")
    assert lines[1].startswith("  where   test_network.py:18 in test_plain: reach(port)")
    passed(suite.run("--block-network", "--tracekit-allow-host=127.0.0.1", "-k", "plain"), 1)


def test_a_suite_that_does_not_use_it_pays_nothing(suite: Suite) -> None:
    """tracekit is imported when the first test that uses it is collected, and not before."""
    suite.file("test_plain.py", "import sys\ndef test_it(): assert [name for name in sys.modules if name.startswith('tracekit.') or "
               "name == 'tracekit'] == []\n")  # fmt: skip
    passed(suite.run("test_plain.py", fresh=True), 1)


def test_the_process_that_hands_tests_to_workers_does_not_import_tracekit(suite: Suite) -> None:
    """With pytest-xdist the workers replay; the process that prints what they did has no use for tracekit, and does not wait for it."""
    suite.file(
        "test_marked.py", "import pytest\nfrom agent import remind\n@pytest.mark.tracekit\ndef test_it(): remind('a')\n"
    )
    suite.file("conftest.py", "import sys\ndef pytest_unconfigure(config):\n"
               "    if not hasattr(config, 'workerinput'): print('imported:', 'tracekit' in sys.modules)\n")  # fmt: skip
    done = suite.run("--record-mode=once", "-n", "1", fresh=True)
    passed(done, 1)
    assert "traces/test_marked/test_it.jsonl\n" in done.stdout
    assert "imported: False" in done.stdout


@pytest.mark.parametrize("of", ["plugin", "group", "conftest"])
def test_beside_pytest_recording_the_options_are_shared(of: str, suite: Suite) -> None:
    """Another plugin, or a conftest file, that has ``--record-mode`` and ``--block-network``, in a group of its own or in none: it is
    loaded before or after this plugin, and both get what was given."""
    suite.file(
        "conftest.py" if of == "conftest" else "other_recording.py",
        f"def pytest_addoption(parser):\n    group = parser.getgroup('recording') if {of == 'group'} else parser\n"
        "    group.addoption('--record-mode', choices=('none', 'once'))\n    group.addoption('--block-network', action='store_true')\n",
    )
    suite.file("test_one.py", "from agent import remind\ndef test_it(tracekit_run, request):\n    remind('x')\n"
               "    assert request.config.getoption('--record-mode') == 'once'\n")  # fmt: skip
    loaded = () if of == "conftest" else ("-p", "other_recording")
    passed(suite.run(*loaded, "--record-mode=once", PYTHONPATH=str(suite.root)), 1)
    assert suite.traces() == ["test_one/test_it.jsonl"]


def test_a_client_of_a_module_needs_no_key_to_be_replayed(suite: Suite) -> None:
    """The OpenAI client that a module makes while it is imported gets a placeholder; its answers come from the trace."""
    suite.file(
        "test_sdk.py",
        """
import pytest
from openai import OpenAI

client = OpenAI()

@pytest.mark.tracekit
def test_it():
    answer = client.chat.completions.create(model="tiny-1", messages=[{"role": "user", "content": "Hello"}])
    assert answer.choices[0].message.content == "Good day."
""",
    )
    with ScriptedModel("Good day.").served() as url:
        passed(suite.run("--record-mode=once", OPENAI_BASE_URL=f"{url}/v1", OPENAI_API_KEY="sk-0123456789"), 1)
    passed(suite.run(OPENAI_BASE_URL="http://127.0.0.1:9/v1"), 1)


MOVED = """
import pytest
from urllib.request import urlopen
from agent import remind

class TestMoved:
    @pytest.mark.tracekit
    @pytest.mark.parametrize("name", ["a/b", "x y"])
    def test_get(self, name, tracekit_run):
        assert urlopen("http://api.example.org/get?name=" + name.replace(" ", "+")).read().decode() == name
        assert tracekit_run.recording or tracekit_run.report.verdict.allowed

@pytest.mark.tracekit
@pytest.mark.parametrize("name", ["c/d"])
def test_no_more(name):
    assert remind("moved") == "sent to moved"
"""


def test_what_a_marker_says_of_a_replay_holds_with_new_episodes(suite: Suite) -> None:
    """Fields that are left out, and today's variables: a test that makes nothing new is replayed as in every other mode."""
    suite.file(
        "test_options.py",
        """
import os
import pytest
from agent import remind

@pytest.mark.tracekit(ignore={"tool:send": ["input.text"]}, live_env=["NAME"])
def test_it(tracekit_run):
    assert remind("acme", os.environ["NAME"]) == "sent to acme"
    assert not tracekit_run.recording or os.environ["NAME"] == "then"
""",
    )
    passed(suite.run("--record-mode=new_episodes", "-p", "no:xdist", NAME="then"), 1)
    before = [(suite.root / "traces" / name).read_bytes() for name in suite.traces()]
    passed(suite.run("--record-mode=new_episodes", "-p", "no:xdist", NAME="now"), 1)
    assert suite.effects == ["acme"]
    assert [(suite.root / "traces" / name).read_bytes() for name in suite.traces()] == before


def test_imported_traces_are_found_by_the_names_of_their_cassettes(suite: Suite) -> None:
    """As pytest-recording names them. They are replayed where others are replayed and gone on with; a new recording takes their place."""
    suite.file("test_moved.py", MOVED)
    cassettes = suite.root / "cassettes" / "test_moved"
    cassettes.mkdir(parents=True)
    for test, name in (("TestMoved.test_get", "a/b"), ("TestMoved.test_get", "x y"), ("test_no_more", "c/d")):
        uri = f"http://api.example.org/get?name={name.replace(' ', '+')}"
        response = {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": name}}
        one = {"request": {"method": "GET", "uri": uri, "body": None, "headers": {}}, "response": response}
        file = cassettes / f"{test}[{name.replace('/', '-')}].json"
        file.write_text(json.dumps({"version": 1, "interactions": [one]}))
    done = CliRunner().invoke(main, ["import", "vcr", str(cassettes.parent), "-o", str(suite.root / "traces")])
    assert done.exit_code == 0, done.output
    done = suite.run("--record-mode=new_episodes", "-p", "no:xdist")
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "the test does less than its recording" in done.stdout
    assert "traces that no test uses" not in done.stdout
    passed(suite.run("--tracekit-update", "-p", "no:xdist"), 3)
    assert [re.sub("-[0-9a-f]{8}[.]", "-#.", name) for name in suite.traces()] == [
        "test_moved/TestMoved.test_get[a-b].jsonl",
        "test_moved/TestMoved.test_get[x y].jsonl",
        "test_moved/test_no_more[c-d]-#.jsonl",
    ]


def test_fixtures_that_end_after_a_replay_call_no_tool(suite: Suite) -> None:
    """Those of the test alone: what they would clean up was never made. Those of a module are in no run, and end as they began."""
    suite.file(
        "test_cleaning.py",
        """
import os
import pytest
from agent import remind

@pytest.fixture(scope="module")
def for_all():
    yield
    remind("for all")

@pytest.fixture
def cleaned(for_all, monkeypatch):
    monkeypatch.setenv("CHANGED", "1")
    yield
    try:
        remind("cleaned")
    except Exception:
        pass

@pytest.fixture
def careful(tracekit_run):
    yield
    if tracekit_run.recording:
        remind("careful")

@pytest.mark.tracekit
def test_plain(cleaned):
    remind("plain")

def test_careful(careful):
    assert "CHANGED" not in os.environ
    remind("test")
""",
    )
    passed(suite.run("--record-mode=once", "-p", "no:randomly", "-p", "no:xdist"), 2)
    assert suite.effects == ["careful", "cleaned", "for all", "plain", "test"]
    done = suite.run("-p", "no:xdist")
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "tool 'send' was called after the end of a replay" in done.stdout
    assert "if tracekit_run.recording" in done.stdout
    assert suite.effects == ["for all"]


def test_nothing_is_kept_of_a_replay_whose_test_has_ended(suite: Suite) -> None:
    """Its trace and its steps are gone when the next test begins: a suite takes no more memory, the more tests it has. Who has asked for
    the run of a test has all of it as long as that is wanted."""
    suite.file("test_many.py", "import gc, pytest\nfrom agent import remind\nfrom tracekit.integration import Trace\nwanted = []\n"
               "@pytest.mark.tracekit\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n):\n    remind(str(n))\n"
               "def test_asked_for(tracekit_run):\n    wanted.append(tracekit_run)\n    remind('me')\n"
               "def test_after_them():\n    gc.collect()\n"
               "    assert sum(type(one) is Trace for one in gc.get_objects()) <= 1\n"
               "    assert wanted[0].report is None or wanted[0].report.verdict.answer == 'exact'\n")  # fmt: skip
    passed(suite.run("--record-mode=once"), 6)
    passed(suite.run(), 6)
