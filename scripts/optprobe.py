"""The file to `source` in GDB 13 or later: it makes the command `optprobe` known."""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What scripts/setup chose goes before what GDB's Python may have of another version.
for folder in (str(ROOT / ".packages"), str(ROOT)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
runpy.run_path(str(ROOT / "gdb_optprobe" / "commands" / "load.py"))
