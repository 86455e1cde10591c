"""``tracekit docs``: the pages, errors and public names, as an installed package has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tracekit.cli import main

ROOT = Path(__file__).parents[2]
SOURCES = [path for place in ("src", "integrations") for path in sorted((ROOT / place).glob("**/*.py"))]
#: What messages and docstrings send a reader to.
NAMED = sorted(
    {
        topic
        for path in SOURCES
        for topic in re.findall(r"`tracekit docs ([\w./#-]+)`", path.read_text("utf-8"))
        if topic != "TOPIC"
    }
)


def docs(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["docs", *arguments], prog_name="tracekit")


def test_without_a_topic_the_pages_are_listed() -> None:
    """Each page of the documentation with its title, by the name that shows it."""
    listed = docs().stdout
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name != "README.md":
            title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
            (line,) = [line for line in listed.splitlines() if line.strip().endswith(f" {title}")]
            shown = docs(line.split()[0])
            assert shown.exit_code == 0
            assert title in shown.stdout.splitlines()[0]


@pytest.mark.parametrize("topic", NAMED)
def test_what_a_message_sends_to_is_there(topic: str) -> None:
    """A message that names a page, or a section of one, names one that is there."""
    assert docs(topic).exit_code == 0


def test_messages_name_no_file_of_the_repository() -> None:
    """Who has installed tracekit has no ``docs/`` beside it: what is printed sends to ``tracekit docs``."""
    assert len(NAMED) > 3
    for path in SOURCES:
        assert not re.search(r"docs/[\w/-]+\.md", path.read_text("utf-8")), path


@pytest.mark.parametrize("topic", ["divergence", "[divergence]"])
def test_an_error_by_its_code(topic: str) -> None:
    """Its section of the page of errors, and no other."""
    shown = docs(topic).stdout
    assert shown.startswith("## divergence\n")
    assert "**What to do.**" in shown
    assert shown.count("\n## ") == 0


def test_a_section_of_a_page() -> None:
    """``tracekit docs PAGE#SECTION`` shows what stands below that heading, up to the next one of its level."""
    shown = docs("recovery#what-is-in-doubt").stdout
    assert re.match("##+ What is in doubt\n", shown, re.IGNORECASE)
    assert "recovery.in_doubt()" in shown


def test_a_public_name() -> None:
    """``tracekit docs NAME`` shows the signature and the docstring of a public name."""
    shown = docs("tracekit.record").stdout
    assert "tracekit.record(name:" in shown
    assert "durability" in shown
    assert docs("tracekit._runs").exit_code == 2


@pytest.mark.parametrize("word", ["pytest", "LangGraph", "retry", "kill -9", "refund"])
def test_a_word_leads_to_sections(word: str) -> None:
    """A word that names no page is answered with sections that have it, each by a topic that shows it."""
    shown = docs(word)
    assert shown.exit_code == 2
    topics = re.findall(r"^  tracekit docs (\S+)$", shown.stderr, re.MULTILINE)
    assert topics
    assert all(word.lower() in docs(topic).stdout.lower() for topic in topics)
    assert "mention" not in docs("zzz-nothing").stderr


def test_what_there_is_not() -> None:
    """Exit code 2, and a sentence with the names that come near."""
    shown = docs("recovry")
    assert shown.exit_code == 2
    assert "recovery" in shown.stderr
    assert "tracekit docs" in shown.stderr
    assert docs("tutorial#no-such-section").exit_code == 2
    assert "how-to/agents" in docs("agents").stderr
