# What only a kernel executes: MSR, interrupts and returns from them, barriers, traps taken and not.

.include "layout.inc"

.text

ONE mfmsr,       0, mfmsr r3
ONE mfpvr,       0, mfpvr r3
ONE mtsprg,      0, mtsprg 3, r3
ONE mtdscr,      0, mtspr 17, r24
ONE sync,        0, sync
ONE lwsync,      0, lwsync
ONE ptesync,     0, ptesync
ONE eieio,       0, eieio
ONE isync,       0, isync
ONE barrier,     0, ori r31, r31, 0
ONE sc,          0, sc
ONE trap,        0, trap
ONE tw_equal,    0, tweq r3, r4
ONE td_less,     0, tdlti r3, 5
ONE tdi_never,   0, tdi 0, r3, 0
ONE twi_always,  0, twi 31, 0, 0

# LR and CTR become what SRR0 and SRR1 are of other interrupts.
HAZARD scv, NEEDS_ISA30
    mflr r28
SITE
    scv 0
    mflr r6
    mtlr r28
    blr
END

.macro SAVES_MSR name, instruction:vararg
HAZARD \name
    mfmsr r28
SITE
    \instruction
    mfmsr r3
    mtmsrd r28
    blr
END
.endm

SAVES_MSR mtmsrd,    mtmsrd r28
SAVES_MSR mtmsrd_ri, mtmsrd r16, 1
SAVES_MSR mtmsr,     mtmsr r28

# Floating point switched off and on: a detour's own code must not need it.
HAZARD mtmsrd_without_fp
    mfmsr r28
    li r6, 0x2000
    andc r6, r28, r6
SITE
    mtmsrd r6
    mfmsr r3
    mtmsrd r28
    blr
END

HAZARD rfid
    mflr r28
    mfmsr r6
    mtsrr1 r6
    bcl 20, 31, 1f
1:  mflr r6
    addi r6, r6, 2f - 1b
    mtsrr0 r6
    mtlr r28
SITE
    rfid
    addi r9, r9, 1
2:  addi r31, r31, 1
    blr
END

# Interrupts are on and one arrives while the site is run again and again; how often is not known.
HAZARD interrupted
    ld r10, CPU_TICKS(r13)
    ld r11, 0(r10)
    cmpld cr6, r11, r11                 # as it is behind each turn but the last
    li r6, 64
    mtdec r6
    ori r6, r6, 0x8002                  # EE, RI
    mtmsrd r6, 1
SITE
    add. r6, r3, r4
    mfcr r7
    ld r12, 0(r10)
    cmpld cr6, r12, r11
    beq cr6, hz_interrupted_site
    li r11, 2
    mtmsrd r11, 1
    li r12, 0
    blr
END
