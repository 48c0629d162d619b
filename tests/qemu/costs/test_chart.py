"""The costs as a picture, and as a page."""

from __future__ import annotations

from xml.etree import ElementTree

from gdb_optprobe.pages.bars import PLOT
from qemu.costs.chart import PAIRS, chart
from qemu.costs.estimate import Cost
from qemu.costs.page import page
from qemu.costs.table import read as read_table
from qemu.costs.table import table
from tests.pages.reading import SVG, drawings, is_on_its_own, read

STOP, LINUX, OURS = 10_000e-6, 1e-6, 0.01e-6
"""Seconds of a hit: seven decades apart."""
COSTS = [
    Cost("no probe", 0.0, 0.0, 0.0, 0.0),
    *(
        cost
        for pair in PAIRS
        for cost in (
            Cost(pair.cost, None, 2.0, 12.0, STOP) if pair.maker == "gdb" else Cost(pair.cost, 750.8, 0, 0, LINUX),
            Cost(pair.our_cost, 2.04, 0.0, 0.0, OURS, True),
        )
    ),
]


def test_a_bar_is_as_long_as_the_logarithm_and_has_its_figures() -> None:
    drawn = ElementTree.fromstring(chart(COSTS, "x86_64"))
    bars = {(bar.attrib["class"], bar.attrib["width"]) for bar in drawn.iter(f"{SVG}rect") if len(bar)}
    shares = {name: float(width.removesuffix("%")) / 100 / PLOT for name, width in bars}
    assert len(bars) == 3 and shares["gdb"] == 1.0
    assert abs(shares["linux"] - 2 / 6) < 0.001 and 0 < shares["ours"] < 0.01
    texts = [text.text or "" for text in drawn.iter(f"{SVG}text")]
    assert texts.count("optprobe ~0.010 µs, 2 instructions") == len(PAIRS)
    assert "GDB 10,000 µs, 2 stops" in texts and "Linux 1.00 µs, 751 instructions" in texts
    assert [text for text in texts if "x86_64" in text and "logarithmic" in text]


def test_the_picture_of_a_printed_table_is_the_same() -> None:
    assert chart(read_table(table(COSTS, COSTS[2])), "x86_64") == chart(COSTS, "x86_64")


def test_its_colours_follow_the_viewer() -> None:
    assert "prefers-color-scheme: dark" in chart(COSTS, "ppc64le")


def test_a_row_that_is_not_measured_is_not_drawn() -> None:
    rows = [cost for cost in COSTS if cost.name != "trapped"]
    assert "by a trap" in chart(COSTS, "ppc64le") and "by a trap" not in chart(rows, "ppc64le")


def test_a_page_has_the_picture_the_table_and_the_targets() -> None:
    found = page(COSTS, COSTS[2], "ppc64le", ["stops: of the whole guest"], ["Target: met"])
    text = read(found).text
    assert is_on_its_own(found) and len(drawings(found)) == 1
    for row in ("Linux's hist trigger", "750.8", "~0.010", "stops: of the whole guest", "Target: met", "ppc64le"):
        assert row in text
