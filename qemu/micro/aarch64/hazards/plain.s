# One instruction each, by what it reads and writes beside general registers: flags, sp, vectors, nothing.

.include "layout.inc"

.text

ONE nop,         0, nop
ONE yield,       0, yield
ONE csdb,        0, csdb
ONE add,         0, add x3, x3, #5
ONE add_shifted_number, 0, add x3, x3, #5, lsl #12
ONE add_w,       0, add w3, w3, #5
ONE adds,        0, adds x3, x3, #1
ONE subs_w,      0, subs w3, w3, #1
ONE sub_lsl,     0, sub x3, x3, x4, lsl #3
ONE adds_asr,    0, adds x3, x3, x4, asr #33
ONE add_uxtb,    0, add x3, x3, w4, uxtb #2
ONE sub_sxtw,    0, subs x3, x3, w4, sxtw
ONE cmp,         0, cmp x3, x4
ONE cmn_w,       0, cmn w3, w4
ONE neg,         0, neg x3, x3
ONE adc,         0, adc x3, x3, x4
ONE sbcs,        0, sbcs x3, x3, x4
ONE ngc_w,       0, ngc w3, w4
ONE and,         0, and x3, x3, #0x00ff00ff00ff00ff
ONE orr_w,       0, orr w3, w3, #0x7
ONE eor,         0, eor x3, x3, x4, ror #9
ONE ands,        0, ands x3, x3, #0x8000000000000001
ONE bic,         0, bic x3, x3, x4
ONE bics_w,      0, bics w3, w3, w4, lsr #3
ONE orn,         0, orn x3, x3, x4
ONE eon,         0, eon x3, x3, x4, asr #1
ONE mov,         0, mov x3, x4
ONE mov_lr,      0, mov x9, x30
ONE tst,         0, tst x3, #1
ONE movz,        0, movz x3, #0x1234, lsl #48
ONE movn,        0, movn x3, #0x1234, lsl #16
ONE movk,        0, movk x3, #0x1234, lsl #32
ONE movk_w,      0, movk w3, #0x1234, lsl #16
ONE sbfx,        0, sbfx x3, x4, #7, #20
ONE ubfiz,       0, ubfiz x3, x4, #7, #20
ONE bfi,         0, bfi x3, x4, #7, #20
ONE bfxil_w,     0, bfxil w3, w4, #7, #20
ONE asr,         0, asr x3, x3, #63
ONE sxtw,        0, sxtw x3, w3
ONE uxth,        0, uxth w3, w3
ONE extr,        0, extr x3, x3, x4, #13
ONE ror_w,       0, ror w3, w3, #5
ONE lslv,        0, lsl x3, x3, x24
ONE lsrv_w,      0, lsr w3, w3, w24
ONE asrv,        0, asr x3, x3, x24
ONE rorv,        0, ror x3, x3, x24
ONE madd,        0, madd x3, x3, x4, x5
ONE msub_w,      0, msub w3, w3, w4, w5
ONE smaddl,      0, smaddl x3, w3, w4, x5
ONE umsubl,      0, umsubl x3, w3, w4, x5
ONE umulh,       0, umulh x3, x3, x4
ONE smulh,       0, smulh x3, x3, x4
ONE udiv,        0, udiv x3, x3, x26
ONE sdiv_w,      0, sdiv w3, w3, w26
ONE clz,         0, clz x3, x3
ONE cls_w,       0, cls w3, w3
ONE rbit,        0, rbit x3, x3
ONE rev,         0, rev x3, x3
ONE rev32,       0, rev32 x3, x3
ONE rev16_w,     0, rev16 w3, w3
ONE crc32x,      0, crc32x w3, w3, x4
ONE crc32cb,     0, crc32cb w3, w3, w4
ONE csel,        0, csel x3, x4, x5, eq
ONE csinc,       0, csinc x3, x4, x5, hi
ONE csinv_w,     0, csinv w3, w4, w5, lt
ONE csneg,       0, csneg x3, x4, x5, vc
ONE cset,        0, cset x3, mi
ONE csetm,       0, csetm x3, gt
ONE ccmp,        0, ccmp x3, x4, #5, ne
ONE ccmp_number, 0, ccmp w3, #3, #10, ls
ONE ccmn,        0, ccmn x3, x4, #15, ge
ONE setf8,       NEEDS_FLAGM, setf8 w3
ONE setf16,      NEEDS_FLAGM, setf16 w3
ONE rmif,        NEEDS_FLAGM, rmif x3, #5, #9
ONE cfinv,       NEEDS_FLAGM, cfinv
ONE axflag,      NEEDS_FLAGM, axflag

# The address of the instruction plus a constant.
ONE adr,         0, adr x3, .+0x100
ONE adr_back,    0, adr x3, .-0x100
ONE adr_self,    0, adr x3, .
ONE adr_next,    0, adr x3, .+4
ONE adr_far,     0, adr x3, .+0xffffc
ONE adr_zero,    0, .inst 0x1000001f            // adr xzr, .
ONE adrp,        0, adrp x3, scratch
ONE adrp_self,   0, .inst 0x90000003            // the page that it is in
ONE adrp_back,   0, .inst 0xf0ffffe3
ONE adrp_far,    0, .inst 0xf07fffe3            // almost 4 GiB

# Floating point and vectors.
ONE fadd,        0, fadd d0, d0, d1
ONE fdiv_s,      0, fdiv s0, s0, s1
ONE fmadd,       0, fmadd d0, d0, d1, d0
ONE fcmp,        0, fcmp d0, d1
ONE fcmpe_zero,  0, fcmpe d0, #0.0
ONE fccmp,       0, fccmp d0, d1, #6, ne
ONE fcsel,       0, fcsel d0, d0, d1, eq
ONE fcvtzs,      0, fcvtzs x3, d0
ONE scvtf,       0, scvtf d0, x3
ONE fmov_to,     0, fmov d0, x3
ONE fmov_from,   0, fmov x3, d1
ONE fmov_top,    0, fmov v0.d[1], x3
ONE fmov_number, 0, fmov d0, #1.5
ONE umov,        0, umov w3, v0.b[3]
ONE smov,        0, smov x3, v0.h[3]
ONE ins,         0, mov v0.s[1], w3
ONE dup,         0, dup v0.16b, w3
ONE movi,        0, movi v0.2d, #0xff00ff00ff00ff00
ONE add_16b,     0, add v0.16b, v0.16b, v1.16b
ONE addv,        0, addv b0, v1.16b
ONE cmeq,        0, cmeq v0.8h, v0.8h, v1.8h
ONE tbl,         0, tbl v0.16b, {v1.16b, v2.16b}, v31.16b
ONE zip1,        0, zip1 v0.4s, v1.4s, v2.4s
ONE sqadd,       0, sqadd v0.4s, v0.4s, v1.4s
ONE cnt,         0, cnt v0.8b, v0.8b
ONE aese,        0, aese v0.16b, v1.16b
ONE sha256h,     0, sha256h q0, q1, v2.4s
ONE pmull,       0, pmull v0.1q, v0.1d, v1.1d
ONE mrs_fpsr,    0, mrs x3, fpsr
ONE rdvl,        NEEDS_SVE, rdvl x3, #3
ONE incb,        NEEDS_SVE, incb x3
ONE dup_z,       NEEDS_SVE, dup z0.b, #5
