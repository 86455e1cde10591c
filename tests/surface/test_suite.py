"""The suite is a tool: who runs it learns of a failure when it happens, and a check that fails is not lost among others."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.processes import PYTEST, command, forking, python, started
from tools.environment import Environment

ROOT = Path(__file__).parents[2]


def test_every_suite_is_on_the_page_for_contributors() -> None:
    """CONTRIBUTING.md says of each directory of tests what is tested there, and names no other."""
    there = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| in `tests/` |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first))) == sorted(there)


TESTS = """
import time
from pathlib import Path

def test_that_fails():
    assert 1 == 2, "one is not two"

def test_that_waits_until_the_failure_was_seen():
    for _ in range(3000):
        if Path("seen").exists():
            return
        time.sleep(0.01)
    assert False, "nobody was told of the failure"
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_a_failure_is_named_when_it_happens(tmp_path: Path, workers: list[str]) -> None:
    """The name of a failing test and what it said is printed while other tests still run."""
    (tmp_path / "conftest.py").write_text("from tests.support.named import pytest_configure")
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",
        "-p",
        "no:cacheprovider",
        *workers,
        "test_two.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("FAILED test_two.py::test_that_fails: AssertionError: one is not two"):
                (tmp_path / "seen").touch()
                break
        rest = running.stdout.read()
    assert (tmp_path / "seen").exists(), rest
    assert "1 failed, 1 passed" in rest


DIES = """
import os
import pytest

@pytest.mark.parametrize("number", range(8))
def test_one(number):
    if number == 3:
        os.kill(os.getpid(), 9)
"""


def test_a_worker_that_dies_fails_one_test(tmp_path: Path) -> None:
    """When a worker dies, the test that it ran fails, and all other tests are run: those of its file, and those that it still had."""
    (tmp_path / "conftest.py").write_text("from tests.support.distribution import pytest_xdist_make_scheduler")
    (tmp_path / "test_dies.py").write_text(DIES)
    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        (tmp_path / name).write_text("def test_one(): pass")
    line = ("-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "2", "--dist", "loadfile")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python(*line, cwd=tmp_path, env=environment, imports=PYTEST, seeds=("0",))
    assert "1 failed, 11 passed" in done.stdout
    assert re.search(r"FAILED test_dies.py::test_one\[3\] - worker 'gw\d' crashed", done.stdout)


TOLD = """
import pytest

@pytest.fixture(params=["", "fails", "prints"])
def made(request):
    yield
    if request.param == "prints":
        print("a word at the end")
    assert request.param != "fails"

def test_one(made):
    pass

@pytest.mark.skip
def test_two():
    pass
"""
TELLS = """
from tests.support.unsaid import pytest_sessionstart

def pytest_runtest_logreport(report):
    if hasattr(report, "node"):
        with open("told", "a") as file:
            print(report.when, report.outcome, bool(report.sections), file=file)
"""


@pytest.mark.parametrize("asked", [[], ["--durations=0"], ["--junitxml=reports.xml"]], ids=["plain", "times", "file"])
def test_workers_tell_what_somebody_reads(tmp_path: Path, asked: list[str]) -> None:
    """A worker tells of each test, of fixtures that fail or print, and of all others where they are asked for."""
    (tmp_path / "conftest.py").write_text(TELLS)
    (tmp_path / "test_told.py").write_text(TOLD)
    line = ("-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "1", "--dist", "loadfile", *asked)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python(*line, cwd=tmp_path, env=environment, imports=PYTEST, seeds=("0",))
    assert re.search("3 passed, 1 skipped, .*1 error", done.stdout), done.stdout
    told = (tmp_path / "told").read_text().splitlines()
    plain = [one for one in told if one in ("setup passed False", "teardown passed False")]
    assert len(plain) == (5 if asked else 0), told
    assert sorted({*told} - {*plain}) == [
        "call passed False", "setup skipped False", "teardown failed False", "teardown passed True",
    ]  # fmt: skip


def test_checks_side_by_side(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Checks that run at the same time are all run and shown in order; the status is that of the first that failed."""
    environment = Environment(Path(sys.executable))
    python = Path(sys.executable).name
    fails = [(python, "-c", f"print('check {n}'); raise SystemExit({n})") for n in (0, 3, 0, 4)]
    with pytest.raises(SystemExit) as status:
        environment.side_by_side(fails)
    assert status.value.code == 3
    said = capfdbinary.readouterr().out
    assert [line for line in said.split(b"\n") if line] == [b"check 0", b"check 3", b"check 0", b"check 4"]
    environment.side_by_side(fails[:1])


def test_garbage_that_parses_does_not_disturb_who_parses() -> None:
    """A text can be parsed although the garbage of other tests shows tracebacks when it is collected, which parses their lines."""

    class Shows:
        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            ast.parse("shown(1, [2])")

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(200):
            Shows()
            ast.parse("shown(1, [2, (3, 4)])\n" * 20)
    finally:
        gc.set_threshold(*before)


SEES = """
import atexit, os, sys, threading
def seen():
    here = [entry for entry in sys.path if "importlib" not in entry]
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "LC_CTYPE")}
    return __name__, globals().get("__file__"), sys.argv, sys.orig_argv, here, os.getcwd(), plain, sys.stdin.read(), hash("a set")
print(seen(), sys.stdout.isatty(), sys.warnoptions, flush=True)
print("and said", file=sys.stderr)
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("from a thread"))).start()
class Own:
    def __del__(self): print("taken apart")
own = Own()
with open("imported.py", "w") as file:
    file.write("import os\\nclass Own:\\n    def __del__(self): os.mkdir('left by a module')\\nown = Own()\\n")
import ctypes, imported
ctypes.CDLL(None).printf(b"by a library in C\\n")
left_open = open("left", "w")
left_open.write("written at the end")
assert sys.modules["__main__"].Own is Own
"""
ENDS = [
    "",
    "sys.exit(3)",
    "sys.exit('said at exit')",
    "sys.exit(-1)",
    "os._exit(4)",
    "os.kill(os.getpid(), 9)",
    "os.close(1)",
    "def",
    "{}['gone']",
]


HOW = ["-c", "-m", "script", "-W", "-u", "tracekit run"]


@pytest.mark.parametrize(
    ("how", "end"), [("script", end) for end in ENDS] + [(how, end) for how in HOW for end in ("", ENDS[-1])]
)
def test_a_forked_program_is_as_one_that_is_started(tmp_path: Path, how: str, end: str) -> None:
    """What a program finds when it begins, and what is left of it when it has ended, is the same with an interpreter of its own."""
    text = SEES + end + "\n"
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "more").mkdir()
    arguments = {
        "-c": ("-c", text),
        "-m": ("-m", "program"),
        "script": ("program.py",),
        "-W": ("-W", "error", "program.py"),
        "-u": ("-u", "program.py"),
        "tracekit run": ("-m", "tracekit", "run", "program.py"),
    }[how]
    variables = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tmp_path / "more"), "OWN": "ä"}

    def told(*, fresh: bool) -> tuple[object, ...]:
        left, by_a_module = tmp_path / "left", tmp_path / "left by a module"
        left.unlink(missing_ok=True)
        if by_a_module.exists():
            by_a_module.rmdir()
        done = python(*arguments, "a", "b c", input="given\r\n", cwd=tmp_path, env=variables, fresh=fresh)
        said = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+", "RUN", done.stderr)
        return done.returncode, done.stdout, said, left.exists() and left.read_text(), by_a_module.exists()

    assert told(fresh=False) == told(fresh=True)


def test_a_forked_program_begins_with_the_imports_done() -> None:
    """And one that is to be started has none."""
    code = "import sys; print('tracekit._runtime.recorder' in sys.modules)"
    assert python("-c", code).stdout == "True\n"
    assert python("-c", code, fresh=True).stdout == "False\n"
    assert python("-c", code, env={**os.environ, "PYTHONHASHSEED": "1"}).stdout == "False\n"


def test_what_a_forked_program_starts_is_forked_where_its_hash_seed_is_named() -> None:
    """The interpreter that it starts has that hash seed, options and variables as given, and its end; any other starts with nothing."""
    child = "import os, sys; print('tracekit' in sys.modules, hash('a'), os.environ['OWN'], input()); sys.exit(3)"
    program = f"""
import os, subprocess, sys
for seed in "123":
    variables = {{**os.environ, "PYTHONHASHSEED": seed, "OWN": seed}}
    done = subprocess.run([sys.executable, "-c", {child!r}], env=variables, input="given", text=True, capture_output=True)
    print(done.returncode, done.stdout, done.stderr, end="")
"""
    told = python("-c", program, seeds=("1", "2")).stdout
    started = python("-c", program).stdout
    assert started.count("False") == 3
    assert told == started.replace("False", "True", 2)


CHILD = """
import os, signal, sys
print(os.getppid() == int(sys.argv[1]), sys.argv[2:], sys.orig_argv[1:2], os.getcwd(), os.environ["OWN"], input())
print(os.getsid(0) == os.getpid(), os.read(int(sys.argv[2]), 9), signal.getsignal(signal.SIGINT), sorted(os.listdir("/proc/self/fd"))[:-1])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), file=sys.stderr, flush=True)
print("tracekit" in sys.modules, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""
PARENT = """
import multiprocessing, os, signal, subprocess, sys

def work(number):
    return number, os.getppid() == number, "tracekit" in sys.modules

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    read, write = os.pipe()
    os.dup2(read, 77)
    os.write(write, b"passed on")
    child = subprocess.Popen(
        [sys.executable, "child.py", str(os.getpid()), "77"], cwd="below", env={**os.environ, "OWN": "ä"}, pass_fds=[77],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )
    print(*child.communicate("given"), child.returncode)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        number, *told = pool.apply(work, [os.getpid()])
        print(number == os.getpid(), told)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no call for it")
def test_what_a_forked_program_starts_with_its_own_hash_seed_is_its_child(tmp_path: Path) -> None:
    """The child finds what it would find if it were not forked, and its parent hears of its end; by multiprocessing, too."""
    (tmp_path / "program.py").write_text(PARENT)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "child.py").write_text(CHILD)
    variables = {**os.environ, "PYTHONHASHSEED": "0"}

    def told(*seeds: str) -> str:
        done = python("program.py", cwd=tmp_path, env=variables, seeds=seeds)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "\nFalse\n" in (started := told())
    assert told("0") == started.replace("\nFalse\n", "\nTrue\n").replace("[True, False]", "[True, True]")


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15)])
def test_a_command_that_forks(end: str, status: int) -> None:
    """Who starts it has a process that reads, writes and ends as the program does."""
    program = f"import os, sys; print(sys.argv, input(), 'tracekit' in sys.modules, flush=True); {end}"
    done = subprocess.run(command("-c", program, "a"), input="given\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "['-c', 'a'] given True\n"), done.stderr


@pytest.mark.parametrize("children", [False, True])
def test_what_a_program_starts_that_is_forked_for_its_starter(children: bool) -> None:
    """Its child begins with the imports done if that was asked for, and is its own child in any case."""
    child = "import os, sys; print('tracekit' in sys.modules, os.getppid() == int(sys.argv[1]))"
    program = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    with forking(children=children):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"{children} True\n", done.stderr


def test_a_command_that_forks_hands_its_files_on() -> None:
    """The program finds each file that its command was given, by its number, and no other."""
    with tempfile.TemporaryFile() as file:
        file.write(b"handed on")
        file.seek(0)
        program = f"import os; print(os.read({file.fileno()}, 99), len(os.listdir('/dev/fd')) - 1)"
        done = subprocess.run(command("-c", program), pass_fds=[file.fileno()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "b'handed on' 4\n"), done.stderr


def test_what_was_forked_ends_with_the_command() -> None:
    """It is not left over when the process is killed that was started for it; nor is one that runs beside a test."""
    program = "import time; print('begun', flush=True); time.sleep(600)"
    with subprocess.Popen(command("-c", program), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.kill()
        assert running.stdout.read() == "", "until nobody writes there any longer"
    with started("-c", "import time; time.sleep(600)", cwd=ROOT) as server:
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_program_that_takes_too_long_ends_alone() -> None:
    """It is killed, and the programs of later tests are forked as before."""
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", "import time; print('begun', flush=True); time.sleep(600)", timeout=0.1)
    assert python("-c", "print('tracekit' in __import__('sys').modules)").stdout == "True\n"


#: The files that import parts of tracekit which are not public: tests of a part under a promise that no public name shows as well,
#: and what stands in for such a part. What a user can see is tested by public names: no file comes to this list.
PRIVATE = """
agents/test_attempts.py
agents/test_determinism.py
agents/test_responders.py
crash/agent.py
crash/once_program.py
crash/test_copies.py
crash/test_power.py
e2e/test_commands.py
e2e/test_guard_sdks.py
e2e/test_scratch.py
golden/test_golden.py
integrations/test_http.py
property/test_canonical.py
property/test_patch_identity.py
property/test_reading_in_blocks.py
support/faults.py
support/power.py
support/processes.py
support/reads.py
support/simulation.py
support/watch.py
unit/test_abort_under_way.py
unit/test_bodies.py
unit/test_budgets.py
unit/test_announced.py
unit/test_canonical.py
unit/test_canonical_exceptions.py
unit/test_clock.py
unit/test_compiled.py
unit/test_compiled_secrets.py
unit/test_compensation.py
unit/test_concurrency.py
unit/test_concurrency_handover.py
unit/test_credentials.py
unit/test_debugger.py
unit/test_depth.py
unit/test_divergence.py
unit/test_environment.py
unit/test_estimate.py
unit/test_exactly_once.py
unit/test_failures.py
unit/test_fallbacks.py
unit/test_guard.py
unit/test_guard_hosts.py
unit/test_guard_isolation.py
unit/test_interrupted_hooks.py
unit/test_journal_intern.py
unit/test_journal_reader.py
unit/test_journal_runs.py
unit/test_journal_schema.py
unit/test_journal_sync.py
unit/test_mutations.py
unit/test_patch.py
unit/test_randomness.py
unit/test_recovery.py
unit/test_redaction.py
unit/test_replay.py
unit/test_retries.py
unit/test_routes.py
unit/test_schedule.py
unit/test_secret_formats.py
unit/test_sessions.py
unit/test_testing_kit.py
unit/test_journal_kept.py
unit/test_timers.py
unit/test_trace_index.py
unit/test_values.py
"""


def test_behaviour_is_tested_by_public_names() -> None:
    """No other test imports a private part; one that does no longer is taken from the list."""
    imports = re.compile(r"^\s*(?:from|import) tracekit\.(?:\w+\.)*_\w", re.MULTILINE)
    tests = ROOT / "tests"
    found = {str(path.relative_to(tests)) for path in tests.rglob("*.py") if imports.search(path.read_text("utf-8"))}
    assert found == set(PRIVATE.split())
