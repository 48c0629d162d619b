"""Links between the pages lead to files and headings; drawings are pictures with a title."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.blocks import ROOT

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def dead_links(page: Path, text: str) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for file, anchor in _LINK.findall(_CODE.sub("", text)):
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            yield f"{file}#{anchor}" if anchor else file


@cache
def headings(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as code hosts and MkDocs make them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading).lower().strip().replace(" ", "-") for heading in found)


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert [*dead_links(page, page.read_text())] == []


def test_a_dead_link_is_noticed() -> None:
    text = "[a](support.md) [b](support.md#not-tested) [c](no.md) [d](support.md#no) `[e](no.md)`"
    assert [*dead_links(ROOT / "docs" / "coming-from.md", text)] == ["no.md", "support.md#no"]


@pytest.mark.parametrize("drawing", tracked("docs/images/*.svg"), ids=lambda drawing: drawing.name)
def test_a_drawing_has_a_title(drawing: Path) -> None:
    title = ElementTree.parse(drawing).getroot().find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text
