"""The table of what a graph takes to be armed."""

from __future__ import annotations

from qemu.arming import AGAIN, FIRST, KNOWN, NEW, Line, as_json, report

LINES = [Line(NEW, FIRST, 1945, 165, 6.934, 11_692), Line(KNOWN, AGAIN, 1945, 165, 0.2, 8_012)]


def test_the_table() -> None:
    heading, first, second, _, *notes = report(LINES)
    assert heading == "kernel  graph  functions  sites  seconds  packets"
    assert first == "new     first      1,945    165     6.93   11,692"
    assert second == "known   again      1,945    165     0.20    8,012"
    assert all(word in notes[0] for word in heading.split())
    assert as_json(LINES)[1] == {
        "kernel": "known", "graph": "again", "functions": 1945, "sites": 165, "seconds": 0.2, "packets": 8012,
    }  # fmt: skip
