"""How costs are printed."""

from __future__ import annotations

from qemu.costs.estimate import Cost
from qemu.costs.table import as_json, number, read, table

OPTIMIZED = Cost("optimized", 2.04, 0.0, -0.00002, 7e-9, estimated=True)
BREAKPOINT = Cost("breakpoint", None, 2.0, 12.0, 0.007)
NOTHING = Cost("no probe", 0.0, 0.0, 0.0, 0.0, estimated=True)


def test_table() -> None:
    assert table([NOTHING, BREAKPOINT, OPTIMIZED], OPTIMIZED) == [
        "            instructions  stops  packets      µs      ratio",
        "no probe             0.0    0.0      0.0      ~0          -",
        "breakpoint             -    2.0     12.0   7,000  1,000,000",
        "optimized            2.0    0.0      0.0  ~0.007       1.00",
    ]


def test_a_printed_table_is_read() -> None:
    printed = table([NOTHING, BREAKPOINT, OPTIMIZED], OPTIMIZED)
    assert table(read(["no table", *printed]), OPTIMIZED) == printed


def test_json() -> None:
    (line,) = as_json([BREAKPOINT], OPTIMIZED)
    assert line == {
        "type": "cost",
        "name": "breakpoint",
        "instructions": None,
        "stops": 2.0,
        "packets": 12.0,
        "host_us": 7000.0,
        "host_us_estimated": False,
        "ratio": 1000000.0,
    }


def test_number() -> None:
    assert [number(value) for value in (0, 0.0071, 1, 12.34, 1234.5)] == ["0", "0.007", "1.00", "12.3", "1,234"]
