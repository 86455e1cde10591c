"""What replayed tests cost under pytest, beside pytest-recording: the same tests, the same calls, two workers.

``python -m benchmarks.pytest_plugin [--tests 300] [--workers 2] [--rounds 3]``, in an environment with ``pytest-recording`` and
``pytest-xdist``. Each test asks a model once by the OpenAI SDK. A scripted model is recorded by both plugins, in one worker, as
often as there are rounds. Then the suite is replayed by each in turn. The least of all rounds counts: the machine is never quiet,
and can only be slower. A suite of the same tests without any call says what pytest and its workers take. What is compiled is kept
in a directory of the benchmark's own, and written before the first round, as installed packages have it. Where others work beside
it, look at the processor time of all processes, not at the wall clock.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tracekit.testing import ScriptedModel

TEST = """
import pytest
from openai import OpenAI

@pytest.fixture(scope="session")
def client():
    return OpenAI()

{mark}
@pytest.mark.parametrize("n", range({tests}))
def test_it(client, n):
    {body}
"""
BODY = """answer = client.chat.completions.create(model="tiny-1", messages=[{"role": "user", "content": f"Say {n}"}])
    assert answer.choices[0].message.content == "yes"
"""
PLUGINS = {
    "tracekit": ("@pytest.mark.tracekit", BODY, ("no:recording",)),
    "pytest-recording": ("@pytest.mark.vcr", BODY, ("no:tracekit_pytest",)),
    "no calls": ("", "pass", ("no:recording", "no:tracekit_pytest")),
}


def run(directory: Path, plugins: tuple[str, ...], *arguments: str, **environment: str) -> tuple[float, float]:
    """The seconds that a run of the suite takes from outside: by the wall clock, and of the processors, its workers included."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:langsmith_plugin",
        "-p",
        "no:asyncio",
        *arguments,
    ]
    command += [part for plugin in plugins for part in ("-p", plugin)]
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "PYTEST_ADDOPTS", "TRACEKIT_DIR", "PYTHONDONTWRITEBYTECODE")
    }
    variables["PYTHONPYCACHEPREFIX"] = str(directory.parent / "compiled")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=directory, env=variables | environment, capture_output=True, text=True)
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:] + done.stderr[-2000:])
    return took, busy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        suites = {}
        for name, (mark, body, _) in PLUGINS.items():
            suites[name] = Path(place, name.replace(" ", "-"))
            suites[name].mkdir()
            (suites[name] / "test_suite.py").write_text(TEST.format(mark=mark, tests=options.tests, body=body))
            (suites[name] / "pytest.ini").write_text("[pytest]\n")
        with ScriptedModel(*["yes"] * options.tests * (2 * options.rounds + 2)).served() as url:
            # One worker: a scripted model gives its answers in order, and the address is in the cassettes.
            key = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-none"}
            recorded = dict.fromkeys(suites, (float("inf"), float("inf")))
            for number in range(options.rounds + 1):
                for name, (mark, _, without) in PLUGINS.items():
                    took, busy = run(suites[name], without, *(("--record-mode=rewrite",) if mark else ()), **key)
                    if number:  # what is compiled is there from here on
                        recorded[name] = min(recorded[name][0], took), min(recorded[name][1], busy)
        best = dict.fromkeys(suites, (float("inf"), float("inf")))
        for _ in range(options.rounds):
            for name, directory in suites.items():
                workers = ("-n", str(options.workers))
                took, busy = run(directory, PLUGINS[name][2], *workers, **key)
                best[name] = min(best[name][0], took), min(best[name][1], busy)
        print(
            f"Python {platform.python_version()}, {os.cpu_count()} cores, {options.tests} tests, -n {options.workers}"
        )
        for what, found in (("recorded", recorded), ("replayed", best)):
            for name, (took, busy) in found.items():
                each = (busy - found["no calls"][1]) / options.tests * 1000
                text = f"{took:6.2f} s, {busy:6.2f} s of processor time, {each:6.2f} ms a test beyond no calls"
                print(f"{what} by {name:18} {text}")
            ratios = [one / other for one, other in zip(found["tracekit"], found["pytest-recording"], strict=True)]
            print(f"tracekit to pytest-recording: {ratios[0]:.2f} by the clock, {ratios[1]:.2f} of processor time")


if __name__ == "__main__":
    main()
