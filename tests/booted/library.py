"""A shared library of the guest's, and a program that maps it as a loader does and calls what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.booted import calls
from tests.booted.assembled import assembled, source_of

NAME = "answer.so"
_LIBRARY = """
.globl answer
.type answer, @function
answer: .cfi_startproc
        push %rbp
        .cfi_adjust_cfa_offset 8
        mov %rsp, %rbp
        mov value(%rip), %eax
        imul $1, %eax
        pop %rbp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
.size answer, . - answer
.section .rodata
value:  .long 7
"""
_PROGRAM = """
.globl _start
_start: .cfi_startproc
        .cfi_undefined rip
        mov $2, %eax
        lea path(%rip), %rdi
        xor %esi, %esi
        syscall
        mov %rax, %r8
        mov $9, %eax
        xor %edi, %edi
        mov $SIZE, %esi
        mov $5, %edx
        mov $2, %r10d
        xor %r9d, %r9d
        syscall
        mov %rax, %rbx
        cmpq $1, (%rsp)
        je ask
wait:   xor %eax, %eax
        xor %edi, %edi
        lea -8(%rsp), %rsi
        mov $1, %edx
        syscall
        cmp $0, %rax
        jg wait
ask:    add $ANSWER, %rbx
        mov $CALLS, %r12d
again:  call *%rbx
        dec %r12d
        jnz again
        mov %eax, %edi
        mov $60, %eax
        syscall
        .cfi_endproc
path:   .asciz "answer.so"
"""


@dataclass(frozen=True)
class Library:
    library: Path
    program: Path


def build(folder: Path, often: int, arch: str = "x86_64") -> Library:
    """The program takes the library NAME of the folder that it is run in, and calls its `answer` so often."""
    on_x86 = arch == "x86_64"
    source = _LIBRARY if on_x86 else source_of(f"library_{arch}.s")
    made = assembled(folder / "library", source, arch, "-shared", "--build-id")
    elf = calls.elf(made, arch)
    (answer,) = (symbol.address for symbol in elf.symbols if symbol.name == "answer")
    symbols = {"SIZE": made.stat().st_size, "ANSWER": elf.offset(answer), "CALLS": often}
    source = _PROGRAM if on_x86 else source_of(f"library_caller_{arch}.s")
    return Library(made, assembled(folder / "caller", source, arch, symbols=symbols))
