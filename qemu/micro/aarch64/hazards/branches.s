# Branches: every condition, near and at the end of its reach, forward, backward; through registers.

.include "layout.inc"

.text

# Taken, x9 stays; not taken, it counts.
.macro CONDITIONAL name, instruction:vararg
HAZARD \name
    add x20, x20, #1
SITE
    \instruction 1f
    add x9, x9, #1
1:  add x21, x21, #1
    ret
END
.endm

.irp condition, eq, ne, hs, lo, mi, pl, vs, vc, hi, ls, ge, lt, gt, le, al, nv
CONDITIONAL b_\condition, b.\condition
.endr

.macro REGISTER_CONDITIONALS name, instruction
CONDITIONAL \name,            \instruction x3,
CONDITIONAL \name\()_w,       \instruction w11,
CONDITIONAL \name\()_zero,    \instruction xzr,
CONDITIONAL \name\()_veneer,  \instruction x16,
CONDITIONAL \name\()_veneer2, \instruction x17,
CONDITIONAL \name\()_lr,      \instruction x30,
.endm

REGISTER_CONDITIONALS cbz, cbz
REGISTER_CONDITIONALS cbnz, cbnz

.irp bit, 0, 1, 31, 32, 63
CONDITIONAL tbz_\bit,  tbz x3, #\bit,
CONDITIONAL tbnz_\bit, tbnz x11, #\bit,
.endr
CONDITIONAL tbz_zero,    tbz xzr, #5,
CONDITIONAL tbnz_veneer, tbnz x17, #0,

# Almost at the end of their reach: 32 KiB and 1 MiB.
.macro FAR name, target, instruction:vararg
HAZARD \name
    add x20, x20, #1
SITE
    \instruction \target
    add x9, x9, #1
    ret
END
.endm

FAR tbz_far,  far_32k, tbz x3, #3,
FAR tbnz_far, far_32k, tbnz x3, #60,
    .skip 0x7f00
far_32k:
    add x21, x21, #1
    ret

FAR b_eq_far, far_1m, b.eq
FAR cbz_far,  far_1m, cbz x3,
FAR cbnz_far, far_1m, cbnz w3,
    .skip 0xfff00
far_1m:
    add x21, x21, #1
    ret

# Backward, a few times.
.macro BACKWARD name, instruction:vararg
HAZARD \name
    and x6, x3, #3
    add x6, x6, #1
1:  add x9, x9, #3
    subs x6, x6, #1
SITE
    \instruction 1b
    add x21, x21, #1
    ret
END
.endm

BACKWARD b_back,    b.ne
BACKWARD cbnz_back, cbnz x6,
BACKWARD tbz_back,  tbz x6, #63,

# The site is what a loop comes back to: each turn is a hit.
HAZARD loop_head
    mov x6, #3
SITE
    add x9, x9, #1
    subs x6, x6, #1
    b.ne hz_loop_head_site
    ret
END

# A turn would be the site alone, again and again: the branch is not taken.
HAZARD cbz_self
    mov x6, #1
SITE
    cbz x6, hz_cbz_self_site
    add x21, x21, #1
    ret
END

HAZARD b_forward
    add x20, x20, #1
SITE
    b 1f
    add x9, x9, #1
1:  add x21, x21, #1
    ret
END

HAZARD b_next
    add x20, x20, #1
SITE
    b .+4
    add x21, x21, #1
    ret
END

HAZARD b_before
    b 2f
1:  add x21, x21, #1
    ret
2:  add x20, x20, #1
SITE
    b 1b
END

HAZARD b_distant
    add x20, x20, #1
SITE
    b distant_leaf
END

# Through a register: it holds the landing.
.macro THROUGH name, needs, register, instruction:vararg
HAZARD \name, \needs
    mov x28, x30
    adr \register, 2f
SITE
    \instruction
    add x9, x9, #1
2:  add x21, x21, #1
    mov x30, x28
    ret
END
.endm

THROUGH br,         0, x6,  br x6
THROUGH br_veneer,  0, x16, br x16
THROUGH br_veneer2, 0, x17, br x17
THROUGH br_lr,      0, x30, br x30
THROUGH ret_other,  0, x6,  ret x6
THROUGH ret_lr,     0, x30, ret

# A jump to a pointer that is authenticated, with a register and with zero.
.macro AUTHENTICATED name, sign, instruction:vararg
HAZARD \name, NEEDS_PAC
    mov x28, x30
    adr x6, 2f
    \sign
SITE
    \instruction
    add x9, x9, #1
2:  add x21, x21, #1
    mov x30, x28
    ret
END
.endm

AUTHENTICATED braa,  "pacia x6, x7", braa x6, x7
AUTHENTICATED brab,  "pacib x6, x7", brab x6, x7
AUTHENTICATED braaz, "paciza x6",    braaz x6
AUTHENTICATED braa_veneers, "mov x16, x6; pacia x16, x17", braa x16, x17

# A table of jumps, as a compiler makes it of a switch.
HAZARD switch
    mov x28, x30
    and x6, x3, #3
    adr x7, 1f
    ldrsw x8, [x7, x6, lsl #2]
    add x7, x7, x8
SITE
    br x7
2:  add x9, x9, #1
3:  add x10, x10, #1
4:  add x11, x11, #1
5:  add x21, x21, #1
    mov x30, x28
    ret
END
1:  .long 2b - 1b, 3b - 1b, 4b - 1b, 5b - 1b
