"""The wheel, installed where nothing of the checkout is in reach."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.wheel import build

PROGRAM = """
import json, os, random, sys, tracekit
from importlib.metadata import entry_points, version

@tracekit.traced_tool(side_effect="irreversible")
def charge(cents: int) -> str:
    return f"receipt {random.SystemRandom().random()}"

with tracekit.record("wheel") as run:
    first = [charge(5), random.random()]
with tracekit.replay(run.id) as session:
    second = [charge(5), random.random()]
print(json.dumps({
    "same": first == second,
    "exact": session.report.exact,
    "from": os.path.dirname(tracekit.__file__),
    "version": [tracekit.__version__, version("tracekit-replay")],
    "integrations": sorted(entry.load().name for entry in entry_points(group="tracekit.integrations")),
}))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked sdist."""
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(place, "sdist")) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (root,) = (place / "unpacked").iterdir()
    return root


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``pip`` makes of an sdist."""
    return build(tmp_path_factory.mktemp("wheel"), root=sources, CFLAGS="-O0")  # faster to compile


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the wheel, in a directory of its own; what it depends on is that of this interpreter."""
    return unpacked(wheel, tmp_path_factory.mktemp("site") / "site-packages")


def unpacked(wheel: Path, site: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(site: Path, place: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(place), **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_wheel_works(site: Path, tmp_path: Path) -> None:
    """It records and replays, knows its version, and its integrations are found and load."""
    done = run(site, tmp_path, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["from"] == str(site / "tracekit")
    assert told["same"] is True
    assert told["exact"] is True
    assert len(set(told["version"])) == 1
    assert {"openai", "anthropic", "httpx"} <= set(told["integrations"])


def test_a_sleep_of_telemetry_is_not_part_of_the_run(site: Path, tmp_path: Path) -> None:
    """A package that waits for what it has sent does so beside the run, where tracekit is installed among the packages."""
    package = tmp_path / "site-packages" / "agno" / "api"
    package.mkdir(parents=True)
    (package / "api.py").write_text("import time\ndef close():\n    time.sleep(0.001)\n")
    (tmp_path / "agent.py").write_text("import time, agno.api.api\nagno.api.api.close()\ntime.sleep(0.002)\n")
    path = f"{site}:{tmp_path / 'site-packages'}"
    done = run(
        site, tmp_path, "-m", "tracekit", "run", "agent.py", PYTHONPATH=path, TRACEKIT_DIR=str(tmp_path / "runs")
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("*.jsonl")
    assert [entry["name"] for entry in map(json.loads, log.read_text().splitlines()) if entry["type"] == "clock"] == [
        "time.sleep"
    ]


def test_pytest_leaves_the_installed_modules_as_they_are(site: Path, tmp_path: Path) -> None:
    """pytest neither compiles them anew nor warns of those that ``tracekit replay`` imported before pytest did."""
    (tmp_path / "test_one.py").write_text(
        "import random, pytest\n@pytest.mark.tracekit\ndef test_it():\n    assert random.random() < 1\n"
    )
    pytest_command = ("pytest", "-q", "-W", "error::pytest.PytestAssertRewriteWarning", "test_one.py")
    # Other plugins of this environment, with seconds of imports.
    others = {
        "PYTEST_ADDOPTS": "-p no:langsmith_plugin -p no:asyncio -p no:anyio -p no:randomly -p no:hypothesispytest"
    }
    done = run(site, tmp_path, "-m", *pytest_command, "--record-mode=once", **others)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "traces" / "test_one" / "test_it.jsonl").exists()
    assert not [*site.glob("tracekit/**/*-pytest-*.pyc")]
    replay = ("replay", "traces/test_one/test_it.jsonl", "--", "-m", *pytest_command)
    done = run(site, tmp_path, "-m", "tracekit", *replay, **others)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_of_the_wheel(site: Path, tmp_path: Path) -> None:
    """Its entry point starts; each command answers ``--help``; what it needs as files (schema, corpus, pages) is in it."""
    entry = (next(site.glob("*.dist-info")) / "entry_points.txt").read_text()
    assert "tracekit = tracekit.__main__:main" in entry
    start = "import sys; sys.argv[0] = 'tracekit'; from tracekit.__main__ import main; main()"
    schema = run(site, tmp_path, "-c", start, "schema")
    assert json.loads(schema.stdout)["$schema"].startswith("https://json-schema.org"), schema.stderr
    help = run(site, tmp_path, "-c", start, "--help")
    commands = ("run", "replay", "list", "show", "verify", "schema", "demo", "route", "import")
    each = """
import sys
from tracekit.cli import main
for command in sys.argv[1:]:
    main([command, "--help"], prog_name="tracekit", standalone_mode=False)
"""
    helped = run(site, tmp_path, "-c", each, *commands)
    assert helped.returncode == 0, helped.stderr
    for command in commands:
        assert command in help.stdout
        assert f"Usage: tracekit {command} " in helped.stdout
    page = run(site, tmp_path, "-c", start, "docs", "recovery#what-is-in-doubt")
    assert page.stdout.startswith("## What is in doubt"), page.stderr
    assert (site / "tracekit" / "py.typed").exists()
    assert (site / "tracekit" / "cli" / "demo" / "corpus.txt").exists()


def nothing_else_is_in(site: Path) -> None:
    """Packages of the project, and no tests, tools or caches."""
    files = [Path(line.split(",")[0]) for line in next(site.glob("*.dist-info/RECORD")).read_text().splitlines()]
    packages = {file.parts[0] for file in files if not file.parts[0].endswith(".dist-info")}
    assert packages == {"tracekit", *(name for name in packages if name.startswith("tracekit_"))}
    kinds = {".py", ".typed", ".json", ".txt", ".md", ".css", ".js", ".so"}
    assert {file.suffix for file in files if file.parts[0] in packages} <= kinds
    assert not [file for file in files if any(part.startswith(".") or part == "__pycache__" for part in file.parts)]


def test_nothing_else_is_in_the_wheel(site: Path) -> None:
    """Packages of the project, and no tests, tools or caches."""
    nothing_else_is_in(site)


def test_without_a_compiler(tmp_path: Path) -> None:
    """Where the C extension can't be compiled it is left out: the wheel is one for every machine, and does the same. It is made of this
    checkout, with all that lies around in it, and holds nothing else either."""
    wheel = build(tmp_path, CC="/bin/false")
    assert wheel.name.endswith("-py3-none-any.whl")
    site = unpacked(wheel, tmp_path / "site")
    nothing_else_is_in(site)
    assert not [*site.rglob("*.so"), *site.rglob("*.c")]
    done = run(site, tmp_path, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["same"], told["exact"]) == (True, True)
    assert "without its C extension" in run(site, tmp_path, "-m", "tracekit", "-V").stdout


@pytest.mark.skipif(not find_spec("tracekit._native._compiled"), reason="no C extension here: no compiler, perhaps")
def test_with_a_compiler(sources: Path, wheel: Path, site: Path, tmp_path: Path) -> None:
    """The wheel of an unpacked sdist has the C extension, for this platform and each CPython from 3.11 on, and says so in its name.

    An older one does not stay in a checkout where it can't be compiled any more.
    """
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == ["tracekit/_native/_compiled.abi3.so"]
    assert "with its C extension" in run(site, tmp_path, "-m", "tracekit", "-V").stdout
    pure = run(site, tmp_path, "-m", "tracekit", "-V", TRACEKIT_PURE="1")
    assert "without its C extension" in pure.stdout
    old = sources / "src" / "tracekit" / "_native" / "_compiled.abi3.so"
    old.write_bytes(b"of other sources")
    build(tmp_path, "editable", sources, CC="/bin/false")
    assert not old.exists()
