"""The documentation site: README, docs/ and what they link to, built strictly by MkDocs with docs/site.yml.

    README.md, …, docs/ ──copied──► a folder: the same tree without the rest ──mkdocs──► the site

The pages keep their places, so that one link leads to the same page on a code host and on the site.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from html import escape
from importlib.util import find_spec
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.sessions import PROMPT

CONFIGURATION = ROOT / "docs" / "site.yml"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")


def has_generator() -> bool:
    """Return whether `scripts/setup --site` has been run."""
    return all(find_spec(name) is not None for name in ("mkdocs", "material"))


def build(folder: Path) -> None:
    """Build the site into `folder`. Raises SystemExit with what MkDocs says where it warns of anything."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        for name in PAGES:
            shutil.copy(ROOT / name, tree)
        shutil.copytree(ROOT / "docs", tree / "docs", ignore=shutil.ignore_patterns(CONFIGURATION.name, "__pycache__"))
        configuration = Path(temporary) / "mkdocs.yml"
        configuration.write_text(f"docs_dir: {tree.name}\n{CONFIGURATION.read_text()}")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", folder.resolve()]
        # Material announces a version of MkDocs that is not used here.
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def gdb(source: str, *_: object, **__: object) -> str:
    """Return a session at GDB's prompt as HTML, for docs/site.yml: what is typed differs from what is printed."""
    lines = "\n".join(map(_shown, source.split("\n")))
    return f'<div class="highlight"><pre><code>{lines}\n</code></pre></div>'


def _shown(line: str) -> str:
    if typed := PROMPT.match(line):
        return f'<span class="gp">{escape(typed[1])}</span> {escape(typed[2])}'
    return f'<span class="go">{escape(line)}</span>'
