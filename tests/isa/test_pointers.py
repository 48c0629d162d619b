"""Where indirect calls and jumps go, by their operands."""

from __future__ import annotations

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64


@pytest.mark.parametrize(
    ("isa", "data", "pointer"),
    [
        (X86_64, "ffd0", Pointer("rax")),  # call *%rax
        (X86_64, "41ffd3", Pointer("r11")),  # call *%r11
        (X86_64, "ffe2", Pointer("rdx")),  # jmp *%rdx
        (X86_64, "ff10", Pointer("rax", 0)),  # call *(%rax)
        (X86_64, "ff5010", Pointer("rax", 16)),  # call *16(%rax)
        (X86_64, "41ff55f8", Pointer("r13", -8)),  # call *-8(%r13)
        (X86_64, "ffa000010000", Pointer("rax", 256)),  # jmp *256(%rax)
        (X86_64, "ff1500000000", None),  # call *0(%rip)
        (X86_64, "ff14c500000081", None),  # call *-0x7f000000(,%rax,8)
        (X86_64, "65ff10", None),  # call *%gs:(%rax)
        (X86_64, "e800000000", None),  # call, direct
        (X86_64, "c3", None),  # ret
        (PPC64LE, "2104804e", Pointer("r12")),  # bctrl
        (PPC64LE, "2004804e", Pointer("r12")),  # bctr
        (PPC64LE, "2000804e", None),  # blr
        (PPC64LE, "01000048", None),  # bl
        (AARCH64, "60003fd6", Pointer("x3")),  # blr x3
        (AARCH64, "00021fd6", Pointer("x16")),  # br x16
        (AARCH64, "01083fd7", None),  # blraa x0, x1: what x0 holds is signed
        (AARCH64, "c0035fd6", None),  # ret
        (AARCH64, "01000094", None),  # bl
    ],
)
def test_the_operand_of_an_indirect_call(isa: Isa, data: str, pointer: Pointer | None) -> None:
    (insn, *_) = isa.decode(bytes.fromhex(data), 0x1000)
    assert isa.pointer(insn) == pointer
