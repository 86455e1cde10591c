"""The examples of a Markdown page, run in order in a process of their own: ``python -m tests.support.pages PAGE DIRECTORY PYTHON PYTEST``.

A fenced block is told what to do by a comment right before it:

- none: Python is run, in one namespace a page; other blocks are only read
- ``<!-- file: NAME -->``: the block is written to that file
- ``<!-- run -->``, ``<!-- run: exit 3 -->``: the commands of a console block are run, and what the page shows of their output is
  compared with what they print; numbers, ids, durations and what stands for ``…`` may differ
- ``<!-- background -->``: its one command goes on in the background; an ``export`` line that it prints first is taken over
- ``<!-- background: WORDS -->``: the same with further words for the command, which the page does not show
- ``<!-- raises: NAME -->``: Python that ends in this exception
- ``<!-- needs: MODULE … -->``: Python, or a console block, that is run where these modules can be imported
- ``<!-- not run: REASON -->``

``<!-- before: COMMAND -->`` above that is a command that is run first and must succeed; ``$REPOSITORY`` is where the tests are.
``<!-- beside: COMMAND -->`` above both is a server that the page does not show: it goes on to the end of the page, and the ``export`` line
that it prints is taken over.

``<!-- page: agent -->`` anywhere gives the page a function ``agent(task)`` that answers without a model, ``<!-- page: keys -->``
keys that are good for nothing, without which SDKs refuse to make a client.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

HOME = "/srv/shop"
REPOSITORY = Path(__file__).parents[2]
_FENCE = re.compile(
    r"(?:<!-- beside: (?P<beside>[^\n]*?) -->\n\n?)?"
    r"(?:<!-- before: (?P<before>[^\n]*?) -->\n\n?)?"
    r"(?:<!-- (?P<mark>file|run|background|raises|needs|not run)(?:: (?P<value>[^\n]*?))? -->\n\n?)?"
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[a-z]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
_SAME = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "RUN"),
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "HASH"),
    (re.compile(r"\d+(?:\.\d+)?(?: (?:ns|µs|ms|s|min)\b)?"), "N"),
    (re.compile(r"\s+"), " "),
)


class Block(NamedTuple):
    """A fenced block: what its comments say, its language, its text, and the line of the page where the text begins."""

    mark: str | None
    value: str
    language: str
    text: str
    line: int
    before: str = ""
    beside: str = ""

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command of a console block with the lines that are shown of its output."""
        command: str | None = None
        shown: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ ") or (line.startswith("> ") and command is not None and command.endswith("\\")):
                if line.startswith("> "):
                    command = f"{command}\n{line[2:]}"
                    continue
                if command is not None:
                    yield command, shown
                command, shown = line[2:], []
            elif command is not None:
                shown.append(line)
        if command is not None:
            yield command, shown


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = []
    for match in _FENCE.finditer(page):
        indent = len(match["indent"])
        text = "".join(line[indent:] if line.strip() else "\n" for line in match["text"].splitlines(keepends=True))
        line = page.count("\n", 0, match.start("text")) + 1
        comments = match["before"] or "", match["beside"] or ""
        found.append(Block(match["mark"], match["value"] or "", match["language"], text, line, *comments))
    return found


def same(text: str) -> str:
    """``text`` without what may differ from one time to the next."""
    for pattern, instead in _SAME:
        text = pattern.sub(instead, text)
    return text.strip()


def missing(shown: list[str], printed: str) -> str | None:
    """The first line that the page shows and the command did not print, in this order; ``None`` where there is none."""
    lines = [line for line in map(same, printed.splitlines()) if line]
    for line in filter(None, map(same, shown)):
        wanted = re.compile(".*".join(map(re.escape, line.split("…"))))
        while lines and not wanted.fullmatch(lines[0]):
            lines.pop(0)
        if not lines:
            return line
        if line != "…":
            lines.pop(0)
    return None


class Page:
    """One page on its way through its blocks."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "page"}
        # Commands have a terminal, since what they show there is what the page shows; nobody is at it to leave a pager.
        self.environment = {**os.environ, "PAGER": "cat", "REPOSITORY": str(REPOSITORY)}
        if "<!-- page: keys -->" in self.text:
            os.environ.update(OPENAI_API_KEY="none", ANTHROPIC_API_KEY="none")
        self.background: list[subprocess.Popen[str]] = []
        self.servers: list[subprocess.Popen[str]] = []
        if "<!-- page: agent -->" in self.text:
            self.names["agent"] = lambda task: f"done: {task}"

    def run(self) -> str | None:
        """Run all blocks; what was wrong, or ``None``."""
        try:
            for block in blocks(self.text):
                wrong = self._block(block)
                if wrong is not None:
                    return f"{self.path}, line {block.line}: {wrong}"
        finally:
            for process in self.background + self.servers:
                process.kill()
                process.communicate()
        return None

    def _block(self, block: Block) -> str | None:
        if block.beside:
            self._export(shlex.split(self._started(block.beside, self.servers, stderr=subprocess.DEVNULL)))
        if block.before:
            status, printed = self._command(block.before)
            if status != 0:
                return f"before: exit status {status}:\n{printed}"
        if block.mark == "needs" and not all(map(find_spec, block.value.split())):
            return None
        if block.mark == "not run":
            return None if block.value else "a block that is not run needs a reason"
        if block.mark == "file":
            place = self.directory / block.value
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text, encoding="utf-8")
            return None
        if block.mark == "background":
            return self._start(block)
        if block.language == "python":
            return self._python(block)
        if block.mark in ("run", "needs"):
            return self._console(block)
        return None

    def _python(self, block: Block) -> str | None:
        file = self.directory / f"block_{block.line}.py"  # a file of the user's, as far as tracekit can tell
        file.write_text(block.text, encoding="utf-8")
        try:
            exec(compile(block.text, str(file), "exec"), self.names)
        except BaseException as error:
            if block.mark == "raises" and type(error).__name__ == block.value:
                return None
            return traceback.format_exc()
        return f"{block.value} was not raised" if block.mark == "raises" else None

    def _console(self, block: Block) -> str | None:
        expected = int(block.value.removeprefix("exit ") or 0) if block.mark == "run" else 0
        status = 0
        for command, shown in block.commands():
            status, printed = self._command(command)
            if os.environ.get("SHOW_OUTPUT"):
                print(f"$ {command}\n{printed}[{status}]")
            line = missing(shown, printed)
            if line is not None:
                return f"$ {command}\nshown and not printed: {line}\nprinted:\n{printed}"
        return None if status == expected else f"exit status {status}, not {expected}:\n{printed}"

    def _command(self, command: str) -> tuple[int, str]:
        words = shlex.split(command, comments=True)
        if words[0] in ("export", "unset"):
            self._export(words)
            return 0, ""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=theirs if "<" not in command and "|" not in command else None,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        printed = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the last writer has closed its end
                break
            if not part:
                break
            printed += part
        os.close(ours)
        text = printed.decode("utf-8", "replace").replace("\r\n", "\n")
        return process.wait(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace(str(self.directory), HOME)

    def _export(self, words: list[str]) -> None:
        for word in words[1:]:
            name, _, value = word.partition("=")
            if words[0] == "export":
                self.environment[name] = value
            else:
                self.environment.pop(name, None)

    def _start(self, block: Block) -> str | None:
        for process in self.background:
            process.kill()
        ((command, shown),) = block.commands()
        line = self._started(f"{command} {block.value}", self.background)
        if line.startswith("export "):
            self._export(shlex.split(line))
        return f"it printed {line!r}" if missing(shown, line.replace(str(self.directory), HOME)) else None

    def _started(self, command: str, kept: list[subprocess.Popen[str]], *, stderr: int = subprocess.STDOUT) -> str:
        """Start a command that goes on; return the first line that it prints."""
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        kept.append(process)
        assert process.stdout is not None
        return process.stdout.readline()


def commands_on_path(directory: Path, python: Sequence[str], pytest: Sequence[str]) -> str:
    """A directory with ``tracekit`` and ``python`` of the interpreter that is started so, and ``pytest`` of the other one; to be put before
    ``PATH``."""
    directory.mkdir()
    # The interpreter may have imported what a plugin of pytest consists of.
    loaded = "-W ignore::pytest.PytestAssertRewriteWarning"
    for name, start, code in (
        ("python", python, '"$@"'),
        ("tracekit", python, '-c \'from tracekit.cli import main; main(prog_name="tracekit")\' "$@"'),
        ("pytest", pytest, f'-m pytest -p no:cacheprovider {loaded} "$@"'),
    ):
        script = directory / name
        script.write_text(f"#!/bin/sh\nexec {shlex.join(start)} {code}\n")
        script.chmod(0o755)
    return str(directory)


def main() -> None:
    """Run one page in a directory, with the command lines of Python and of the one for pytest; exit status 0, or 1 with what was wrong
    on stderr."""
    page, directory = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    place = directory / "page"
    place.mkdir()
    os.environ["PATH"] = (
        commands_on_path(directory / "bin", *map(shlex.split, sys.argv[3:])) + os.pathsep + os.environ["PATH"]
    )
    os.environ["TERM"], os.environ["COLUMNS"] = "xterm", "120"
    os.chdir(place)
    sys.path.insert(0, str(place))
    wrong = Page(page, place).run()
    if wrong is not None:
        sys.exit(wrong)


if __name__ == "__main__":
    main()
