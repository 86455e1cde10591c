"""Commands and forms of other packages: found when the command line runs, and a broken one breaks nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import tracekit
from tests.support.processes import python

CLI = "from tracekit.cli import main; main()"
ANNOUNCED = """\
[tracekit.commands]
greet = other_package.greeting:greet
broken = other_package.broken:command
leaves = other_package.leaves:command
nothing = other_package.greeting:WORDS
twice = other_package.greeting:greet
list = other_package.greeting:greet

[tracekit.forms]
words = other_package.greeting:words
bad = other_package.broken:form
"""
GREETING = '''\
import click
from tracekit.integration import Form, Trace

WORDS = "hello"

@click.command()
@click.argument("who")
def greet(who):
    """Greet somebody.

    At length.
    """
    click.echo(f"{WORDS} {who}")

class Words(Form):
    name = "words"
    summary = "the names of its steps."

    def export(self, traces, *, payloads=False):
        for trace in traces:
            for entry in trace.entries():
                if "name" in entry:
                    yield entry["name"].encode() + b"\\n"

    def schema(self):
        return {"type": "string"}

    def recognises(self, path):
        return path.endswith(".words")

    def recorded(self, path):
        with open(path, "rb") as file:
            return sorted(file)

words = Words()
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of packages, in which somebody has installed two, and a run in a store."""
    package = tmp_path / "other_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "greeting.py").write_text(GREETING)
    (package / "broken.py").write_text("import a_module_that_is_not_there\n")
    (package / "leaves.py").write_text("raise SystemExit(0)\n")
    for name, announced in (
        ("other", ANNOUNCED),
        ("third", "[tracekit.commands]\ntwice = other_package.broken:command\n"),
    ):
        info = tmp_path / f"{name}_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(announced)
    with tracekit.record("named", store=tmp_path / "store", run_id="named-run"):
        tracekit.decision("turn", input=1, output="left")
    return tmp_path


def call(place: Path, *arguments: str, code: str = CLI, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRACEKIT_DIR": str(place / "store")}
    return python("-c", code, *arguments, env=environment, fresh=fresh)


def test_a_command_of_another_package_is_one_of_tracekits(place: Path) -> None:
    """It stands in the help with its first sentence, has help of its own, and runs."""
    assert call(place, "greet", "world").stdout == "hello world\n"
    assert "At length." in call(place, "greet", "--help").stdout
    listed = {line.split()[0]: line for line in call(place, "--help").stdout.splitlines() if line.startswith("  ")}
    assert listed["greet"].split(maxsplit=1)[1] == "Greet somebody."
    assert {"route", "import", "show"} <= listed.keys()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (
            "broken",
            "of the package other-package can't be loaded: ModuleNotFoundError: No module named 'a_module_that_",
        ),
        ("leaves", "of the package other-package can't be loaded: SystemExit: 0"),
        ("nothing", "is not a click command: 'hello'"),
        ("twice", "several packages have a command 'twice': other-package, third-package"),
    ],
)
def test_a_command_that_can_not_be_had_says_why(place: Path, command: str, problem: str) -> None:
    """Exit code 2, the package and what is wrong with it, with ``--help`` too, and no traceback."""
    for arguments in ((command,), (command, "--help")):
        done = call(place, *arguments)
        assert done.returncode == 2
        assert problem in done.stderr
        assert "Traceback" not in done.stderr


def test_a_broken_command_takes_nothing_else_down(place: Path) -> None:
    """The help lists it, the other commands work, and nobody takes the place of a command of tracekit's own."""
    help = call(place, "--help")
    assert help.returncode == 0, help.stderr
    assert "(of the package other-package)" in help.stdout
    done = call(place, "list", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_id"] == "named-run"


def test_commands_are_looked_for_by_the_command_line_alone(place: Path) -> None:
    """A program that imports tracekit, records and replays loads nothing of what is announced, nor of agents or the harness."""
    code = (
        "import sys, tracekit\n"
        "with tracekit.record() as run: tracekit.decision('turn', input=1, output='left')\n"
        "with tracekit.replay(run): tracekit.decision('turn', input=1, output='left')\n"
        "names = ('other_package', 'tracekit.agents', 'tracekit.harness', 'tracekit.cli', 'click')\n"
        "print([name for name in sys.modules if name.startswith(names)])"
    )
    done = call(place, code=code, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_a_form_of_another_package(place: Path) -> None:
    """Runs are written in it, its schema is printed, and a file in it is served; ``--payloads`` is for forms that have them."""
    done = call(place, "export", "named-run", "--to", "words", fresh=True)
    assert done.stdout == "named\nturn\n", done.stderr
    assert "words: the names of its steps." in " ".join(call(place, "export", "--help", fresh=True).stdout.split())
    assert json.loads(call(place, "schema", "words", fresh=True).stdout) == {"type": "string"}
    assert "the form 'bad' could not be loaded" in done.stderr  # and the others are there
    unknown = call(place, "schema", "numbers", fresh=True)
    assert unknown.returncode == 2
    assert "'words'" in unknown.stderr
    (place / "some.words").write_text("two\none\n")
    served = call(place, "verify-determinism", "--json", str(place / "some.words"), fresh=True)
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["form"] == "words"
    refused = call(place, "export", "named-run", "--to", "words", "--payloads", fresh=True)
    assert refused.returncode == 2
    assert "only --to inter-agent" in refused.stderr
    assert "has payloads apart" in refused.stderr
