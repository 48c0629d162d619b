# What only a kernel executes: pstate, interrupts and returns from them, barriers, exceptions.

.include "layout.inc"

.text

ONE mrs_sp_el0,   0, mrs x3, sp_el0
ONE mrs_percpu,   0, mrs x3, tpidr_el1
ONE mrs_midr,     0, mrs x3, midr_el1
ONE mrs_el,       0, mrs x3, currentel
ONE mrs_nzcv,     0, mrs x3, nzcv
ONE mrs_daif,     0, mrs x3, daif
ONE mrs_veneer,   0, mrs x16, sp_el0
ONE msr_fpcr,     0, msr fpcr, xzr
ONE msr_contextidr, 0, msr contextidr_el1, x3
ONE dsb,          0, dsb ish
ONE dmb,          0, dmb ishst
ONE isb,          0, isb
ONE esb,          0, esb
ONE sev,          0, sev
ONE clrex,        0, clrex
ONE ic_iallu,     0, ic iallu
ONE tlbi,         0, tlbi vmalle1is
ONE hint_unknown, 0, hint #0x7f
ONE svc,          0, svc #0
ONE hvc_nothing,  0, hvc #1
ONE smc,          0, smc #0
ONE brk_bug,      0, brk #0x800
ONE brk_plain,    0, brk #0
ONE hlt,          0, hlt #0x77
ONE udf,          0, udf #0x77
ONE dcps1,        0, dcps1 #0

HAZARD msr_nzcv
    mrs x6, nzcv
    and x7, x3, #0xf0000000
SITE
    msr nzcv, x7
    mrs x8, nzcv
    add x21, x21, #1
    ret
END

HAZARD msr_sp_el0
    mrs x6, sp_el0
SITE
    msr sp_el0, x3
    mrs x7, sp_el0
    msr sp_el0, x6
    ret
END

HAZARD msr_daif
    mrs x6, daif
SITE
    msr daif, x6
    mrs x3, daif
    ret
END

HAZARD daifset
    msr daifclr, #12
SITE
    msr daifset, #8
    mrs x3, daif
    msr daifset, #15
    ret
END

HAZARD daifclr
    add x20, x20, #1
SITE
    msr daifclr, #12
    mrs x3, daif
    msr daifset, #15
    ret
END

# The other stack pointer, before, as and after it is chosen: it points to a stack as well.
HAZARD spsel
    add x20, x20, #1
SITE
    msr spsel, #0
    mov x3, sp
    msr spsel, #1
    ret
END

HAZARD spsel_other
    msr spsel, #0
SITE
    mov x3, sp
    msr spsel, #1
    ret
END

HAZARD spsel_back
    msr spsel, #0
SITE
    msr spsel, #1
    mov x3, sp
    ret
END

HAZARD msr_pan, NEEDS_PAN
    .inst 0xd500419f                    // msr pan, #1
SITE
    .inst 0xd500409f                    // msr pan, #0
    .inst 0xd5384263                    // mrs x3, pan
    ret
END

HAZARD read_translation
    mrs x4, tpidr_el1
    ldr x4, [x4, #CPU_SCRATCH]
    at s1e1r, x4
    isb
SITE
    mrs x3, par_el1
    add x21, x21, #1
    ret
END

HAZARD eret
    mov x28, x30
    mrs x6, daif
    mrs x7, nzcv
    orr x6, x6, x7
    add x6, x6, #5                      // EL1, its own stack pointer
    msr spsr_el1, x6
    adr x6, 1f
    msr elr_el1, x6
SITE
    eret
    add x9, x9, #1
1:  add x21, x21, #1
    mov x30, x28
    ret
END

# Interrupts are on and one arrives while the site is run again and again; how often is not known.
HAZARD interrupted
    mrs x10, tpidr_el1
    ldr x10, [x10, #CPU_TICKS]
    ldr x11, [x10]
    mov x6, #64
    msr cntv_tval_el0, x6
    msr daifclr, #2
SITE
    adds x6, x3, x4
    mrs x7, nzcv
    ldr x12, [x10]
    cmp x12, x11
    b.eq hz_interrupted_site
    msr daifset, #2
    mov x11, #0
    mov x12, #0
    ret
END
