"""The agents of ``examples/`` do what they did when their runs were recorded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.pages import commands_on_path
from tests.support.processes import PYTEST, SDKS, command, python

ROOT = Path(__file__).parents[2]


def test_the_examples_pass_their_tests() -> None:
    """In a process of their own, as their page says: the plugin captures the SDKs for the whole of a suite."""
    # A plugin of pytest may be imported there already.
    options = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    done = python("-m", "pytest", "-q", *options, "examples", cwd=ROOT, imports=SDKS, seeds=("0",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_the_commands_of_the_page_work_as_written(tmp_path: Path) -> None:
    """From a clone with an empty store, in the order of the page up to the change that breaks a replay, each with its output."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    page, _, _ = (ROOT / "examples" / "README.md").read_text(encoding="utf-8").partition("## Break it")
    written = [line for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    commands = [line.removeprefix("$ ").replace("/tmp/", f"{tmp_path}/") for line in written if line.startswith("$ ")]
    variables = {name: value for name, value in os.environ.items() if name not in ("TRACEKIT_DIR", "CI")}
    ours = commands_on_path(tmp_path / "bin", command(imports=SDKS), command(imports=PYTEST))
    variables["PATH"] = f"{ours}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in written:
        if not line.startswith("$ ") and "…" not in line:
            assert line in done.stdout, line
    assert done.stdout.count("(payment provider:") == 1  # the replay pays nothing
