"""Run the test suites of SDKs and frameworks as their authors do: bare, with each test recorded, with each test replayed.

``python3 -m tools sdk-tests SUITE [--checkout DIRECTORY] [--part PATHS] [--again] [--workers N] [PHASE ...] [-- PYTEST ARGUMENTS]``, with
``openai``, ``anthropic``, ``pydantic-ai`` or ``agents``. It needs git, uv and the package index, for ``openai`` Node as well (its
mock server), and takes from ten minutes to an hour. Without ``--checkout`` the suite is cloned into ``.sdk-tests``.

Each suite has a virtual environment of its own, made from its lock file, in which this checkout is installed. The phases are ``bare``,
``record`` and ``replay`` (all three by default). Each command ends by writing the last result of every test to ``results/SUITE.json``
and ``docs/reference/sdk-suites.md``; the phase ``table`` does only that. ``--again`` repeats the tests that failed in any phase or have
not been replayed, and keeps the other results. ``--part`` runs some of the tests (paths, separated by commas) and keeps the results of
the others; the parts have a row of their own (``results/SUITE-part.json``), beside that of the last whole run, until the whole suite is
run again. ``--workers`` sets the number of processes (default 1). With ARGUMENTS for pytest, no results are kept.

Tests left out of the replay are listed in ``left_out/SUITE.txt``, one per line: the id, a tab, the reason. A reason that begins with
``mock:`` means that the test asserts how its own mock was called, which a replay never does.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.environment import ROOT

__all__ = ["main"]

HERE: Final = Path(__file__).resolve().parent
CLONES: Final = ROOT / ".sdk-tests"
PHASES: Final = ("bare", "record", "replay")
#: The limit of one test in seconds, so that a replay that waits for ever is one failure and does not stop the suite.
TIMEOUT: Final = 180


#: The exit status of pytest if no test was selected.
_NOTHING_TO_RUN: Final = 5


class Suite(NamedTuple):
    """A test suite, and how its authors run it."""

    repository: str
    distribution: str
    #: Options of ``uv sync --frozen``.
    sync: tuple[str, ...]
    #: Arguments of pytest.
    tests: tuple[str, ...]
    #: Packages that its CI installs in addition to the lock file.
    extra: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    #: The path, in the checkout, of the specification that a mock server answers from.
    server: str = ""
    #: Installed packages whose clock reads count as the tests' own.
    user_modules: str = ""
    #: The tests that are not run, and why.
    without: str = ""


_STEADY: Final = "@stdy/cli@0.22.2"
_STEADY_OPTIONS: Final = tuple(
    f"--validator-{kind}-{what}-format=brackets" for kind in ("query", "form") for what in ("array", "object")
)

SUITES: Final[Mapping[str, Suite]] = {
    "openai": Suite(
        "https://github.com/openai/openai-python", "openai", ("--all-extras",), ("tests",),
        variables={"DEFER_PYDANTIC_BUILD": "false"}, server="api_reference/openapi.transformed.yml",
    ),
    "anthropic": Suite(
        "https://github.com/anthropics/anthropic-sdk-python", "anthropic", ("--all-extras",),
        ("tests", "--ignore=tests/api_resources"), variables={"DEFER_PYDANTIC_BUILD": "false"},
        without="`tests/api_resources`: its mock server needs a specification that is not in the repository",
    ),
    "pydantic-ai": Suite(
        "https://github.com/pydantic/pydantic-ai", "pydantic-ai-slim",
        ("--all-extras", "--no-extra=mcp-tasks", "--no-extra=sentence-transformers", "--all-packages",
         "--no-install-package=strict-no-cover"),
        ("tests", "--dist=loadgroup", *(f"--ignore=tests/test_{name}.py" for name in ("temporal", "prefect", "dbos"))),
        variables={"COLUMNS": "150"}, user_modules="dirty_equals", without="tests of Temporal, Prefect and DBOS: they start those servers",
    ),
    "agents": Suite(
        "https://github.com/openai/openai-agents-python", "openai-agents", ("--all-extras", "--all-packages", "--group=dev"),
        ("tests", "--dist=worksteal", "-m", "not serial"), without="tests marked `serial`",
    ),
}  # fmt: skip


def main(*arguments: str) -> None:
    given, to_pytest = _split(arguments)
    checkout, part, workers = (_option(given, f"--{name}") for name in ("checkout", "part", "workers"))
    if again := "--again" in given:
        given.remove("--again")
    if not given or given[0] not in SUITES or not set(given[1:]) <= {*PHASES, "table"}:
        sys.exit((__doc__ or "").strip())
    name, phases = given[0], given[1:] or list(PHASES)
    place = Place(name, Path(checkout).resolve() if checkout else CLONES / name, part, int(workers or 1))
    if phases != ["table"]:
        place.prepare()
        place.note_failed()
        with place.server():
            for phase in PHASES:
                if phase in phases:
                    place.run(phase, to_pytest, again)
    if not to_pytest:
        _keep(name, place)
        _write_table()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at ``--`` into ours and pytest's."""
    if "--" not in arguments:
        return list(arguments), []
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def _option(given: list[str], name: str) -> str:
    """Remove an option and its value from ``given``, and return the value."""
    if name not in given:
        return ""
    at = given.index(name)
    value = given[at + 1]
    del given[at : at + 2]
    return value


class Place:
    """A checkout of a suite with its virtual environment, and the results of its runs."""

    def __init__(self, name: str, checkout: Path, part: str, workers: int) -> None:
        self.workers: Final = workers
        self.suite: Final = SUITES[name]
        self.name: Final = name
        self.part: Final = tuple(part.split(",")) if part else ()
        self.checkout: Final = checkout
        self.left: Final = CLONES / f"{name}-results"
        self.python: Final = checkout / ".venv" / "bin" / "python"

    def prepare(self) -> None:
        if not self.checkout.exists():
            _call("git", "clone", "--depth=1", self.suite.repository, str(self.checkout))
        self.left.mkdir(parents=True, exist_ok=True)
        uv = shutil.which("uv") or sys.exit("sdk-tests needs uv on the path")
        _call(uv, "sync", "--quiet", "--frozen", *self.suite.sync, "--python", sys.executable, cwd=self.checkout)
        wanted = ["--editable", str(ROOT), "pytest-timeout", "pytest-xdist", *self.suite.extra]
        _call(uv, "pip", "install", "--quiet", "--python", str(self.python), *wanted)

    def server(self) -> Server:
        return Server(self.checkout / self.suite.server if self.suite.server else None)

    @property
    def _parts(self) -> Path:
        return self.left / "parts.json"

    @property
    def parts(self) -> list[str]:
        """Return the parts that have been run, or an empty list after a whole run."""
        return list(json.loads(self._parts.read_text())) if self._parts.exists() else []

    def results(self, phase: str) -> Path:
        return self.left / f"{phase}.jsonl"

    def note_failed(self) -> None:
        """Write the lists for ``--again``: tests that failed in any phase and, for the replay, those not replayed yet."""
        left_out = _left_out(self.name)
        rows = {phase: _read(self.results(phase)) for phase in PHASES}
        failed = {one for found in rows.values() for one, row in found.items() if row["outcome"] == "failed"}
        unreplayed = {
            one
            for one, row in rows["record"].items()
            if row["outcome"] == "passed" and not row.get("empty") and one not in rows["replay"]
        }
        for phase in PHASES:
            wanted = (failed | unreplayed) - left_out.keys() if phase == "replay" else failed
            self.again(phase).write_text("".join(f"{one}\n" for one in sorted(wanted)))

    def again(self, phase: str) -> Path:
        return self.left / f"again-{phase}.txt"

    def run(self, phase: str, to_pytest: Sequence[str], again: bool) -> None:
        """Run one phase, with all tests or (``again``) those that failed.

        Failing tests are a result; the command ends only if pytest itself could not run.
        """
        results = self.left / "some.jsonl" if to_pytest else self.results(phase)
        anew = not (again or self.part)
        if anew:
            results.unlink(missing_ok=True)
        if anew and phase == "record" and not to_pytest:
            shutil.rmtree(self.left / "store", ignore_errors=True)
        if not (again or to_pytest):
            self._parts.write_text(json.dumps(sorted({*self.parts, *self.part}) if self.part else []))
        command = [
            str(self.python), "-m", "pytest", "-q", "-p", "each_test_a_run", *(self.part or self.suite.tests[:1]),
            *self.suite.tests[1:], f"-n{self.workers}", f"--timeout={TIMEOUT}",
            f"--basetemp={self.left / 'tmp'}", f"--tracekit={phase}", f"--tracekit-store={self.left / 'store'}",
            f"--tracekit-results={results}", f"--tracekit-user-modules={self.suite.user_modules}",
        ]  # fmt: skip
        if again:
            command.append(f"--tracekit-only={self.again(phase)}")
        if phase == "replay":
            command += [
                f"--tracekit-recorded={self.results('record')}",
                f"--tracekit-left-out={_left_out_file(self.name)}",
            ]
        variables = {
            # The order of sets, as `tracekit run` sets it.
            **os.environ, "PYTHONHASHSEED": "0", **self.suite.variables, "PYTHONPATH": str(HERE),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(self.python.parent.parent),
        }  # fmt: skip
        print(f"tools: {self.name}: {phase}", file=sys.stderr, flush=True)
        with (self.left / f"{phase}.log").open("w" if anew else "a") as log:
            status = subprocess.run(
                [*command, *to_pytest],
                cwd=self.checkout,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if status not in (0, 1) and not (again and status == _NOTHING_TO_RUN):
            sys.exit(f"pytest ended with {status}: see {self.left / f'{phase}.log'}")

    def versions(self) -> dict[str, str]:
        asked = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"
        names = (self.suite.distribution, "tracekit-replay", "pytest")
        found = subprocess.run([self.python, "-c", asked, *names], capture_output=True, text=True, check=True).stdout
        commits = {"commit": _head(self.checkout), "tracekit": _head(ROOT)}
        return {**dict(zip(names, found.split(), strict=True)), **commits, "python": platform.python_version()}


def _head(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


class Server:
    """Run the mock server that answers from a specification, for the duration of the block."""

    def __init__(self, specification: Path | None) -> None:
        self._specification = specification
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> None:
        if self._specification is None:
            return
        npm = shutil.which("npm") or sys.exit("the mock server of this suite needs npm on the path")
        _call(npm, "install", "--silent", "--no-audit", "--no-fund", f"--prefix={CLONES / 'steady'}", _STEADY)
        steady = CLONES / "steady" / "node_modules" / ".bin" / "steady"
        self._process = subprocess.Popen(
            [steady, "--host", "127.0.0.1", "-p", "4010", *_STEADY_OPTIONS, str(self._specification)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"Ready to accept" in line:
                break
        # Whatever it says from now on is read, else it would wait for a reader.
        import threading

        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


# -- results -----------------------------------------------------------------------------------------------------------


def _left_out_file(name: str) -> Path:
    return HERE / "left_out" / f"{name}.txt"


def _left_out(name: str) -> dict[str, str]:
    file = _left_out_file(name)
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split("\t", 1) for line in lines if line and not line.startswith("#"))


def _read(file: Path) -> dict[str, dict[str, Any]]:
    if not file.exists():
        return {}
    return {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}


def _keep(name: str, place: Place) -> None:
    """Return what the table shows of the last runs: counts, and each failure."""
    outcome = {phase: _read(place.results(phase)) for phase in PHASES}
    passed = {
        phase: {one for one, row in rows.items() if row["outcome"] == "passed"} for phase, rows in outcome.items()
    }
    left_out = _left_out(name)
    # Where a test was not run bare, that it would pass is taken for granted, also where it fails recorded.
    ended = {one for one, row in outcome["record"].items() if row["outcome"] in ("passed", "failed")}
    bare = passed["bare"] | (ended - outcome["bare"].keys())
    tests = outcome["bare"].keys() | outcome["record"].keys()
    if place.parts:  # of the others only some have been run
        bare &= outcome["record"].keys()
        tests &= outcome["record"].keys()
    recorded = passed["record"] & bare
    empty = {one for one in recorded if any(outcome[phase].get(one, {}).get("empty") for phase in ("record", "replay"))}
    mocks = {one for one, why in left_out.items() if one in recorded and why.startswith("mock:")}
    others = {one for one, why in left_out.items() if one in recorded and not why.startswith("mock:")}
    replayed = recorded - empty - mocks - others
    kept: dict[str, Any] = {
        "suite": name,
        "part": place.parts,
        "versions": place.versions(),
        "tests": len(tests),
        "bare_run": len(tests & outcome["bare"].keys()),
        "bare": len(bare),
        "record": len(recorded),
        "empty": len(empty),
        "mocks": len(mocks),
        "left_out": len(others),
        "replayed": len(replayed),
        "replay": len(replayed & passed["replay"]),
        "not_run": len(replayed - set(outcome["replay"])),
        "failures": {
            "record": _failures(place, bare - passed["record"], outcome["record"]),
            "replay": _failures(place, (replayed - passed["replay"]) & set(outcome["replay"]), outcome["replay"]),
        },
    }
    whole, part = _kept_files(name)
    whole.parent.mkdir(exist_ok=True)
    (part if place.parts else whole).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    if not place.parts:
        part.unlink(missing_ok=True)


def _kept_files(name: str) -> tuple[Path, Path]:
    """Return where the results of the last whole run are kept, and of the parts run since."""
    return HERE / "results" / f"{name}.json", HERE / "results" / f"{name}-part.json"


def _failures(place: Place, tests: Iterable[str], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the problem in one line, without absolute directories."""
    texts = {one: str(rows.get(one, {}).get("error", "did not run")) for one in sorted(tests)}
    return {
        one: " ".join(_DIRECTORIES.sub("", text.replace(f"{place.checkout}/", "")).split())[:300]
        for one, text in texts.items()
    }


#: An absolute directory, but not the path of a URL.
_DIRECTORIES: Final = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")


_HEAD: Final = """\
# The suites of SDKs and frameworks

<!-- written by `python3 -m tools sdk-tests`: run it instead of changing this page -->

`python3 -m tools sdk-tests SUITE` runs the projects' own tests as their authors run them, each test recorded, then replayed in another
process. A test is *replayable* if it passes bare and recorded, has a step or a reading to replay, and does not assert what its own mock
was asked (those are marked `mock:` in `tools/sdk_tests/left_out`). The *left out* tests are the others in these files, by id and reason.
The lists were made from failed replays, by the assertion at which each failed; the test's source was checked to confirm that this
assertion reads what the test's own mock has noted. If a suite was not run bare as a whole, the remaining tests are assumed to pass bare
(*taken for granted*), including those that fail recorded. A row *parts since* is of some of the suite's files, run after the row above.

| suite | versions | tests | bare | recorded | nothing to replay | asks its mock | replayable | left out | replayed |
|---|---|---|---|---|---|---|---|---|---|
"""


def _write_table() -> None:
    rows: list[str] = []
    failures: list[str] = []
    without = [f"- {name}: {suite.without}.\n" for name, suite in SUITES.items() if suite.without]
    for name in SUITES:
        whole, part = _kept_files(name)
        if not whole.exists():
            rows.append(f"| {name} | not run | | | | | | | | |\n")
        for file, title in ((whole, name), (part, f"{name}, parts since")):
            if file.exists():
                kept = json.loads(file.read_text())
                rows.append(_row(name, title, kept))
                failures += _listed(title, kept)
    (ROOT / "docs" / "reference" / "sdk-suites.md").write_text(
        _HEAD + "".join(rows) + "\nNot run:\n\n" + "".join(without) + "".join(failures)
    )


def _row(name: str, title: str, kept: Mapping[str, Any]) -> str:
    of = kept["versions"]
    versions = f"{of[SUITES[name].distribution]} ({of['commit']}), Python {of['python']}, pytest {of['pytest']}"
    versions += f", tracekit at {of['tracekit']}" if "tracekit" in of else ", an earlier tracekit than the others"
    not_run = f", {kept['not_run']} not run" if kept["not_run"] else ""
    if kept.get("part"):
        named = ", ".join(f"`{one}`" for one in kept["part"])
        versions += f"; only {named}" if len(kept["part"]) <= _NAMED else f"; only {len(kept['part'])} of its files"
    taken = kept["tests"] - kept.get("bare_run", kept["tests"])
    bare_run = f" (of {taken} taken for granted)" if taken else ""
    replayable = kept["replayed"] + kept["left_out"]
    return (
        f"| {title} | {versions} | {kept['tests']} | {kept['bare']}{bare_run} | {_share(kept['record'], kept['bare'])} | "
        f"{kept['empty']} | "
        f"{kept['mocks']} | {replayable} | {_share(kept['left_out'], replayable)} | "
        f"{_share(kept['replay'], kept['replayed'] - kept['not_run'])}{not_run} |\n"
    )


def _listed(title: str, kept: Mapping[str, Any]) -> list[str]:
    lines = []
    for phase, found in kept["failures"].items():
        if found:
            lines.append(f"\n## {title}, {phase}\n\n")
            lines += [f"- `{one}`: {_plain(why)}\n" for one, why in found.items()]
    return lines


#: The number of parts that are named; further ones are counted.
_NAMED: Final = 12


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else str(part)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")


def _call(*command: str, cwd: Path = ROOT) -> None:
    status = subprocess.run(command, cwd=cwd, check=False).returncode
    if status:
        sys.exit(status)
