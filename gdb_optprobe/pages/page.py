"""A page of HTML that needs nothing else: its style, its script and its drawings are in it.

    Page ──Section──► Paragraph, Table, Figure ──page.html, jinja2──► bytes

jinja2 escapes all text. The page forbids the browser whatever it does not bring along: no address is fetched, and no
script runs but page.js, which the policy knows by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.pages.svg import Drawing, Markup

LARGEST = 200_000
"""Bytes that a page should have at most."""
_SMALLEST = 1 / 32
_FOLDER = Path(__file__).parent

Cell = str | int | Markup
NUMBER, LINE = "number", "line"


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True, slots=True)
class Column:
    """kind: NUMBER, aligned right; LINE, which is never broken; or ""."""

    title: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """more: what is left out, in words."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    more: str = ""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True)
class Figure:
    """legend: classes of colours, and what each is. beside: the same as a table."""

    drawing: Drawing
    caption: str
    legend: Sequence[tuple[str, str]] = ()
    beside: Table | None = None
    kind: ClassVar[str] = "figure"


Part = Paragraph | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """facts: names and values below the title."""

    title: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def fitting(made: Callable[[float], Page]) -> bytes:
    """Return a page of at most LARGEST bytes. made: returns it with a share, from 1 down, of what it would have."""
    share = 1.0
    while len(found := encode(made(share))) > LARGEST and share > _SMALLEST:
        share /= 2
    return found


def encode(page: Page) -> bytes:
    """Raises OptprobeError where jinja2 is not there."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise OptprobeError(f"jinja2 cannot be imported ({error})", "scripts/setup, or pip install jinja2") from None
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = chart_style() + _read("page.css"), _read("page.js")
    return (
        environment.get_template("page.html")
        .render(
            page=page,
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
            "base-uri 'none'; form-action 'none'",
        )
        .encode()
    )


def chart_style() -> str:
    """Return what drawings look like, in a page and alone."""
    return _read("charts.css")


def _printable(value: object) -> object:
    # What the template itself has made is markup, and has lines.
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode('ascii')}'"
