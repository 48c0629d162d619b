"""Which functions look at their return address, by how they begin."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.user_returns import RETURNING
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import USER

READ = [
    (64, "f30f1efa 48891f 488b0424 c3"),  # endbr64; mov %rbx,(%rdi); mov (%rsp),%rax: setjmp
    (64, "5f b83a000000 0f05 57 c3"),  # pop %rdi: vfork
    (64, "ff3424 c3"),  # pushq (%rsp)
    (32, "8b1c24 c3"),  # mov (%esp),%ebx: __x86.get_pc_thunk.bx
    (32, "59 51 c3"),
]
LEFT_ALONE = [
    (64, "55 488b0424 5d c3"),  # what it has pushed itself
    (64, "4883ec08 488b0424 c3"),
    (64, "488b442408 c3"),  # an argument
    (64, "c3"),
    (64, "48890424 c3"),
    (32, "8b442404 c3"),
]


@pytest.mark.parametrize(("bits", "text"), READ + LEFT_ALONE)
def test_who_looks_at_his_return_address(bits: int, text: str) -> None:
    code = USER.decode(bytes.fromhex(text), 0x1000, bits)
    assert RETURNING.reads(code) is ((bits, text) in READ)
