"""The site has every page, and is built without a warning where its generator is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import site
from tests.docs.blocks import ROOT


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r": (\S+\.md)$", site.CONFIGURATION.read_text(), re.MULTILINE)
    pages = [path for path in site.PAGES if path.endswith(".md")]
    pages += [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages), "docs/site.yml, nav: each page of docs/ has a line"


@pytest.mark.skipif(not site.has_generator(), reason="scripts/setup --site gets the site's generator")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    site.build(tmp_path)
    assert "A hit in a program" in (tmp_path / "docs/internals/figures.html").read_text()
