# One instruction each, by what it reads and writes beside general registers: CR, XER, CTR, VSX, nothing.

.include "layout.inc"

.text

ONE nop,         0, nop
ONE ori_31,      0, ori r31, r31, 0
ONE addi,        0, addi r3, r3, -5
ONE addis,       0, addis r3, r3, 0x1234
ONE li,          0, li r3, -1
ONE addi_r0,     0, addi r0, 0, 7
ONE addic,       0, addic r3, r3, 1
ONE addic_dot,   0, addic. r3, r3, 1
ONE subfic,      0, subfic r3, r3, 1
ONE mulli,       0, mulli r3, r3, -3
ONE add,         0, add r3, r3, r4
ONE add_dot,     0, add. r3, r3, r4
ONE addo,        0, addo r3, r3, r4
ONE addo_dot,    0, addo. r3, r3, r4
ONE addc,        0, addc r3, r3, r4
ONE adde,        0, adde r3, r3, r4
ONE addme,       0, addme r3, r3
ONE addze_dot,   0, addze. r3, r3
ONE subf,        0, subf r3, r3, r4
ONE subfe,       0, subfe r3, r3, r4
ONE neg,         0, neg r3, r3
ONE mulld,       0, mulld r3, r3, r4
ONE mulldo_dot,  0, mulldo. r3, r3, r4
ONE mulhdu,      0, mulhdu r3, r3, r4
ONE divd,        0, divd r3, r3, r26
ONE divdu,       0, divdu r3, r3, r26
ONE modsd,       NEEDS_ISA30, modsd r3, r3, r26
ONE maddld,      NEEDS_ISA30, maddld r3, r3, r4, r5
ONE addex,       NEEDS_ISA30, addex r3, r3, r4, 0
ONE andi_dot,    0, andi. r3, r3, 0x7f
ONE andis_dot,   0, andis. r3, r3, 0x7f
ONE xoris,       0, xoris r3, r3, 0x8000
ONE nand_dot,    0, nand. r3, r3, r4
ONE rlwinm,      0, rlwinm r3, r4, 7, 3, 20
ONE rlwimi_dot,  0, rlwimi. r3, r4, 7, 20, 3
ONE rldicl,      0, rldicl r3, r4, 40, 9
ONE rldimi,      0, rldimi r3, r4, 32, 0
ONE rldcr,       0, rldcr r3, r4, r5, 33
ONE sld,         0, sld r3, r3, r24
ONE srad,        0, srad r3, r3, r24
ONE sradi,       0, sradi r3, r3, 33
ONE srawi_dot,   0, srawi. r3, r3, 5
ONE extsw,       0, extsw r3, r3
ONE extswsli,    NEEDS_ISA30, extswsli r3, r3, 5
ONE cntlzd,      0, cntlzd r3, r3
ONE cnttzd,      NEEDS_ISA30, cnttzd r3, r3
ONE popcntd,     0, popcntd r3, r3
ONE cmpb,        0, cmpb r3, r3, r4
ONE bpermd,      0, bpermd r3, r3, r4
ONE brd,         NEEDS_ISA31, brd r3, r3
ONE brw,         NEEDS_ISA31, brw r3, r3
ONE brh,         NEEDS_ISA31, brh r3, r3
ONE cfuged,      NEEDS_ISA31, cfuged r3, r3, r4
ONE pdepd,       NEEDS_ISA31, pdepd r3, r3, r4
ONE setbc,       NEEDS_ISA31, setbc r3, 2
ONE setnbcr,     NEEDS_ISA31, setnbcr r3, 2

ONE cmpdi,       0, cmpdi r3, 3
ONE cmplwi_cr7,  0, cmplwi cr7, r3, 3
ONE cmpd_cr1,    0, cmpd cr1, r3, r4
ONE cmprb,       NEEDS_ISA30, cmprb cr1, 0, r3, r4
ONE cmpeqb,      NEEDS_ISA30, cmpeqb cr1, r3, r4
ONE isel,        0, isel r3, r4, r5, 2
ONE isel_r0,     0, isel r3, 0, r5, 2
ONE setb,        NEEDS_ISA30, setb r3, cr0
ONE crand,       0, crand 2, 3, 31
ONE crnor,       0, crnor 31, 2, 0
ONE creqv,       0, creqv 5, 5, 5
ONE mcrf,        0, mcrf cr5, cr0
ONE mfcr,        0, mfcr r3
ONE mfocrf,      0, mfocrf r3, 8
ONE mtcrf,       0, mtcrf 0xff, r3
ONE mtcrf_some,  0, mtcrf 0x3c, r3
ONE mtocrf,      0, mtocrf 1, r3
ONE mcrxrx,      NEEDS_ISA30, mcrxrx cr2
ONE mfxer,       0, mfxer r3
ONE mtxer,       0, mtxer r3
ONE mfctr,       0, mfctr r3
ONE mtctr,       0, mtctr r3
ONE mftar,       0, mfspr r3, SPR_TAR
ONE mtvrsave,    0, mtspr 256, r3

# The address of the next instruction plus a constant.
ONE lnia,           NEEDS_ISA30, lnia r3
ONE addpcis,        NEEDS_ISA30, addpcis r3, 0x1234
ONE addpcis_back,   NEEDS_ISA30, addpcis r3, -0x8000
ONE subpcis,        NEEDS_ISA30, subpcis r3, 1

ONE fadd,        0, fadd 0, 0, 1
ONE fmadd_dot,   0, fmadd. 0, 0, 1, 0
ONE fcmpu,       0, fcmpu cr3, 0, 1
ONE fctid,       0, fctid 0, 1
ONE mffs,        0, mffs 0
ONE mtfsf,       0, mtfsf 0, 0
ONE fmr,         0, fmr 0, 1
ONE mtvsrd,      0, mtvsrd 1, r3
ONE mfvsrd,      0, mfvsrd r3, 33
ONE mfvsrld,     NEEDS_ISA30, mfvsrld r3, 33
ONE mtvsrdd,     NEEDS_ISA30, mtvsrdd 33, r3, r4
ONE vaddubm,     0, vaddubm 0, 0, 1
ONE vperm,       0, vperm 0, 0, 1, 1
ONE vcmpequb_dot, 0, vcmpequb. 0, 0, 1
ONE vspltisw,    0, vspltisw 1, -3
ONE mfvscr,      0, mfvscr 0
ONE xxlxor,      0, xxlxor 33, 33, 33
ONE xxpermdi,    0, xxpermdi 1, 0, 33, 2
ONE xvadddp,     0, xvadddp 1, 0, 1
ONE xxbrd,       NEEDS_ISA30, xxbrd 1, 33
