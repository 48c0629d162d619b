# Calls and returns: the return address that a callee sees must be the original one.

.include "layout.inc"

.text

# A function of its own that calls: the return address is kept in x28; x6 holds the callee, and so does `register`.
.macro CALLS name, needs, register, instruction:vararg
HAZARD \name, \needs
    mov x28, x30
    mrs x6, tpidr_el1
    ldr x6, [x6, #CPU_LEAF]
    mov \register, x6
SITE
    \instruction
    add x21, x21, #1
    mov x30, x28
    ret
END
.endm

CALLS bl,           0, x6,  bl leaf
CALLS bl_skip,      0, x6,  bl skip
CALLS bl_distant,   0, x6,  bl distant_leaf
CALLS blr,          0, x6,  blr x6
CALLS blr_x0,       0, x0,  blr x0
CALLS blr_x15,      0, x15, blr x15
CALLS blr_veneer,   0, x16, blr x16
CALLS blr_veneer2,  0, x17, blr x17
CALLS blr_x18,      0, x18, blr x18
CALLS blr_lr,       0, x30, blr x30

.macro SIGNED_CALLS name, sign, instruction:vararg
HAZARD \name, NEEDS_PAC
    mov x28, x30
    mrs x6, tpidr_el1
    ldr x6, [x6, #CPU_LEAF]
    \sign
SITE
    \instruction
    add x21, x21, #1
    mov x30, x28
    ret
END
.endm

SIGNED_CALLS blraa,        "pacia x6, x7",               blraa x6, x7
SIGNED_CALLS blrab,        "pacib x6, sp",               blrab x6, sp
SIGNED_CALLS blraaz,       "paciza x6",                  blraaz x6
SIGNED_CALLS blraa_veneer, "mov x7, x16; pacia x6, x16", blraa x6, x16
SIGNED_CALLS blraa_lr,     "pacia x6, x30",              blraa x6, x30

# A call of the next instruction: the value is an output.
HAZARD bl_next
    mov x28, x30
SITE
    bl .+4
    mov x3, x30
    mov x30, x28
    ret
END

# A call into its own function.
HAZARD bl_inside
    mov x28, x30
    mov x6, #0
SITE
    bl 1f
    add x9, x9, #1
    mov x30, x28
    ret
1:  mov x3, x30
    add x10, x10, #1
    ret
END

# A call that comes back to itself once.
HAZARD bl_again
    mov x28, x30
    mov x6, #2
SITE
    bl 1f
    add x9, x9, #1
    mov x30, x28
    ret
1:  subs x6, x6, #1
    b.eq 2f
    sub x30, x30, #4
2:  ret
END

# A frame as compilers make it, with a call in it; with the return address signed and not.
.macro FRAMES name, sign=nop, authenticate=nop
HAZARD \name\()_begins
    \sign
SITE
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    str x19, [sp, #16]
    bl leaf
    ldr x19, [sp, #16]
    ldp x29, x30, [sp], #32
    \authenticate
    ret
END

HAZARD \name\()_points
    \sign
    stp x29, x30, [sp, #-32]!
SITE
    mov x29, sp
    bl leaf
    ldp x29, x30, [sp], #32
    \authenticate
    ret
END

HAZARD \name\()_ends
    \sign
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    bl leaf
SITE
    ldp x29, x30, [sp], #32
    \authenticate
    ret
END
.endm

FRAMES frame
FRAMES signed_frame, paciasp, autiasp
FRAMES signed_frame_b, pacibsp, autibsp

HAZARD ret
    add x20, x20, #1
SITE
    ret
END

HAZARD tail_call
    add x20, x20, #1
SITE
    b leaf
END

HAZARD tail_call_register
    mrs x6, tpidr_el1
    ldr x16, [x6, #CPU_LEAF]
SITE
    br x16
END

# Where the tracer of Linux is called from: its first instruction, its second, and the first behind it.
.macro TRACED name, first, second, third
HAZARD \name
\first
    mov x9, x30
\second
    nop
\third
    paciasp
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    bl leaf
    ldp x29, x30, [sp], #16
    autiasp
    ret
END
.endm

TRACED tracer_site,   SITE
TRACED tracer_call,   , SITE
TRACED tracer_behind, , , SITE

# Signed and authenticated as it is without a frame.
HAZARD paciasp
    add x20, x20, #1
SITE
    paciasp
    autiasp
    ret
END

HAZARD autiasp
    paciasp
    add x20, x20, #1
SITE
    autiasp
    ret
END

HAZARD retaa, NEEDS_PAC
    paciasp
    add x20, x20, #1
SITE
    retaa
END

HAZARD retab, NEEDS_PAC
    pacibsp
    add x20, x20, #1
SITE
    retab
END

# The moved stack pointer is what a signature depends on.
HAZARD signed_with_moved_sp
    sub sp, sp, #32
SITE
    paciasp
    mov x3, x30
    autiasp
    add sp, sp, #32
    ret
END

ONE pacia,   NEEDS_PAC, pacia x3, x4
ONE pacdza,  NEEDS_PAC, pacdza x3
ONE pacga,   NEEDS_PAC, pacga x3, x4, x5
ONE xpaci,   NEEDS_PAC, xpaci x3
ONE xpaclri, 0, xpaclri

.section .beyond, "ax"
HAZARD beyond_any_branch
    add x20, x20, #1
SITE
    add x21, x21, #1
    ret
END

# Pages that check where indirect branches arrive, on a CPU with BTI: only `bti` and what signs may be there.
.section .guarded, "ax"
HAZARD guarded_entry
SITE
    bti c
    add x21, x21, #1
    ret
END

HAZARD guarded_signing_entry
SITE
    paciasp
    add x21, x21, #1
    autiasp
    ret
END

HAZARD guarded_behind_pad
    bti c
SITE
    add x21, x21, #1
    ret
END

guarded_leaf:
    bti c
    VENEER
    mov x3, x30
    ret

.macro GUARDED name, register, instruction:vararg
HAZARD \name
    bti c
    mov x28, x30
    adr \register, guarded_leaf
SITE
    \instruction
    add x21, x21, #1
    mov x30, x28
    ret
END
.endm

GUARDED guarded_bl,           x6,  bl guarded_leaf
GUARDED guarded_blr,          x6,  blr x6
GUARDED guarded_blr_veneer,   x16, blr x16

HAZARD guarded_tail_call
    bti c
    adr x16, guarded_leaf
SITE
    br x16
END

HAZARD guarded_jump
    bti c
    adr x6, 1f
SITE
    br x6
    add x9, x9, #1
1:  bti j
    add x21, x21, #1
    ret
END

HAZARD guarded_landing
    bti c
    adr x6, hz_guarded_landing_site
    br x6
    add x9, x9, #1
SITE
    bti j
    add x21, x21, #1
    ret
END
