"""The costs as a picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from qemu.costs.chart import PAIRS, chart
from qemu.costs.estimate import Cost

SVG = "{http://www.w3.org/2000/svg}"


def drawn(seconds: float) -> ElementTree.Element:
    costs = [Cost(bar.cost, 2.04, 0.0, 0.0, seconds, bar.maker == "ours") for pair in PAIRS for bar in pair]
    return ElementTree.fromstring(chart([*costs, Cost("no probe", 0.0, 0.0, 0.0, 0.0)], "x86_64"))


def widths(seconds: float) -> set[float]:
    return {float(bar.attrib["width"]) for bar in drawn(seconds).iter(f"{SVG}rect") if bar.attrib["class"] != "card"}


def test_a_bar_is_as_long_as_the_logarithm() -> None:
    (thousandth,), (hundredth,), (ten,) = widths(1e-9), widths(1e-8), widths(1e-5)
    assert thousandth == 1.0
    assert ten == 4 * hundredth
    assert widths(1e-12) == {1.0}


def test_a_bar_has_its_figures() -> None:
    texts = [text.text or "" for text in drawn(3.4e-9).iter(f"{SVG}text")]
    assert texts.count("~0.003 µs, 2 instructions") == len(PAIRS)
    assert "Linux: hist trigger" in texts


def test_its_colours_follow_the_viewer() -> None:
    svg = chart([Cost(bar.cost, None, 2.0, 0.0, 1e-3) for pair in PAIRS for bar in pair], "ppc64le")
    assert "prefers-color-scheme: dark" in svg
    assert re.findall(r"1,000 µs, 2 stops", svg)
