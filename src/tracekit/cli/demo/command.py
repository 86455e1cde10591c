"""``tracekit demo``: an agent recorded, killed, resumed and replayed in a workspace of its own."""

from __future__ import annotations

import codecs
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...testing import ScriptedModel, ToolUse
from ..output import DIFFERENT, RIGHT, USAGE_ERROR, message

__all__ = ["Play", "Provider", "Tripwire", "demo", "embedded", "real", "script"]

# -- story -------------------------------------------------------------------------------------------------------------
#
# The output of the demo: headings, texts, and checks with their marks.


class Story:
    """The demo's output: writes to ``console`` at once, and keeps ``checks``, a list of (what, passed, detail)."""

    def __init__(self, console: Console) -> None:
        self.console: Final = console
        self.checks: Final[list[tuple[str, bool, str]]] = []
        self._chapter = 0
        self._fresh = True

    @property
    def right(self) -> bool:
        """Whether something was checked and every check passed."""
        return bool(self.checks) and all(ok for _, ok, _ in self.checks)

    def chapter(self, title: str, text: str = "") -> None:
        self._chapter += 1
        self.console.print(f"\n[bold cyan]{self._chapter}[/]  [bold]{escape(title)}[/]")
        if text:
            self.say(text)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Padding(Text(text, style=style), (0, 0, 0, 3)))

    def live(self, text: str) -> None:
        """Print an agent's output as it is."""
        for part in text.splitlines(keepends=True):
            self.console.print(Text(("     " if self._fresh else "") + part, style="green"), end="", soft_wrap=True)
            self._fresh = part.endswith("\n")

    def check(self, what: str, ok: bool, detail: str = "") -> None:
        self.checks.append((what, bool(ok), detail))
        mark = Text("✓ ", style="bold green") if ok else Text("✗ ", style="bold red")
        line = mark + Text(what) + Text(f"  {detail}" if detail else "", style="dim")
        self.console.print(Padding(line, (0, 0, 0, 3)))

    def compare(self, rows: list[tuple[str, Any, Any]], left: str, right: str) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("", style="dim")
        table.add_column(left, ratio=1)
        table.add_column(right, ratio=1)
        for name, first, second in rows:
            table.add_row(name, Text(str(first)), Text(str(second)))
        self.console.print(Padding(table, (0, 0, 0, 3)))

    def quote(self, text: str, limit: int = 40) -> None:
        """Quote a message of tracekit, ``limit`` lines at most."""
        lines = text.splitlines()
        if len(lines) > limit:
            lines[limit:] = [f"… and {len(lines) - limit} more lines"]
        for line in lines:
            self.console.print(Text("   │ ", style="dim") + Text(line, style="yellow"), soft_wrap=True)

    def quote_end(self, text: str) -> None:
        """Quote the last ten lines of what a program wrote, where the reason of its end is."""
        lines = text.rstrip().splitlines()
        left_out = [f"{len(lines) - 10} lines before these …"] if len(lines) > 10 else []
        self.quote("\n".join([*left_out, *lines[-10:]]))


# -- workspace ---------------------------------------------------------------------------------------------------------
#
# The directory in which the demo runs: copies of the agent, the files that its tools change, its runs, and its processes.

_HERE: Final = Path(__file__).parent
_OUTSIDE: Final = ("ledger.jsonl", "stock.json")


class Workspace:
    """The demo's directory, with ``agent.py``, ``play.py``, the ledger and ``.tracekit/runs``."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self.store: Final = directory / ".tracekit"
        self._copy(directory)

    def _copy(self, into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        for name in ("agent.py", "play.py"):
            (into / name).write_text((_HERE / name).read_text(encoding="utf-8"), encoding="utf-8")

    def change(self, old: str, new: str) -> Path:
        """A second copy of the agent with one piece of its text changed; returns its directory."""
        into = self.directory / "changed"
        self._copy(into)
        text = (into / "agent.py").read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        (into / "agent.py").write_text(text.replace(old, new), encoding="utf-8")
        return into

    def play(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str],
        code: Path | None = None,
        relay: Callable[[str], None] | None = None,
    ) -> Play:
        """Start ``play.py ARGUMENTS`` in a fresh process; ``code`` is the directory of another copy of the agent."""
        script = (code or self.directory) / "play.py"
        return Play([sys.executable, str(script), *map(str, arguments)], self.directory, dict(environment), relay)

    def outside(self) -> dict[str, tuple[bytes, int] | None]:
        """Content and modification time (ns) of each file that the tools can change."""
        paths = {name: self.directory / name for name in _OUTSIDE}
        return {name: (p.read_bytes(), p.stat().st_mtime_ns) if p.exists() else None for name, p in paths.items()}

    def charges(self) -> int:
        """Lines in the ledger."""
        ledger = self.directory / _OUTSIDE[0]
        return len(ledger.read_bytes().splitlines()) if ledger.exists() else 0

    def saved(self, name: str) -> dict[str, Any]:
        """What ``play.py`` wrote to file ``name``, or an empty dictionary if it did not get there."""
        path = self.directory / name
        if not path.exists():
            return {}
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded

    def environment(self, **extra: str) -> dict[str, str]:
        """This process's environment without credentials or addresses of providers, for a child in the directory."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENAI_", "ANTHROPIC_", "TRACEKIT_", "DEMO_"))
        }
        return {**kept, "PYTHONPATH": _python_path(), "TRACEKIT_DIR": str(self.store), "PYTHONUTF8": "1", **extra}


class Play:
    """One process of the demo. Its standard output goes to ``relay`` at once; ``wait`` returns when it is complete."""

    def __init__(
        self, command: list[str], cwd: Path, environment: dict[str, str], relay: Callable[[str], None] | None
    ) -> None:
        self._process: Final = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._relay: Final = relay
        self._out: Final[list[str]] = []
        self._err = b""
        self._readers: Final = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while data := os.read(self._process.stdout.fileno(), 65536):
            text = decode(data)
            self._out.append(text)
            if self._relay is not None:
                self._relay(text)

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        self._err = self._process.stderr.read()

    def wait(self, timeout: float) -> Play:
        """Wait for the end, at most ``timeout`` seconds, then end it by force (its status is then negative)."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return self

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def status(self) -> int:
        return int(self._process.returncode)

    @property
    def printed(self) -> str:
        return "".join(self._out)

    @property
    def complaint(self) -> str:
        """What it wrote to standard error."""
        return self._err.decode(errors="replace")

    @property
    def error(self) -> str:
        """The text of the exception that ended it, from its ``[code]`` on, else all of its standard error."""
        at = self.complaint.rfind("Error: [")
        return self.complaint[at + len("Error: ") :].strip() if at >= 0 else self.complaint.strip()


def _python_path() -> str:
    """The child's ``PYTHONPATH``: this process's, absolute, and where tracekit is if it is not installed."""
    entries = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = str(_HERE.parents[2])
    if root not in entries and root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        entries.insert(0, root)
    return os.pathsep.join(entries)


# -- provider ----------------------------------------------------------------------------------------------------------
#
# Who answers the demo's agent: a scripted model behind a server on loopback, or a real provider.


class Provider:
    """A model provider: ``settings`` are the environment variables for the agent, ``secrets`` those that a replay must not need."""

    def __init__(self, name: str, settings: Mapping[str, str], secrets: Mapping[str, str], timeout: float) -> None:
        self.name: Final = name
        self.settings: Final = settings
        self.secrets: Final = secrets
        self.timeout: Final = timeout
        self.asks_anthropic: Final = "DEMO_CLAUDE" in settings


def embedded(url: str) -> Provider:
    """The embedded server at ``url``, for both SDKs. The keys are no secrets, but SDKs do not start without one."""
    return Provider(
        "the embedded model server",
        {
            "DEMO_MODEL": "scripted",
            "DEMO_CLAUDE": "scripted",
            "OPENAI_BASE_URL": url + "/v1",
            "ANTHROPIC_BASE_URL": url,
        },
        {"OPENAI_API_KEY": "not-needed", "ANTHROPIC_API_KEY": "not-needed"},
        60.0,
    )


#: Sentences of the model, of which no run gets the same ones as another.
_ANSWERS: Final = (
    "Order A-1042 is settled: two kettles are reserved, and the card was charged once.",
    "Done. The stock for A-1042 is reserved and the payment has gone through.",
)
_LETTERS: Final = (
    "Dear Ada, your two kettles are packed and leave with the next courier.",
    "Good news: everything you ordered is on its way, and the courier knows the gate.",
)
_FORECASTS: Final = (
    "Light rain until noon, then clear.",
    "Dry and cold, with some ice on the bridge.",
    "Fog in the valley; the road is open.",
    "Sunny all day, wind from the west.",
    "Snow above 800 metres, and a dry road below.",
)
_REVIEWS: Final = (
    "The invoice is correct: two pieces, 79.80 in all.",
    "Yes, amount and quantity match the order.",
)
_NOTES: Final = (
    "Please ring twice and leave the box with the neighbour.",
    "Mind the low gate, and call before you arrive.",
)


def script(*, anthropic: bool) -> list[str | ToolUse]:
    """What a scripted model replies to two runs of the agent, in the order in which that asks; ``anthropic``: through that SDK, too."""
    random, order = SystemRandom(), {"order_id": "A-1042"}
    answers, letters, reviews, notes = (random.sample(each, 2) for each in (_ANSWERS, _LETTERS, _REVIEWS, _NOTES))
    replies: list[str | ToolUse] = []
    for run in range(2):
        replies += [
            ToolUse("look_up_order", order),
            ToolUse("reserve_stock", {"sku": "KETTLE-7", "quantity": 2}),
            ToolUse("charge_card", {**order, "amount_cents": 7980}),
            answers[run],
            letters[run],
            *random.sample(_FORECASTS, 4),
        ]
        replies += [reviews[run], notes[run]] if anthropic else []
    return replies


class Tripwire:
    """Listens on a stopped server's port, answers nothing, and counts connections (``touched``)."""

    def __init__(self, port: int) -> None:
        self._socket: Final = socket.create_server(("127.0.0.1", port), backlog=16)
        self._socket.setblocking(False)

    @property
    def touched(self) -> int:
        """How many connections have been made since it was last asked; the system has queued them, so none is missed."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self._socket.accept()[0].close()
                count += 1
        return count

    def __enter__(self) -> Tripwire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def real(base_url: str | None, model: str | None, claude: str | None) -> Provider:
    """The provider that environment and options name; Anthropic too, where a key or an address of it is given."""
    url = base_url or os.environ.get("OPENAI_BASE_URL")
    settings = {"DEMO_MODEL": model or "gpt-5-mini"}
    if url:
        settings["OPENAI_BASE_URL"] = url
    secrets = {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY") or "not-needed"}
    if os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_BASE_URL"):
        settings["DEMO_CLAUDE"] = claude or "claude-haiku-4-5"
        secrets["ANTHROPIC_API_KEY"] = os.environ.get("ANTHROPIC_API_KEY") or "not-needed"
        if address := os.environ.get("ANTHROPIC_BASE_URL"):
            settings["ANTHROPIC_BASE_URL"] = address
    return Provider(url or "the OpenAI API", settings, secrets, 300.0)


# -- command -----------------------------------------------------------------------------------------------------------
#
# ``tracekit demo``: a real agent is recorded and replayed exactly, and two attempts to cheat are detected.

_PROMPT: Final = "Write one friendly sentence to the customer"
_CHANGED: Final = "Write one friendly sentence and an apology to the customer"


@click.command()
@click.option("--base-url", metavar="URL", help="Ask a real, OpenAI-compatible provider at this address.")
@click.option("--model", metavar="NAME", help="The model to ask there.")
@click.option("--claude", metavar="NAME", help="The model to ask at Anthropic, if ANTHROPIC_API_KEY is set.")
@click.option("--embedded", "own", is_flag=True, help="Use the embedded model server even if OPENAI_API_KEY is set.")
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Work in this directory and keep it.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as one JSON object; the story goes to stderr.")
def demo(
    base_url: str | None, model: str | None, claude: str | None, own: bool, keep: Path | None, as_json: bool
) -> None:
    """Record a real agent, replay it exactly, and see two changes detected.

    The agent uses the real openai and anthropic packages against a server with scripted answers that this command starts on
    loopback. With --base-url, or with OPENAI_API_KEY set, it asks a real provider instead (which costs a few cents).
    Exit code: 0 if every check passed, otherwise 1.

    \b
    Examples:
      tracekit demo
      tracekit demo --keep /tmp/demo  # leave the recording there, to look at
    """
    import os

    if base_url is not None and own:
        raise click.UsageError("--base-url asks a real provider, and --embedded asks none: name one of them")
    if base_url is not None and not _is_address(base_url):
        raise click.BadParameter(
            f"{base_url!r} is no address: write it as in http://127.0.0.1:8080/v1", param_hint="--base-url"
        )
    outside = not own and bool(base_url or os.environ.get("OPENAI_API_KEY"))
    provider = real(base_url, model, claude) if outside else None
    _require_sdks(anthropic=provider is None or provider.asks_anthropic)
    story = Story(_console(as_json))
    with _directory(keep) as directory:
        run = _run_chapters(story, Workspace(directory), provider)
    _close(story, keep, run)
    if as_json:
        checks = [{"check": what, "ok": ok, "detail": detail} for what, ok, detail in story.checks]
        click.echo(json.dumps({"ok": story.right, "run_id": run, "checks": checks}, ensure_ascii=False))
    sys.exit(RIGHT if story.right else DIFFERENT)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _console(piped: bool) -> Any:
    from rich.console import Console

    return Console(stderr=piped, highlight=False)


def _require_sdks(*, anthropic: bool) -> None:
    needed = ["openai", "anthropic"] if anthropic else ["openai"]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        packages = " and ".join(missing) + (" packages" if len(missing) > 1 else " package")
        python = Path(sys.executable).name
        message(f"The demo's agent uses the real {packages}, not installed here. Install with:")
        message(f"\n    {python} -m pip install {' '.join(missing)}\n")
        sys.exit(USAGE_ERROR)


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="tracekit-demo-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        what = "not empty" if keep.is_dir() else "no directory"
        raise click.BadParameter(f"{keep} is there already and {what}; name a new directory", param_hint="--keep")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def _run_chapters(story: Story, place: Workspace, provider: Provider | None) -> str | None:
    """Run all four chapters; returns the id of the recorded run, or ``None`` if there is none."""
    port = None
    if provider is None:
        model = ScriptedModel(*script(anthropic=True))
        with model.served(pace=0.01) as url:
            provider, port = embedded(url), urlsplit(url).port
            recorded = _live(story, place, provider, model)
    else:
        recorded = _live(story, place, provider, None)
    if recorded is None:
        return None
    with nullcontext() if port is None else Tripwire(port) as tripwire:
        _after(story, place, provider, recorded, tripwire)
    return recorded.run


class _Recorded:
    """The recorded run: its id, its file, its result."""

    def __init__(self, run: str, trace: Path, result: dict[str, Any]) -> None:
        self.run: Final = run
        self.trace: Final = trace
        self.result: Final = result


def _live(story: Story, place: Workspace, provider: Provider, model: ScriptedModel | None) -> _Recorded | None:
    sdks = "openai and anthropic SDKs" if provider.asks_anthropic else "openai SDK"
    story.chapter(
        "Live, twice",
        f"A real agent ({sdks}, three tools, clock and random numbers) settles an order with {provider.name}.\n"
        "It prints its streamed answers as they come; the second time it is recorded.",
    )
    environment = place.environment(**provider.settings, **provider.secrets)
    play = place.play("both", "first.json", "second.json", environment=environment, relay=story.live)
    play.wait(provider.timeout)
    first, second = place.saved("first.json").get("result"), place.saved("second.json").get("result")
    if play.status or not first or not second:
        story.check("the agent ran", False, f"exit status {play.status}")
        story.quote_end(play.complaint)
        return None
    run = place.saved("second.json")["run_id"]
    trace = place.store / "runs" / f"{run}.jsonl"
    story.compare(_rows(first, second), "first run", "second run, recorded")
    story.check(
        "the two runs differ", _texts(first) != _texts(second) and _random_numbers(first) != _random_numbers(second)
    )
    if model is not None:
        story.check("each run charged the card once", place.charges() == 2, f"{place.charges()} lines in the ledger")
        story.check("the server was really asked", bool(model.requests), f"{len(model.requests)} requests")
    entries = len(trace.read_bytes().splitlines())
    story.check("the second run is on disk", entries > 0, f"{entries} entries in {trace.name}")
    if play.complaint.strip():
        story.quote(play.complaint)
    return _Recorded(run, trace, second)


def _after(story: Story, place: Workspace, provider: Provider, recorded: _Recorded, tripwire: Tripwire | None) -> None:
    """Replay without the server: the same code, a changed prompt and a changed byte, each in a fresh process, all at once."""
    before = place.outside()
    environment = place.environment(**provider.settings)
    changed = place.change(_PROMPT, _CHANGED)
    damaged, line, change = _damage(recorded.trace, place.directory / "damaged.jsonl")
    replay = place.play("replay", "third.json", recorded.run, environment=environment)
    other = place.play("replay", "fourth.json", recorded.run, environment=environment, code=changed)
    bad = place.play("replay", "fifth.json", damaged, environment=environment)
    for play in (replay, other, bad):
        play.wait(provider.timeout)
    _replayed(story, place, recorded, replay)
    if tripwire is not None:
        knocks = tripwire.touched
        story.check("nothing was sent", knocks == 0, f"{knocks} connections to the stopped server's address")
    story.check("nothing was done twice", place.outside() == before, "ledger and stock are untouched")
    _prompt_changed(story, other)
    _byte_changed(story, bad, line, change)


def _replayed(story: Story, place: Workspace, recorded: _Recorded, play: Play) -> None:
    story.chapter(
        "Replayed",
        "Server stopped, no API key, a fresh process, the same code: with replay(run_id): handle(order).",
    )
    outcome = place.saved("third.json")
    result = outcome.get("result") or {}
    story.check("it ran to its end", play.status == 0, f"{outcome.get('steps', 0)} steps answered from the file")
    if play.status or play.complaint.strip():
        story.quote(play.error)
    kept = recorded.result
    story.check(
        "same text", bool(result) and _texts(result) == _texts(kept), f"{len(''.join(_texts(kept)))} characters"
    )
    chunks = sum(map(len, _chunks(kept)))
    story.check("same chunks", bool(result) and _chunks(result) == _chunks(kept), f"{chunks} pieces, cut the same way")
    story.check("same times", bool(result) and _times(result) == _times(kept), str(kept["started"]))
    story.check(
        "same random numbers",
        bool(result) and _random_numbers(result) == _random_numbers(kept),
        f"gate {kept['gate']}, ticket {kept['ticket']}",
    )
    printed = "".join("".join(each) + "\n" for each in _chunks(kept) if each)
    story.check("same result to the last bit, same output on the screen", result == kept and play.printed == printed)


def _prompt_changed(story: Story, play: Play) -> None:
    story.chapter("One prompt changed", f"“{_PROMPT} …” became “{_CHANGED} …” in a copy of the agent.")
    caught = play.status != 0 and "[divergence]" in play.error and "apology" in play.error
    story.check("the difference was found", caught, f"exit status {play.status}")
    story.quote(play.error)


def _byte_changed(story: Story, play: Play, line: int, change: str) -> None:
    story.chapter("One byte changed", f"In line {line} of a copy of the trace, {change}.")
    caught = play.status != 0 and "[trace-integrity]" in play.error and f"line {line}" in play.error
    story.check("the trace was refused", caught, f"exit status {play.status}")
    story.quote(play.error)


def _damage(trace: Path, copy: Path) -> tuple[Path, int, str]:
    """Copy ``trace`` with one byte of an amount changed; returns the copy, the line (from 1) and a description."""
    data = bytearray(trace.read_bytes())
    found = re.search(rb'"amount_cents":(?=[0-9])', data) or re.search(rb'"content":"(?=[a-z])', data, re.IGNORECASE)
    at = found.end() if found else len(data) // 2
    before = bytes(data[at - 15 : at + 4])
    data[at] ^= 1
    after = bytes(data[at - 15 : at + 4])
    copy.write_bytes(data)
    copy.chmod(0o600)
    return (
        copy,
        data.count(b"\n", 0, at) + 1,
        f"{before.decode(errors='replace')} became {after.decode(errors='replace')}",
    )


def _rows(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    def cells(name: str, take: Any) -> tuple[str, Any, Any]:
        return name, take(first), take(second)

    return [
        cells("answer", lambda result: result["settled"]["said"]),
        cells("tools", lambda result: " → ".join(result["settled"]["calls"])),
        cells("forecast", lambda result: result["forecasts"][0]),
        cells("started", lambda result: result["started"]),
        cells("random", lambda result: f"gate {result['gate']}, ticket {result['ticket'][:8]}…"),
    ]


def _texts(result: dict[str, Any]) -> list[str]:
    texts = [result["settled"]["said"], *result["forecasts"], result.get("review"), *map("".join, _chunks(result))]
    return [text or "" for text in texts]


def _chunks(result: dict[str, Any]) -> list[list[str]]:
    return [result["letter"], result.get("note") or []]


def _times(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["started"], result["seconds"]


def _random_numbers(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["ticket"], result["gate"]


def _close(story: Story, keep: Path | None, run: str | None) -> None:
    failed = [what for what, ok, _ in story.checks if not ok]
    console = story.console
    if failed:
        console.print(f"\n[bold red]{len(failed)} of {len(story.checks)} checks failed:[/] {', '.join(failed)}.")
    else:
        console.print(f"\n[bold green]All {len(story.checks)} checks came out as promised.[/]")
    if keep is not None and run is not None:
        console.print(f"Everything is in {keep}: agent.py, play.py, the trace. Look around:", soft_wrap=True)
        console.print(f"   cd {keep} && tracekit show {run} --why", soft_wrap=True, highlight=False)
    console.print()
