"""Which byte our traps are on x86-64, by what the kernel's own handler looks for."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import invalid_op
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import code
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
HANDLER, DECODES, AFTER = TEXT + 0x100, TEXT + 0x200, TEXT + 0x300
NAMES = {"_stext": TEXT, "exc_invalid_op": HANDLER, "handle_bug": DECODES, "after": AFTER, "_etext": TEXT + 0x1000}
UD2 = "3c 0f  cmp $0xf, %al\n"
FAR_JUMP, FAR_CALL = "3c ea  cmp $-0x16, %al\n", "3d 9a 00 00 00  cmp $0x9a, %eax\n"
UDB = "80 f9 d6  cmp $0xd6, %cl\n"


def trap(looks_for: str, here: str = "") -> bytes:
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    call = f"e8 {(DECODES - HANDLER - len(code(here)) - 5).to_bytes(4, 'little').hex(' ')}  call handle_bug\n"
    memory.put(HANDLER, code(here + call + "c3  ret"))
    memory.put(DECODES, code(looks_for + "c3  ret"))
    return invalid_op.trap(kernel(memory, NAMES), {}, HANDLER)


def test_the_trap_is_one_that_the_kernel_does_not_look_for() -> None:
    far_jump, far_call = X86_64.traps
    assert far_jump == X86_64.trap == b"\xea"
    assert trap(UD2) == trap(UD2 + UDB) == far_jump
    assert trap(UD2 + FAR_JUMP) == trap(UD2, here=FAR_JUMP) == far_call
    assert trap(UD2 + FAR_CALL) == far_jump
    assert trap(f"{UD2}e8 00 00 00 3f  call a tracer's trampoline") == far_jump
    assert trap(f"{UD2}e9 ea 00 00 00  jmp after") == far_jump, "a displacement is no opcode"


def test_no_trap_is_free() -> None:
    with pytest.raises(OptprobeError, match="ea, 9a"):
        trap(FAR_JUMP + FAR_CALL)


def test_a_handler_that_is_not_known_is_an_error() -> None:
    with pytest.raises(OptprobeError):
        invalid_op.trap(kernel(Pages(), {}), {}, HANDLER)
