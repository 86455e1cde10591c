"""A replay compares what a program prints, however it prints it; where that is impossible, the verdict says so."""

from __future__ import annotations

import pytest

from tests.support.place import Place

#: What is printed is another text in the replay: ``live_env`` gives it today's.
PROGRAM = """
import io, os, sys
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(order):
    return order

class Tee:
    def __init__(self, *streams):
        self.streams = streams
    def write(self, text):
        for stream in self.streams:
            stream.write(text)
    def flush(self):
        for stream in self.streams:
            stream.flush()

word = os.environ["WORD"]
look(1)
{prints}
"""
COMPARED = {
    "print": "print(word)",
    "buffer": "sys.stdout.buffer.write(word.encode() + b'\\n')",
    "half a character": "[sys.stdout.buffer.write(('é' + word + '\\n').encode()[i:i + 1]) for i in range(len(word) + 3)]",
    "descriptor": "os.write(1, word.encode() + b'\\n')",
    "tee": "sys.stdout = Tee(sys.stdout, io.StringIO()); print(word)",
    "wrapper": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf8'); print(word)",
    "detached": "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf8', line_buffering=True); print(word)",
    "many lines": "[print(i) for i in range(10_050)]; print(word)",
}
NOT_KEPT = {
    "copy": "f = os.fdopen(os.dup(1), 'w'); print(word, file=f); f.close()",
    "stream": "sys.stdout = open(1, 'w', closefd=False); print(word)",
}


@pytest.fixture(params=[{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def place(tmp_path) -> Place:  # type: ignore[no-untyped-def]
    return Place(tmp_path)


@pytest.mark.parametrize("way", COMPARED)
def test_another_text_is_told(place: Place, way: str, environment: dict[str, str]) -> None:
    """The same text is exact, also under ``--strict output``; another text is reported, and is inexact with that
    option."""
    place.program(PROGRAM.replace("{prints}", COMPARED[way]))
    assert place.cli("run", "agent.py", WORD="then", **environment).returncode == 0
    same = place.cli("replay", "last", "--strict", "output", WORD="then", **environment)
    assert (same.returncode, same.stdout.splitlines()[-1].removeprefix("é")) == (0, "then"), same.stderr
    other = place.cli("replay", "last", "--live-env", "WORD", WORD="now", **environment)
    assert (other.returncode, "1 other output" in other.stderr) == (0, True), other.stderr
    strictly = place.cli("replay", "last", "--live-env", "WORD", "--strict", "output", WORD="now", **environment)
    assert strictly.returncode == 1


def test_an_id_in_the_output_names_what_makes_it_the_same(place: Place) -> None:
    """Where a line differs in an id, which a package may have made, the report says how to have it recorded."""
    place.program(PROGRAM.replace("{prints}", "print(word)"))
    one, other = "0b7e2f6a-58a1-4c0e-9d3c-1f2e3d4c5b6a", "7d3c5b6a-58a1-4c0e-9d3c-0b7e2f6a1f2e"
    assert place.cli("run", "agent.py", WORD=one).returncode == 0
    for now, told in ((other, True), ("other", False)):
        replayed = place.cli("replay", "last", "--live-env", "WORD", WORD=now)
        assert "1 other output" in replayed.stderr
        assert ("instrument(user_modules=[…])" in replayed.stderr) == told, replayed.stderr


@pytest.mark.parametrize("way", NOT_KEPT)
def test_where_it_is_not_noticed_the_verdict_says_so(place: Place, way: str) -> None:
    """Such a replay says that output was not kept, and its verdict is unknown under ``--strict output``."""
    place.program(PROGRAM.replace("{prints}", NOT_KEPT[way]))
    assert place.cli("run", "agent.py", WORD="then").returncode == 0
    other = place.cli("replay", "last", "--live-env", "WORD", WORD="now")
    assert (other.returncode, "1 output not kept" in other.stderr) == (0, True), other.stderr
    strictly = place.cli("replay", "last", "--strict", "output", WORD="then")
    assert (strictly.returncode, "unknown: 1 output not kept" in strictly.stderr) == (3, True), strictly.stderr


def test_log_lines_through_a_tee_are_left_out(place: Place) -> None:
    """Lines that logging handlers write to whatever replaces standard output do not count as the program's output."""
    place.program(
        PROGRAM.replace(
            "{prints}",
            "import logging; sys.stdout = Tee(sys.stdout); logging.basicConfig(stream=sys.stdout, level=20); logging.info(word)",
        )
    )
    assert place.cli("run", "agent.py", WORD="then").returncode == 0
    other = place.cli("replay", "last", "--live-env", "WORD", WORD="now")
    assert "other output" not in other.stderr
