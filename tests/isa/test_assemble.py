"""What capstone reads back is compared as an instruction: how a number is written depends on its size, not on it."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import MmapKernel
from gdb_optprobe.isa.assemble import assemble, check
from gdb_optprobe.isa.x86_64.templates import assembled

SAME = [
    ("mov r8d, 0x8", "mov r8d, 8"),
    ("cmp rax, -0x1000", "cmp rax, 0xfffffffffffff000"),
    ("mov qword ptr [rsp - 8], 0", "mov qword ptr [rsp - 0x8], 0x0"),
    ("mov rax, qword ptr [rbp + 0]", "mov rax, qword ptr [rbp]"),
    ("ld r3, 8(r4)", "ld r3, 0x8(r4)"),
    ("lea rax, [rax + 8*rcx]", "lea rax, [rax + 8*rcx]"),
]
OTHERS = [
    ("mov r8d, 0x8", "mov r8d, 9"),
    ("mov r8d, 8", "mov r9d, 8"),
    ("mov r8d, 8", "mov r8, 8"),
    ("mov rax, qword ptr [rsp - 8]", "mov rax, qword ptr [rsp + 8]"),
    ("mov rax, qword ptr [rbp + 0]", "mov eax, dword ptr [rbp]"),
    ("ld r3, 8(r4)", "ld r3, 8(r14)"),
    ("add r8, r80", "add r8, r8"),
    ("mov rax, 0", "mov rax,"),
]


@pytest.mark.parametrize(("expected", "read"), SAME)
def test_another_spelling_is_the_same_instruction(expected: str, read: str) -> None:
    check(expected, expected, *read.partition(" ")[::2])


@pytest.mark.parametrize(("expected", "read"), OTHERS)
def test_another_instruction_is_refused(expected: str, read: str) -> None:
    with pytest.raises(OptprobeError, match="keystone assembled"):
        check(expected, expected, *read.partition(" ")[::2])


@pytest.mark.parametrize("number", [0, 1, 8, 9, 10, 0x10, 0x80, 0x7FFFFFFF])
def test_numbers_of_any_size(number: int) -> None:
    code = assembled([f"mov r8d, {number:#x}", f"mov rax, qword ptr [rbp + {number:#x}]", "ret"], ("table",)).code
    assert code.startswith(b"\x41\xb8" + number.to_bytes(4, "little"))


def _mmap_hook(current: int, force: int) -> bytes:
    kernel = MmapKernel(0x10_0000, 0x20_0000, 0x30_0000, current, 0x8E0, 0x20, 12)
    return lower_mmap_hook(kernel, 0x40_0000, force)(0x50_0000)


@pytest.mark.parametrize("force", [0x11, 0x9, 0x8001])
def test_what_maps_files_whatever_number_forces_a_write(force: int) -> None:
    """FOLL_FORCE is another bit from one kernel to the next."""
    code = _mmap_hook(0x4000, force)
    assert b"\x41\xb8" + (force & ~1).to_bytes(4, "little") in code


@pytest.mark.parametrize("current", [0x1F00, 0x7FFF_FFF0, 0xFFFF_FFFF_8300_1000])
def test_per_cpu_variables_below_2_gib_or_at_the_images_own_addresses(current: int) -> None:
    code = _mmap_hook(current, 0x11)
    # mov rdi, imm32, which the CPU extends by its sign
    assert b"\x48\xc7\xc7" + (current & 0xFFFF_FFFF).to_bytes(4, "little") + b"\x65\x48\x8b\x3f" in code


def test_what_keystone_does_not_assemble_is_told() -> None:
    with pytest.raises(OptprobeError, match=r"keystone does not assemble 'mov nothing, 1' \(.+\)"):
        assemble("mov nothing, 1", "KS_ARCH_X86", "KS_MODE_64")
