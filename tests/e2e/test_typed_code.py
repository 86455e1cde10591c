"""Code without a file: its lines are named as a file's are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place

CODE = """
import tracekit
@tracekit.traced_tool(side_effect="read_only")
def look(x): return x

with tracekit.record() as run: look(1)

def again(): look(2)

with tracekit.replay(run): again()

"""


@pytest.mark.parametrize(
    ("arguments", "piped", "line"),
    [
        (("-c", CODE), "", "<string>:8"),
        (("-",), CODE, "<stdin>:8"),
        (("-m", "code"), CODE, "<console>:1"),
        (("-c", f"exec({CODE!r}, {{}})"), "", "<string>:8"),
        (("-c", f"exec(compile({CODE!r}, '<agent>', 'exec'))"), "", "<agent>:8"),
    ],
    ids=["-c", "piped in", "a console", "exec", "compiled"],
)
def test_a_divergence_names_its_line(arguments: tuple[str, ...], piped: str, line: str, tmp_path: Path) -> None:
    """Whether it was typed, piped in, given after ``-c`` or run by ``exec``."""
    shown = Place(tmp_path).python(*arguments, input=piped, fresh=True)
    assert "[divergence]" in shown.stderr
    assert f", at {line}\n" in shown.stderr
