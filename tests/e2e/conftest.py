"""What tests of whole programs share."""

from __future__ import annotations

import pytest

from tests.support.place import Place


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where the system gives no layer."""
    where = tmp_path_factory.mktemp("probe")
    program = "from tracekit._capture.isolation import ScratchLayer as S; print(isinstance(S.enter(), str))"
    if Place(where).python("-c", program, fresh=True).stdout != "False\n":
        pytest.skip("this system gives a process no layer over its file system")
