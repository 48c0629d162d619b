"""Drawings: SVG that is well-formed XML, within a page of HTML or as a file of its own.

    element ──► Markup ──► Drawing ──► inline, as wide as its place in the page
                                   └─► file: with a size and its style

`element` is the one place that escapes what a drawing shows. Positions along a drawing are percents, heights and text
are pixels: text keeps its size whether the page has 400 pixels or 1,800.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gdb_optprobe.guest_text import one_line

NAMESPACE = "http://www.w3.org/2000/svg"
LONGEST = 80
"""Characters of a name that a drawing shows."""
_HEAD, _NOTE, _MARGIN = 40, 16, 16


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is markup already: nothing escapes it again."""

    text: str

    def __html__(self) -> str:
        return self.text


def element(name: str, attributes: Mapping[str, object], *content: Markup | str) -> Markup:
    spelled = "".join(f' {key}="{_escaped(str(value))}"' for key, value in attributes.items())
    inside = "".join(one.text if isinstance(one, Markup) else _escaped(one) for one in content)
    return Markup(f"<{name}{spelled}>{inside}</{name}>" if inside else f"<{name}{spelled}/>")


def text(content: str, x: str, y: float, kind: str = "", dx: int = 0) -> Markup:
    """Return a line of text. kind: its class."""
    attributes: dict[str, object] = {"class": kind} if kind else {}
    attributes |= {"x": x, "y": f"{y:g}"}
    attributes |= {"dx": dx} if dx else {}
    return element("text", attributes, content)


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}".rstrip("0").rstrip(".") + "%"


def cut(name: str, most: int = LONGEST) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def share_bar(share: float) -> Markup:
    """Return a bar for the cell of a table, which has the number beside it."""
    bar = element("rect", {"width": percent(min(max(share, 0.0), 1.0)), "height": "100%"})
    return element("svg", {"xmlns": NAMESPACE, "class": "share", "height": 10, "aria-hidden": "true"}, bar)


@dataclass(frozen=True, slots=True)
class Drawing:
    """title: its name. description: read out in its place. height: in pixels. kind: its class."""

    title: str
    description: str
    height: int
    content: tuple[Markup, ...]
    kind: str = ""

    def __html__(self) -> str:
        size = {"width": "100%", "height": self.height}
        return element("svg", {**self._root, **size}, *self._named, *self.content).text

    def file(self, width: int, style: str, notes: Sequence[str]) -> str:
        """Return a file of its own, on a card, with its title above and notes below."""
        foot = _HEAD + self.height + _MARGIN
        height = foot + _NOTE * len(notes) + _MARGIN // 2
        inner = {"x": _MARGIN, "y": _HEAD, "width": width - 2 * _MARGIN, "height": self.height}
        size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
        card = {"class": "card", "x": 0.5, "y": 0.5, "width": width - 1, "height": height - 1, "rx": 6}
        content = (
            element("style", {}, Markup(style)),
            element("rect", card),
            text(self.title, str(_MARGIN), 25, "head"),
            element("svg", inner, *self.content),
            *(text(note, str(_MARGIN), foot + _NOTE * line, "note") for line, note in enumerate(notes)),
        )
        return f"{element('svg', {**self._root, **size}, *self._named, *content).text}\n"

    @property
    def _root(self) -> Mapping[str, object]:
        return {"xmlns": NAMESPACE, "role": "img", "class": f"chart {self.kind}".strip()}

    @property
    def _named(self) -> tuple[Markup, Markup]:
        return element("title", {}, self.title), element("desc", {}, self.description)


def _escaped(content: str) -> str:
    return escape(one_line(content))
