# Branches: every BO form, near and at the end of its reach, forward, backward and to itself; through LR, CTR and TAR.

.include "layout.inc"

.text

# Taken, r9 stays; not taken, it counts. CTR is the input's: 0, -1, 2 or 1; CR bit 2 is EQ of cr0.
.macro CONDITIONAL name, bo, bi
HAZARD bc_\name
    addi r30, r30, 1
SITE
    bc \bo, \bi, 1f
    addi r9, r9, 1
1:  addi r31, r31, 1
    blr
END

HAZARD bclr_\name
    mflr r28
    addi r30, r30, 1
SITE
    bclr \bo, \bi
    addi r9, r9, 1
    blr
END

# Almost at the end of its reach.
HAZARD bc_far_\name
    addi r30, r30, 1
SITE
    bc \bo, \bi, far_target
    addi r9, r9, 1
    blr
END
.endm

.macro CONDITIONALS
CONDITIONAL dnz_false, 0, 2
CONDITIONAL dz_false, 2, 2
CONDITIONAL false, 4, 2
CONDITIONAL false_unlikely, 6, 2
CONDITIONAL false_likely, 7, 2
CONDITIONAL dnz_true, 8, 2
CONDITIONAL dz_true, 10, 2
CONDITIONAL true, 12, 2
CONDITIONAL true_unlikely, 14, 2
CONDITIONAL true_likely, 15, 2
CONDITIONAL dnz, 16, 0
CONDITIONAL dz, 18, 0
CONDITIONAL dnz_unlikely, 24, 0
CONDITIONAL dnz_likely, 25, 0
CONDITIONAL dz_unlikely, 26, 0
CONDITIONAL dz_likely, 27, 0
CONDITIONAL always, 20, 0
CONDITIONAL so_false, 4, 31
CONDITIONAL so_true, 12, 31
.endm

CONDITIONALS
    .skip 0x7000
far_target:
    addi r31, r31, 1
    blr

HAZARD bdnz_self
    andi. r6, r3, 3
    addi r6, r6, 1
    mtctr r6
SITE
    bdnz hz_bdnz_self_site
    addi r31, r31, 1
    blr
END

HAZARD bdnz_back
    andi. r6, r3, 3
    addi r6, r6, 1
    mtctr r6
1:  addi r9, r9, 3
SITE
    bdnz 1b
    addi r31, r31, 1
    blr
END

# The site is what a loop comes back to: each turn is a hit.
HAZARD loop_head
    li r6, 3
    mtctr r6
SITE
    addi r9, r9, 1
    bdnz hz_loop_head_site
    blr
END

HAZARD bdnzt_back
    li r6, 5
    mtctr r6
    li r9, 3
1:  addi r9, r9, -1
    cmpwi cr6, r9, 1
SITE
    bc 8, 25, 1b
    addi r31, r31, 1
    blr
END

HAZARD b_forward
    addi r30, r30, 1
SITE
    b 1f
    addi r9, r9, 1
1:  addi r31, r31, 1
    blr
END

HAZARD b_next
    addi r30, r30, 1
SITE
    b .+4
    addi r31, r31, 1
    blr
END

HAZARD b_back
    b 2f
1:  addi r31, r31, 1
    blr
2:  addi r30, r30, 1
SITE
    b 1b
END

HAZARD b_distant
    addi r30, r30, 1
SITE
    b distant_leaf
END

HAZARD ba
    addi r30, r30, 1
SITE
    ba 0x2000
END

HAZARD bca
    addi r30, r30, 1
SITE
    bca 12, 2, 0x2000
    addi r9, r9, 1
    blr
END

# Through a register: CTR or TAR hold the landing.
.macro THROUGH name, instruction:vararg
HAZARD \name
    mflr r28
    bcl 20, 31, 1f
1:  mflr r6
    addi r6, r6, 2f - 1b
    mtlr r28
    mtctr r6
    mtspr SPR_TAR, r6
SITE
    \instruction
    addi r9, r9, 1
2:  addi r31, r31, 1
    blr
END
.endm

THROUGH bctr,           bctr
THROUGH bctr_if_equal,  bcctr 12, 2
THROUGH bctr_if_not,    bcctr 4, 2
THROUGH bctr_unlikely,  bcctr 14, 2
THROUGH bctar,          bctar 20, 0, 0
THROUGH bctar_if_equal, bctar 12, 2, 0
THROUGH bctar_if_not,   bctar 4, 2, 0
THROUGH bctar_hint,     bctar 20, 0, 1
