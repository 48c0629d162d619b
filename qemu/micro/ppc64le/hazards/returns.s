# Calls with probed returns: within each other, by jumps, and of functions that leave more alone than an ABI asks.

.include "layout.inc"

.text
.globl factorial, countdown, quiet, depth

# r3: n, at least 1. r3: n!, r4: n, kept in its frame meanwhile.
.type factorial, @function
factorial:
    mflr r0
    std r0, 16(r1)
    std r3, -8(r1)
    stdu r1, -48(r1)
    li r5, 1
    addic. r3, r3, -1
    beq 1f
    bl factorial
    mr r5, r3
1:  addi r1, r1, 48
    ld r0, 16(r1)
    ld r4, -8(r1)
    mtlr r0
    mulld r3, r5, r4
    blr
    .size factorial, . - factorial

# r3: n, at least 1; r4 gets the sum of 1 to n. It calls itself by a jump.
.type countdown, @function
countdown:
    add r4, r4, r3
    addic. r3, r3, -1
    bne countdown
    blr
    .size countdown, . - countdown

# cr1: r3 against r4. Nothing else changes, and its callers know.
.type quiet, @function
quiet:
    cmpd cr1, r3, r4
    blr
    .size quiet, . - quiet

HAZARD recursion
    mflr r28
    LOAD r29, depth
    ld r3, 0(r29)
SITE
    bl factorial
    ld r3, 0(r29)
    bl countdown
    mtlr r28
    blr
END

HAZARD callee_leaves_alone
    mflr r28
    mtctr r5
    cmpd r6, r7
SITE
    bl quiet
    mfctr r9
    isel r10, r11, r12, 4               # cr1[lt]
    isel r8, r0, r11, 2                 # cr0[eq]
    mtlr r28
    blr
END

.section .data, "aw"
    .balign 8
depth: .quad 3                          # a debugger may write more, up to 1000
