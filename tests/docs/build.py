"""Write the generated parts of docs/ and README, or tell which are not current:
scripts/docs [--check | --still] [--site [FOLDER]]

    <!-- generated: refusals: The address -->
    what blocks.py makes
    <!-- /generated -->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from qemu.costs.chart import chart
from qemu.costs.table import read
from tests.docs import man, site
from tests.docs.blocks import BLOCKS, ROOT
from tests.docs.recording import recording, still
from tests.docs.sessions import blocks

DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
FIGURES, CHART = DOCS / "internals" / "figures.md", DOCS / "images" / "costs.svg"
RECORDED, SESSION = DOCS / "guide" / "session.md", DOCS / "images" / "session.svg"
STILL = SESSION.with_suffix(".png")
"""How the recording ends."""
MAN = DOCS / "optprobe.1"
SCHEMA = DOCS / "reference" / "schema.json"
_BLOCK = re.compile(r"(<!-- generated: ([^:>]+?)(?:: (.+?))? -->\n).*?(<!-- /generated -->)", re.DOTALL)


def refreshed(text: str) -> str:
    """Return a page with its generated parts made anew."""

    def made(found: re.Match[str]) -> str:
        name, argument = found[2], found[3]
        return f"{found[1]}\n{BLOCKS[name](*([argument] if argument else []))}\n\n{found[4]}"

    return _BLOCK.sub(made, text)


def pages() -> Mapping[Path, str]:
    """Return what each generated file is to hold."""
    found = {path: refreshed(path.read_text()) for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}

    from gdb_optprobe.commands.json_schema import schema

    # The page's first table is of x86-64.
    _, table, _ = FIGURES.read_text().split("```\n", 2)
    written = {SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", CHART: picture(table)}
    return {**found, **written, MAN: man.page(), SESSION: recording(next(blocks(RECORDED)))}


def picture(table: str) -> str:
    """Return the chart of a bench's table, as printed."""
    return chart(read(table.splitlines()), "x86_64")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Write the generated parts of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; tell which pages are not current")
    parser.add_argument("--still", action="store_true", help=f"draw {STILL.name} too; it takes a browser, chromium")
    site_help = "then build the site, into FOLDER (build/site)"
    parser.add_argument("--site", nargs="?", type=Path, const=SITE, metavar="FOLDER", help=site_help)
    arguments = parser.parse_args()
    if arguments.check and arguments.still:
        parser.error("--check writes nothing, and --still a picture; give one of them")
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if arguments.check and stale:
        sys.exit("\n".join(f"not current: {path.relative_to(ROOT)}; scripts/docs writes it" for path in stale))
    for path in stale:
        path.write_text(pages()[path])
        print(f"written: {path.relative_to(ROOT)}")
    if arguments.still:
        STILL.write_bytes(still(SESSION.read_text()))
    if arguments.site is not None:
        site.build(arguments.site)
        print(f"the site begins at {arguments.site / 'index.html'}")


if __name__ == "__main__":
    main()
