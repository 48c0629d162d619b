# Functions with a probe on any instruction from the site on: what they share a detour with matters.

.include "layout.inc"

.text

# What a counter works with, each alive across some of them: x9 to x17, flags.
HAZARD neighbours_short
    cmp x3, x4
SITE
    mrs x9, nzcv
    adds x16, x3, x4
    adc x17, x5, x9
    csel x6, x16, x17, lt
    mov x15, x17
    subs x7, x4, x5
    ccmp x7, #1, #4, ge
    nop
    add x8, x15, x16, lsl #2
    csinc x9, x8, x9, le
    mrs x10, nzcv
    msr nzcv, x5
    eor x3, x9, x16
    eor x4, x17, x10
    sbc x5, x3, x4
    ret
END

# A loop that begins and ends among them, with a branch over an instruction.
HAZARD neighbours_loop
    and x6, x3, #7
    add x6, x6, #1
SITE
    add x9, x9, #1
1:  add x10, x10, #1
    tbz x10, #0, 2f
    add x11, x11, #1
2:  sub x12, x12, #1
    subs x6, x6, #1
    b.ne 1b
    mrs x8, nzcv
    ret
END

# A branch back to the first of them.
HAZARD neighbours_narrow
    mov x6, #5
SITE
    add x9, x9, #1
    cmp x9, x6
    sub x6, x6, #1
    cbnz x6, hz_neighbours_narrow_site
    add x10, x10, #1
    add x11, x11, #1
    ret
END

# A frame with a call in it, a way round it, and the return address in a register that a call changes.
HAZARD neighbours_frame
    cmp x3, x4
SITE
    mov x9, x30
    nop
    paciasp
    stp x29, x30, [sp, #-48]!
    mov x29, sp
    stp x19, x20, [sp, #16]
    b.eq 1f
    bl leaf
    str x3, [sp, #32]
1:  bl .+4
    mov x5, x30
    adr x6, .
    sub x7, x6, x29
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #48
    autiasp
    ret
END

# Operands relative to the instruction, vectors, update forms; on a condition a computed jump among them and a return.
HAZARD neighbours_mixed
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    mov x28, x30
    ubfiz x5, x5, #3, #2
SITE
    adrp x7, scratch
    ldr x8, 3f
    ldr x9, [x4, x5]
    adr x6, 2f
    str q1, [x4], #16
    subs x11, x9, #1
    tbnz x3, #1, 1f
    br x6
1:  add x29, x29, #1
2:  adc x12, x11, x8
    str x12, [x4, #-8]!
    ldp x16, x17, [x4]
    eor x16, x16, #1
    movi v1.2d, #0
    tbz x3, #0, 4f
    mov x30, x28
    ret
4:  cset x3, eq
    ret
END
    .balign 8
3:  .quad 0x0123456789abcdef
