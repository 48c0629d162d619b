"""The picture of a session shows what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from tests.docs.build import RECORDED, SESSION, STILL
from tests.docs.recording import COLUMNS, digest, recording
from tests.docs.sessions import blocks

SVG = "{http://www.w3.org/2000/svg}"
PAGE = """
```gdb
(gdb) optprobe add f if a < 1
Probe 1 at 0x10 <f>: optimized
(gdb) continue
guest# dd
^C
(gdb) bt

#0  0x10 in f ()
```
"""


def drawn(page: Path) -> list[str]:
    root = ElementTree.fromstring(recording(next(blocks(page))))
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")][1:]


def test_every_line_is_drawn(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert drawn(page) == [line for line in PAGE.splitlines() if line and "```" not in line]


def test_a_long_line_is_wrapped(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```gdb\n(gdb) bt\n{'x' * COLUMNS}yy\n```\n")
    assert drawn(page) == ["(gdb) bt", "x" * COLUMNS, "yy"]


def test_lines_come_in_their_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    begins = re.findall(r"@keyframes l\d+ \{ 0% \{ opacity: 0 \} ([\d.]+)%", recording(next(blocks(page))))
    assert len(begins) == 8
    assert [*map(float, begins)] == sorted(map(float, begins))
    assert float(begins[-1]) < 100


def test_without_motion_all_is_there() -> None:
    style = SESSION.read_text().partition("</style>")[0]
    assert "animation" not in style.partition("prefers-reduced-motion")[0]


def test_the_recorded_commands_fit_the_screen() -> None:
    lines = [line for step in next(blocks(RECORDED)).steps for line in (step.command, *step.during)]
    assert max(map(len, lines)) + len("guest# ") <= COLUMNS


def test_the_still_picture_is_of_this_recording() -> None:
    assert digest(SESSION.read_text()).encode() in STILL.read_bytes(), "not current: scripts/docs --still draws it"
