# Instructions of eight bytes: relative to themselves or not; none may cross a boundary of 64 bytes.

.include "layout.inc"

.text

# What is read and written relative to the instruction: the arena's neighbour in memory, `scratch`.
.set near, scratch + SCRATCH_SIZE / 2

.macro RELATIVE name, instruction:vararg
MEMORY \name, NEEDS_ISA31, \instruction
.endm

RELATIVE pla,           pla r3, near@pcrel
RELATIVE paddi_self,    paddi r3, 0, 0, 1
RELATIVE paddi_next,    paddi r3, 0, 8, 1
RELATIVE paddi_back,    paddi r3, 0, -0x10000, 1
RELATIVE pld_pcrel,     pld r3, near@pcrel
RELATIVE plwz_pcrel,    plwz r3, near@pcrel+4
RELATIVE plwa_pcrel,    plwa r3, near@pcrel+4
RELATIVE plhz_pcrel,    plhz r3, near@pcrel+2
RELATIVE plha_pcrel,    plha r3, near@pcrel+6
RELATIVE plbz_pcrel,    plbz r3, near@pcrel+5
RELATIVE plq_pcrel,     plq r6, near@pcrel+16
RELATIVE plfd_pcrel,    plfd 0, near@pcrel+8
RELATIVE plfs_pcrel,    plfs 0, near@pcrel+8
RELATIVE plxv_pcrel,    plxv 33, near@pcrel+16
RELATIVE plxsd_pcrel,   plxsd 0, near@pcrel+8
RELATIVE plxssp_pcrel,  plxssp 0, near@pcrel+8
RELATIVE plxvp_pcrel,   plxvp 32, near@pcrel+32
RELATIVE pstd_pcrel,    pstd r3, near@pcrel
RELATIVE pstw_pcrel,    pstw r3, near@pcrel+4
RELATIVE psth_pcrel,    psth r3, near@pcrel+2
RELATIVE pstb_pcrel,    pstb r3, near@pcrel+1
RELATIVE pstq_pcrel,    pstq r6, near@pcrel+16
RELATIVE pstfd_pcrel,   pstfd 0, near@pcrel+8
RELATIVE pstfs_pcrel,   pstfs 0, near@pcrel+8
RELATIVE pstxv_pcrel,   pstxv 33, near@pcrel+16
RELATIVE pstxsd_pcrel,  pstxsd 0, near@pcrel+8
RELATIVE pstxvp_pcrel,  pstxvp 32, near@pcrel+32

MEMORY pli,      NEEDS_ISA31, pli r3, 0x123456789
MEMORY paddi,    NEEDS_ISA31, paddi r3, r4, -0x123456789
MEMORY pld,      NEEDS_ISA31, pld r3, 16(r4)
MEMORY plwz,     NEEDS_ISA31, plwz r3, -12(r4)
MEMORY pstd,     NEEDS_ISA31, pstd r3, 24(r4)
MEMORY plxv,     NEEDS_ISA31, plxv 1, 16(r4)
MEMORY pstxv,    NEEDS_ISA31, pstxv 1, 16(r4)
MEMORY pnop,     NEEDS_ISA31, pnop
MEMORY xxspltiw, NEEDS_ISA31, xxspltiw 1, 0x12345678
MEMORY xxspltidp, NEEDS_ISA31, xxspltidp 33, 0x3f800000
MEMORY xxblendvb, NEEDS_ISA31, xxblendvb 1, 0, 1, 33
MEMORY xxpermx,  NEEDS_ISA31, xxpermx 1, 0, 1, 33, 3

# Where it may be: at the end of a block of 64 bytes, and at its beginning.
.macro PREFIXED_AT name, words, instruction:vararg
HAZARD \name, NEEDS_ISA31, 64
    .rept \words
    addi r30, r30, 1
    .endr
SITE
    \instruction
    addi r31, r31, 1
    blr
END
.endm

PREFIXED_AT prefixed_ends_block, 14, paddi r3, 0, 0, 1
PREFIXED_AT prefixed_begins_block, 16, paddi r3, 0, 0, 1
PREFIXED_AT prefixed_odd_word, 13, paddi r3, r4, 0x1234567
PREFIXED_AT before_prefixed, 13, addi r29, r29, 1
