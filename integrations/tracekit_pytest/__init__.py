"""The pytest plugin: tests that replay a recorded run from ``traces/`` next to them.

Example::

    @pytest.mark.tracekit
    def test_remind():
        assert remind("acme") == "sent to acme"

``pytest --record-mode=once`` records ``traces/<module>/<test>.jsonl`` if it does not exist; from then on, and in CI,
the test is replayed from it: no network, no key, no side effect. The fixture ``tracekit_run`` does the same, and gives
access to the run.

This is the module that pytest loads. tracekit itself is imported when the first test that uses it is collected.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

    from ._traces import TestRun, Traces

__all__ = ["tracekit_run"]

MODES = ("none", "once", "new_episodes", "all", "rewrite")
MARKER = "tracekit"
FIXTURE = "tracekit_run"

_TRACES = pytest.StashKey["Traces"]()
#: The paths of traces that were recorded, and of those that no test uses.
_DONE = pytest.StashKey[dict[str, list[str]]]()


class _AsCompiled:
    """Finds the modules of the installed tracekit before pytest does.

    pytest rewrites the ``assert`` statements of every package that is installed together with a plugin: it would compile
    all of tracekit anew wherever it cannot write beside the installed files.
    """

    _INSTALLED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tracekit")

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith("tracekit") else None
        return spec if spec is not None and (spec.origin or "").startswith(cls._INSTALLED) else None


sys.meta_path.insert(0, _AsCompiled)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tracekit", "recorded runs as tests")
    group.addoption(
        "--tracekit-update",
        action="store_true",
        help="record those tests again, live, whose recording is missing or is not what the program does any more",
    )
    group.addoption(
        "--tracekit-allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="what a replay, or --block-network, lets through: a host, host:port, or the path of a socket (may be repeated)",
    )
    parser.addini(
        "tracekit_record_mode", "the mode of --record-mode where it is not given; in CI always none", default="none"
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, None, None]:
    """Add the two options that pytest-recording has as well, unless another plugin has them: their values are the same.

    Done after plugins and the first conftest files are loaded, since adding an option twice ends the session.
    """
    yield
    group = parser.getgroup("tracekit", "recorded runs as tests")
    options: dict[str, dict[str, Any]] = {
        "--record-mode": {
            "choices": MODES,
            "default": None,
            "help": "none: replay only (the default); once: record what has no recording; new_episodes: replay, and record what comes "
            "after its end; all: record everything anew; rewrite: the same, the old recordings removed first",
        },
        "--block-network": {"action": "store_true", "help": "no test reaches the network, but while it is recorded"},
    }
    there = vars(parser.parse_known_args([]))
    for name, about in options.items():
        if name.removeprefix("--").replace("-", "_") not in there:
            group.addoption(name, **about)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tracekit(path=None, **options): replay the run recorded in traces/<module>/<test>.jsonl (or in path, beside the test file); "
        "options are those of tracekit.replay and tracekit.record",
    )
    if config.getoption("block_network", False):
        traces_of(config)


def record_mode(config: pytest.Config) -> str:
    """Return the requested mode; in CI nothing is recorded unless the command line says so."""
    option = config.getoption("record_mode", None)
    if option is not None:
        return str(option)
    return "none" if os.environ.get("CI") else str(config.getini("tracekit_record_mode"))


def traces_of(config: pytest.Config) -> Traces:
    """Return the working part of the plugin, created when it is first needed."""
    found = config.stash.get(_TRACES, None)
    if found is None:
        from ._traces import Traces

        found = config.stash[_TRACES] = Traces(config, record_mode(config), _done(config))
        config.pluginmanager.register(found, "tracekit_traces")
    return found


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Prepare the import of a module with traces, which may create its clients: they get placeholders for missing keys."""
    if os.path.isdir(os.path.join(module_path.parent, "traces", module_path.stem)):
        traces_of(parent.config).importing(module_path)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker(MARKER) is not None or FIXTURE in getattr(item, "fixturenames", ()):
        traces_of(item.config).collected(item)


def _done(config: pytest.Config) -> dict[str, list[str]]:
    return config.stash.setdefault(_DONE, {"recorded": [], "skipped": [], "unused": []})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker of pytest-xdist has done. Each worker collects all tests, so all name the same unused
    traces."""
    done = _done(node.config)
    for what, paths in getattr(node, "workeroutput", {}).get("tracekit", {}).items():
        done[what] += [path for path in paths if path not in done[what]]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    done = _done(config)
    titles = {
        "recorded": "traces recorded",
        "skipped": "not recorded: the test skipped itself (a mark would do it before a recording is asked for)",
        "unused": "traces that no test uses",
    }
    for what, title in titles.items():
        if done[what]:
            terminalreporter.section(title, sep="-")
        for path in sorted(done[what]):
            terminalreporter.line(path)


@pytest.fixture
def tracekit_run(request: pytest.FixtureRequest) -> TestRun:
    """The run of this test: recorded, or replayed from ``traces/<module>/<test>.jsonl``, according to
    ``--record-mode``.

    Example::

        def test_a_lost_order_is_refunded(tracekit_run):
            answer = agent("Where is order A-1042?")  # a replay calls no model and no tool
            tracekit_run.set_result(answer)  # compared with the recorded one
    """
    return traces_of(request.config).run_of(request.node)
