"""A page of parts: whole, escaped, and with a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import sys

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.pages.bars import Bar, Group, logarithmic
from gdb_optprobe.pages.page import LARGEST, NUMBER, Column, Figure, Page, Paragraph, Section, Table, encode, fitting
from gdb_optprobe.pages.svg import Markup, element, share_bar
from tests.pages.reading import drawings, is_on_its_own, read

HOSTILE = "</script></style></title></svg><img src=x onerror=alert(1)>'\"&amp;{{ 7 * 7 }}{% raw %}"


def made(text: str) -> Page:
    """A page with the same text at every place that takes one."""
    drawing = logarithmic(text, text, [Group(text, [Bar("ours", 3.0, text)])])
    table = Table(text, [Column(text), Column(text, NUMBER), Column("")], [(text, 1234567, share_bar(0.5))], text)
    parts = [Paragraph(text), table, Figure(drawing, text, [("h0", text)], table)]
    return Page(text, [(text, text)], [Section(text, parts), Section("Other", [Paragraph("last")])])


def test_text_is_shown_as_it_is_whatever_it_holds() -> None:
    page = encode(made(HOSTILE))
    plain, hostile = (read(encode(made(text))) for text in ("plain", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert hostile.text == plain.text.replace("plain", HOSTILE)
    assert is_on_its_own(page) and len(drawings(page)) == 4
    assert "1,234,567" in hostile.text


def test_characters_that_a_terminal_or_xml_does_not_take_are_escaped() -> None:
    page = encode(made("a\x1b[2J\x00\u202e\ufffe\ud800\nb"))
    assert drawings(page)
    # A lone surrogate is three bytes.
    assert r"a\033[2J\000\342\200\256\357\277\276\355\240\200\nb" in read(page).text


def test_the_policy_knows_the_style_and_the_script_and_nothing_else() -> None:
    found = read(encode(made("plain")))
    (policy,) = (own["content"] for tag, own in found.tags if own.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(maxsplit=1) for rule in policy.split(";"))
    sources = dict(found.sources)
    assert rules["default-src"] == "'none'" and len(found.sources) == 2
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(sources[tag].encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_a_page_is_for_all_readers() -> None:
    found = read(encode(made("plain")))
    assert ("html", "lang", "en") in found.attributes("lang")
    assert {own["content"] for _, own in found.tags if own.get("name") == "color-scheme"} == {"light dark"}
    for tag, own in found.tags:
        assert tag != "svg" or "aria-hidden" in own or own["role"] == "img"
        assert tag != "th" or own["scope"] == "col"
    for drawing in drawings(encode(made("plain"))):
        named = [child.tag.rpartition("}")[2] for child in drawing][:2]
        assert drawing.get("aria-hidden") or named == ["title", "desc"]
    style = dict(found.sources)["style"]
    assert "prefers-color-scheme: dark" in style and "@media print" in style
    links, places = found.attributes("href"), found.attributes("id")
    assert [value for *_, value in links] == [f"#{place}" for *_, place in places] != []


def test_a_page_that_is_too_large_is_made_of_less() -> None:
    shares: list[float] = []

    def large(share: float) -> Page:
        shares.append(share)
        return Page("", [], [Section("", [Paragraph("x" * int(LARGEST * 3 * share))])])

    assert LARGEST / 2 < len(fitting(large)) <= LARGEST
    assert shares == [1.0, 0.5, 0.25]


def test_without_jinja2_it_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OptprobeError, match="jinja2 cannot be imported") as caught:
        encode(made("plain"))
    assert "pip install jinja2" in caught.value.hint


def test_markup_is_made_by_elements_alone() -> None:
    assert element("a", {"b": '"<'}, "<", Markup("<i/>")) == Markup('<a b="&quot;&lt;">&lt;<i/></a>')
