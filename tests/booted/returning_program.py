"""A program of the guest's whose functions return in all the ways there are; it ends with a number that they make, 42.

    deep    calls itself, DEPTH within one another           first   goes to `last` by a jump, which calls `leaf`
    jumper  leaves by a jump out of three calls of itself    forks   forks in between: both return
    shares  the child of a vfork calls `leaf` in its stack   sends   itself a signal, whose handler calls `leaf`
    threads has a thread with a stack of its own call `deep`
Rounds of these are COUNT. With an argument it begins with `waits`, which returns once its input has ended; with two all
that it does is `crowds`, which calls itself, CROWD within one another, before it forks.
"""

from __future__ import annotations

from pathlib import Path

from tests.booted.assembled import assembled, source_of

_64 = """
.globl _start
.cfi_startproc
.cfi_undefined rip
_start: mov $COUNT, %r15d
        cmpq $1, (%rsp)
        je begin
        cmpq $2, (%rsp)
        ja crowd
        call waits
        cmp $9, %rax
        jne wrong
        jmp begin
crowd:  mov $CROWD, %edi
        call crowds
        cmp $CROWD, %r13d
        jne wrong
        test %eax, %eax
        jz child
        mov $42, %edi
        jmp exit
begin:
        mov $13, %eax           # rt_sigaction(SIGUSR1, &action, 0, 8)
        mov $10, %edi
        lea action(%rip), %rsi
        xor %edx, %edx
        mov $8, %r10d
        syscall
round:  mov $DEPTH, %edi
        call deep
        cmp $DEPTH, %rax
        jne wrong
        mov $5, %edi
        call first
        cmp $8, %rax
        jne wrong
        mov %rsp, %r12
        mov $3, %edi
        call jumper
back:   cmp %rsp, %r12
        jne wrong
        call forks
        test %eax, %eax
        jz child
        call shares
        cmp $3, %rax
        jne wrong
        call sends
        cmp $1, %rax
        jne wrong
        call threads
        cmp $DEPTH, %rax
        jne wrong
        dec %r15d
        jnz round
        mov $42, %edi
        jmp exit
wrong:  mov $1, %edi
exit:   mov $231, %eax
        syscall
.cfi_endproc
.type deep, @function
.cfi_startproc
deep:   push %rdi
        .cfi_adjust_cfa_offset 8
        xor %eax, %eax
        test %edi, %edi
        jz bottom
        dec %edi
        call deep
        inc %eax
bottom: pop %rdi
        .cfi_adjust_cfa_offset -8
        ret
.cfi_endproc
.size deep, . - deep
.type waits, @function
waits:  push %rbx
1:      xor %eax, %eax
        xor %edi, %edi
        lea -8(%rsp), %rsi
        mov $1, %edx
        syscall
        cmp $0, %rax
        jg 1b
        mov $9, %eax
        pop %rbx
        ret
.size waits, . - waits
.type crowds, @function
crowds: push %rdi
        test %edi, %edi
        jz 1f
        dec %edi
        call crowds
        inc %r13d
        pop %rdi
        ret
1:      xor %r13d, %r13d
        call forks
        pop %rdi
        ret
.size crowds, . - crowds
.type leaf, @function
leaf:   lea 3(%rdi), %rax
        ret
.size leaf, . - leaf
.type first, @function
first:  mov %rdi, %rdx
        jmp last
.size first, . - first
.type last, @function
last:   call leaf
        ret
.size last, . - last
.type jumper, @function
jumper: sub $8, %rsp
        dec %edi
        jz 1f
        call jumper
1:      mov %r12, %rsp
        jmp back
.size jumper, . - jumper
.type forks, @function
forks:  mov $57, %eax
        syscall
        test %eax, %eax
        jz 1f
        mov $61, %eax           # wait4(-1, status, 0, 0)
        mov $-1, %rdi
        lea -64(%rsp), %rsi
        xor %edx, %edx
        xor %r10d, %r10d
        syscall
        cmpl $0x700, -64(%rsp)
        jne wrong
        ret
1:      ret
.size forks, . - forks
.type shares, @function
shares: push %rbx
        mov $58, %eax
        syscall
        test %eax, %eax
        jnz 1f
        call leaf
        mov $60, %eax
        xor %edi, %edi
        syscall
1:      mov $61, %eax
        mov $-1, %rdi
        xor %esi, %esi
        xor %edx, %edx
        xor %r10d, %r10d
        syscall
        xor %edi, %edi
        call leaf
        pop %rbx
        ret
.size shares, . - shares
.type sends, @function
sends:  movl $0, seen(%rip)
        mov $39, %eax
        syscall
        mov %eax, %edi
        mov $10, %esi
        mov $62, %eax
        syscall
        mov seen(%rip), %eax
        ret
.size sends, . - sends
handle: xor %edi, %edi
        call leaf
        sub $2, %eax
        mov %eax, seen(%rip)
        ret
restore: mov $15, %eax
        syscall
.type threads, @function
threads: movl $0, done(%rip)
        movl $-1, owner(%rip)
        mov $56, %eax           # clone(VM|FS|FILES|SIGHAND|THREAD|SYSVSEM|CHILD_CLEARTID, stack)
        mov $0x250f00, %edi
        lea top(%rip), %rsi
        xor %edx, %edx
        lea owner(%rip), %r10
        xor %r8d, %r8d
        syscall
        test %eax, %eax
        jz 2f
        mov $DEPTH, %edi
        call deep
1:      mov $24, %eax           # sched_yield
        syscall
        cmpl $0, owner(%rip)
        jne 1b
        mov done(%rip), %eax
        ret
2:      mov $DEPTH, %edi
        call deep
        mov %eax, done(%rip)
        mov $60, %eax
        xor %edi, %edi
        syscall
.size threads, . - threads
child:  mov $7, %edi
        jmp exit
.data
action: .quad handle, 0x04000000, restore, 0
seen:   .long 0
done:   .long 0
owner:  .long 0
.bss
        .space 65536
top:    .space 64
"""
DEPTH = 50
CROWD = 700
RETURNS = {
    "deep": 3 * (DEPTH + 1), "leaf": 4, "first": 1, "last": 1, "jumper": 0, "forks": 2, "shares": 1, "sends": 1,
    "threads": 1,
}  # fmt: skip
"""In a round."""


RETURNS_I386 = {"deep": DEPTH + 1, "gives": 1, "first": 1, "last": 1, "forks": 2, "jumper": 0}
RETURNS_PPC64LE = {"deep": DEPTH + 1, "leaf": 3, "first": 1, "last": 1, "jumper": 0, "forks": 2, "shares": 1}
RETURNS_AARCH64 = {
    "deep": 3 * (DEPTH + 1), "leaf": 4, "last": 1, "left": 0, "forks": 2, "shares": 1, "sends": 1, "threads": 1,
}  # fmt: skip


def build(folder: Path, count: int, arch: str = "x86_64") -> Path:
    """The program."""
    source = _64 if arch == "x86_64" else source_of(f"returning_{arch}.s")
    numbers = {"COUNT": count, "DEPTH": DEPTH, "CROWD": CROWD}
    return assembled(folder / f"returns{count}", source, arch, symbols=numbers)
