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


def test_what_others_printed_before_our_stop_is_printed(tmp_path: Path) -> None:
    """Such as commands at a breakpoint of the user's."""
    report = "there\n[Switching to Thread 1.2]\nthere\n\nThread 2 received signal SIGINT, Interrupt.\n0x1234 in f ()\n"
    script = "import os\nfrom gdb_optprobe.debugger.stop_report import StopReport\nreport = StopReport()\n"
    script += f"with report: os.write(1, {report.encode()!r})\nreport.print(ours=True)\n"
    (tmp_path / "script.py").write_text(script)
    ended = gdb(f"source {tmp_path}/script.py")
    assert ended.out.split() == ["there", "there"], ended.err
