"""The short form of scripts/matrix: other kernels, another GDB, another QEMU; nothing is broken there."""

from __future__ import annotations

import warnings

import pytest

from qemu import battery, matrix, versions
from tests.booted.conftest import ACCELERATOR, FULL

QUICK = [row for row in matrix.ROWS if row.quick]
FACILITIES = [name for name in battery.FACILITIES if FULL or name != "all"]  # which is a minute on a new kernel
NEEDED = ("entry", "if/do", "return", "break", "recover", "removal")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_nothing_is_broken(row: matrix.Row) -> None:
    result = matrix.run(row, FACILITIES, extra=ACCELERATOR)
    print("\n".join(matrix.table([result])))
    if result.gone:
        warnings.warn(f"{row.name}: gone, tried with {result.release}", stacklevel=1)
    assert not result.broken
    assert {name: result.outcomes[name].state for name in NEEDED} == dict.fromkeys(NEEDED, battery.WORKS)


def test_every_kernel_gdb_and_qemu_is_in_a_row() -> None:
    """None is pinned that is not tried."""
    rows, pinned = matrix.ROWS, versions.names()
    assert {row.kernel for row in rows if not row.kernel.startswith("built ")} == set(pinned["kernels"])
    assert {row.gdb for row in rows} == {"", *pinned["gdb"]}
    assert {row.qemu for row in rows} == {"", *pinned["qemu"]}


def test_the_table_says_why_a_cell_does_not_work() -> None:
    outcomes = {
        "entry": battery.Outcome("entry", battery.WORKS),
        "user": battery.Outcome("user", battery.REFUSED, "TRAP_TIER_MISSING", "no trap can be handled"),
    }
    lines = matrix.table([matrix.Result(matrix.Row("6.1 cloud"), "6.1.0", False, outcomes, 2.0)])
    assert "entry" in lines[0] and "user" in lines[0]
    assert any("user refused TRAP_TIER_MISSING: no trap can be handled" in line for line in lines)
    assert lines[-1] == "1 rows: 1 works, 1 refused, 0 broken"
