"""What a function is given and returns, by debug information, wherever in it others are inlined."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qemu.debugger import DebuggerError, gdb_program
from tests.handlers.oracle import needs_gcc

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
struct regs { unsigned long di; };
static inline __attribute__((always_inline)) short inner(unsigned fd, struct regs *regs) { return regs->di + fd; }
int outer(struct regs *regs) { return inner(3, regs); }
"""
SCRIPT = f"""
import gdb, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / ".packages")!r}]
from gdb_optprobe.debugger.dwarf import dwarf
start = int(gdb.parse_and_eval("(unsigned long)&outer"))
for address in range(start, start + 4):
    found = dwarf(address, None, lambda: None)
    print("told", list(found.parameters()), found.result())
"""


@needs_gcc
def test_a_function_that_begins_with_an_inlined_one_has_its_own_parameters(tmp_path: Path) -> None:
    source, made, script = tmp_path / "it.c", tmp_path / "it.o", tmp_path / "it.py"
    source.write_text(SOURCE)
    script.write_text(SCRIPT)
    options = ("-g", "-O2", "-c", "-ffunction-sections", "-fcf-protection=none")
    subprocess.run(["gcc", *options, "-o", made, source], check=True)
    try:
        program = gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))
    command = [program, "-nx", "-batch", "-iex", "set debuginfod enabled off", str(made), "-x", str(script)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    lines = [line for line in told.splitlines() if line.startswith("told")]
    assert len(lines) == 4 and len(set(lines)) == 1, told
    assert "['regs']" in lines[0] and "'int'" in lines[0], told
