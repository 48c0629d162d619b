"""A shared library of the guest's, and a program that maps it as a loader does and calls what is in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from gdb_optprobe.guest.linux.user.elf import Elf

NAME = "answer.so"
_LIBRARY = """
.globl answer
.type answer, @function
answer: push %rbp
        mov %rsp, %rbp
        mov value(%rip), %eax
        imul $1, %eax
        pop %rbp
        ret
.size answer, . - answer
.section .rodata
value:  .long 7
"""
_PROGRAM = """
.globl _start
_start: mov $2, %eax
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
path:   .asciz "answer.so"
"""


@dataclass(frozen=True)
class Library:
    library: Path
    program: Path


def build(folder: Path, calls: int) -> Library:
    """The program takes the library NAME of the folder that it is run in, and calls its `answer` so often."""
    library = _linked(folder, "library", _LIBRARY, "-shared", "--build-id")
    data = library.read_bytes()
    elf = Elf.of(str(library), lambda offset, size: data[offset : offset + size], len(data))
    values = {"SIZE": len(data), "ANSWER": elf.offset(elf.resolve("answer")), "CALLS": calls}
    source = _PROGRAM
    for name, value in values.items():
        source = source.replace(name, str(value))
    return Library(library, _linked(folder, "caller", source, "-static"))


def _linked(folder: Path, name: str, source: str, *options: str) -> Path:
    text, assembled, linked = (folder / f"{name}{suffix}" for suffix in (".s", ".o", ""))
    text.write_text(source)
    subprocess.run(["as", "--64", "-o", str(assembled), str(text)], check=True)
    subprocess.run(["ld", "-m", "elf_x86_64", *options, "-o", str(linked), str(assembled)], check=True)
    return linked
