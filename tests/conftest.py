"""What every suite shares; each directory adds its own fixtures."""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import importlib
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

if sys.dont_write_bytecode:
    # Else each of the thousand processes that the suite starts compiles tracekit again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import freezegun
import pytest
from hypothesis import HealthCheck, settings

from tests.support import named, unsaid, watch
from tests.support.depth import examples
from tests.support.distribution import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler

# Tests replace names in it: in the module itself, not in what stands in for it until it is used.
importlib.import_module("tracekit._capture.contracted")


def _parse_undisturbed() -> None:
    """Collect no garbage while a text is parsed: where that shows a traceback, or runs another thread, which may be parsing as well, Python
    3.11 and 3.12 refuse the tree (``AST constructor recursion depth mismatch``)."""
    really, one_at_a_time = ast.parse, threading.RLock()

    @functools.wraps(really)
    def parse(*arguments: Any, **options: Any) -> ast.AST:
        with one_at_a_time:
            collecting = gc.isenabled()
            gc.disable()
            try:
                return really(*arguments, **options)
            finally:
                if collecting:
                    gc.enable()

    ast.parse = parse


if sys.version_info < (3, 13):
    _parse_undisturbed()

# A shell starts what it puts into the background with Ctrl-C ignored, and each program of a test would ignore it, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each client of an SDK reads the authorities that it trusts, and no test speaks TLS: 1 of them is 30 ms a client faster than 150.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")
os.environ.pop("SSL_CERT_DIR", None)

# Where time is frozen, every attribute of every module is looked at: what a library imports then, at that, has types that pydantic
# does not know.
freezegun.configure(
    extend_ignore_list=[
        "anthropic", "boto3", "botocore", "cohere", "google", "langchain_core", "langsmith", "mistralai", "ollama", "openai",
    ]
)  # fmt: skip

#: What takes longest comes first, so that no worker waits at the end for the other's last file; in this order, so that what waits
#: for the most part (the first of each line) runs beside what computes.
LONGEST = (
    "test_thread_order.py", "test_verify_determinism.py", "test_children.py",
    "test_generated.py", "test_children_status.py", "test_children_read.py",
    "test_progress.py", "test_first_call.py", "test_docs.py",
    "test_http_client.py", "test_mcp.py", "test_secret_formats.py",
    "test_failing_disk.py", "test_power.py", "test_session_ends.py",
    "test_debugger.py", "test_pytest_plugin.py",
)  # fmt: skip
#: And what starts processes.
STARTING = ("e2e", "crash", "docs", "integrations", "surface")
#: Come last, the longer one first: gRPC keeps a thread, which looks like somebody at work to those who wait for nobody to be.
LAST = ("test_telemetry.py", "test_native.py")

# How fast a machine draws its examples says nothing about the code.
settings.register_profile(
    "any machine", deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    named.pytest_configure(config)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # by the number of their tests, which says nothing of how long they take


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of all modules of the suite each worker imports a part first. The others find these compiled, where they were not before."""
    gc.disable()  # until all is imported: next to nothing of it is garbage
    unsaid.pytest_sessionstart(session)
    worker = getattr(session.config, "workerinput", None)
    here = Path(__file__).parent
    if worker is None or [Path(one).resolve() for one in session.config.args] != [here]:
        return
    for path in sorted(here.rglob("test_*.py"))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # that says the one who collects it
            importlib.import_module(".".join(("tests", *path.relative_to(here).with_suffix("").parts)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> tuple[int, int, bool]:
        name = item.path.name
        return (
            LAST.index(name) if name in LAST else -1,
            LONGEST.index(name) if name in LONGEST else len(LONGEST),
            item.path.parent.name not in STARTING,
        )

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """What is there when the tests begin stays: no collection looks at the modules of all SDKs and tests again. And the tests leave little
    garbage that needs one: with Python's threshold of 700 objects, collections are a tenth of what the tests in this process cost."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that only its time limit has ended fails, even where a replay made the limit's exception its own failure.

    The limit counts the fixtures, too; so nearly all of it is all of it.
    """
    report = yield
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getoption("timeout") or item.config.getini("timeout"))
    if report.passed and call.duration >= 0.9 * limit:
        report.outcome, report.longrepr = "failed", f"it ended only with its time limit of {limit:g} s"
    return report


_DIRECTORIES = itertools.count()
#: These suites write thousands of files and wait for each to be on the disk, which is not what they test: what a process leaves that is
#: killed is the same in memory, and a disk that fails or loses its power is none. Whole programs keep the disk: the layer of a replay
#: leaves shared memory out.
_IN_MEMORY = ("agents", "crash", "docs", "integrations", "property", "surface", "unit")
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30


@pytest.fixture(scope="session")
def _memory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory, or the usual one where the system has no memory for files; after a failure the files are kept on disk."""
    base = tmp_path_factory.getbasetemp()
    try:
        status = os.statvfs(_MEMORY)
        usable = status.f_bavail * status.f_frsize >= _ROOM and not status.f_flag & os.ST_NOEXEC
    except (AttributeError, OSError):
        usable = False
    if not usable:
        yield base
        return
    import fcntl

    for left in _MEMORY.glob("tracekit-suite-*"):
        with suppress(OSError), open(left / "lock") as file:  # locked while its session runs
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=".tracekit-suite-", dir=_MEMORY))
    with open(made / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        directory = made.rename(made.with_name(made.name[1:]))
        yield directory
    if request.session.testsfailed:
        with suppress(shutil.Error):  # pipes and sockets can't be copied, all else is
            shutil.copytree(directory, base / "in-memory", symlinks=True)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _memory: Path) -> Path:
    """Like pytest's, which searches the directories of all earlier tests: with thousands of them that takes milliseconds a test."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    base = _memory if request.path.parent.name in _IN_MEMORY else tmp_path_factory.getbasetemp()
    path = base / f"{name}{next(_DIRECTORIES):04}"
    path.mkdir(mode=0o700)
    return path


#: Where runs go is each test's own; which form of the accelerator is used is the whole suite's, its programs too.
_OURS = ("TRACEKIT_DIR", "TRACEKIT_PURE")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout, sees the user's runs, or has a key that could pay for a call; and lines are as wide
    as in any pipe, whoever runs the suite (xdist's workers have 80 columns)."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / ".tracekit"))
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in os.environ:
        if name.endswith("_API_KEY") or (name.startswith("TRACEKIT_") and name not in _OURS):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """A test that leaves a run open leaves its hooks to all that come after it: it is the one that fails."""
    yield
    world = sys.modules.get("tracekit._capture.world")
    assert world is None or not world.active()
    there = sys.modules.get("tracekit._runtime.process")
    assert there is None or there.process.sessions == ()
    assert type(os.listdir) is type(builtins.open) is BuiltinFunctionType


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays_instrumented() -> Iterator[None]:
    """A file that leaves the SDKs instrumented decides what the next one's tests see: it is the one that fails. So is one that gives all
    that was there when the tests began back to the garbage collector, which would look at it each time."""
    yield
    assert gc.get_freeze_count(), "leave frozen what is frozen"
    instrumentation = sys.modules.get("tracekit._capture.instrumentation")
    assert instrumentation is None or not instrumentation.instrumented(), "undo tracekit.instrument()"


@pytest.fixture(scope="session", autouse=True)
def _every_trace(tmp_path_factory: pytest.TempPathFactory, _memory: Path) -> Iterator[None]:
    """No trace that any test wrote holds a secret of its environment, and each satisfies the schema."""
    before = os.environ.get(watch.NAME)
    os.environ[watch.NAME] = watch.CANARY
    yield
    if before is None:
        del os.environ[watch.NAME]
    else:
        os.environ[watch.NAME] = before
    for base in {tmp_path_factory.getbasetemp(), _memory}:
        assert watch.problems(base) == []
