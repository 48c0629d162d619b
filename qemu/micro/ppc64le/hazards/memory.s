# Loads and stores of every form: by displacement, by index, with update, reversed, with r1, of vectors.

.include "layout.inc"

.text

.macro INTEGER_LOADS name
MEMORY \name, 0, \name r3, -6(r4)
MEMORY \name\()u, 0, \name\()u r3, -6(r4)
MEMORY \name\()x, 0, \name\()x r3, r4, r5
MEMORY \name\()ux, 0, \name\()ux r3, r4, r5
.endm

INTEGER_LOADS lbz
INTEGER_LOADS lhz
INTEGER_LOADS lha
INTEGER_LOADS lwz

MEMORY ld,       0, ld r3, -16(r4)
MEMORY ldu,      0, ldu r3, 8(r4)
MEMORY ldx,      0, ldx r3, r4, r5
MEMORY ldux,     0, ldux r3, r4, r5
MEMORY lwa,      0, lwa r3, -12(r4)
MEMORY lwax,     0, lwax r3, r4, r5
MEMORY lwaux,    0, lwaux r3, r4, r5
MEMORY lhbrx,    0, lhbrx r3, r4, r5
MEMORY lwbrx,    0, lwbrx r3, r4, r5
MEMORY ldbrx,    0, ldbrx r3, r4, r5
MEMORY ld_own,   0, ld r4, 0(r4)
MEMORY ld_r1,    0, ld r3, 8(r1)
MEMORY ld_r2,    0, ld r3, 0(r2)
MEMORY ld_r13,   0, ld r3, 8(r13)
MEMORY lbz_r0,   0, lbz r0, 3(r4)
MEMORY ldx_r0,   0, ldx r3, 0, r4
MEMORY lwz_unaligned, 0, lwz r3, 3(r4)
MEMORY lq,       0, lq r6, 16(r4)

.macro INTEGER_STORES name
MEMORY \name, 0, \name r3, -6(r4)
MEMORY \name\()u, 0, \name\()u r3, -6(r4)
MEMORY \name\()x, 0, \name\()x r3, r4, r5
MEMORY \name\()ux, 0, \name\()ux r3, r4, r5
.endm

INTEGER_STORES stb
INTEGER_STORES sth
INTEGER_STORES stw

MEMORY std,      0, std r3, -16(r4)
MEMORY stdu,     0, stdu r3, 8(r4)
MEMORY stdx,     0, stdx r3, r4, r5
MEMORY stdux,    0, stdux r3, r4, r5
MEMORY sthbrx,   0, sthbrx r3, r4, r5
MEMORY stwbrx,   0, stwbrx r3, r4, r5
MEMORY stdbrx,   0, stdbrx r3, r4, r5
MEMORY stdu_own, 0, stdu r4, 16(r4)
MEMORY std_r0,   0, std r0, 0(r4)
MEMORY stq,      0, stq r6, 16(r4)
MEMORY dcbz,     0, dcbz 0, r4
MEMORY dcbt,     0, dcbt r4, r5
MEMORY dcbst,    0, dcbst 0, r4
MEMORY dcbf,     0, dcbf 0, r4
MEMORY icbi,     0, icbi 0, r4

# The stack: what is below r1 belongs to the function, and r1 itself is an operand.
ONE std_below,   0, std r3, -8(r1)
ONE std_caller,  0, std r3, 16(r1)
ONE stw_cr,      0, stw r3, 8(r1)

HAZARD stdu_r1
    addi r30, r30, 1
SITE
    stdu r1, -112(r1)
    ld r3, 0(r1)
    addi r1, r1, 112
    blr
END

HAZARD stdux_r1
    li r6, -112
SITE
    stdux r1, r1, r6
    ld r3, 0(r1)
    ld r1, 0(r1)
    blr
END

HAZARD stwu_r1
    addi r30, r30, 1
SITE
    stwu r1, -16(r1)
    lwz r3, 0(r1)
    addi r1, r1, 16
    blr
END

HAZARD addi_r1
    stdu r1, -96(r1)
SITE
    addi r1, r1, 96
    addi r31, r31, 1
    blr
END

HAZARD addis_r1
    mr r6, r1
SITE
    addis r1, r1, -1
    mr r3, r1
    mr r1, r6
    blr
END

HAZARD mr_r1
    mr r6, r1
SITE
    mr r1, r4
    mr r3, r1
    mr r1, r6
    blr
END

HAZARD ld_r1_from_r1
    stdu r1, -96(r1)
SITE
    ld r1, 0(r1)
    addi r31, r31, 1
    blr
END

HAZARD mtspr_from_r1
    mfspr r28, SPR_TAR
SITE
    mtspr SPR_TAR, r1
    mfspr r3, SPR_TAR
    mtspr SPR_TAR, r28
    blr
END

# Floating point.
MEMORY lfs,      0, lfs 0, 4(r4)
MEMORY lfsu,     0, lfsu 0, 4(r4)
MEMORY lfsx,     0, lfsx 0, r4, r5
MEMORY lfsux,    0, lfsux 0, r4, r5
MEMORY lfd,      0, lfd 0, 8(r4)
MEMORY lfdu,     0, lfdu 0, 8(r4)
MEMORY lfdx,     0, lfdx 0, r4, r5
MEMORY lfdux,    0, lfdux 0, r4, r5
MEMORY lfiwax,   0, lfiwax 0, r4, r5
MEMORY lfiwzx,   0, lfiwzx 0, r4, r5
MEMORY stfs,     0, stfs 0, 4(r4)
MEMORY stfsu,    0, stfsu 0, 4(r4)
MEMORY stfsx,    0, stfsx 0, r4, r5
MEMORY stfsux,   0, stfsux 0, r4, r5
MEMORY stfd,     0, stfd 0, 8(r4)
MEMORY stfdu,    0, stfdu 0, 8(r4)
MEMORY stfdx,    0, stfdx 0, r4, r5
MEMORY stfdux,   0, stfdux 0, r4, r5
MEMORY stfiwx,   0, stfiwx 0, r4, r5

# Vectors.
MEMORY lvx,      0, lvx 0, r4, r5
MEMORY lvebx,    0, lvebx 0, r4, r5
MEMORY lvehx,    0, lvehx 0, r4, r5
MEMORY lvewx,    0, lvewx 0, r4, r5
MEMORY lvsl,     0, lvsl 0, r4, r5
MEMORY lvsr,     0, lvsr 0, r4, r5
MEMORY stvx,     0, stvx 0, r4, r5
MEMORY stvebx,   0, stvebx 0, r4, r5
MEMORY stvewx,   0, stvewx 0, r4, r5
MEMORY lxvd2x,   0, lxvd2x 1, r4, r5
MEMORY lxvw4x,   0, lxvw4x 1, r4, r5
MEMORY lxvdsx,   0, lxvdsx 1, r4, r5
MEMORY lxsdx,    0, lxsdx 1, r4, r5
MEMORY lxsspx,   0, lxsspx 1, r4, r5
MEMORY stxvd2x,  0, stxvd2x 1, r4, r5
MEMORY stxvw4x,  0, stxvw4x 33, r4, r5
MEMORY stxsdx,   0, stxsdx 1, r4, r5
MEMORY lxv,      NEEDS_ISA30, lxv 33, 16(r4)
MEMORY lxv_low,  NEEDS_ISA30, lxv 1, -32(r4)
MEMORY lxvx,     NEEDS_ISA30, lxvx 33, r4, r5
MEMORY lxsd,     NEEDS_ISA30, lxsd 0, 8(r4)
MEMORY lxssp,    NEEDS_ISA30, lxssp 0, 4(r4)
MEMORY lxvll,    NEEDS_ISA30, lxvll 1, r4, r3
MEMORY stxv,     NEEDS_ISA30, stxv 33, 16(r4)
MEMORY stxvx,    NEEDS_ISA30, stxvx 33, r4, r5
MEMORY stxsd,    NEEDS_ISA30, stxsd 0, 8(r4)
MEMORY stxssp,   NEEDS_ISA30, stxssp 0, 4(r4)
MEMORY lxvp,     NEEDS_ISA31, lxvp 32, 32(r4)
MEMORY stxvp,    NEEDS_ISA31, stxvp 32, 32(r4)
