# Between a load that reserves and its conditional store nothing may trap, and few stores may happen.

.include "layout.inc"

.text

# Three sites for each width: the load, between, the store. Each adds one to memory, for as long as it takes.
.macro RESERVATION load, store
HAZARD \load
    ld r4, CPU_SCRATCH(r13)
1:
SITE
    \load r3, 0, r4
    addi r3, r3, 1
    \store r3, 0, r4
    bne- 1b
    blr
END

HAZARD \load\()_inside
    ld r4, CPU_SCRATCH(r13)
1:  \load r3, 0, r4
SITE
    addi r3, r3, 1
    \store r3, 0, r4
    bne- 1b
    blr
END

HAZARD \load\()_store
    ld r4, CPU_SCRATCH(r13)
1:  \load r3, 0, r4
    addi r3, r3, 1
SITE
    \store r3, 0, r4
    bne- 1b
    blr
END

HAZARD \load\()_branch
    ld r4, CPU_SCRATCH(r13)
1:  \load r3, 0, r4
    addi r3, r3, 1
    \store r3, 0, r4
SITE
    bne- 1b
    addi r31, r31, 1
    blr
END
.endm

RESERVATION lbarx, stbcx.
RESERVATION lharx, sthcx.
RESERVATION lwarx, stwcx.
RESERVATION ldarx, stdcx.

# A compare and exchange: a branch leaves the pair in its middle.
HAZARD compare_exchange
    ld r4, CPU_SCRATCH(r13)
    ld r6, 0(r4)
    add r6, r6, r5
1:  ldarx r3, 0, r4
SITE
    cmpd r3, r6
    bne- 2f
    stdcx. r5, 0, r4
    bne- 1b
2:  addi r31, r31, 1
    blr
END

HAZARD store_without_reservation
    ld r4, CPU_SCRATCH(r13)
    ldarx r3, 0, r4
    stdcx. r3, 0, r4
SITE
    stdcx. r5, 0, r4
    mfcr r3
    blr
END
