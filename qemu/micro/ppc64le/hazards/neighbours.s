# Functions with a probe on any instruction from the site on: what they share a detour with matters.

.include "layout.inc"

.text

# What a counter works with, each alive across some of them: r0, r11, r12, CTR, CR0 and other fields, CA.
HAZARD neighbours_short
    cmpd r3, r4
SITE
    mfcr r0
    addc r11, r3, r4
    adde r12, r5, r0
    isel r6, r11, r12, 0
    mtctr r12
    subf. r7, r5, r4
    crand 30, 2, 1
    nop
    mfctr r8
    isel r9, r8, r0, 30
    mfcr r10
    mtcrf 0x81, r5
    xor r3, r0, r11
    xor r4, r12, r10
    blr
END

# A loop that begins and ends among them, with a branch over an instruction.
HAZARD neighbours_loop
    andi. r6, r3, 7
    addi r6, r6, 1
    mtctr r6
SITE
    addi r9, r9, 1
1:  addi r10, r10, 1
    andi. r7, r10, 1
    beq 2f
    addi r11, r11, 1
2:  addi r12, r12, -1
    bdnz 1b
    mfcr r8
    blr
END

# A branch back to the first of them on CTR and CR.
HAZARD neighbours_narrow
    li r6, 5
    mtctr r6
    cmpwi cr6, r3, 0
SITE
    addi r9, r9, 1
    cmpwi r9, 0
    bc 0, 26, hz_neighbours_narrow_site
    addi r10, r10, 1
    addi r11, r11, 1
    blr
END

# A frame and stores below r1 before there is one, a call that makes LR, and a way round it.
HAZARD neighbours_frame
    cmpd r3, r4
SITE
    mflr r0
    std r31, -8(r1)
    std r30, -280(r1)
    std r0, 16(r1)
    mr r31, r1
    stdu r1, -64(r1)
    beq 1f
    bl leaf
    std r3, 40(r1)
1:  bcl 20, 31, .+4
    mflr r5
    addi r1, r1, 64
    subf r6, r31, r1
    ld r0, 16(r1)
    ld r30, -280(r1)
    ld r31, -8(r1)
    mtlr r0
    blr
END

# Operands relative to the instruction, of four and of eight bytes, vectors, update forms; on a condition a computed jump
# among them and a return.
HAZARD neighbours_mixed, NEEDS_ISA31
    ld r4, CPU_SCRATCH(r13)
    mflr r28
    bcl 20, 31, 1f
1:  mflr r6
    addi r6, r6, 2f - 1b
    mtlr r28
    rlwinm r5, r5, 3, 27, 28
SITE
    addpcis r7, 0x12
    pld r8, (scratch + 16)@pcrel
    ldux r9, r4, r5
    paddi r10, 0, 0, 1
    mtctr r6
    stxvd2x 1, 0, r4
    addic. r11, r9, -1
    bcctr 12, 30
    addi r29, r29, 1
2:  addme r12, r11
    stdu r12, -8(r4)
    pstd r8, (scratch + 8)@pcrel
    xxlxor 1, 0, 1
    beqlr cr1
    setbc r3, 2
    blr
END
