"""A replay shows the time in the zone of the recording, and gives the process its own back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tracekit import Run, record, replay, traced_tool

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system has no tzset")


@pytest.fixture(autouse=True)
def own_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the process the zone that it had."""
    with monkeypatch.context() as context:
        context.setenv("TZ", "UTC")
        yield
    time.tzset()


def _in(zone: str) -> None:
    os.environ["TZ"] = zone
    time.tzset()


@traced_tool(side_effect="read_only")
def opened() -> float:
    return 1_700_000_000.5


def _shown() -> tuple[Any, ...]:
    """Say one instant in local time in several ways."""
    then = opened()
    return (
        datetime.fromtimestamp(then).isoformat(),
        datetime.fromtimestamp(then, UTC).astimezone().isoformat(),
        datetime.now().astimezone().isoformat(),
        datetime(2024, 7, 1, 12).timestamp(),
        time.localtime(then).tm_hour,
        time.mktime((2024, 7, 1, 12, 0, 0, 0, 0, -1)),
        time.tzname,
    )


def _recorded(tmp_path: Path, zone: str) -> Run:
    _in(zone)
    with record(store=tmp_path) as run:
        run.set_result(list(map(str, _shown())))
    return run


@pytest.mark.parametrize(
    "zone", ["JST-9", "<+0530>-5:30", "EST5EDT,M3.2.0,M11.1.0", "America/New_York", ":Asia/Tokyo", "UTC0"]
)
def test_local_times_are_those_of_the_recording(tmp_path: Path, zone: str) -> None:
    """What a program makes of an instant in local time is what it made of it where it was recorded."""
    run = _recorded(tmp_path, zone)
    _in("<-03>3")
    before = time.tzname, time.localtime(0).tm_hour
    with replay(run) as session:
        assert list(map(str, _shown())) == session.result
        assert os.environ["TZ"] == "<-03>3"
    assert session.report.exact
    assert "environment" not in session.report.verdict.counts
    assert (time.tzname, time.localtime(0).tm_hour) == before


def test_beside_live_traffic_the_process_keeps_its_zone(tmp_path: Path) -> None:
    """A replay that guards only its own context changes nothing for the rest of the process, and says what differs."""
    run = _recorded(tmp_path, "JST-9")
    _in("UTC")
    with ExitStack() as block:
        with pytest.warns(RuntimeWarning, match="the time zone is JST-9 in the recording and UTC here"):
            session = block.enter_context(replay(run, guard="context"))
        _shown()
        assert time.tzname == ("UTC", "UTC")
    assert session.report.verdict.counts["environment"] == 1


def test_a_zone_that_the_program_sets_is_its_own(tmp_path: Path) -> None:
    """What a program does with its zone it does in a replay, too, and it is left as it was made."""

    def program() -> tuple[str, ...]:
        opened()
        _in("<+07>-7")
        return time.tzname

    with record(store=tmp_path) as run:
        run.set_result(list(program()))
    _in("JST-9")
    with replay(run) as session:
        assert list(program()) == session.result
    assert time.tzname == ("+07", "+07")


PROCESSES = """
import multiprocessing, os, subprocess, sys
from datetime import datetime
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(text):
    return text

def work():
    print(look(datetime.fromtimestamp(1_700_000_000).astimezone().isoformat()), flush=True)

if __name__ == "__main__":
    work()
    if len(sys.argv) == 1:
        for variables in (os.environ, {**os.environ, "TZ": "<-05>5"}):
            print(subprocess.run([sys.executable, __file__, "child"], env=variables, capture_output=True, text=True).stdout)
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
"""


def test_each_process_of_a_run_has_its_zone(tmp_path: Path) -> None:
    """A process that a program starts shows local times as it did, in the zone of the program or in one of its own."""
    place = Place(tmp_path)
    place.program(PROCESSES)
    recorded = place.cli("run", "agent.py", fresh=True, TZ="<+0530>-5:30")
    assert recorded.stdout.count("+05:30") == 3, recorded.stderr
    assert recorded.stdout.count("-05:00") == 1
    replayed = place.cli("replay", "last", fresh=True, TZ="JST-9")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
