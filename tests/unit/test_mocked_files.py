"""What a test replaces by mocks for its own sake is not what tracekit keeps the run with."""

from __future__ import annotations

import builtins
import os
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.tracing import entries
from tracekit import record, replay, traced_tool

#: What tests of programs that read and write files replace, in ``os`` or its ``path``.
FILES = (
    *(
        "close",
        "fdatasync",
        "fstat",
        "fsync",
        "ftruncate",
        "link",
        "listdir",
        "lstat",
        "makedirs",
        "mkdir",
        "open",
        "pread",
        "pwrite",
    ),
    *("read", "remove", "rename", "replace", "rmdir", "scandir", "stat", "unlink", "write"),
)
PATHS = ("exists", "getsize", "isdir", "isfile", "lexists")


@traced_tool(side_effect="read_only")
def look(key: str) -> str:
    return key * 2


@pytest.fixture
def own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mocks end after the run, and put back what they found in it: the hooks. The test takes these away."""
    for name in FILES:
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(builtins, "open", builtins.open)


@pytest.mark.usefixtures("own_functions")
def test_a_program_whose_file_functions_are_mocks_is_recorded_and_replayed(tmp_path: Path) -> None:
    """They are in place when the run ends, too. tracekit asks none of them, and the recording is whole, with the tip beside it."""
    asked: list[str] = []

    def mocks(stack: ExitStack) -> None:
        def mock(owner: object, name: str) -> None:
            stack.enter_context(patch.object(owner, name, lambda *args, **options: asked.append(name)))

        for name in FILES:
            mock(os, name)
        for name in PATHS:
            mock(os.path, name)
        mock(builtins, "open")

    with ExitStack() as stack, record("program", store=tmp_path) as run:
        mocks(stack)
        said = look("a")
    assert asked == []
    kinds = [entry["type"] for entry in entries(run)]
    assert (kinds[-1], kinds.count("tool.call")) == ("run.completed", 1)
    assert (tmp_path / "heads" / run.id).read_text().startswith('{"run_id"')
    with ExitStack() as stack, replay(run.id, store=tmp_path) as again:
        mocks(stack)
        assert look("a") == said
    assert again.report.exact
    assert asked == []
