# Loads and stores of every form: by number, by register, moving their base, at sp, of pairs, of vectors, of literals.

.include "layout.inc"

.text

.macro LOADS name, register
MEMORY \name,          0, \name \register, [x4, #8]
MEMORY \name\()_post,  0, \name \register, [x4], #-5
MEMORY \name\()_pre,   0, \name \register, [x4, #5]!
MEMORY \name\()_index, 0, \name \register, [x4, x5]
.endm

.macro UNSCALED name, register
MEMORY \name, 0, \name \register, [x4, #-3]
.endm

LOADS ldrb, w3
LOADS ldrh, w3
LOADS ldrsb, x3
LOADS ldrsh, x3
LOADS ldrsw, x3
LOADS ldr, x3
LOADS strb, w3
LOADS strh, w3
LOADS str, x3
UNSCALED ldurb, w3
UNSCALED ldursh, w3
UNSCALED ldursw, x3
UNSCALED ldur, x3
UNSCALED sturh, w3
UNSCALED stur, x3

MEMORY ldr_w,         0, ldr w3, [x4, #4]
MEMORY str_w,         0, str w3, [x4, #4]
MEMORY ldrsb_w,       0, ldrsb w3, [x4, #1]
MEMORY ldr_zero,      0, ldr xzr, [x4]
MEMORY str_zero,      0, str xzr, [x4]
MEMORY ldr_own,       0, ldr x4, [x4]
MEMORY ldr_lsl,       0, ldr x3, [x4, x7, lsl #3]
MEMORY ldr_uxtw,      0, ldr x3, [x4, w5, uxtw]
MEMORY ldrh_sxtw,     0, ldrh w3, [x4, w5, sxtw #1]
MEMORY str_sxtx,      0, str x3, [x4, x5, sxtx]
MEMORY ldr_veneer,    0, ldr x16, [x4, #8]
MEMORY str_veneer,    0, str x17, [x4, #8]
MEMORY str_lr,        0, str x30, [x4, #8]
MEMORY prfm,          0, prfm pldl1keep, [x4]
MEMORY prfm_w,        0, prfm pstl1strm, [x4, x5]
MEMORY ldp,           0, ldp x3, x6, [x4, #16]
MEMORY ldp_w,         0, ldp w3, w6, [x4, #-8]
MEMORY ldp_post,      0, ldp x3, x6, [x4], #16
MEMORY ldp_pre,       0, ldp x3, x6, [x4, #-16]!
MEMORY ldp_own,       0, ldp x3, x4, [x4]
MEMORY ldpsw,         0, ldpsw x3, x6, [x4, #4]
MEMORY ldnp,          0, ldnp x3, x6, [x4, #16]
MEMORY stp,           0, stp x3, x6, [x4, #16]
MEMORY stp_w_pre,     0, stp w3, w6, [x4, #8]!
MEMORY stp_post,      0, stp x3, x6, [x4], #-16
MEMORY stp_veneers,   0, stp x16, x17, [x4]
MEMORY stnp,          0, stnp x3, x6, [x4, #-16]
MEMORY ldar,          0, ldar x3, [x4]
MEMORY ldarb,         0, ldarb w3, [x4]
MEMORY stlr,          0, stlr x3, [x4]
MEMORY stlrh,         0, stlrh w3, [x4]
MEMORY ldapr,         NEEDS_RCPC, ldapr x3, [x4]
MEMORY dc_zva,        0, dc zva, x4
MEMORY dc_civac,      0, dc civac, x4
MEMORY dc_cvau,       0, dc cvau, x4
MEMORY ic_ivau,       0, ic ivau, x4
MEMORY at_s1e1r,      0, at s1e1r, x4

MEMORY ldr_b,         0, ldr b0, [x4, #3]
MEMORY ldr_s,         0, ldr s0, [x4], #4
MEMORY ldr_d,         0, ldr d0, [x4, x5]
MEMORY ldr_q,         0, ldr q0, [x4, #16]!
MEMORY str_h,         0, str h1, [x4, #2]
MEMORY str_q,         0, str q1, [x4, #-16]!
MEMORY ldur_q,        0, ldur q0, [x4, #-1]
MEMORY ldp_q,         0, ldp q0, q1, [x4, #-32]
MEMORY stp_q_post,    0, stp q0, q1, [x4], #32
MEMORY stp_d_pre,     0, stp d0, d1, [x4, #-16]!
MEMORY ld1,           0, ld1 {v0.16b, v1.16b}, [x4]
MEMORY ld1_post,      0, ld1 {v0.8h}, [x4], x5
MEMORY ld1_lane,      0, ld1 {v0.s}[2], [x4]
MEMORY ld1r,          0, ld1r {v0.4s}, [x4], #4
MEMORY ld4,           0, ld4 {v0.4s, v1.4s, v2.4s, v3.4s}, [x4]
MEMORY st1_post,      0, st1 {v0.16b, v1.16b}, [x4], #32
MEMORY st2,           0, st2 {v1.8b, v2.8b}, [x4]

# Something else in the register of the return address.
.macro INTO_LR name, instruction:vararg
HAZARD \name
    mov x28, x30
SITE
    \instruction
    mov x3, x30
    mov x30, x28
    ret
END
.endm

# What is beside the code, before and behind it.
.macro LITERAL name, instruction:vararg
    .balign 8
before_\name:
    .quad 0x8182838485868788
HAZARD \name
    add x20, x20, #1
SITE
    \instruction
    add x21, x21, #1
    ret
END
    .balign 8
behind_\name:
    .quad 0x9192939495969798
.endm

LITERAL literal_x,      ldr x3, behind_literal_x
LITERAL literal_w,      ldr w3, behind_literal_w
LITERAL literal_sw,     ldrsw x3, behind_literal_sw
LITERAL literal_back,   ldr x3, before_literal_back
LITERAL literal_code,   ldr x3, hz_literal_code
LITERAL literal_next,   ldr w3, .+4
LITERAL literal_itself, ldr w3, .
LITERAL literal_d,      ldr d0, behind_literal_d
LITERAL literal_q,      ldr q0, behind_literal_q
LITERAL literal_prefetch, prfm pldl1keep, behind_literal_prefetch
LITERAL literal_zero,   ldr xzr, behind_literal_zero

    .balign 8
beside_lr:
    .quad 0x9192939495969798
INTO_LR ldr_into_lr,  ldr x30, beside_lr
INTO_LR adr_into_lr,  adr x30, .+0x100
INTO_LR adrp_into_lr, adrp x30, scratch

# The stack: sp is an operand, and what is above it the caller's.
ONE str_caller,   0, str x3, [sp, #16]
ONE stp_caller,   0, stp x3, x4, [sp, #32]
ONE ldr_caller,   0, ldr x3, [sp, #8]
ONE ldp_caller,   0, ldp w3, w4, [sp, #8]
ONE ldrb_caller,  0, ldrb w3, [sp, #9]
ONE str_q_caller, 0, str q1, [sp, #64]
ONE mov_from_sp,  0, mov x3, sp
ONE add_from_sp,  0, add x3, sp, x4, uxtx #2

HAZARD stp_moves_sp
    add x20, x20, #1
SITE
    stp x29, x30, [sp, #-32]!
    ldp x3, x5, [sp]
    add sp, sp, #32
    ret
END

HAZARD str_moves_sp
    add x20, x20, #1
SITE
    str x30, [sp, #-16]!
    ldr x3, [sp]
    add sp, sp, #16
    ret
END

HAZARD ldp_moves_sp
    stp x29, x30, [sp, #-32]!
    stp x3, x4, [sp, #16]
    mov x29, #0
SITE
    ldp x29, x30, [sp], #32
    ret
END

HAZARD ldr_moves_sp
    str x30, [sp, #-16]!
    mov x30, #0
SITE
    ldr x30, [sp], #16
    ret
END

HAZARD stp_in_frame
    sub sp, sp, #48
SITE
    stp x3, x4, [sp, #16]
    ldp x5, x6, [sp, #16]
    add sp, sp, #48
    ret
END

HAZARD sub_sp
    add x20, x20, #1
SITE
    sub sp, sp, #4064
    mov x3, sp
    add sp, sp, #4064
    ret
END

HAZARD add_sp
    sub sp, sp, #48
SITE
    add sp, sp, #48
    add x21, x21, #1
    ret
END

HAZARD add_sp_register
    mov x6, #48
    sub sp, sp, #48
SITE
    add sp, sp, x6
    add x21, x21, #1
    ret
END

HAZARD and_sp
    mov x6, sp
    sub x7, x6, #40
SITE
    and sp, x7, #-16
    mov x3, sp
    mov sp, x6
    ret
END

HAZARD mov_sp
    mov x6, sp
    sub sp, sp, #64
SITE
    mov sp, x6
    add x21, x21, #1
    ret
END

HAZARD mov_fp
    stp x29, x30, [sp, #-16]!
SITE
    mov x29, sp
    mov x3, x29
    ldp x29, x30, [sp], #16
    ret
END

# All registers that a program may use are kept by the function itself, right below each other.
HAZARD spilled_by_itself
    sub sp, sp, #144
    stp x9, x10, [sp]
    stp x11, x12, [sp, #16]
    stp x13, x14, [sp, #32]
    stp x15, x16, [sp, #48]
    stp x17, x18, [sp, #64]
    str x30, [sp, #80]
SITE
    mrs x9, nzcv
    str x9, [sp, #88]
    ldr x9, [sp, #88]
    msr nzcv, x9
    ldp x9, x10, [sp]
    ldp x11, x12, [sp, #16]
    ldp x13, x14, [sp, #32]
    ldp x15, x16, [sp, #48]
    ldp x17, x18, [sp, #64]
    ldr x30, [sp, #80]
    add sp, sp, #144
    ret
END
