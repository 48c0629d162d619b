# Calls and returns: the return address that a callee sees must be the original one.

.include "layout.inc"

.text

# A function of its own that calls: LR is kept in r28; CTR and TAR hold the callee.
.macro CALLS name, needs, instruction:vararg
HAZARD \name, \needs
    mflr r28
    ld r6, CPU_LEAF(r13)
    mtctr r6
    mtspr SPR_TAR, r6
SITE
    \instruction
    addi r31, r31, 1
    mtlr r28
    blr
END
.endm

CALLS bl,               0, bl leaf
CALLS bl_skip,          0, bl skip
CALLS bl_distant,       0, bl distant_leaf
CALLS bla,              0, bla 0x2000
CALLS bctrl,            0, bctrl
CALLS bctarl,           0, bctarl 20, 0, 0
CALLS bctrl_if_equal,   0, bcctrl 12, 2
CALLS bctrl_if_not,     0, bcctrl 4, 2
CALLS bctarl_if_equal,  0, bctarl 12, 2, 0
CALLS bcl_if_equal,     0, bcl 12, 2, leaf
CALLS bcl_always,       0, bcl 20, 0, leaf
CALLS bcl_counting,     0, bcl 16, 0, leaf

# LR is both where it goes and what it sets.
HAZARD blrl
    mflr r28
    ld r6, CPU_LEAF(r13)
    mtlr r6
SITE
    blrl
    addi r31, r31, 1
    mtlr r28
    blr
END

HAZARD blrl_if_equal
    mflr r28
    ld r6, CPU_LEAF(r13)
    mtlr r6
SITE
    bclrl 12, 2
    addi r31, r31, 1
    mflr r6
    mtlr r28
    blr
END

# How code finds itself: the value is an output.
HAZARD bcl_next
    mflr r28
SITE
    bcl 20, 31, .+4
    mflr r3
    mtlr r28
    blr
END

HAZARD bl_next
    mflr r28
SITE
    bl .+4
    mflr r3
    mtlr r28
    blr
END

HAZARD bcl_behind
    mflr r28
SITE
    bcl 20, 31, 1f
    addi r31, r31, 1
1:  mflr r3
    mtlr r28
    blr
END

# Not the form that leaves the link stack alone; LR is the same.
HAZARD bcl_next_bit
    mflr r28
SITE
    bcl 20, 2, .+4
    mflr r3
    mtlr r28
    blr
END

# A frame as compilers make it, with a call in it.
HAZARD frame
    mflr r0
    std r31, -8(r1)
    std r0, 16(r1)
SITE
    stdu r1, -64(r1)
    bl leaf
    addi r1, r1, 64
    ld r0, 16(r1)
    ld r31, -8(r1)
    mtlr r0
    blr
END

HAZARD frame_ends
    mflr r0
    std r0, 16(r1)
    stdu r1, -64(r1)
    bl leaf
SITE
    addi r1, r1, 64
    ld r0, 16(r1)
    mtlr r0
    blr
END

HAZARD blr
    addi r30, r30, 1
SITE
    blr
END

HAZARD tail_call
    addi r30, r30, 1
SITE
    b leaf
END

HAZARD mflr
    addi r30, r30, 1
SITE
    mflr r0
    addi r31, r31, 1
    blr
END

HAZARD mtlr
    mflr r28
    li r6, 0
    mtlr r6
SITE
    mtlr r28
    addi r31, r31, 1
    blr
END

HAZARD ld_lr_slot
    mflr r0
    std r0, 16(r1)
SITE
    ld r0, 16(r1)
    mtlr r0
    blr
END

# Where the tracer of Linux is called from.
HAZARD tracer_site
    mflr r0
SITE
    nop
    std r0, 16(r1)
    addi r31, r31, 1
    blr
END

# A function's global entry, called with its address in r12, sets r2; calls inside the kernel come in behind it.
HAZARD global_entry
    LOAD r12, hz_global_entry_site
    addi r30, r30, 1
SITE
    addis r2, r12, (toc - hz_global_entry_site)@ha
    addi r2, r2, (toc - hz_global_entry_site)@l
    addi r31, r31, 1
    blr
END

.section .beyond, "ax"
HAZARD beyond_any_branch
    addi r30, r30, 1
SITE
    addi r31, r31, 1
    blr
END
