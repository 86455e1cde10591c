"""``tracekit docs``: the pages of the documentation, explanations of errors, and public names, without a network."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from . import output

__all__ = ["docs"]

_HEADING: Final = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
#: Comments for the site's tools and the tests.
_COMMENT: Final = re.compile(r"^<!-- .*? -->\n+", re.MULTILINE)
_NAME: Final = re.compile(r"^::: (\S+)\n(\n(?=:::))?", re.MULTILINE)


def _topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _names(_pages()) if name.startswith(incomplete)]


@click.command()
@click.argument("topic", required=False, shell_complete=_topics)
def docs(topic: str | None) -> None:
    """Show a page of the documentation; without TOPIC, list the pages.

    TOPIC is the name of a page, optionally with one of its sections after a #; the code of an error, which is in brackets before
    its message; or a public name.

    \b
    Examples:
      tracekit docs                     # the list of pages
      tracekit docs tutorial            # a page
      tracekit docs not-captured#guard  # a section of it
      tracekit docs divergence          # an error: why, and what to do
      tracekit docs tracekit.record     # a name: its signature and description

    Exit code: 0, 2 if there is no such topic.
    """
    with output.reported():
        pages = _pages()
        if topic is None:
            _show_list(pages)
            return
        text = _text(topic.strip("[]"), pages)
        if text is None:
            sys.exit(output.USAGE_ERROR)
        with output.paged() as out:
            if out.is_terminal:
                from rich.markdown import Markdown

                out.print(Markdown(text, code_theme="ansi_dark"))
            else:
                click.echo(output.plain(text))


def _text(topic: str, pages: dict[str, Path]) -> str | None:
    """Return the text for a topic; ``None``, after printing a message, if there is none."""
    name, _, section = topic.partition("#")
    found = _page(name, pages)
    if len(found) > 1:
        output.message(f"tracekit: {' and '.join(found)} are pages: name one of them")
        return None
    if found:
        text = _read(pages[found[0]])
        part = _section(text, section) if section else text
        if part is None:
            output.message(f"tracekit: the page {found[0]} has no section {section!r}")
        return part
    error = _section(_read(pages["reference/errors"]), name, level=2)
    if error is not None:
        return error
    if name == "tracekit" or name.startswith(("tracekit.", "tracekit_")):
        described = _described(name)
        if described is not None:
            return described
    near = difflib.get_close_matches(name, _names(pages), 3, 0.7)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    output.message(
        f"tracekit: no page, error or public name is called {topic!r}. {hint}`tracekit docs` lists the pages."
    )
    if sections := _about(topic, pages):
        output.message("These sections mention it most:")
        for section in sections:
            output.message(f"  tracekit docs {section}")
    return None


# -- pages -------------------------------------------------------------------------------------------------------------


def _pages() -> dict[str, Path]:
    """Return each page by its path without the suffix: next to the package if installed, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    for home in (package / "_docs", package.parents[1] / "docs"):
        if (home / "README.md").is_file():
            return {
                path.relative_to(home).as_posix().removesuffix(".md"): path
                for path in sorted(home.rglob("*.md"))
                if path.name != "README.md"
            }
    raise click.ClickException("the pages of the documentation were not installed with tracekit")


def _names(pages: dict[str, Path]) -> list[str]:
    """Return the shortest unique name of each page."""
    last = [os.path.basename(page) for page in pages]
    return [page if last.count(name) > 1 else name for page, name in zip(pages, last, strict=True)]


def _page(name: str, pages: dict[str, Path]) -> list[str]:
    name = name.removeprefix("docs/").removesuffix(".md")
    return [name] if name in pages else [page for page in pages if os.path.basename(page) == name]


def _read(path: Path) -> str:
    return _NAME.sub(r"- `\1`\n", _COMMENT.sub("", path.read_text(encoding="utf-8")))


def _title(path: Path) -> str:
    found = _HEADING.search(_read(path))
    return found[2] if found else ""


#: The most sections that are named for a word.
_SECTIONS: Final = 5


def _about(word: str, pages: dict[str, Path]) -> list[str]:
    """Return the sections that have this word in their heading, or most often in their text, as topics."""
    found = []
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    for (page, path), name in zip(pages.items(), _names(pages), strict=True):
        if page.startswith("decisions/"):
            continue
        text = _read(path)
        headings = [one for one in _HEADING.finditer(_bare(text)) if len(one[1]) <= 2]
        for number, heading in enumerate(headings):
            end = headings[number + 1].start() if number + 1 < len(headings) else len(text)
            count = len(whole.findall(text, heading.end(), end))
            named = whole.search(heading[2]) is not None
            topic = name if len(heading[1]) == 1 else f"{name}#{_anchor(heading[2])}"
            if count or named:
                found.append((named, count, topic))
    return [topic for _, _, topic in sorted(found, key=lambda one: (not one[0], -one[1]))[:_SECTIONS]]


def _bare(text: str) -> str:
    """Return a page with blanks in place of its code."""
    return _FENCED.sub(lambda block: " " * len(block[0]), text)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(text: str, name: str, level: int | None = None) -> str | None:
    """Return the section of a page whose heading has this anchor, with all subsections."""
    headings = [*_HEADING.finditer(_bare(text))]
    for number, heading in enumerate(headings):
        depth = len(heading[1])
        if _anchor(heading[2]) == name.lower() and level in (None, depth):
            end = next((later.start() for later in headings[number + 1 :] if len(later[1]) <= depth), len(text))
            return text[heading.start() : end].rstrip()
    return None


def _show_list(pages: dict[str, Path]) -> None:
    names = _names(pages)
    width = max(map(len, names))
    kinds = {"how-to": "How to", "reference": "Reference", "decisions": "Decisions"}
    shown: dict[str, list[tuple[str, str]]] = {"Start": [], **{kind: [] for kind in kinds.values()}}
    for (page, path), name in zip(pages.items(), names, strict=True):
        shown[kinds.get(page.partition("/")[0], "Start") if "/" in page else "Start"].append((name, _title(path)))
    with output.paged() as out:
        for heading, rows in shown.items():
            out.print(output.styled((heading, "bold")))
            for name, title in rows:
                out.print(output.styled((f"  {name:{width}}  ", "cyan"), (title, "")), soft_wrap=True)
            out.print()
        out.print("tracekit docs TOPIC shows one of them, an error by its code, or a public name.", soft_wrap=True)


# -- names -------------------------------------------------------------------------------------------------------------


def _described(dotted: str) -> str | None:
    """Return the signature and the docstring of a public name, as Markdown."""
    parts = dotted.split(".")
    if any(part.startswith("_") and part != "__version__" for part in parts):
        return None
    value: Any = None
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        break
    for part in parts[length:]:
        value = getattr(value, part, None)
    if value is None:
        return None
    head = dotted
    if callable(value):
        try:
            head += str(inspect.signature(value))
        except (TypeError, ValueError):
            pass  # a class written in C has none
    own = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) or callable(value)
    text = (inspect.getdoc(value) if own else None) or f"`{value!r:.200}`"
    return f"# {dotted}\n\n```python\n{head}\n```\n\n{text.replace('``', '`')}"
