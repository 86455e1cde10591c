"""Hooks of MkDocs: build the navigation, add pages from outside ``docs/``, and read ``#:`` comments as attribute docstrings."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from griffe import Attribute, Docstring, Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: Pages outside ``docs/``: their paths in the repository, and on the site.
ADOPTED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"} | {
    path.relative_to(ROOT).as_posix(): f"integrations/{path.parent.name}.md"
    for path in sorted(ROOT.glob("integrations/*/README.md"))
}
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from ``docs/README.md``: each heading becomes a section; pages before the first one are top-level."""
    config.nav = [{"Start": "README.md"}]
    start, *parts = _HEADING.split((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    config.nav += _links(start)
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        config.nav.append({heading: _links(text)})
    integrations = [{PurePosixPath(page).stem: page} for page in ADOPTED.values() if "/" in page]
    config.nav.append({"Integrations": integrations})
    config.nav.append({"Project": [{"Changes": "changelog.md"}, {"Contributing": "contributing.md"}]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/``, with their relative links adjusted to their place on the site."""
    for source, page in ADOPTED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_moved(text, source, page)))
    return files


class DescribedAttributes(Extension):
    """A griffe extension that uses the ``#:`` comment above an attribute as its docstring."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if attr.docstring is not None or attr.lineno is None or not isinstance(attr.filepath, Path):
            return
        comment: list[str] = []
        for line in reversed(attr.lines_collection[attr.filepath][: attr.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            comment.insert(0, line.strip().removeprefix("#:").strip())
        if comment:
            attr.docstring = Docstring("\n".join(comment), parent=attr)


def _links(text: str) -> list[dict[str, str]]:
    return [
        {title.strip("`")[:1].upper() + title.strip("`")[1:]: page}
        for title, page, _ in _LINK.findall(text)
        if page.endswith(".md")
    ]


def _moved(text: str, source: str, page: str) -> str:
    def moved(link: re.Match[str]) -> str:
        title, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target:
            return link[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        on_site = ADOPTED.get(path) or os.path.relpath(path, "docs")
        return f"[{title}]({os.path.relpath(on_site, os.path.dirname(page) or '.')}{anchor})"

    return _LINK.sub(moved, text)
