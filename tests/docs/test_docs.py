"""The documentation is true: its examples run, what it shows is what is printed, what it names exists, and what exists is named."""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest

import tracekit
import tracekit.errors
from tests.docs.cli_help import PAGE as CLI_PAGE
from tests.docs.cli_help import pasted, text_of
from tests.support import processes
from tests.support.pages import Block, blocks, missing, same
from tests.support.processes import PYTEST, SDKS, python
from tracekit.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "integrations/*/README.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
#: Options of other programs, and of programs in examples.
GROUPS = ("tracekit.integrations", "tracekit.commands", "tracekit.forms")
FOREIGN_OPTIONS = {"--api-key", "--checkout", "--only", "--password", "--quick"}
#: Those of the pytest plugin.
FOREIGN_OPTIONS |= {"--record-mode", "--block-network", "--tracekit-update", "--tracekit-allow-host", "--basetemp"}


def does_something(block: Block) -> bool:
    return block.mark in ("run", "background", "raises", "needs") or (block.language == "python" and block.mark is None)


EXECUTED = [page for page in PAGES if any(map(does_something, blocks(TEXTS[page])))]


def inline(page: str) -> list[str]:
    """The inline code of a page."""
    return [code.replace("\n", " ") for code in _INLINE.findall(_FENCED.sub("", TEXTS[page]))]


# -- examples ------------------------------------------------------------------------------------------------------------


def run_page(page: str, directory: Path) -> str | None:
    directory.mkdir()
    places = [str(ROOT), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEKIT_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join(places)
    # Plugins of other libraries: seconds of imports for each pytest that a page runs.
    environment["PYTEST_ADDOPTS"] = "-p no:langsmith_plugin -p no:asyncio -p no:randomly -p no:hypothesispytest"
    starts = (shlex.join(processes.command(imports=imports)) for imports in (SDKS, PYTEST))
    line = ("-m", "tests.support.pages", str(ROOT / page), str(directory), *starts)
    done = python(*line, env=environment, timeout=110, imports=SDKS)
    return None if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What became of the pages that were asked for; two at a time, since most of it is starting processes."""
    wanted = {item.callspec.params.get("page") for item in request.session.items if hasattr(item, "callspec")}
    place = tmp_path_factory.mktemp("pages")
    with ThreadPoolExecutor(2) as pool:
        yield {
            page: pool.submit(run_page, page, place / str(number))
            for number, page in enumerate(EXECUTED)
            if page in wanted
        }


@pytest.mark.parametrize("page", EXECUTED)
def test_the_examples_of_a_page_run(page: str, outcomes: dict[str, Future[str | None]]) -> None:
    """In order, in a process of its own; commands print what the page shows, with the exit status that it says."""
    wrong = outcomes[page].result()
    assert wrong is None, wrong


def test_output_that_is_not_printed_is_noticed() -> None:
    """A page that shows a line which the command does not print fails; numbers and ids may differ, words and order not."""
    printed = "one 1 s\nrun 0197c0de-0000-7000-8000-000000000001\nthree"
    assert missing(["one 25 ms", "three"], printed) is None
    assert missing(["…", "run 01a2007d-9a22-7125-aa24-58a8bb7295ca"], printed) is None
    assert missing(["one …", "thr…"], printed) is None
    assert missing(["two"], printed) == "two"
    assert missing(["three", "one 1 s"], printed) == same("one 1 s")


# -- the command line ----------------------------------------------------------------------------------------------------


def commands(page: str) -> list[str]:
    """Every call of ``tracekit`` that the page shows, in blocks and in the text."""
    shown = [code for code in inline(page) if code.startswith("tracekit ")]
    for block in blocks(TEXTS[page]):
        if block.language == "console":
            for command, _ in block.commands():
                shown += [f"tracekit {rest}" for rest in re.findall(r"(?:^|[|;&] *)tracekit ([^|;&]*)", command)]
    return shown


def every_command() -> dict[str, click.Command]:
    """Each command by its words, those of a group too; an alias is the command that it stands for, and left out."""
    context, found = click.Context(main), {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        found[name] = command
    for name, group in [*found.items()]:
        inner = group.commands if isinstance(group, click.Group) else {}
        found.update({f"{name} {word}": one for word, one in inner.items() if one not in found.values()})
    return found


def options_of(command: click.Command) -> set[str]:
    names = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
    return names | {"--help", "-h"}


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_and_their_options_exist(page: str) -> None:
    """No page shows a command or an option that tracekit has not."""
    every = every_command()
    for shown in commands(page):
        words = shown.split(" -- ")[0].split()[1:]
        if words[0].startswith("-"):
            assert words[0] in {"--help", "--version"}, shown
            continue
        assert words[0].strip("…") in {*every, ""}, f"{page}: {shown}"
        command = every.get(" ".join(words[:2])) or every.get(words[0])
        if command is None:
            continue
        known = options_of(command)
        script = next((n for n, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words))
        for word in words[1 : script if words[0] == "run" else None]:
            if word.startswith("-"):
                assert word.split("=")[0].rstrip(".,") in known, f"{page}: {shown}"


@pytest.mark.parametrize("name", sorted(every_command()))
def test_the_help_of_a_command_has_examples(name: str) -> None:
    """Lines that can be copied: commands and options that exist, each no wider than a terminal."""
    every, help = every_command(), inspect.cleandoc(every_command()[name].help or "")
    examples = re.findall(r"^  (\S.*)$", help.partition("Example")[2], re.MULTILINE)
    assert examples, name
    for line in examples:
        assert len(line) <= 76, line
        for called in re.findall(r"(?:^|[|] )tracekit ([^|#]*)", line):
            words = called.split(" -- ")[0].split()
            command = every.get(" ".join(words[:2])) or every[words[0]]
            if words[0] != "run":
                assert {word for word in words if word.startswith("--")} <= options_of(command), line


def test_the_help_texts_in_the_reference_are_current() -> None:
    """``docs/reference/cli.md`` holds the help of every command as it is printed now."""
    shown = pasted(CLI_PAGE.read_text(encoding="utf-8"))
    assert set(shown) == {"", *every_command()}
    for command, text in shown.items():
        assert text == text_of(command), f"`tracekit {command} --help` has changed: python -m tests.docs.cli_help"


@pytest.mark.parametrize("page", PAGES)
def test_options_in_the_text_exist(page: str) -> None:
    """An option that a page speaks of is one of some command."""
    known = {"--version"} | FOREIGN_OPTIONS
    for command in every_command().values():
        known |= options_of(command)
    if page == "CONTRIBUTING.md":
        known |= {"--check", "--checkout"}
    named = {option for code in inline(page) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    assert named <= known


# -- settings ------------------------------------------------------------------------------------------------------------


def tables(page: str) -> dict[str, dict[str, str]]:
    """By heading, the first two cells of each row of its table."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"^## ", TEXTS[page], flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0].strip("`")
        rows = [[cell.strip().strip("`") for cell in line.split("|")[1:]] for line in part.splitlines() if "|" in line]
        found[heading] = {row[0]: row[1] for row in rows[2:] if len(row) > 1}
    return found


@pytest.mark.parametrize("name", ["instrument", "record", "replay", "traced_tool"])
def test_options_are_documented_with_their_defaults(name: str) -> None:
    """The tables of the settings list every parameter, no other, and each default as it is."""
    told = tables("docs/reference/settings.md")[f"tracekit.{name}"]
    function = inspect.unwrap(getattr(tracekit, name))
    expected = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL or (name == "replay" and parameter.name == "run"):
            continue
        if parameter.default is parameter.empty:
            expected[parameter.name] = "must be given"
        else:
            plain = parameter.default is None or isinstance(parameter.default, str | tuple | bool)
            expected[parameter.name] = repr(parameter.default).replace("'", '"') if plain else "not given"
    assert told == expected


def test_the_fields_of_a_contract_are_documented() -> None:
    """The page on contracts has a row for each field."""
    fields = tracekit.ExecutionContract.__dataclass_fields__
    assert tables("docs/reference/contracts.md")["Fields"].keys() == fields.keys()


def test_environment_variables_are_documented() -> None:
    """Each variable that the sources read is in the settings, and no page names another."""
    sources = [path.read_text("utf-8") for place in ("src", "integrations") for path in ROOT.glob(f"{place}/**/*.py")]
    named = re.compile(r"\bTRACEKIT_[A-Z_]*[A-Z]\b")
    read = {name for source in sources for name in named.findall(source)}
    told = set(tables("docs/reference/settings.md")["Environment variables"])
    assert {name for name in told if name.startswith("TRACEKIT_")} == read
    for page, text in TEXTS.items():
        assert set(named.findall(text)) <= read, page


# -- names ---------------------------------------------------------------------------------------------------------------


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                value = getattr(value, part)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_text_exist(page: str) -> None:
    """A name of tracekit or of an error that stands in a page can be imported."""
    for code in inline(page):
        for dotted in re.findall(r"(?<![\w./\[-])tracekit(?:_[a-z]+)?(?:\.\w+)+", code):
            # The entry-point groups, and names in traces.
            if dotted not in (*GROUPS, "tracekit.backoff", "tracekit.abort"):
                assert resolves(dotted), f"{page}: {dotted}"
        for error in re.findall(r"(?<![\w.])[A-Z]\w+Error\b", code):
            assert hasattr(tracekit.errors, error) or hasattr(builtins, error), f"{page}: {error}"


@pytest.mark.parametrize("page", PAGES)
def test_keywords_in_the_text_exist(page: str) -> None:
    """A keyword argument that a page shows is one that the function takes."""
    call = re.compile(r"\b(record|replay|instrument|traced_tool)\(([^()]*(?:\([^()]*\)[^()]*)*)")
    for text in [*inline(page), *(block.text for block in blocks(TEXTS[page]) if block.language == "python")]:
        for name, arguments in call.findall(text):
            known = set(inspect.signature(inspect.unwrap(getattr(tracekit, name))).parameters)
            used = set(
                re.findall(r"(?:^|[,(]\s*)(\w+)=(?!=)", re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", arguments))
            )
            assert used <= known, f"{page}: {name}({arguments})"


# -- links ---------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#{1,6} (.*)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    """Every link within the repository leads to a file that is there, and its anchor to a heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", TEXTS[page])):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page}: {target}"


def test_every_page_is_on_the_map() -> None:
    """``docs/README.md`` leads to every page of the documentation."""
    linked = {
        os.path.normpath(os.path.join("docs", target.partition("#")[0]))
        for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS["docs/README.md"])
    }
    assert {page for page in PAGES if page.startswith("docs/")} - {"docs/README.md"} <= linked


def test_decisions_are_numbered_and_dated() -> None:
    """Each decision has the next number, its title says it, and its date stands below."""
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    for number, file in enumerate(files, 1):
        title, _, dated = file.read_text(encoding="utf-8").splitlines()[:3]
        assert file.name.startswith(f"{number:04d}-")
        assert title.startswith(f"# {number:04d}: ")
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2} · \w+", dated)


# -- words ---------------------------------------------------------------------------------------------------------------


def test_the_glossary_defines_each_word_once() -> None:
    """The nouns that the code is written in are defined in one place, which the README and the list of pages link."""
    defined = re.findall(r"^- \*\*(.+?)\*\*: ", TEXTS["docs/glossary.md"], re.MULTILINE)
    words = (
        "run journal entry segment step spec request outcome session effect context lane place schedule contract policy"
    )
    assert defined == [*words.split(), "seam", "boundary", "verdict"]
    assert "(docs/glossary.md)" in TEXTS["README.md"]
    assert "(glossary.md)" in TEXTS["docs/README.md"]
