"""Which glob the bench of many probes takes, and how it prints what it found."""

from __future__ import annotations

import pytest

from qemu.scale import ADD, AGAIN, DELETE, OFF, ON, SITES, WHOLE, Line, as_json, glob_of, report

NAMES = sorted(["abc", "abd", "ab.isra.0", "bcd", "bce", "bde", "cde", "x_", "y", "__z"])
FOUND = [
    Line("b*", 2000, ADD, 4.0, 3000, 40_000, 16_000),
    Line("b*", 2000, "list", 0.5, 10),
    Line("b*", 2000, DELETE, 0.25, 500),
    Line("b*", 2000, AGAIN, 2.0, 3000),
    Line("b*", 2000, ON, 0.5),
    Line("b*", 2000, OFF, 0.0),
]


@pytest.mark.parametrize(
    ("size", "glob"), [(1, "_*"), (2, "bc*"), (3, "a*"), (6, "[a-b]*"), (7, "[a-c]*"), (99, "[a-y]*")]
)
def test_the_glob_matches_nearest_to_so_many(size: int, glob: str) -> None:
    assert glob_of(NAMES, size) == glob


def test_a_row_for_each_command_beside_the_tracer() -> None:
    assert [line.split() for line in report(FOUND)[1:7]] == [
        ["2,000", "b*", "add", "4.00", "2,000", "1.50", "8.0", "20.0", "8.0"],
        ["2,000", "b*", "list", "0.50", "250", "0.01"],
        ["2,000", "b*", "delete", "0.25", "125", "0.25"],
        ["2,000", "b*", "add", "again", "2.00", "1,000", "1.50", "4.0"],
        ["2,000", "b*", "tracer", "on", "0.50", "250", "-"],
        ["2,000", "b*", "tracer", "off", "0.00", "0", "-"],
    ]


def test_lines_for_programs() -> None:
    assert [line["ratio"] for line in as_json(FOUND)] == [8.0, None, None, 4.0, None, None]
    assert as_json(FOUND)[0]["packets"] == 3000


def test_the_functions_with_a_site_are_beside_the_tracer_of_all() -> None:
    lines = [Line(WHOLE, 40, ADD, 3.0), Line(WHOLE, 40, ON, 0.5), Line(SITES, 35, ADD, 1.0), Line("v*", 3, ADD, 1.0)]
    assert [line["ratio"] for line in as_json(lines)] == [6.0, None, 2.0, None]
