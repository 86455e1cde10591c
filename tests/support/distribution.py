"""Distribute whole test files over the workers of pytest-xdist, and survive the death of a worker.

With the scheduler that pytest-xdist 3.8 has for ``--dist loadfile``, the session hangs when a worker dies: the test that killed it is run
again by the next worker, and files whose tests have all been run are assigned again, for which no result ever arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

__all__ = ["pytest_xdist_make_scheduler"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getvalue("dist") != "loadfile":
        return None

    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

    class WholeFiles(LoadFileScheduling):
        def remove_node(self, node: WorkerController) -> str | None:
            """Fail the test that a worker died in, and queue again what the worker has not run."""
            left = {
                file: {test: False for test, done in tests.items() if not done}
                for file, tests in self.assigned_work.pop(node).items()
            }
            left = {file: tests for file, tests in left.items() if tests}
            if not left:
                return None
            running = next(iter(left.values()))
            crashed = next(iter(running))
            del running[crashed]
            self.workqueue.update((file, tests) for file, tests in left.items() if tests)
            self.schedule()
            return crashed

        def schedule(self) -> None:
            """Give each worker the tests that it needs: it starts one only when it knows the next, or that there is none."""
            if self.collection is None:
                super().schedule()
                return
            for node in self.nodes:
                if node in self.registered_collections:
                    while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
                        self._assign_work_unit(node)
                    self._reschedule(node)

    return WholeFiles(config, log)
