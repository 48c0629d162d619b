"""What the bench of a load under many probes makes of what it measured."""

from __future__ import annotations

from qemu.scale_load import PROBES, TRACER, LoadLine, as_json, report

FOUND = [
    LoadLine("*", PROBES, 125_000, 100_000, 5_000),
    LoadLine("*", TRACER, 1_000_000, 100_000, 3_000),
    LoadLine("b*", PROBES, 100_400, 100_000, 20),
    LoadLine("c*", TRACER, 99_900, 100_000, 0),
]


def test_a_row_for_the_probes_and_one_for_the_tracer() -> None:
    assert [line.split() for line in report(FOUND)[1:5]] == [
        ["*", "probes", "80", "%", "5,000", "5.0"],
        ["*", "tracer", "10", "%", "3,000", "300.0"],
        ["b*", "probes", "100", "%", "20", "-"],
        ["c*", "tracer", "100", "%", "0", "-"],
    ]


def test_lines_for_programs() -> None:
    assert [line["each"] for line in as_json(FOUND)] == [5.0, 300.0, None, None]
    assert as_json(FOUND)[0]["work"] == 0.8
