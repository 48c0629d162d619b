"""A hit that walks the stack of its program by frame pointers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import PT_REGS
from gdb_optprobe.guest.linux.arch.x86_64.user_walk import from_stack, of_program
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Form, Program, Records
from gdb_optprobe.handlers.stack_walk import FRAMES, Frames, frames, walk
from gdb_optprobe.maps.host_map import HostMap

TOP = 0xFFFF_C900_0000_4000
FP, OUTER = 0x7FFE_0000_1000, 0x7FFE_0000_1040
PC, FIRST, SECOND = 0x40_1000, 0x40_2000, 0x40_3000
RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)
CHAIN = {FP: OUTER, FP + 8: FIRST, OUTER: 0, OUTER + 8: SECOND}


def walked(memory: Mapping[int, int], cs: int = 0x33, fp: int = FP, bits: int = 0) -> Frames:
    """What a hit in the kernel finds in a program's memory. bits: of the program, for a hit in that."""
    regs = dict.fromkeys(PT_REGS, 0) | {"rip": PC, "rbp": fp, "cs": cs}
    saved = {TOP - 8 * (len(PT_REGS) - at): value for at, value in enumerate(regs.values())}

    def read(address: int, size: int) -> bytes:
        if address >= 1 << 63:
            assert address in saved, f"{address:#x} is read, which is none of the registers"
        words: dict[int, int] = {**saved, **memory}
        if address not in words:
            raise Unreadable(address, size)
        return words[address].to_bytes(size, "little")

    found = walk(of_program(bits) if bits else from_stack(fold.constant(TOP)), 127)
    contents = HostMap()
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    outcome = run(program, Hit({"rip": PC, "rbp": fp} if bits else {}, read, maps={FRAMES.name: contents}))
    told = frames(int.from_bytes(outcome.done[-1].data, "little"), contents)
    assert isinstance(told, Frames)
    return told


def test_frame_pointers_are_followed_to_their_end() -> None:
    assert walked(CHAIN) == walked(CHAIN, bits=64) == Frames((PC, FIRST, SECOND))


@pytest.mark.parametrize("beyond", [0, 8, TOP - 168, 1 << 63, (1 << 64) - 8])
def test_what_a_program_has_in_its_register_leads_to_no_memory_of_the_kernel(beyond: int) -> None:
    assert walked(CHAIN, fp=beyond) == Frames((PC,))


def test_a_thread_of_the_kernel_has_no_program() -> None:
    assert walked(CHAIN, cs=0) == Frames(())


def test_a_program_of_32_bits_is_told_to_have_callers() -> None:
    assert walked(CHAIN, cs=0x23) == walked(CHAIN, bits=32) == Frames((PC,), is_whole=False)
