"""The table of what the first `add` of every function takes."""

from __future__ import annotations

from qemu.arming import AGAIN, FIRST, KNOWN, NEW
from qemu.first_add import Line, as_json, report

LINES = [Line(NEW, FIRST, 43_262, 15.3, 13.117, 1.5), Line(KNOWN, AGAIN, 43_262, 0.9, 0.456, 0.2)]


def test_the_table() -> None:
    heading, first, second, _, *notes = report(LINES)
    assert heading == "kernel    add  probes  seconds    GDB  QEMU"
    assert first == "new     first  43,262    15.30  13.12  1.50"
    assert second == "known   again  43,262     0.90   0.46  0.20"
    assert all(word in notes[0] for word in heading.split())
    assert as_json(LINES)[1] == {
        "kernel": "known", "add": "again", "probes": 43_262, "seconds": 0.9, "gdb": 0.456, "qemu": 0.2,
    }  # fmt: skip
