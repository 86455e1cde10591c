"""Names each failing test when it fails, not only at the end of the session; with several workers, too."""

from __future__ import annotations

import pytest

__all__ = ["pytest_configure"]


class FailuresAsTheyHappen:
    """Writes a line for each failure, between the dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or reporter is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = f": {crash.message.splitlines()[0]}" if crash is not None and crash.message else ""
        when = "" if report.when == "call" else f" ({report.when})"
        if self._config.get_terminal_writer().width_of_current_line:
            reporter.write_line("")
        reporter.write_line(f"FAILED {report.nodeid}{when}{message}"[:300], red=True)
        reporter.flush()  # where the output is a pipe, it would wait for more


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker reports to the process that prints
        config.pluginmanager.register(FailuresAsTheyHappen(config))
