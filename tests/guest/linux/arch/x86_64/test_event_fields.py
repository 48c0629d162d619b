"""The handler that has fields assigned, and its gates, on Unicorn, around an assignment as a kernel has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64 import event_fields
from gdb_optprobe.guest.linux.event_fields import EventField, EventFormat, FileLayout
from tests.detours.fakes import code

CODE, GATES, KERNEL, DATA, STACK = range(0x10_0000, 0x60_0000, 0x10_0000)
RESERVE, COMMIT, ASSIGNS, CALLER = KERNEL, KERNEL + 0x100, KERNEL + 0x200, KERNEL + 0x300
MISSED, HEAP, TOP = DATA, DATA + 0x100, STACK + 0x8000
RETURNS = b"\xc3"
LAYOUT = FileLayout(call=16, trace=40, filter=24, flags=72, size=128, buffer_file=16, buffer_entry=24)
FIELD = EventField("number", "int", 8, 4, signed=True)
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
    return body + call(ASSIGNS + len(body), GATES + 0x100) + code(END)


@dataclass
class Ran:
    machine: Any
    probed: int

    def register(self, name: str) -> int:
        return int(self.machine.reg_read(getattr(x86_const, f"UC_X86_REG_{name.upper()}")))

    def word(self, at: int, size: int = 8) -> int:
        return int.from_bytes(self.machine.mem_read(at, size), "little")

    def go(self, start: int, until: int) -> None:
        self.machine.emu_start(start, until, count=1000)


def machine(size: int) -> Ran:
    made: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, GATES, KERNEL, DATA, STACK):
        made.mem_map(page, 0x1_0000)
    handler, probed, frame = event_fields.handler(MADE, MISSED, CODE)
    assert frame % 16 == 8, "the stack is aligned to 16 at the call"
    pieces = {CODE: handler, GATES: event_fields.reserve(MADE, GATES), ASSIGNS: assignment(size)}
    pieces |= {GATES + 0x100: event_fields.commit(MADE, GATES + 0x100), RESERVE: RETURNS, COMMIT: RETURNS}
    for at, held in pieces.items():
        made.mem_write(at, held)
    made.mem_write(TOP, CALLER.to_bytes(8, "little"))
    for name, value in {"rsp": TOP, "rdi": 1, "rsi": 4242, "rbx": 77}.items():
        made.reg_write(getattr(x86_const, f"UC_X86_REG_{name.upper()}"), value)
    return Ran(made, CODE + probed)


def test_a_probe_sees_the_entry_and_the_caller_gets_all_back() -> None:
    run = machine(size=16)
    run.go(CODE, run.probed)
    assert run.register("rip") == run.probed
    file = run.register("rsp")
    assert run.word(file + MADE.entry + FIELD.offset, 4) == 4242
    assert (run.word(file + LAYOUT.call), run.word(file + LAYOUT.trace)) == (MADE.call, MADE.trace)
    assert run.word(file + LAYOUT.flags) == 0, "no trigger, no filter: the kernel's own functions would do no harm"
    run.go(run.probed, CALLER)
    assert (run.register("rip"), run.register("rsp"), run.register("rbx")) == (CALLER, TOP + 8, 77)
    assert run.word(MISSED) == 0


def test_an_entry_that_has_no_room_is_counted_and_not_probed() -> None:
    run = machine(size=MADE.room + 1)
    passed: list[int] = []
    run.machine.hook_add(unicorn.UC_HOOK_CODE, lambda _, at, size, data: passed.append(at))
    run.go(CODE, CALLER)
    assert (run.register("rip"), run.register("rsp"), run.register("rbx")) == (CALLER, TOP + 8, 77)
    assert run.probed not in passed and run.word(MISSED) == 1


@pytest.mark.parametrize("size", [16, 4096])
def test_the_kernels_own_files_pass_the_gates(size: int) -> None:
    """A file without our mark: the kernel's functions run, with their arguments."""
    run = machine(size)
    passed: list[tuple[int, int, int]] = []

    def note(_: object, at: int, size: int, data: object) -> None:
        if at in (RESERVE, COMMIT):
            passed.append((at, run.register("rdi"), run.register("rsi")))
        if at == RESERVE:  # as the kernel's own function does
            run.machine.mem_write(run.register("rdi") + LAYOUT.buffer_file, HEAP.to_bytes(8, "little"))
            run.machine.reg_write(x86_const.UC_X86_REG_RAX, HEAP + 0x400)

    run.machine.hook_add(unicorn.UC_HOOK_CODE, note)
    for name, value in {"rdi": HEAP, "rsi": 5}.items():
        run.machine.reg_write(getattr(x86_const, f"UC_X86_REG_{name.upper()}"), value)
    run.go(ASSIGNS, CALLER)
    assert [at for at, _, _ in passed] == [RESERVE, COMMIT]
    assert passed[0][2] == HEAP and run.word(HEAP + 0x408, 4) == 5


def test_the_mark_is_no_address() -> None:
    assert 0 < event_fields.MARK < 1 << 31, "the kernel's addresses are in the upper half, and this is one immediate"
