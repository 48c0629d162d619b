"""A program of the guest's that calls `test` COUNT times, and ends with a number that all these calls make.

With an argument it forks first: parent and child do the same. `test` has instructions of all sorts in a row.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

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
THEIRS = 0x1000
"""The offset in the file of `_start`'s call, for an event of the guest's own."""


def build(folder: Path, count: int) -> Path:
    """The program."""
    source, assembled, program = (folder / f"calls{count}{ending}" for ending in (".s", ".o", ""))
    source.write_text(_SOURCE.replace("begin:  ", "begin:  lea leaf(%rip), %r14\n        "))
    subprocess.run(["as", "--defsym", f"COUNT={count}", "-o", str(assembled), str(source)], check=True)
    subprocess.run(["ld", "-static", "-o", str(program), str(assembled)], check=True)
    return program
