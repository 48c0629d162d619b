"""A block of a page as a picture of a terminal in which it is typed: an animated SVG, and of its end a still PNG.

The suite types the block at a guest and compares (tests/booted/test_docs.py), so that the picture shows a real session.
Where the viewer wants no motion, all of it is shown at once. Times are made up: a reader's, not the guest's.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.docs.sessions import Block

COLUMNS, CELL, ROW, SIZE = 100, 7.8, 18, 13
LEFT, TOP = 16, 44
# Seconds: before a command, for a character, before what a command prints, before ^C, and at the end.
THINKS, TYPES, ANSWERS, WORKS, STAYS = 0.9, 0.035, 0.3, 1.4, 8.0
PROMPTS = {"gdb": "(gdb) ", "guest": "guest# "}
_COLOURS = (
    ("address", r"\b0x[0-9a-f]+\b"),
    ("good", r"\boptimized\b|@+"),
    ("name", r"(?<=<)\w+(?=>)|(?<=in )\w+(?= \()"),
)
_COLOURED = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _COLOURS))
STYLE = f"""\
  text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    fill: #c9d1d9; white-space: pre }}
  .screen {{ fill: #0d1117 }} .edge {{ fill: none; stroke: #484f58 }} .title, .gdb {{ fill: #8b949e }}
  .guest {{ fill: #e3b341 }} .typed {{ fill: #ffffff; font-weight: 600 }} .address {{ fill: #79c0ff }}
  .good {{ fill: #56d364 }} .name {{ fill: #e3b341 }} .cursor {{ fill: #c9d1d9 }} .cover {{ opacity: 0 }}"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen: it is there from `begin` on; what is typed at a prompt comes until `end`. Seconds."""

    begin: float
    prompt: str
    text: str
    end: float


def recording(block: Block) -> str:
    """Return the SVG of a block of GDB's commands."""
    lines = [*_lines(block)]
    total = max(line.end for line in lines) + STAYS
    width, height = round(2 * LEFT + COLUMNS * CELL), TOP + ROW * len(lines)
    moving = "\n".join(_keyframes(place, line, total) for place, line in enumerate(lines))
    box = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
            "<title>A session at GDB's prompt</title>",
            f"<style>\n{STYLE}\n  @media (prefers-reduced-motion: no-preference) {{\n{moving}\n  }}\n</style>",
            f'<clipPath id="screen"><rect {box}/></clipPath>',
            f'<g clip-path="url(#screen)"><rect class="screen" {box}/>',
            f'<text class="title" x="{LEFT}" y="22">gdb, a stock kernel in QEMU</text>',
            *(_drawn(place, line) for place, line in enumerate(lines)),
            f'</g><rect class="edge" {box}/>',
            "</svg>\n",
        )
    )


def _lines(block: Block) -> Iterator[Line]:
    now = 0.0
    for step in block.steps:
        for machine, typed in [(step.machine, step.command), *(("guest", command) for command in step.during)]:
            begin, now = now, now + THINKS + len(typed) * TYPES
            yield Line(begin, PROMPTS[machine], typed, now)
        if step.interrupted:
            now += WORKS
            yield Line(now, "", "^C", now)
        now += ANSWERS
        for text in step.shown:
            for start in range(0, max(1, len(text)), COLUMNS):
                yield Line(now, "", text[start : start + COLUMNS], now)


def _keyframes(place: int, line: Line, total: float) -> str:
    def at(seconds: float) -> str:
        return f"{100 * seconds / total:.2f}%"

    made = (
        f"  @keyframes l{place} {{ 0% {{ opacity: 0 }} {at(line.begin)} {{ opacity: 1 }} 100% {{ opacity: 1 }} }}"
        f" .l{place} {{ animation: l{place} {total:.1f}s step-end infinite }}"
    )
    if not line.prompt:
        return made
    steps = len(line.text)
    first = line.end - steps * TYPES
    return (
        f"{made}\n  @keyframes c{place} {{ 0%, {at(first)} {{ opacity: 1; transform: translateX(0);"
        f" animation-timing-function: steps({steps}) }} {at(line.end)} {{ opacity: 1;"
        f" transform: translateX({steps * CELL:.1f}px); animation-timing-function: step-start }}"
        f" 100% {{ opacity: 0; transform: translateX({steps * CELL:.1f}px) }} }}"
        f" .c{place} {{ animation: c{place} {total:.1f}s infinite }}"
    )


def _drawn(place: int, line: Line) -> str:
    y = TOP + ROW * place
    size = f'y="{y}" textLength="{(len(line.prompt) + len(line.text)) * CELL:.1f}"'
    if not line.text:
        return ""
    if not line.prompt:
        return f'<text class="l{place}" x="{LEFT}" {size}>{_coloured(line.text)}</text>'
    machine = next(name for name, prompt in PROMPTS.items() if prompt == line.prompt)
    typed = f'<tspan class="{machine}">{line.prompt}</tspan><tspan class="typed">{escape(line.text)}</tspan>'
    x = LEFT + len(line.prompt) * CELL
    top, length = y - SIZE, len(line.text) * CELL + 2
    return (
        f'<g class="l{place}"><text x="{LEFT}" {size}>{typed}</text><g class="cover c{place}">'
        f'<rect class="screen" x="{x:.1f}" y="{top}" width="{length:.1f}" height="{ROW}"/>'
        f'<rect class="cursor" x="{x:.1f}" y="{top + 1}" width="{CELL}" height="{ROW - 3}"/></g></g>'
    )


def _coloured(text: str) -> str:
    made, end = "", 0
    for found in _COLOURED.finditer(text):
        made += f'{escape(text[end : found.start()])}<tspan class="{found.lastgroup}">{escape(found[0])}</tspan>'
        end = found.end()
    return made + escape(text[end:])


def still(svg: str) -> bytes:
    """Return a PNG of how the SVG ends, drawn by a browser. Raises FileNotFoundError where there is none."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no browser to draw the PNG: install chromium")
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "page.html", Path(folder) / "picture.png"
        page.write_text(f'<meta charset="utf-8"><style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg}')
        options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--force-prefers-reduced-motion")
        shown = ("--default-background-color=00000000", f"--window-size={width},{height}", f"--screenshot={picture}")
        subprocess.run([browser, *options, *shown, page.as_uri()], capture_output=True, check=True, timeout=120)
        drawn = picture.read_bytes()
    # A chunk in front of the last, which has 12 bytes, says what the picture was made of.
    text = b"Source\0" + digest(svg).encode()
    chunk = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(b"tEXt" + text))
    return drawn[:-12] + chunk + drawn[-12:]


def digest(svg: str) -> str:
    """Return what the PNG of this SVG says that it was made of."""
    return hashlib.sha256(svg.encode()).hexdigest()
