"""Read a page as a browser would: its elements, its text, and its drawings as XML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
VOID = ("meta", "br", "hr", "img", "link", "input")
RAW = ("script", "style")
FETCHING = ("link", "img", "iframe", "object", "embed", "base", "image", "use")
LOADS = ("src", "href", "xlink:href", "srcset", "data", "action", "formaction", "poster", "background", "style")
"""Attributes by which a page has something fetched, or done, and those that a policy by hashes forbids."""


@dataclass
class Parsed(HTMLParser):
    """tags: each, with its attributes. texts: what is shown. sources: of scripts and styles, by tag."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    sources: list[tuple[str, str]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attributes}) == len(attributes), tag
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in RAW:
            self.sources.append((self._open[-1], data))
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(one.strip() for one in self.texts if one.strip())

    def attributes(self, *names: str) -> list[tuple[str, str, str | None]]:
        return [(tag, name, value) for tag, own in self.tags for name, value in own.items() if name in names]


def read(page: bytes) -> Parsed:
    """Return a page that is whole: each element is closed within the one that it is in."""
    found = Parsed()
    found.feed(page.decode())
    found.close()
    assert not found._open
    return found


def drawings(page: bytes) -> list[ElementTree.Element]:
    """Return the outermost drawings. Fails where one is no XML."""
    return [ElementTree.fromstring(one) for one in _svgs(page.decode())]


def is_on_its_own(page: bytes) -> bool:
    """Return whether it names nothing to be fetched, nor handles an event by an attribute."""
    found = read(page)
    links = [value for _, _, value in found.attributes(*LOADS)]
    handlers = [name for _, own in found.tags for name in own if name.startswith("on")]
    styles = [source for tag, source in found.sources if tag == "style"]
    assert not {tag for tag, _ in found.tags} & {*FETCHING}
    return not handlers and all(re.fullmatch(r"#s\d+", link or "") for link in links) and "url(" not in "".join(styles)


def _svgs(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for found in re.finditer(r"<svg\b|</svg>", text):
        if found[0] == "</svg>":
            depth -= 1
            if not depth:
                yield text[start : found.end()]
        else:
            start = start if depth else found.start()
            depth += 1
