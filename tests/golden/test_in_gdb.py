"""What is typed in GDB, and the Python API there."""

from __future__ import annotations

from tests.commands.in_gdb import gdb
from tests.golden import FOLDER, golden


def test_commands_settings_and_the_python_api() -> None:
    ended = gdb(f"source {FOLDER}/in_gdb.py")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == golden("in_gdb.txt")
