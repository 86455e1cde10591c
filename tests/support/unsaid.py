"""What a worker of pytest-xdist need not tell the process that prints: that the fixtures of a test were set up and torn down.

To tell it costs more than most tests: each report is taken apart, sent, put together again and shown to all plugins, three times a test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

__all__ = ["pytest_sessionstart"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where somebody asks how long the fixtures took, or for a file with all reports, they are told as ever."""
    config = session.config
    asked = config.getoption("durations", None) is not None or config.getoption("xmlpath", None)
    if asked or not hasattr(config, "workerinput"):
        return
    for implementation in config.hook.pytest_runtest_logreport.get_hookimpls():
        if hasattr(implementation.plugin, "sendevent"):  # what tells
            implementation.function = _of_tests(implementation.function)


def _of_tests(tell: Callable[[pytest.TestReport], None]) -> Callable[[pytest.TestReport], None]:
    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.sections:
            tell(report)

    return pytest_runtest_logreport
