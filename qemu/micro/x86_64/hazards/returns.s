# Calls with probed returns: within each other, by jumps, and of functions that leave more alone than an ABI asks.

.include "layout.inc"

.text
.globl factorial, countdown, quiet, depth

# rdi: n, at least 1. rax: n!, rdx: n, kept in its frame meanwhile.
.type factorial, @function
factorial:
    push rdi
    mov eax, 1
    dec rdi
    jz 1f
    call factorial
1:  pop rdx
    imul rax, rdx
    ret
    .size factorial, . - factorial

# rdi: n, at least 1; rax gets the sum of 1 to n. It calls itself by a jump.
.type countdown, @function
countdown:
    lea rax, [rax + rdi]
    dec rdi
    jz 1f
    jmp countdown
1:  ret
    .size countdown, . - countdown

# CF: whether rax is below rbx. Nothing else changes, and its callers know.
.type quiet, @function
quiet:
    cmp rax, rbx
    nop dword ptr [rax + rax]
    ret
    .size quiet, . - quiet

HAZARD recursion
    mov rdi, [rip + depth]
SITE
    call factorial
    mov rdi, [rip + depth]
    call countdown
    ret
END

HAZARD callee_leaves_alone
    lea rsi, [rsi + 1]
SITE
    call quiet
    adc rdi, rcx
    call quiet
    adc rdi, r11
    ret
END

.section .data, "aw"
    .balign 8
depth: .quad 3                          # a debugger may write more, up to 1000
