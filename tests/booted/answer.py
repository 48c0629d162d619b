"""A program of the guest's, assembled here: it ends with what its function `answer` says, 7.

With an argument it waits first until its input ends.
"""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

from qemu.guest import Guest
from tests.booted.assembled import assembled

_SOURCES = {
    64: """
.globl _start
_start: cmpq $1, (%rsp)
        je ask
wait:   xor %eax, %eax
        xor %edi, %edi
        lea -8(%rsp), %rsi
        mov $1, %edx
        syscall
        cmp $0, %rax
        jg wait
ask:    call answer
        mov %eax, %edi
        mov $60, %eax
        syscall
.type answer, @function
answer: push %rbp
        mov %rsp, %rbp
        mov $7, %eax
        pop %rbp
        ret
.size answer, . - answer
""",
    32: """
.globl _start
_start: cmpl $1, (%esp)
        je ask
wait:   mov $3, %eax
        xor %ebx, %ebx
        lea -8(%esp), %ecx
        mov $1, %edx
        int $0x80
        cmp $0, %eax
        jg wait
ask:    call answer
        mov %eax, %ebx
        mov $1, %eax
        int $0x80
.type answer, @function
answer: push %ebp
        mov %esp, %ebp
        mov $7, %eax
        pop %ebp
        ret
.size answer, . - answer
""",
}
_ARCHES = {64: "x86_64", 32: "i386"}
VALUE = {64: 5, 32: 4}
"""Where in `answer` the byte is that is its value."""


_MERGEABLE = """
        lea answer(%rip), %rdi
        and $-4096, %rdi
        mov $4096, %esi
        mov $12, %edx
        mov $28, %eax
        syscall
"""
"""madvise(page of the function, MADV_MERGEABLE)"""


def build(folder: Path, bits: int, mergeable: bool = False) -> Path:
    """The program, with its symbols. mergeable: of 64 bits, whose page the guest may merge with others (KSM)."""
    text = _SOURCES[bits]
    source = text.replace("wait:", f"{_MERGEABLE}wait:", 1) if mergeable else text
    return assembled(folder / f"answer{bits}", source, _ARCHES[bits], "-static", "--build-id")


def strip(program: Path) -> Path:
    """The same without its symbols."""
    stripped = program.with_suffix(".stripped")
    subprocess.run(["strip", "-o", str(stripped), str(program)], check=True)
    return stripped


def put(guest: Guest, program: Path, path: str) -> None:
    """Have it in the guest at `path`."""
    text = base64.b64encode(program.read_bytes()).decode()
    guest.check(f"rm -f {path} {path}.b64")
    for start in range(0, len(text), 2000):
        guest.check(f"echo {text[start : start + 2000]} >> {path}.b64")
    guest.check(f"base64 -d {path}.b64 > {path}; rm {path}.b64; chmod +x {path}")
