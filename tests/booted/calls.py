"""A program of the guest's that calls `test` COUNT times, and ends with a number that all these calls make.

With an argument it forks first: parent and child do the same. `test` has instructions of all sorts in a row. Those of
ppc64le and aarch64 are in calls_ppc64le.s and calls_aarch64.s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gdb_optprobe.guest.linux.arch.aarch64 import mmu
from gdb_optprobe.guest.linux.arch.ppc64le.mmu import EM_PPC64
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.user.elf import Elf, Kind
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from tests.booted.assembled import assembled, source_of

_SOURCE = """
.globl _start
call_test: call test
        ret
_start: mov (%rsp), %r12
        cmp $1, %r12
        je begin
        mov $57, %eax
        syscall
        mov %rax, %r15
begin:  mov $COUNT, %r13d
        xor %ebx, %ebx
again:  mov %r13, %rdi
        call call_test
        add %rax, %rbx
        rol $1, %rbx
        dec %r13d
        jnz again
        cmp $1, %r12
        je ended
        test %r15, %r15
        jz ended
        mov $61, %eax
        mov $-1, %rdi
        lea -64(%rsp), %rsi
        xor %edx, %edx
        xor %r10d, %r10d
        syscall
        add -64(%rsp), %ebx
ended:  mov %ebx, %edi
        shr $16, %ebx
        xor %ebx, %edi
        and $127, %edi
        mov $60, %eax
        syscall
.type test, @function
test:   push %rbp
        mov %rsp, %rbp
        sub $32, %rsp
        mov %rdi, -8(%rbp)
        lea 3(%rdi,%rdi,4), %rax
        xor $0x55, %rax
        call inner
        cmp $5, %rdi
        jae 2f
        nopl 8(%rax)
2:      adc $0, %rax
        add value(%rip), %rax
        push $77
        add -8(%rbp), %rax
        add $40, %rsp
        pop %rbp
        ret
.size test, . - test
.type inner, @function
inner:  endbr64
        jmp 3f
3:      imul %rdi, %rax
        call *%r14
        ret
.size inner, . - inner
.type leaf, @function
leaf:   lea leaf(%rip), %rdx
        mov %edx, %edx
        ret
.size leaf, . - leaf
value:  .quad 0x123456789
"""
FUNCTIONS = ("test", "inner", "leaf")
SELDOM = 4
"""How often `test` runs its nopl, however often it is called."""
_DECODED = {"x86_64": X86_64.decode, "ppc64le": PPC64LE.decode, "aarch64": AARCH64.decode}
_KINDS = {"x86_64": KIND, "ppc64le": Kind((EM_PPC64,), 1 << 16, local_entries=True), "aarch64": mmu.KIND}


def build(folder: Path, count: int, arch: str = "x86_64") -> Path:
    """The program."""
    text = _SOURCE.replace("begin:  ", "begin:  lea leaf(%rip), %r14\n        ")
    source = text if arch == "x86_64" else source_of(f"calls_{arch}.s")
    return assembled(folder / f"calls{count}", source, arch, symbols={"COUNT": count})


def elf(program: Path, arch: str = "x86_64") -> Elf:
    data = program.read_bytes()
    return Elf.of(str(program), lambda offset, size: data[offset : offset + size], len(data), _KINDS[arch])


def instructions(program: Path, count: int, arch: str) -> Mapping[str, int]:
    """By place, how often each instruction of its functions runs in one process that makes so many calls.

    Calls of the program's own do not come by a global entry.
    """
    parts, found = elf(program, arch), dict[str, int]()
    for symbol in (symbol for symbol in parts.symbols if symbol.name in FUNCTIONS):
        for insn in _DECODED[arch](parts.text(symbol.address, symbol.size), symbol.address):
            offset = insn.address - symbol.address
            often = 0 if offset < symbol.local else SELDOM if insn.text.startswith("nop") else count
            if offset == symbol.local:
                found[symbol.name] = often
            elif offset:
                found[f"{symbol.name}+{offset:#x}"] = often
    return found


def theirs(program: Path, arch: str) -> int:
    """The offset in the file of what runs before each call, for an event of the guest's own."""
    parts = elf(program, arch)
    return parts.offset(parts.resolve("call_test"))
