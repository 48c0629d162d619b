# Between a load that takes exclusive access and its store nothing may trap, and few stores may happen.

.include "layout.inc"

.text

# Four sites for each width: the load, between, the store, the branch. Each adds one to memory, for as long as it takes.
.macro RESERVATION name, load, store, register
HAZARD \name
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
1:
SITE
    \load \register, [x4]
    add x3, x3, #1
    \store w6, \register, [x4]
    cbnz w6, 1b
    ret
END

HAZARD \name\()_inside
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
1:  \load \register, [x4]
SITE
    add x3, x3, #1
    \store w6, \register, [x4]
    cbnz w6, 1b
    ret
END

HAZARD \name\()_store
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
1:  \load \register, [x4]
    add x3, x3, #1
SITE
    \store w6, \register, [x4]
    cbnz w6, 1b
    ret
END

HAZARD \name\()_branch
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
1:  \load \register, [x4]
    add x3, x3, #1
    \store w6, \register, [x4]
SITE
    cbnz w6, 1b
    add x21, x21, #1
    ret
END
.endm

RESERVATION ldxrb,  ldxrb,  stxrb,  w3
RESERVATION ldxrh,  ldxrh,  stxrh,  w3
RESERVATION ldxr_w, ldxr,   stxr,   w3
RESERVATION ldxr,   ldxr,   stxr,   x3
RESERVATION ldaxr,  ldaxr,  stlxr,  x3
RESERVATION ldxp,   ldxp,   stxp,   "x3, x7"
RESERVATION ldaxp_w, ldaxp, stlxp,  "w3, w7"

# A compare and exchange: a branch leaves the pair in its middle.
HAZARD compare_exchange
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    ldr x7, [x4]
    add x7, x7, x5
1:  ldxr x3, [x4]
SITE
    cmp x3, x7
    b.ne 2f
    stlxr w6, x5, [x4]
    cbnz w6, 1b
2:  add x21, x21, #1
    ret
END

# The program of a count would use what the pair has in x16 and x17.
HAZARD reservation_of_veneers
    mrs x16, tpidr_el1
    ldr x16, [x16, #CPU_SCRATCH]
1:
SITE
    ldxr x17, [x16]
    add x17, x17, #1
    stxr w15, x17, [x16]
    cbnz w15, 1b
    ret
END

# A wait for another CPU's store, which `wfe` ends.
HAZARD waits_for_a_store
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    ldr w6, [x4]
    sevl
    wfe
1:  ldaxr w3, [x4]
SITE
    cmp w3, w6
    b.eq 2f
    wfe
    b 1b
2:  clrex
    ret
END

HAZARD store_without_access
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    ldxr x3, [x4]
    stxr w6, x3, [x4]
SITE
    stxr w7, x5, [x4]
    add x21, x21, #1
    ret
END

HAZARD access_given_up
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    ldxr x3, [x4]
    clrex
SITE
    stxr w7, x5, [x4]
    add x21, x21, #1
    ret
END

# Atomics of Armv8.1.
.irp name, ldadd, ldclr, ldeor, ldset, ldsmax, ldsmin, ldumax, ldumin, swp
MEMORY \name,       NEEDS_LSE, \name x3, x6, [x4]
MEMORY \name\()al_w, NEEDS_LSE, \name\()al w3, w6, [x4]
.endr
MEMORY ldaddb,      NEEDS_LSE, ldaddb w3, w6, [x4]
MEMORY stadd,       NEEDS_LSE, stadd x3, [x4]
MEMORY stsetlh,     NEEDS_LSE, stsetlh w3, [x4]
MEMORY cas,         NEEDS_LSE, cas x6, x3, [x4]
MEMORY casalb,      NEEDS_LSE, casalb w6, w3, [x4]
MEMORY casp,        NEEDS_LSE, casp x6, x7, x8, x9, [x4]

HAZARD cas_that_holds, NEEDS_LSE
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    ldr x6, [x4]
SITE
    casal x6, x3, [x4]
    add x21, x21, #1
    ret
END
