"""One real program: recorded, replayed with its server there and once more with it gone, and what came of that.

The program runs as its user would run it: in a directory and with a home directory of its own, by ``tracekit run``, with
the variables that point its SDKs to a server on loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.stub_provider import StubProvider, stub_provider

__all__ = ["SCRIPTS", "Interpreter", "Place", "Result", "Row", "Told", "notebooks", "run"]

SCRIPTS = Path(__file__).parent / "scripts"
#: Seconds for one run of a program. One that takes longer is stuck.
LIMIT = 240


@dataclass(frozen=True)
class Row:
    """A program: a file of ``scripts``, the packages that it is about, and what it needs beside them."""

    name: str
    about: str
    #: The environment that it runs in, and the distributions of which the table shows the version.
    environment: str
    packages: tuple[str, ...]
    #: What follows ``tracekit run``; its script by default.
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    input: str = ""
    #: What the model says to a request; ``None`` is text that no other answer has.
    says: Callable[[dict[str, Any]], Any] | None = None
    #: Whether it asks its server for anything. One that does, and was not heard, has tested nothing.
    asks: bool = True
    #: Scripts that it starts, beside those that have its name.
    files: tuple[str, ...] = ()
    #: A script that serves it beside the provider; it gets a port and the file in which it writes a line for each request.
    server: str = ""
    #: ``MODULE:FUNCTION`` of the runs that the program makes itself, where it is not one run as a whole: each is replayed alone.
    entry: str = ""
    #: Where the recording is not one run of one program: records and replays by itself.
    course: Callable[[Place], Result] | None = None


@dataclass
class Result:
    """``result`` is exact, inexact, refused, failed or not run; ``reason`` says why."""

    result: str
    reason: str = ""
    #: What the recording itself said that a replay will not have.
    told: list[str] = field(default_factory=list)
    #: Requests that its server had while it was recorded, and in the replays.
    recorded: int = 0
    replayed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    #: The commit of tracekit that it was run with.
    tracekit: str = ""

    @property
    def short(self) -> str:
        return self.result if self.result == "exact" else f"{self.result}, {self.reason}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Told:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def last(self) -> str:
        """The last lines of what it said is wrong."""
        return "\n".join((self.stderr or self.stdout).rstrip().splitlines()[-12:])


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of an environment with tracekit and the packages of some rows."""

    python: Path

    @property
    def scripts(self) -> Path:
        return self.python.parent

    def versions(self, packages: tuple[str, ...]) -> dict[str, str]:
        """The version of each, and of Python as ``python``."""
        code = (
            "import json, sys, platform; from importlib.metadata import version;"
            "print(json.dumps({'python': platform.python_version(), **{name: version(name) for name in sys.argv[1:]}}))"
        )
        done = subprocess.run([self.python, "-c", code, *packages], capture_output=True, text=True, check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


class Place:
    """The directory of one row, with its server."""

    def __init__(self, row: Row, interpreter: Interpreter, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.row = row
        self.interpreter = interpreter
        self.work = directory / "work"
        self.home = directory / "home"
        self.work.mkdir(parents=True)
        self.home.mkdir()
        self._lay()
        #: Where its model is, and where its telemetry goes.
        self.url = self.collector = ""
        self._variables: dict[str, str] = {}

    @contextmanager
    def served(self) -> Iterator[Callable[[], int]]:
        """Its server, for the block; what is given says how many requests it has had."""
        with ExitStack() as stack:
            provider, collector = (stack.enter_context(stub_provider()) for _ in range(2))
            talker = stack.enter_context(_talking())
            ledger = self.work.parent / "requests.txt"
            ledger.touch()
            provider.says = self.row.says
            self.url, self.collector = provider.url, collector.url
            self._variables = _variables(provider, talker)
            if self.row.server:
                self._variables["SERVER_URL"] = stack.enter_context(self._serving(ledger))
            yield (
                lambda: (
                    sum(provider.requests.values())
                    + sum(collector.requests.values())
                    + (sum(talker.hits.values()) if talker else 0)
                    + len(ledger.read_text().splitlines())
                )
            )

    @contextmanager
    def _serving(self, ledger: Path) -> Iterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [str(self.interpreter.python), str(SCRIPTS / self.row.server), str(port), str(ledger)]
        process = subprocess.Popen(command, cwd=self.work.parent, env=self.variables())
        try:
            for _ in range(600):
                with socket.socket() as asking:
                    if asking.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()

    def variables(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
        given = {
            name: value.format(url=self.url, collector=self.collector) for name, value in self.row.variables.items()
        }
        path = os.pathsep.join((str(self.interpreter.scripts), "/usr/local/bin", "/usr/bin", "/bin"))
        return {**kept, "PATH": path, "HOME": str(self.home), "PYTHONUNBUFFERED": "1", **self._variables, **given}

    def tracekit(self, *arguments: str, limit: float = LIMIT) -> Told:
        return self.python("-m", "tracekit", *arguments, limit=limit)

    def python(self, *arguments: str, limit: float = LIMIT) -> Told:
        """Run its interpreter in its directory, with its variables; one that is stuck is ended."""
        process = subprocess.Popen(
            [str(self.interpreter.python), *arguments],
            cwd=self.work,
            env=self.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(self.row.input, timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            stderr += f"\nended after {limit:.0f} s"
        return Told(process.returncode, self.plain(stdout), self.plain(stderr))

    def plain(self, text: str) -> str:
        """Without the paths of this machine."""
        for path in (self.work, self.home, self.interpreter.scripts.parent):
            text = text.replace(f"{path}/", "").replace(str(path), ".")
        return text

    def as_it_was(self) -> None:
        """Put the files of its directory and of its home back to what they were before it ran; its runs stay."""
        store, kept = self.work / ".tracekit", self.work.parent / "runs"
        if store.exists():
            store.rename(kept)
        shutil.rmtree(self.home)
        self.home.mkdir()
        shutil.rmtree(self.work)
        self.work.mkdir()
        self._lay()
        if kept.exists():
            kept.rename(store)

    def _lay(self) -> None:
        for path in (*SCRIPTS.glob(f"{self.row.name}*"), *(SCRIPTS / name for name in self.row.files)):
            if path.is_dir():
                shutil.copytree(path, self.work / path.name)
            else:
                shutil.copy(path, self.work / path.name)

    def log(self, name: str, told: Told) -> None:
        """Keep what a command said beside the row's directory, for whoever looks why."""
        (self.work.parent / name).write_text(
            f"status {told.status}\n--- stdout\n{told.stdout}\n--- stderr\n{told.stderr}"
        )


def run(row: Row, interpreter: Interpreter, directory: Path) -> Result:
    """Record ``row``, replay it, and say what came of it."""
    place = Place(row, interpreter, directory)
    result = (row.course or (_each_run if row.entry else _course))(place)
    versions = interpreter.versions(row.packages)
    result.python = versions.pop("python", "")
    result.versions = versions
    return result


def _course(place: Place) -> Result:
    command = place.row.command or (f"{place.row.name}.py",)
    with place.served() as requests:
        recording = place.tracekit("run", *command)
        place.log("recording.txt", recording)
        recorded = requests()
        told = _told(recording.stderr)
        if recording.status != 0:
            return _not_recorded(place, recording, command, recorded)
        if place.row.asks and not recorded:
            return Result("not run", "its server was not asked for anything", told)
        # the guard alone keeps it from its server, which is there: nothing else stands between them
        with_server = place.tracekit("replay", "last", "--isolate", "off")
        place.log("replay.txt", with_server)
        replayed = requests() - recorded
    alone = place.tracekit("replay", "last")
    place.log("replay-alone.txt", alone)
    for replay in (with_server, alone):
        result = _judged(recording, replay, told)
        if result.result != "exact":
            # what it keeps in files from one start to the next is told from everything else
            place.as_it_was()
            again = place.tracekit("replay", "last")
            place.log("replay-as-it-was.txt", again)
            result.reason += f" (its files as they were before the recording: {_judged(recording, again, told).short})"
            break
    return _counted(result, recorded, replayed)


def _counted(result: Result, recorded: int, replayed: int) -> Result:
    """With the requests that reached the server; one in a replay is a failure, whatever else came of it."""
    result.recorded, result.replayed = recorded, replayed
    if replayed:
        result.result, result.reason = (
            "failed",
            f"{replayed} requests reached the server in the replay; {result.reason}",
        )
    return result


def _each_run(place: Place) -> Result:
    """The runs of a program that opens them itself: each is replayed alone, in a fresh process."""

    def replays(*options: str) -> Result:
        for number, run in enumerate(runs):
            replay = place.tracekit("replay", run, "--entry", place.row.entry, *options)
            place.log(f"replay-{number}{'-alone' * (not options)}.txt", replay)
            if replay.status == 0 and not {*replay.stdout.splitlines()} & {*recording.stdout.splitlines()}:
                return Result("failed", f"an exact replay printed something else: {replay.stdout.strip()!r}")
            if replay.status != 0:
                return Result(
                    _judged(recording, replay, []).result, f"run {number + 1} of {len(runs)}: {_reason(replay)}"
                )
        return Result("exact")

    with place.served() as requests:
        recording = place.python(f"{place.row.name}.py")
        place.log("recording.txt", recording)
        recorded = requests()
        if recording.status != 0:
            return Result("not run", f"the program fails: {_reason(recording)}", recorded=recorded)
        runs = sorted(path.stem for path in (place.work / ".tracekit" / "runs").glob("*.jsonl") if "." not in path.stem)
        if not runs:
            return Result("failed", "it has recorded no run", recorded=recorded)
        result = replays("--isolate", "off")
        replayed = requests() - recorded
    if result.result == "exact":
        result = replays()
    return _counted(result, recorded, replayed)


def notebooks(place: Place) -> Result:
    """A program that records in one process and replays in another, as its first argument says."""
    with place.served() as requests:
        recording = place.python(f"{place.row.name}.py", "record")
        place.log("recording.txt", recording)
        recorded = requests()
        if recording.status != 0:
            return Result("not run", f"the program fails: {_reason(recording)}", recorded=recorded)
        with_server = place.python(f"{place.row.name}.py", "replay")
        place.log("replay.txt", with_server)
        replayed = requests() - recorded
    alone = place.python(f"{place.row.name}.py", "replay")
    place.log("replay-alone.txt", alone)
    result = next(
        (one for one in (_judged(recording, each, []) for each in (with_server, alone)) if one.result != "exact"),
        Result("exact"),
    )
    return _counted(result, recorded, replayed)


def _not_recorded(place: Place, recording: Told, command: tuple[str, ...], recorded: int) -> Result:
    """Why a program fails when it is recorded: by itself, or only then."""
    bare = place.python(*command)
    place.log("bare.txt", bare)
    if bare.status == 0:
        return Result("failed", f"it fails when it is recorded, and only then: {_reason(recording)}", recorded=recorded)
    return Result("not run", f"the program fails by itself: {_reason(bare)}", recorded=recorded)


def _judged(recording: Told, replay: Told, told: list[str]) -> Result:
    same = replay.stdout == recording.stdout
    if replay.status == 0:
        if same:
            return Result("exact", "", told)
        noticed = "which it says" if "other output" in replay.stderr else "and says nothing of it"
        return Result(
            "failed", f"an exact replay printed something else, {noticed}: {_difference(recording, replay)}", told
        )
    reason = _reason(replay)
    code = re.search(r"^\[([a-z-]+)\]", replay.stderr, re.MULTILINE)
    if "the replay has failed" not in replay.stderr and (code is None or code[1] == "inexact-replay"):
        return Result("inexact", reason, told)
    if re.search(r"^\[(live-call-blocked|not-replayable|native|refused)", replay.stderr, re.MULTILINE):
        return Result("refused", reason, told)
    return Result("failed", reason, told)


_NOISE = re.compile(r"^(tracekit: (replaying|recorded run)|\s*$)")


def _reason(told: Told) -> str:
    """The line that says what went wrong."""
    lines = [line.strip() for line in told.stderr.splitlines()]
    for pattern in (r"^\[[a-z-]+\] ", r"^tracekit: not exact", r"^tracekit: +(the replay|inexact|not )"):
        if found := next((line for line in lines if re.search(pattern, line)), None):
            return found
    rest = [line for line in lines if not _NOISE.match(line)]
    return rest[-1] if rest else f"status {told.status}"


def _told(stderr: str) -> list[str]:
    """What the recording said at its end, without the line that names it."""
    return [line.removeprefix("tracekit:").strip() for line in stderr.splitlines() if line.startswith("tracekit:   ")]


def _difference(recording: Told, replay: Told) -> str:
    pairs = zip(recording.stdout.splitlines(), replay.stdout.splitlines(), strict=False)
    first = next(((one, other) for one, other in pairs if one != other), None)
    if first is None:
        return f"{len(recording.stdout.splitlines())} lines, then {len(replay.stdout.splitlines())}"
    return f"{first[0][:120]!r}, then {first[1][:120]!r}"


@contextmanager
def _talking() -> Iterator[Any]:
    try:
        from tests.support.talker import Talker
    except ImportError:  # the websocket server needs its library here
        yield None
        return
    talker = Talker()
    try:
        yield talker
    finally:
        talker.stop()


def _variables(provider: StubProvider, talker: Any) -> dict[str, str]:
    """What points SDKs to the server: the variables that they read themselves, and ``STUB_URL`` for programs."""
    url = provider.url
    keys = {
        f"{name}_API_KEY": "stub-key" for name in ("OPENAI", "ANTHROPIC", "GEMINI", "CO", "MISTRAL", "GROQ", "VOYAGE")
    }
    return {
        **keys,
        "STUB_URL": url,
        "STUB_WEBSOCKET": talker.url if talker else "",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "GOOGLE_GEMINI_BASE_URL": url,
        "OLLAMA_HOST": url,
        "CO_API_URL": url,
        "GROQ_BASE_URL": url,
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "stub-id",
        "AWS_SECRET_ACCESS_KEY": "stub-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HF_TOKEN": "hf-stub",
    }


def here() -> Interpreter:
    """The interpreter that runs this."""
    return Interpreter(Path(sys.executable))
