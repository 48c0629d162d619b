"""The handler that has fields assigned, and its gates, on Unicorn, around an assignment as a kernel has it."""

from __future__ import annotations

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64 import event_fields
from gdb_optprobe.guest.linux.event_fields import EventFormat
from tests.detours.fakes import code
from tests.guest.linux.event_fields import (
    ASSIGNS,
    CALLER,
    CODE,
    COMMIT,
    COMMITS,
    FIELD,
    GATES,
    LAYOUT,
    MISSED,
    RESERVE,
    TOP,
    Assigning,
    Processor,
    Ran,
    check_a_probe_sees_the_entry,
    check_an_entry_without_room_is_counted_and_not_probed,
    check_the_kernels_own_files_pass_the_gates,
)

RETURNS = b"\xc3"
MADE = EventFormat(0x7000_0000, ASSIGNS, 0x7000_1000, RESERVE, COMMIT, LAYOUT, (FIELD,))
# trace_event_raw_event_…(file, number): as GCC makes it; both calls lead to gates.
BEFORE = """
    53                       push   %rbx
    48 83 ec 30              sub    $0x30,%rsp
    89 f3                    mov    %esi,%ebx
    83 7f 48 00              cmpl   $0,72(%rdi)
    75 1e                    jne    out
    48 89 fe                 mov    %rdi,%rsi
    48 89 e7                 mov    %rsp,%rdi
"""
AFTER = """
    48 85 c0                 test   %rax,%rax
    74 0b                    je     out
    89 58 08                 mov    %ebx,8(%rax)
    48 89 e7                 mov    %rsp,%rdi
"""
END = """
    48 83 c4 30              add    $0x30,%rsp
    5b                       pop    %rbx
    c3                       ret
"""


def call(at: int, to: int) -> bytes:
    return b"\xe8" + (to - at - 5).to_bytes(4, "little", signed=True)


def assignment(size: int) -> bytes:
    body = code(BEFORE) + b"\xba" + size.to_bytes(4, "little")
    body += call(ASSIGNS + len(body), GATES) + code(AFTER)
    return body + call(ASSIGNS + len(body), COMMITS) + code(END)


PROCESSOR = Processor(
    lambda: unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64),
    lambda name: int(getattr(x86_const, f"UC_X86_REG_{name.upper()}")),
    *("rip", "rsp", "rbx", ("rdi", "rsi", "rdx"), "rax"),
    popped=8,
)


def called(size: int) -> Ran:
    handler = event_fields.handler(MADE, MISSED, CODE)
    assert handler[2] % 16 == 8, "the stack is aligned to 16 at the call"
    gates = {GATES: event_fields.reserve(MADE, GATES), COMMITS: event_fields.commit(MADE, COMMITS)}
    kernels = {ASSIGNS: assignment(size), RESERVE: RETURNS, COMMIT: RETURNS, TOP: CALLER.to_bytes(8, "little")}
    return Assigning(PROCESSOR, MADE, handler, gates | kernels).called()


def test_a_probe_sees_the_entry_and_the_caller_gets_all_back() -> None:
    check_a_probe_sees_the_entry(called(size=16))


def test_an_entry_that_has_no_room_is_counted_and_not_probed() -> None:
    check_an_entry_without_room_is_counted_and_not_probed(called(size=MADE.room + 1))


@pytest.mark.parametrize("size", [16, 4096])
def test_the_kernels_own_files_pass_the_gates(size: int) -> None:
    check_the_kernels_own_files_pass_the_gates(called(size), size)


def test_the_mark_is_no_address() -> None:
    assert 0 < event_fields.MARK < 1 << 31, "the kernel's addresses are in the upper half, and this is one immediate"
