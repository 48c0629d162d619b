# Calls with probed returns: within each other, by jumps, and of functions that leave more alone than an ABI asks.

.include "layout.inc"

.text
.globl factorial, countdown, quiet, depth

# x0: n, at least 1. x0: n!, x1: n, kept in its frame meanwhile.
.type factorial, @function
factorial:
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    str x0, [sp, #16]
    mov x2, #1
    subs x0, x0, #1
    b.eq 1f
    bl factorial
    mov x2, x0
1:  ldr x1, [sp, #16]
    mul x0, x2, x1
    ldp x29, x30, [sp], #32
    ret
    .size factorial, . - factorial

# x0: n, at least 1; x1 gets the sum of 1 to n. It calls itself by a jump.
.type countdown, @function
countdown:
    add x1, x1, x0
    subs x0, x0, #1
    b.ne countdown
    ret
    .size countdown, . - countdown

# Flags: x0 against x1. Nothing else changes, and its callers know.
.type quiet, @function
quiet:
    cmp x0, x1
    ret
    .size quiet, . - quiet

HAZARD recursion
    stp x29, x30, [sp, #-16]!
    LOAD x26, depth
    ldr x0, [x26]
SITE
    bl factorial
    ldr x0, [x26]
    bl countdown
    mov x26, #0
    ldp x29, x30, [sp], #16
    ret
END

HAZARD callee_leaves_alone
    mov x28, x30
    mov x15, x5
SITE
    bl quiet
    csel x10, x11, x12, lt
    csel x8, x9, x13, eq
    add x14, x15, x18
    mov x30, x28
    ret
END

.section .data, "aw"
    .balign 8
depth: .quad 3                          // a debugger may write more, up to 1000
