"""Clock reads: whoever holds whatever reference, user code's reads are the session's, nobody else's are."""

from __future__ import annotations

import asyncio
import copy
import datetime
import email.mime.multipart
import email.mime.text
import email.utils
import functools
import gc
import gzip
import http.cookiejar
import io
import json
import logging
import logging.handlers
import pickle
import queue
import sched
import statistics
import subprocess
import sys
import threading
import time
import types
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time as imported_name
from typing import Any

import freezegun
import pytest
import time_machine

import tracekit
from tests.support.reads import Reads, reading, scope_of
from tracekit import _reality, record, replay, traced_tool
from tracekit._capture import callers, clock
from tracekit._runtime.recorder import RecordedStep
from tracekit.integration import current

EARLIER_NOW = datetime.datetime.now
EARLIER_TODAY = datetime.date.today
IN_A_LIST = [time.monotonic_ns]
PARTIAL = functools.partial(time.perf_counter)


class Local(datetime.datetime):
    """A subclass, as applications have them."""


@dataclass
class Stamped:
    at: datetime.datetime = field(default_factory=datetime.datetime.now)


def default_argument(read: Any = time.time_ns) -> int:
    return read()


def read_all() -> list[Any]:
    """Every clock, through every kind of reference."""
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    return [
        time.time(),
        imported_name(),
        default_argument(),
        IN_A_LIST[0](),
        PARTIAL(),
        time.clock_gettime(time.CLOCK_REALTIME),
        time.clock_gettime_ns(time.CLOCK_REALTIME),
        time.process_time(),
        tuple(time.localtime()),
        time.gmtime().tm_zone,
        time.ctime(),
        time.asctime(),
        time.strftime("%H:%M:%S"),
        datetime.datetime.now(),
        datetime.datetime.now(datetime.UTC),
        datetime.datetime.now(tz=zone),
        datetime.datetime.today(),
        datetime.date.today(),
        Local.now(),
        Local.now(zone),
        EARLIER_NOW(),
        EARLIER_NOW(tz=zone),
        EARLIER_TODAY(),
        Stamped().at,
    ]


NAMES = [
    "time.time",
    "time.time",
    "time.time_ns",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.process_time",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "time.asctime",
    "time.strftime",
    "datetime.datetime.now",
    *["datetime.datetime.now(UTC)"] * 2,
    "datetime.datetime.today",
    "datetime.date.today",
    *["datetime.datetime.now", "datetime.datetime.now(UTC)"] * 2,
    "datetime.date.today",
    "datetime.datetime.now",
]


def test_every_reference_is_covered_and_replays() -> None:
    """Module names, imported names, default arguments, containers, partials, default factories, subclasses: all are
    recorded, and a second run with the recorded values reads the very same, types and zones included."""
    with reading() as recorded:
        first = read_all()
    assert recorded.names == NAMES
    with reading(recorded.log) as served:
        second = read_all()
    assert served.left == []
    assert second == first
    assert [type(value) for value in second] == [type(value) for value in first]
    assert second[15].utcoffset() == datetime.timedelta(hours=5, minutes=30)


def test_recorded_values_are_plain() -> None:
    """What the session gets can be written: numbers, text, lists, ``datetime`` (naive or UTC) and ``date`` of the base classes."""
    with reading() as recorded:
        read_all()
    for name, value in recorded.log:
        assert type(value) in (float, int, str, list, datetime.datetime, datetime.date)
        if type(value) is list:
            json.dumps(value)
        if type(value) is datetime.datetime:
            assert value.tzinfo is (datetime.UTC if name.endswith("(UTC)") else None)


def test_nothing_is_recorded_outside_a_run_or_inside_a_live_step() -> None:
    """Without a scope a read is real and unseen; the body of a live step is not run in replay, so its reads are not kept."""
    clock.hooks.activate()
    try:
        before = time.time()
        assert before <= time.time()
    finally:
        clock.hooks.deactivate()
    with reading(live=7) as session:
        read_all()
    assert session.log == []


def test_given_times_are_formatted_not_read() -> None:
    """``localtime(t)``, ``strftime(f, t)`` and their like read no clock."""
    with reading() as session:
        moment = time.localtime(0)
        time.gmtime(0), time.ctime(0), time.asctime(moment), time.strftime("%Y", moment)
    assert session.log == []
    with reading() as session:
        time.localtime(None), time.gmtime(None), time.ctime(None)
    assert session.names == ["time.localtime", "time.gmtime", "time.ctime"]


def test_reads_of_libraries_are_not_in_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Logging, asyncio, threading and installed packages read clocks of their own; none is recorded."""

    async def work() -> None:
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.sleep(0), 5)

    with caplog.at_level(logging.INFO), reading() as session:
        logging.getLogger("library").info("now")
        threading.Event().wait(0.001)
        asyncio.run(work())
    assert session.log == []


class _Kept(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _logged.append(record.created)


class _Formatted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        _logged.append(record.created)
        return ""


_logged: list[float] = []


def _through_a_queue() -> logging.Handler:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.addFilter(lambda record: _logged.append(record.created) is None)
    return handler


def _formatting() -> logging.Handler:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(_Formatted())
    return handler


@pytest.mark.parametrize("make", [_Kept, _through_a_queue, _formatting])
def test_a_log_record_has_its_recorded_time_in_a_replay(make: Callable[[], logging.Handler]) -> None:
    """Whatever the program, or a package, does with it: show it, send it, store it. One record more or fewer is no
    difference."""
    logger, handler = logging.getLogger("test of clocks"), make()

    def program(records: int) -> list[float]:
        _logged.clear()
        logger.warning("first")
        tracekit.decision("chosen", input=1, output=1)
        for _ in range(records):
            logger.warning("second")
        return [*_logged[:2]]

    logger.addHandler(handler)
    try:
        with record("job") as run:
            recorded = program(1)
        assert len(recorded) == 2
        for records in (1, 3, 0):
            time.sleep(0.002)
            with replay(run.id) as session:
                assert program(records) == recorded[: records + 1]
            assert session.report.exact
            assert not session.report.as_dict()["clock_drift"]
    finally:
        logger.removeHandler(handler)


def test_a_time_that_logging_writes_into_memory_is_the_recorded_one() -> None:
    """The program may show what it has logged to a model. Without times in it, nothing is recorded of the records."""
    logger, stream = logging.getLogger("test of clocks"), io.StringIO()
    handler = logging.StreamHandler(stream)

    def program() -> str:
        stream.seek(0)
        stream.truncate()
        logger.warning("first")
        tracekit.decision("chosen", input=stream.getvalue(), output=1)
        return stream.getvalue()

    logger.addHandler(handler)
    try:
        for form, times in (("%(asctime)s %(message)s", True), ("%(message)s", False)):
            handler.setFormatter(logging.Formatter(form))
            with record("job") as run:
                recorded = program()
            assert ("time.time:logging" in Path(run.path).read_text("utf-8")) is times
            time.sleep(0.002)
            with replay(run.id) as session:
                assert program() == recorded
            assert session.report.exact
    finally:
        logger.removeHandler(handler)


def test_logging_may_be_imported_in_a_run() -> None:
    """It reads the clock while it is imported, too, before it has any logger."""
    code = "import tracekit\nwith tracekit.record('x'):\n    import logging\n    logging.warning('said')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING:root:said\n"


def test_what_logging_only_writes_is_not_in_the_trace(tmp_path: Path) -> None:
    """Its own handlers, with its own formatters, keep no record for anybody; nor do those of a test runner."""
    logger = logging.getLogger("test of clocks")
    handlers = [logging.StreamHandler(), logging.FileHandler(tmp_path / "log"), logging.NullHandler()]
    handlers.append(logging.handlers.RotatingFileHandler(tmp_path / "other"))
    deaf = _Kept(logging.ERROR)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s"))
        logger.addHandler(handler)
    logger.addHandler(deaf)
    try:
        with record("job") as run:
            logger.warning("x")
            tracekit.decision("chosen", input=1, output=1)
        assert ":logging" not in Path(run.path).read_text("utf-8")
        with record("job") as run:
            logger.error("x")
            tracekit.decision("chosen", input=1, output=1)
        assert ":logging" in Path(run.path).read_text("utf-8")
    finally:
        for handler in (*handlers, deaf):
            logger.removeHandler(handler)
            handler.close()


def test_the_loops_clock_is_a_read_when_user_code_asks() -> None:
    """``loop.time()`` called by the program is recorded and replays; what the loop reads for itself is not."""

    async def ask() -> float:
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    with reading() as recorded:
        first = asyncio.run(ask())
    assert recorded.names == ["loop.time"]
    with reading(recorded.log):
        assert asyncio.run(ask()) == first


def test_uvloops_clock_too() -> None:
    """The time of an event loop of uvloop, which is written in C, is recorded and replayed as that of asyncio's own loop is."""
    import uvloop

    async def ask() -> float:
        return asyncio.get_running_loop().time()

    with reading() as recorded, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        first = runner.run(ask())
    assert recorded.names == ["loop.time"]
    with reading(recorded.log), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == first
    assert "time" not in vars(uvloop.Loop)


def test_included_packages_count_as_user_code(tmp_path: Path) -> None:
    """An installed package is a library until it is included; then its reads belong to the run."""
    package = tmp_path / "site-packages" / "framework"
    package.mkdir(parents=True)
    (package / "ids.py").write_text("import time\ndef stamp():\n    return time.time()\n")
    namespace: dict[str, Any] = {}
    file = str(package / "ids.py")
    exec(compile((package / "ids.py").read_text(), file, "exec"), namespace)
    with reading() as session:
        namespace["stamp"]()
        assert session.log == []
        callers.include(file)
        namespace["stamp"]()
        assert session.names == ["time.time"]
    callers.forget()
    with reading() as session:
        namespace["stamp"]()
    assert session.log == []


LIBRARY = """
import datetime, time
READS = {
    "time": lambda: time.time(),
    "time_ns": lambda: time.time_ns(),
    "monotonic": lambda: time.monotonic(),
    "monotonic_ns": lambda: time.monotonic_ns(),
    "now": lambda: datetime.datetime.now(),
    "now in UTC": lambda: datetime.datetime.now(datetime.UTC),
    "today": lambda: datetime.datetime.today(),
    "the day": lambda: datetime.date.today(),
    "to measure": lambda: time.perf_counter(),
    "to measure, ns": lambda: time.perf_counter_ns(),
    "of the process": lambda: time.process_time(),
    "of the thread, ns": lambda: time.thread_time_ns(),
}
"""


def of_a_library(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "site-packages" / "limiter" / "clock.py"
    namespace: dict[str, Any] = {"__name__": "limiter.clock"}
    exec(compile(LIBRARY, str(file), "exec"), namespace)
    reads: dict[str, Any] = namespace["READS"]
    return reads


def test_a_replay_gives_a_library_the_time_it_decided_by(tmp_path: Path) -> None:
    """The time of day too: what was due, or had expired, is so in a replay ten days later, and one read more goes on from there."""
    reads = of_a_library(tmp_path)
    with record("job") as run:
        first = {name: read() for name, read in reads.items()}
        tracekit.decision("done", input=1, output=1)
    with time_machine.travel(time.time() + 864_000, tick=True), replay(run) as session:
        assert {name: read() for name, read in reads.items()} == first
        more = {name: read() for name, read in reads.items()}
        tracekit.decision("done", input=1, output=1)
    assert session.report.exact
    for name, value in more.items():
        day = datetime.timedelta(days=1)
        apart = value - first[name]
        assert (
            abs(
                apart
                if isinstance(apart, datetime.timedelta)
                else datetime.timedelta(seconds=apart / (1e9 if "ns" in name else 1))
            )
            <= day
        )


def test_what_a_library_reads_during_a_garbage_collection_is_not_in_the_trace(tmp_path: Path) -> None:
    """It measures how long collections take, as hypothesis does: when one happens is a matter of chance."""
    read = of_a_library(tmp_path)["to measure"]
    seen: list[str] = []

    def measure(phase: str, _info: object) -> None:
        read()
        seen.append(phase)

    for at in (0, len(gc.callbacks) + 1):
        gc.callbacks.insert(at, measure)
        try:
            with record("job") as run:
                gc.collect()
        finally:
            gc.callbacks.remove(measure)
        assert {"start", "stop"} <= {*seen}
        assert '"type":"clock"' not in Path(run.path).read_text()
        seen.clear()


def test_a_library_that_reads_more_or_less_often_is_no_difference(tmp_path: Path) -> None:
    """It may read its clock for what happens once a process."""
    read = of_a_library(tmp_path)["now"]
    for recorded, replayed in ((3, 0), (0, 3)):
        with record("job") as run:
            for _ in range(recorded):
                read()
            tracekit.decision("done", input=1, output=1)
        with replay(run) as session:
            for _ in range(replayed):
                read()
            tracekit.decision("done", input=1, output=1)
        assert ": exact; 1 consumed, 0 skipped" in str(session.report), str(session.report)


def made_by_the_standard_library() -> list[Any]:
    archive, mail, cookies = io.BytesIO(), email.mime.multipart.MIMEMultipart(), http.cookiejar.CookieJar()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "a")
    mail["Date"], mail["Message-ID"] = email.utils.formatdate(), email.utils.make_msgid()
    mail.attach(email.mime.text.MIMEText("a"))
    answer = email.message.Message()
    answer["Set-Cookie"] = "seen=1; expires=Mon, 01 Jan 2035 00:00:00 GMT"
    response: Any = types.SimpleNamespace(info=lambda: answer)
    cookies.extract_cookies(response, urllib.request.Request("http://example.org/"))
    done: list[Any] = []
    plan = sched.scheduler()
    plan.enter(0.02, 1, done.append, ("second",))
    plan.enter(0.01, 1, done.append, ("first",))
    plan.run()
    return [
        archive.getvalue(),
        mail.as_bytes(),
        gzip.compress(b"a"),
        statistics.NormalDist().samples(2),
        len(cookies),
        done,
    ]


def test_what_the_standard_library_makes_or_decides_for_the_program_is_in_the_trace() -> None:
    """Mails, archives and planned jobs are the same in a replay many years later, and a cookie of then has not expired."""
    with record("job") as run:
        first = made_by_the_standard_library()
        tracekit.decision("done", input=1, output=1)
    assert first[4:] == [1, ["first", "second"]]
    with time_machine.travel("2040-01-01", tick=True), replay(run) as session:
        assert made_by_the_standard_library() == first
        tracekit.decision("done", input=1, output=1)
    assert session.report.exact, session.report.as_dict()


def test_a_package_that_makes_mails_gets_them_back_too(tmp_path: Path) -> None:
    """The standard library works for a package there; whose reads those are, its caller decides."""
    namespace: dict[str, Any] = {"__name__": "mailer.make"}
    code = (
        "import email.mime.multipart, email.mime.text, email.utils\n"
        "def make():\n"
        "    mail = email.mime.multipart.MIMEMultipart(_subparts=[email.mime.text.MIMEText('a')])\n"
        "    mail['Date'], mail['Message-ID'] = email.utils.formatdate(), email.utils.make_msgid(domain='example.org')\n"
        "    return mail.as_string()\n"
    )
    exec(compile(code, str(tmp_path / "site-packages" / "mailer" / "make.py"), "exec"), namespace)
    with record("job") as run:
        first = namespace["make"]()
        tracekit.decision("done", input=1, output=1)
    with time_machine.travel(time.time() + 864_000, tick=True), replay(run) as session:
        assert namespace["make"]() == first
        tracekit.decision("done", input=1, output=1)
    assert session.report.exact, session.report.as_dict()


def test_datetime_stays_what_it_is() -> None:
    """Class identity, ``isinstance``, subclasses, pickling and copying are untouched while reads are recorded."""
    with reading():
        now = datetime.datetime.now()
        assert type(now) is datetime.datetime
        assert isinstance(Local.now(), datetime.datetime)
        assert type(Local.now(datetime.UTC)) is Local
        assert pickle.loads(pickle.dumps(now)) == now
        for function in (time.time, datetime.datetime.now, datetime.date.today):
            assert pickle.loads(pickle.dumps(function))() is not None
        assert pickle.loads(pickle.dumps(time.time)) is time.time is copy.copy(time.time)
        assert repr(time.time) == "<built-in function time>"
        assert time.time.__self__.__name__ == "time"

        class Later(datetime.datetime):
            pass

        assert type(Later.now()) is Later


def test_wrong_arguments_fail_as_they_did() -> None:
    """A hook raises what the function raises, through references taken earlier as well."""
    with reading():
        for call in (
            lambda: datetime.datetime.now("zone"),
            lambda: EARLIER_NOW("zone"),
            lambda: EARLIER_NOW(1, 2, 3),
            lambda: time.clock_gettime("x"),
            lambda: time.localtime("x"),
            lambda: time.time(1),
        ):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(OSError, match="Invalid"):
            time.clock_gettime(123456)


def test_a_failing_session_raises_through_every_reference() -> None:
    """A replay that can't go on is raised to the program, also where C lies between; and everything is restored after."""

    class Stop(BaseException):
        pass

    class Failing(Reads):
        def clock_read(self, scope: Any, function: str, real: Any) -> Any:
            raise Stop(function)

    before = vars(datetime.datetime)["now"]
    with reading():
        for read in (time.time, datetime.datetime.now, EARLIER_NOW, EARLIER_TODAY, time.localtime):
            token = current.set(scope_of(Failing()))
            try:
                with pytest.raises(Stop):
                    read()
            finally:
                current.reset(token)
    assert vars(datetime.datetime)["now"] is before


def test_utcnow_warns_at_the_callers_line() -> None:
    """``utcnow()`` is recorded; where the interpreter deprecates it, the warning names the program's own file."""
    if sys.version_info >= (3, 12):
        with reading() as session, pytest.warns(DeprecationWarning, match="utcnow") as warned:
            datetime.datetime.utcnow()
        assert warned[0].filename == __file__
    else:
        with reading() as session:
            datetime.datetime.utcnow()
    assert session.names == ["datetime.datetime.utcnow"]


def test_tracekits_own_clock_is_never_hooked() -> None:
    """``_reality`` reads the genuine clock, through references taken at any time."""
    time_ns = _reality.time_ns
    with reading() as session:
        assert 0 < time_ns() <= _reality.time_ns()
        assert _reality.perf_counter() > 0
    assert session.log == []


FROZEN = datetime.datetime(2001, 2, 3, 4, 5, 6)


def _faked_reads() -> list[Any]:
    return [
        time.time(),
        imported_name(),
        datetime.datetime.now().isoformat(),
        datetime.date.today().isoformat(),
        time.time_ns(),
    ]


def test_a_clock_frozen_before_the_run_is_what_is_live() -> None:
    """Inside ``freeze_time`` a run records the frozen instant, and replays it when nothing is frozen any more."""
    with freezegun.freeze_time(FROZEN), reading() as recorded:
        first = _faked_reads()
    assert first[2] == FROZEN.isoformat()
    assert recorded.names == ["time.time", "time.time", "datetime.datetime.now", "datetime.date.today", "time.time_ns"]
    with reading(recorded.log):
        assert _faked_reads() == first


def test_a_clock_frozen_inside_the_run_is_what_is_live() -> None:
    """``freeze_time`` entered and left in the run: what it says is recorded while it lasts, the real clock after it."""
    with reading() as recorded:
        with freezegun.freeze_time(FROZEN):
            first = _faked_reads()
        assert time.time() > 1_700_000_000
    assert first[2] == FROZEN.isoformat()
    assert len(recorded.log) == 6
    assert time.time() > 1_700_000_000


def test_time_machine_before_the_run_is_what_is_live() -> None:
    """Inside ``travel`` a run records the travelled instant, and replays it at home."""
    with time_machine.travel(FROZEN, tick=False), reading() as recorded:
        first = _faked_reads()
    assert first[2] == FROZEN.isoformat()
    with reading(recorded.log):
        assert _faked_reads() == first
    assert time.time() > 1_700_000_000


def test_time_machine_inside_the_run_is_what_is_live() -> None:
    """``travel`` patches the same C functions; started in the run it works, is recorded, and leaves nothing behind."""
    with reading() as recorded:
        with time_machine.travel(FROZEN, tick=False):
            first = _faked_reads()
            assert EARLIER_NOW() == FROZEN
        assert time.time() > 1_700_000_000
        assert EARLIER_NOW().year > 2020
    assert first[2] == FROZEN.isoformat()
    assert len(recorded.log) == 8
    with time_machine.travel(FROZEN, tick=False):
        assert time.time() == first[0]
    assert time.time() > 1_700_000_000


def test_a_travel_that_outlives_the_run_goes_on() -> None:
    """Started in the run and stopped after it, or started before and stopped in it: both end in the real clock."""
    travel = time_machine.travel(FROZEN, tick=False)
    with reading():
        travel.start()
    assert datetime.datetime.now() == FROZEN
    travel.stop()
    assert EARLIER_NOW().year > 2020
    travel = time_machine.travel(FROZEN, tick=False)
    travel.start()
    with reading() as session:
        assert datetime.datetime.now() == FROZEN
        travel.stop()
        assert datetime.datetime.now().year > 2020
    assert len(session.log) == 2
    assert datetime.datetime.now().year > 2020


STRESS = """
import datetime, faulthandler, gc, random, sys, threading, time, uuid
faulthandler.enable()
from tracekit._capture import clock, randomness
from tests.support.reads import Reads, reading, scope_of
from tracekit._runtime.session import current
earlier, today, draw = datetime.datetime.now, datetime.date.today, random.Random(3).random
sys.setswitchinterval(1e-5)
stop, count = threading.Event(), [0] * 8
def hammer(n):
    session = Reads()
    current.set(scope_of(session) if n % 2 else None)
    while not stop.is_set():
        time.time(); time.perf_counter_ns(); datetime.datetime.now(); earlier(); earlier(datetime.UTC); today()
        time.localtime(); time.strftime("%Y"); random.random(); draw(); random.getrandbits(80); uuid.uuid4()
        datetime.datetime.now(datetime.UTC); random.gauss(0, 1)
        count[n] += 1
        if len(session.log) > 1000:
            session.log.clear()
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
for t in threads: t.start()
cycles = 0
while cycles < 300 or min(count) < 20:
    clock.hooks.activate(); randomness.hooks.activate()
    if cycles % 10 == 0: gc.collect()
    randomness.hooks.deactivate(); clock.hooks.deactivate()
    cycles += 1
stop.set()
for t in threads: t.join()
assert repr(vars(datetime.datetime)["now"]) == "<method 'now' of 'datetime.datetime' objects>"
with reading():
    import time_machine
    with time_machine.travel(0, tick=False):
        assert datetime.datetime.now(datetime.timezone.utc).year == 1970
    assert datetime.datetime.now().year > 2020
print("survived", clock.hooks.degraded, randomness.hooks.degraded)
"""


def test_threads_that_read_while_the_hooks_come_and_go_survive() -> None:
    """Eight threads read and draw all the time while the hooks are put in and taken out 300 times: no crash, no error. Nor when
    time-machine is imported in a run, which keeps the C functions that it finds in ``datetime``."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STRESS],
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "survived [] []\n"), done.stderr


def test_every_clock_has_a_reading_of_the_runs_start() -> None:
    """``_reality.shown_by()`` knows every function by the name that its reads have, but those that give text or fields."""
    known = _reality.clocks()
    assert {name: _reality.shown_by(name, known) for name in known} == known
    with reading() as recorded:
        read_all()
    for name, value in recorded.log:
        if type(value) in (str, list) or "clock_gettime" in name:
            assert _reality.shown_by(name, known) is None
        else:
            assert type(_reality.shown_by(name, known)) is type(value)


def test_nothing_is_degraded_here() -> None:
    """On the interpreters that we test, every function can be exchanged in place."""
    with reading():
        assert clock.hooks.degraded == []


@traced_tool(side_effect="read_only")
def parts() -> Iterator[int]:
    yield from range(2)


def test_what_comes_to_another_lane_keeps_no_reading_from_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a stream is on the log with who began it, and a thread finds it: who began it gets the readings behind it."""

    def program() -> list[int]:
        stream = parts()
        seen = [next(stream), time.time_ns()]
        thread = threading.Thread(target=lambda: seen.extend(stream))
        thread.start()
        thread.join()
        return [*seen, time.time_ns(), time.time_ns()]

    with monkeypatch.context() as patch:
        patch.setattr(RecordedStep, "_comes_to", lambda step, _: step.scope.lane)
        with record("elsewhere") as run:
            recorded = program()
    with replay(run.id) as session:
        assert program() == recorded
    assert session.report.exact
    assert not session.report.verdict.remarks
