"""What GDB prints of a stop is kept, and printed when it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.in_gdb import gdb

KEEP = r"""
import os
from gdb_optprobe.debugger.stop_report import StopReport
for wanted in (False, True):
    report = StopReport()
    with report:
        os.write(1, f"kept {wanted}\n".encode())
        gdb.write(f"written {wanted}\n")
    gdb.write("behind\n")
    if wanted:
        report.print()
"""


@pytest.fixture
def keep(tmp_path: Path) -> str:
    (tmp_path / "keep.py").write_text(KEEP)
    return f"source {tmp_path}/keep.py"


def test_what_is_printed_meanwhile_is_kept(keep: str) -> None:
    ended = gdb(keep)
    assert ended.out.splitlines() == ["behind", "behind", "kept True", "written True"], ended.err


def test_a_machine_interface_gets_its_records_at_once(keep: str) -> None:
    ended = gdb(keep, options=("-batch", "-i=mi3"))
    assert "kept False" in ended.out
