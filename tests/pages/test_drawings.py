"""Bars, heat maps, flame graphs and timelines: where each thing is, and what it is called."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from gdb_optprobe.exports.recording import Stack
from gdb_optprobe.pages.bars import PLOT, Bar, Group, Scale, logarithmic
from gdb_optprobe.pages.flame import DEEPEST, ROW, by_function, flame, frames, tree
from gdb_optprobe.pages.heat_map import LEVELS, heat_map, legend, level
from gdb_optprobe.pages.svg import Drawing
from gdb_optprobe.pages.timeline import Lane, Lanes, runs, timeline
from tests.pages.reading import SVG


def drawn(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.__html__())


def number(percent: str) -> float:
    return float(percent.removesuffix("%"))


# bars


def test_a_bar_is_as_long_as_the_logarithm() -> None:
    values = (1.0, 10.0, 1000.0, None)
    found = drawn(logarithmic("", "", [Group("", [Bar("ours", value, f"{value}") for value in values])]))
    widths = [number(bar.attrib["width"]) / 100 / PLOT for bar in found.iter(f"{SVG}rect")]
    assert widths == pytest.approx([0.0, 1 / 3, 1.0, 1.0], abs=0.01) and widths[0] > 0
    assert [bar[0].text for bar in found.iter(f"{SVG}rect")] == ["1.0", "10.0", "1000.0", "None"]
    labels = [text.text for text in found.iter(f"{SVG}text") if "note" in text.attrib.get("class", "")]
    assert labels == ["1", "10", "100", "1,000"]


@pytest.mark.parametrize(
    ("values", "scale"), [((), (0, 1)), ((0.0, -1.0), (0, 1)), ((5,), (0, 1)), ((0.02, 700), (-2, 3))]
)
def test_a_scale_has_whole_decades(values: tuple[float, ...], scale: tuple[int, int]) -> None:
    found = Scale.of(values)
    assert (found.lowest, found.highest) == scale
    assert all(0 <= found.share(value) <= 1 for value in (*values, 1e-9, 1e9))


# heat maps


def test_a_cell_is_at_its_time_and_its_size_and_the_darker_the_more() -> None:
    cells, rows, ticks = {(0, 0): 1, (3, 2): 100}, ["1us", "2us", "4us"], ["0", "+1s", "+2s"]
    found = drawn(heat_map("calls", "some", cells, 4, rows, ticks, lambda *cell: f"{cell}"))
    low, high = found.iter(f"{SVG}path")
    assert (low.attrib["d"], low.attrib["class"], low[0].text) == ("M0 2h1v1h-1z", "h0", "(0, 0, 1)")
    assert (high.attrib["d"], high.attrib["class"]) == ("M3 0h1v1h-1z", f"h{LEVELS - 1}")
    assert [text.text for text in found.iter(f"{SVG}text")] == ["1us", "2us", "4us", "0", "+1s", "+2s"]


@pytest.mark.parametrize("most", [1, 2, 7, 300, 123_456])
def test_a_legend_has_each_number_once(most: int) -> None:
    found = legend(most)
    bounds = [tuple(int(end.replace(",", "")) for end in numbers.split(" to ")) for _, numbers in found]
    assert bounds[0][0] == 1 and bounds[-1][-1] == most
    assert all(one[-1] + 1 == other[0] for one, other in pairwise(bounds))
    for (name, _), ends in zip(found, bounds, strict=True):
        assert {f"h{level(end, most)}" for end in ends} == {name}


# flame graphs

SEEN = {("a", "b", "c"): 6, ("a", "b"): 2, ("a", "d", "a"): 1, ("e",): 1, ("f",): 0}
STACKS = [Stack(*one) for one in SEEN.items()]


def test_a_box_is_as_wide_as_its_share_and_below_its_caller() -> None:
    shown, left_out = frames(tree(STACKS), 100)
    assert left_out == 0
    assert {(one.name, one.depth, round(one.left, 3), round(one.width, 3)) for one in shown} == {
        ("all", 0, 0.0, 1.0), ("a", 1, 0.0, 0.9), ("e", 1, 0.9, 0.1), ("b", 2, 0.0, 0.8), ("d", 2, 0.8, 0.1),
        ("c", 3, 0.0, 0.6), ("a", 3, 0.8, 0.1),
    }  # fmt: skip
    found = drawn(flame("stacks", "some", shown, str))
    boxes = {box[0].text: box.attrib for box in found if box.tag == f"{SVG}svg"}
    assert boxes["c: 6, 60.0 %"]["width"] == "60%" and int(boxes["c: 6, 60.0 %"]["y"]) == 3 * ROW
    assert int(found.attrib["height"]) == 4 * ROW


def test_of_many_boxes_the_widest_are_kept_with_their_callers() -> None:
    shown, left_out = frames(tree(STACKS), 3)
    assert ([one.name for one in shown], left_out) == (["all", "a", "b"], 4)


def test_a_function_that_calls_itself_is_counted_once() -> None:
    found = {name: (own, whole) for name, own, whole in by_function(tree(STACKS))}
    assert found == {"c": (6, 6), "b": (2, 8), "a": (1, 9), "e": (1, 1), "d": (0, 1)}


def test_stacks_of_any_depth_are_drawn() -> None:
    deep = tree([Stack((*("f",) * 5000, "g"), 1)])
    shown, left_out = frames(deep, 10_000)
    assert (len(shown), left_out) == (DEEPEST + 1, 5001 - DEEPEST)
    assert by_function(deep)[0] == ("g", 1, 1), "what is too deep for the picture is in the table"


# timelines


def test_what_is_close_together_is_one_run() -> None:
    found = runs([(10, 20), (0, 4), (21, 22), (12, 13)], 1)
    assert [(one.begin, one.end, one.count) for one in found] == [(0, 4, 1), (10, 22, 3)]


def test_a_span_is_where_its_time_is() -> None:
    lanes = [Lanes("CPU 0", [Lane("vfs_read", "c0", [(100, 150), (200, 200)])])]
    drawing = timeline("when", "some", lanes, (100, 200), ["0", "+100ns"], lambda run: str(run.count), 50)
    ground, first, last = drawn(drawing).iter(f"{SVG}rect")
    assert ground.attrib["width"] == "100%"
    assert (first.attrib["x"], first.attrib["width"], first.attrib["class"], first[0].text) == ("0%", "50%", "c0", "1")
    assert number(last.attrib["x"]) + number(last.attrib["width"]) == pytest.approx(100), "within the drawing"


def test_a_timeline_of_one_time_is_drawn() -> None:
    drawing = timeline("when", "some", [Lanes("", [Lane("f", "c0", [(5, 5)])])], (5, 5), ["0", "+0"], lambda _: "", 50)
    assert len([*drawn(drawing).iter(f"{SVG}rect")]) == 2
