"""A pytest plugin that records or replays each test function of a suite as a run of its own; the suite needs no changes.

It is loaded by ``-p each_test_a_run`` and does one of three things (``--tracekit``): ``bare`` only notes how each test ends,
``record`` puts each test function into ``record()``, ``replay`` into ``replay()`` of the run that an earlier session recorded for the
test of that id. Fixtures stay outside: they are what the program finds, as in any other program.

How each test ended goes to ``--tracekit-results``, one JSON object a line, written by the process that hears of every test (with
xdist, not by those that run them).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import linecache
import os
import shutil
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

MODES = ("bare", "record", "replay")
#: The attributes of a report, beside the run's id, that the worker process sends along.
CARRIED = ("tracekit_run", "tracekit_empty", "tracekit_error")

#: The messages of fixtures whose mocks were called less often than expected: RESPX, and vcrpy's cassettes in pydantic-ai.
COUNTED = ("RESPX: some routes were not called", "did not play all interactions")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tracekit")
    group.addoption("--tracekit", choices=MODES, default="bare")
    group.addoption("--tracekit-store", help="the directory of the runs")
    group.addoption("--tracekit-results", help="the file of the results, appended to")
    group.addoption("--tracekit-recorded", help="to replay: the results of the session that recorded")
    group.addoption("--tracekit-left-out", help="a file of tests that are not replayed: an id, a tab, a reason")
    group.addoption(
        "--tracekit-user-modules",
        default="",
        help="what counts as user code beside the suite's own, with commas between",
    )
    group.addoption("--tracekit-only", help="a file of test ids, one a line: no other test is run")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        results = config.getoption("--tracekit-results")
        if results:
            config.pluginmanager.register(Results(Path(results)))
    config.pluginmanager.register(Directories(config))
    mode = config.getoption("--tracekit")
    if mode == "bare":
        return
    import tracekit

    tracekit.instrument(user_modules=tuple(filter(None, config.getoption("--tracekit-user-modules").split(","))))
    config.pluginmanager.register(Wrapped(mode, config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only, left_out = config.getoption("--tracekit-only"), config.getoption("--tracekit-left-out")
    kept = items
    if only:
        wanted = _ids(only)
        kept = [item for item in kept if item.nodeid in wanted]
    if left_out and Path(left_out).exists():
        unwanted = _ids(left_out)
        kept = [item for item in kept if item.nodeid not in unwanted]
    if kept is not items:
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _ids(file: str) -> set[str]:
    return {line.partition("\t")[0] for line in Path(file).read_text().splitlines()}


class Directories:
    """Gives each test temporary directories of the same name in every session, whichever process runs it after which others.

    pytest names them after the worker process, and numbers those of tests whose names begin alike: a recorded test would find its
    files and its current directory elsewhere in the replay.
    """

    def __init__(self, config: pytest.Config) -> None:
        base = Path(config.option.basetemp)
        self.base = base.parent if hasattr(config, "workerinput") else base

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        # As long as the name of a worker's directory (``popen-gw0``): some tests put sockets, whose paths are limited, there.
        place = self.base / hashlib.sha256(item.nodeid.encode()).hexdigest()[:9]
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        item.config._tmp_path_factory._basetemp = place.resolve()  # type: ignore[attr-defined]
        return (yield)


class Wrapped:
    """Runs each test function inside a run."""

    def __init__(self, mode: str, config: pytest.Config) -> None:
        self.mode = mode
        self.path = ""
        self.store = config.getoption("--tracekit-store")
        #: The run to replay for each test, and the tests whose run has nothing to replay.
        self.recorded: dict[str, str] = {}
        self.empty: set[str] = set()
        if mode == "replay":
            for line in Path(config.getoption("--tracekit-recorded")).read_text().splitlines():
                about = json.loads(line)
                if about.get("run"):
                    self.recorded[about["id"]] = about["run"]
                if about.get("empty"):
                    self.empty.add(about["id"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not isinstance(item, pytest.Function):
            return (yield)
        if item.nodeid in self.empty:
            item.user_properties.append(("tracekit_empty", True))
            pytest.skip("nothing was recorded")
        # Whoever drives coroutines (pytest-asyncio, anyio) makes their context before the test is called, so that only a
        # block inside the function itself is where the test's own code is.
        item.obj = self.wrapped(item)
        try:
            return (yield)
        except BaseException as problem:
            item.user_properties.append(("tracekit_error", _words(problem)))
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except (AssertionError, pytest.fail.Exception) as problem:
            # The mock of a fixture, which counts at the end what it was asked.
            if self.mode != "replay" or not any(words in str(problem) for words in COUNTED):
                raise
        finally:
            # Now, when nothing is in place any more that the test has put in place of ours.
            if self.path and _is_empty(self.path):
                item.user_properties.append(("tracekit_empty", True))
            self.path = ""

    def wrapped(self, item: pytest.Function) -> Callable[..., Any]:
        function = item.obj
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                async with self.block(item) as run:
                    self.note(item, run)
                    return await function(*args, **kwargs)

            return coroutine

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with self.block(item) as run:
                self.note(item, run)
                return function(*args, **kwargs)

        return plain

    def block(self, item: pytest.Function) -> Any:
        from tracekit import record, replay

        if self.mode == "record":
            return record(item.nodeid, store=self.store)
        run = self.recorded.get(item.nodeid)
        if run is None:
            pytest.skip("it was not recorded")
        return replay(run, store=self.store)

    def note(self, item: pytest.Function, run: Any) -> None:
        if self.mode == "record":
            item.user_properties.append(("tracekit_run", run.id))
            self.path = run.path


class Results:
    """Writes the result of each test, taken from its reports, as one line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = self.outcomes.setdefault(report.nodeid, {"id": report.nodeid, "outcome": "passed", "seconds": 0.0})
        about["seconds"] = round(about["seconds"] + report.duration, 3)
        for name, value in report.user_properties:
            if name in CARRIED:
                about[name.removeprefix("tracekit_")] = value
        if report.outcome == "skipped":
            about["outcome"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        elif report.outcome == "failed":
            about["outcome"] = "failed"
            about["when"] = report.when
            about.setdefault("error", _last_line(report.longreprtext))
        if report.when == "teardown":
            with self.file.open("a") as lines:
                lines.write(json.dumps(about) + "\n")
            del self.outcomes[report.nodeid]


#: Entry types that a replay does nothing for.
_ABOUT = frozenset(("run.started", "run.completed", "run.failed", "lane", "identity", "boundary", "input", "blob"))


def _is_empty(path: str) -> bool:
    """Return whether a run has no steps and no clock, random or input reads, so that replaying it would show nothing."""
    from tracekit._runtime.index import gives_anything

    with open(path, "rb") as lines:
        return all(json.loads(line)["type"] in _ABOUT for line in lines) or not gives_anything(path)


def _words(problem: BaseException) -> str:
    """Return a failure in short: its type, its text, and the last line of the suite's own code."""
    root = os.getcwd() + os.sep
    # Not by ``extract_tb``: the code of an example that a test has made may have fewer places than instructions.
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(problem.__traceback__)]
    own = [(file, line) for file, line in frames if file.startswith(root) and "/.venv/" not in file]
    place = ""
    if own:
        file, line = own[-1]
        place = f"{file.removeprefix(root)}:{line}: {linecache.getline(file, line).strip()}"
    return f"{type(problem).__name__}: {str(problem)[:1500]}\n  at {place}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""
