"""Code at a trap that stops: where it leaves to, whom it tells of, and what it leaves on the stack."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.user_stops import STOPPING
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, USER
from gdb_optprobe.guest.trap_frames import GATES, ROOM, Gate, trap_frames
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.user.uprobe_stops import saved_registers, with_stop_call

CODE, PLACE, STACK = 0x10_0000, 0x20_0000, 0x30_0000
NUMBER = 0x1234
SP = STACK + 0x800


def program(leaves: int) -> Code:
    """cmp $5, %eax; je leaves"""
    return lambda at: b"\x83\xf8\x05\x0f\x84" + (leaves - at - 9).to_bytes(4, "little", signed=True)


def ran(eax: int) -> tuple[list[int], int, bytes]:
    """Where it came by, what rax was there, and the stack behind it."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, PLACE, STACK):
        machine.mem_map(page, 0x1000)
    code = with_stop_call(program, STOPPING.call(NUMBER, PLACE), X86_64, CODE + 0x100)(CODE)
    machine.mem_write(CODE, code)
    machine.mem_write(PLACE, STOPPING.place)
    machine.reg_write(x86_const.UC_X86_REG_RSP, SP)
    machine.reg_write(x86_const.UC_X86_REG_RAX, eax)
    came: list[tuple[int, int]] = []

    def at_place(machine: Any, address: int, *_: object) -> None:
        came.append((address, machine.reg_read(x86_const.UC_X86_REG_RAX)))

    machine.hook_add(unicorn.UC_HOOK_CODE, at_place, begin=PLACE, end=PLACE)
    machine.emu_start(CODE, CODE + len(code), count=100)
    assert machine.reg_read(x86_const.UC_X86_REG_RIP) == CODE + len(code)
    assert machine.reg_read(x86_const.UC_X86_REG_RSP) == SP
    return [told for _, told in came], machine.reg_read(x86_const.UC_X86_REG_RAX), bytes(machine.mem_read(SP - 16, 16))


def test_who_stops_tells_which_probe_and_leaves_nothing_on_the_stack() -> None:
    assert ran(5) == ([NUMBER], NUMBER, bytes(16))


def test_who_does_not_stop_goes_by() -> None:
    assert ran(4) == ([], 4, bytes(16))


@pytest.mark.parametrize("behind", [0, 1])
def test_frames_beyond_a_gate(tmp_path: Path, behind: int) -> None:
    """As binutils reads them: a signal's frame, from whose registers' address all that the trap saved is found."""
    file = tmp_path / "frames"
    file.write_bytes(trap_frames(saved_registers(USER)))
    text = subprocess.run(["readelf", "--debug-dump=frames", str(file)], capture_output=True, text=True, check=True)
    start = GATES + ROOM * behind
    assert start < Gate(GATES, behind, {}).address < start + ROOM
    before, found, _ = text.stdout.partition(f"pc={start:016x}..{start + ROOM:016x}")
    cie = before[before.rindex(" CIE") :]
    assert found and '"zS"' in cie and "DW_CFA_def_cfa: r5 (rdi) ofs 0" in cie
    rule = f"DW_OP_plus_uconst: {REGISTERS['rip']}; DW_OP_deref; DW_OP_lit{behind}; DW_OP_minus"
    assert f"DW_CFA_val_expression: r16 (rip) ({rule})" in cie
    assert f"DW_CFA_offset_extended: r7 (rsp) at cfa+{REGISTERS['rsp']}" in cie
    assert f"DW_CFA_offset_extended: r49 (rflags) at cfa+{REGISTERS['eflags']}" in cie
