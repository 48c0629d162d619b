"""Tests that the pages name with `-k` exist."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

TESTS = ROOT / "tests"
_NAMED = re.compile(r"-k\s+(?:\"([^\"]*)\"|(\w+))")
_ROW = re.compile(r'^\| `"?([a-z][\w ]*)"?` \|', re.MULTILINE)


def named() -> set[str]:
    """Return what the pages give to `-k`; the rows of testing.md's first table are such names, too."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text() for page in pages)
    stresses = (ROOT / "docs" / "internals" / "testing.md").read_text().partition("## Programs")[0]
    found = ["".join(either) for either in _NAMED.findall(text)] + _ROW.findall(stresses)
    return {name for one in found for name in one.split(" or ")} - {"NAME"}


def test_the_tests_that_pages_name_exist() -> None:
    names = {name for path in TESTS.rglob("test_*.py") for name in (path.stem, *defined(path.read_text()))}
    assert len(named()) > 20
    assert {name for name in named() if not any(name in one for one in names)} == set()


def defined(source: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", source, re.MULTILINE)
