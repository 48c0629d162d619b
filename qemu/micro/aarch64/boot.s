# From QEMU's entry (EL1, the MMU off) to code in the upper half; interrupts, faults, the console.

.include "layout.inc"

.set UART,            BASE + 0x09000000
.set UART_CONTROL,    0x30
.set GIC,             BASE + 0x08000000 // version 2
.set GIC_ENABLE,      0x100
.set GIC_CPU,         BASE + 0x08010000
.set GIC_MASK,        0x4
.set GIC_TAKE,        0xc
.set GIC_END,         0x10
.set VIRTUAL_TIMER,   27

.set EC_UNKNOWN,      0x00
.set EC_SVC,          0x15
.set EC_BRK,          0x3c

.set MEMORY_BLOCK,    0x701             // 2 MiB, cached, shared, accessed, of EL1 alone
.set DEVICE_BLOCK,    3 << 53 | 0x405   // 1 GiB, not executable
.set GUARDED_PAGE,    1 << 50
.set GUARDED_AT,      0x40e00000
.set TABLE,           3

.section .boot, "ax"
.globl boot
boot:
    msr daifset, #15
    adrp x0, level1
    msr ttbr0_el1, x0
    msr ttbr1_el1, x0
    mov x0, #0xff                       // attributes: 0 cached, 1 a device
    msr mair_el1, x0
    ldr x0, translation
    msr tcr_el1, x0
    mov x0, #3 << 20                    // FPEN
    mrs x1, id_aa64pfr0_el1
    ubfx x1, x1, #32, #4
    cbz x1, 1f
    orr x0, x0, #3 << 16                // ZEN
1:  msr cpacr_el1, x0
    tlbi vmalle1
    dsb sy
    isb
    ldr x0, control
    msr sctlr_el1, x0
    isb
    ldr x0, in_upper_half
    br x0
    .balign 8
in_upper_half:
    .quad start
translation:                            // 39 bits and 4 KiB in both halves, 40 of physical memory, cached, shared
    .quad 25 | 25 << 16 | 2 << 30 | 2 << 32 | 0x3500 | 0x3500 << 16
control:                                // MMU, caches, the stack pointer's alignment; PAN stays at an exception; RES1
    .quad 0x30d00800 | 0x100d

.text
start:
    LOAD x0, stack_top
    mov sp, x0
    LOAD x0, spare_stack
    msr sp_el0, x0
    LOAD x0, cpu
    msr tpidr_el1, x0
    LOAD x0, vectors
    msr vbar_el1, x0
    bl set_features
    bl set_interrupts
    mov x0, #1                          // cycles are counted; under icount instructions
    msr pmcr_el0, x0
    mov x0, #1 << 31
    msr pmcntenset_el0, x0
    isb
    LOAD x0, ready_text
    bl print
    b wait_for_go

# features: the NEEDS_ bits this CPU has; what they need is switched on.
set_features:
    mov x9, #0
    mrs x0, sctlr_el1
    mrs x1, id_aa64isar0_el1
    ubfx x2, x1, #20, #4
    cmp x2, #2
    b.lo 1f
    orr x9, x9, #NEEDS_LSE
1:  ubfx x2, x1, #52, #4
    cmp x2, #2
    b.lo 1f
    orr x9, x9, #NEEDS_FLAGM
1:  mrs x1, id_aa64isar1_el1
    CONSTANT x2, 0xff000ff0             // GPI, GPA, API, APA
    mrs x3, S3_0_C0_C6_2                // id_aa64isar2_el1
    and x3, x3, #0xff00                 // APA3, GPA3
    tst x1, x2
    ccmp x3, #0, #0, eq
    b.eq 1f
    orr x9, x9, #NEEDS_PAC
    orr x0, x0, #3 << 30                // EnIA, EnIB
    orr x0, x0, #1 << 27                // EnDA
    orr x0, x0, #1 << 13                // EnDB
    CONSTANT x2, 0x0123456789abcdef
    .irp key, ia, ib, da, db, ga
    msr ap\key\()keylo_el1, x2
    msr ap\key\()keyhi_el1, x2
    .endr
1:  mrs x1, id_aa64isar1_el1
    ubfx x2, x1, #20, #4
    cbz x2, 1f
    orr x9, x9, #NEEDS_RCPC
1:  mrs x1, id_aa64pfr0_el1
    ubfx x2, x1, #32, #4
    cbz x2, 1f
    orr x9, x9, #NEEDS_SVE
    msr zcr_el1, xzr                    // 128 bits
1:  mrs x1, id_aa64mmfr1_el1
    ubfx x2, x1, #20, #4
    cbz x2, 1f
    orr x9, x9, #NEEDS_PAN
1:  mrs x1, id_aa64pfr1_el1
    ubfx x2, x1, #0, #4
    cbz x2, 1f
    orr x0, x0, #1 << 36                // BT1: paciasp is no landing pad of every jump
1:  msr sctlr_el1, x0
    isb
    LOAD x0, features
    str x9, [x0]
    ret

set_interrupts:
    CONSTANT x0, GIC
    mov w1, #1
    str w1, [x0]
    mov w1, #1 << VIRTUAL_TIMER
    str w1, [x0, #GIC_ENABLE]
    CONSTANT x0, GIC_CPU
    mov w1, #0xff
    str w1, [x0, #GIC_MASK]
    mov w1, #1
    str w1, [x0]
    CONSTANT x0, UART
    mov w1, #0x301
    str w1, [x0, #UART_CONTROL]
    mrs x0, cntfrq_el0
    lsr x0, x0, #8                      // 256 ticks in a second
    msr cntv_tval_el0, x0
    mov x0, #1
    msr cntv_ctl_el0, x0
    ret

# Sleep until `go` is not zero: the tick looks again. The table's functions run with interrupts off.
.globl wait_for_go, ready, done
.type wait_for_go, @function
wait_for_go:
    LOAD x19, go
ready:
    ldr x0, [x19]
    cbnz x0, 1f
    wfi
    msr daifclr, #2
    isb
    msr daifset, #2
    b ready
1:  bl run_table
    LOAD x19, go
    ldr x0, [x19]
    sub x0, x0, #1
    str x0, [x19]
    LOAD x1, rounds
    ldr x0, [x1]
    add x0, x0, #1
    str x0, [x1]
done:
    b wait_for_go
    .size wait_for_go, . - wait_for_go

# A function's stack is left alone: two registers are kept where no function looks.
.macro ENTER
    msr tpidr_el0, x9
    msr tpidrro_el0, x10
.endm

.macro LEAVE
    mrs x9, tpidr_el0
    mrs x10, tpidrro_el0
    eret
.endm

tick:
    ENTER
    CONSTANT x9, GIC_CPU
    ldr w10, [x9, #GIC_TAKE]
    mrs x9, cntfrq_el0
    lsr x9, x9, #8
    msr cntv_tval_el0, x9
    CONSTANT x9, GIC_CPU
    str w10, [x9, #GIC_END]
    LOAD x9, ticks
    ldr x10, [x9]
    add x10, x10, #1
    str x10, [x9]
    LEAVE

# A system call and a breakpoint leave something to be seen in the outputs, as does an undefined instruction that a
# function is for; any other exception is the end.
exception:
    ENTER
    mrs x9, esr_el1
    lsr x9, x9, #26
    cmp x9, #EC_SVC
    b.ne 1f
    add x0, x0, #0xc00
    LEAVE
1:  cmp x9, #EC_BRK
    b.ne 1f
    add x0, x0, #0x700
    b over
1:  cbnz x9, fault
    LOAD x9, now_site
    ldr x9, [x9]
    mrs x10, elr_el1
    cmp x9, x10
    b.ne fault
    add x0, x0, #0x500
over:
    mrs x9, elr_el1
    add x9, x9, #4
    msr elr_el1, x9
    LEAVE

# The end: leave what it was where a debugger finds it, say so, halt.
.globl fault
.type fault, @function
fault:
    LOAD x1, fault_syndrome
    mrs x0, esr_el1
    str x0, [x1]
    mrs x0, elr_el1
    str x0, [x1, #8]
    mrs x0, spsr_el1
    str x0, [x1, #16]
    mrs x0, far_el1
    str x0, [x1, #24]
    LOAD x0, stack_top
    mov sp, x0
    LOAD x0, fault_text
    bl print
1:  wfi
    b 1b
    .size fault, . - fault

# x0: text, ended by NUL
print:
    CONSTANT x1, UART
1:  ldrb w2, [x0], #1
    cbz w2, 2f
    str w2, [x1]
    b 1b
2:  ret

    .balign 2048
vectors:
    .rept 4
    .balign 128
    b fault
    .endr
    .irp where, exception, tick, fault, fault
    .balign 128
    b \where
    .endr
    .rept 8
    .balign 128
    b fault
    .endr
    .balign 128

.section .data, "aw"
    .balign 4096
level1:                                 // the same in both halves
    .quad DEVICE_BLOCK
    .quad level2 - BASE + TABLE
    .fill 510, 8, 0
level2:
    .set page, 0x40000000
    .rept 512
    .if page == GUARDED_AT
    .quad page + MEMORY_BLOCK + GUARDED_PAGE
    .else
    .quad page + MEMORY_BLOCK
    .endif
    .set page, page + 0x200000
    .endr

ready_text: .asciz "optprobe-guest: ready\n"
fault_text: .asciz "optprobe-guest: BUG: exception\n"

.globl go, rounds, ticks, features, spare_stack, fault_syndrome, fault_pc, fault_pstate, fault_address
    .balign 8
go:             .quad 0
rounds:         .quad 0
ticks:          .quad 0
features:       .quad 0
fault_syndrome: .quad -1
fault_pc:       .quad 0
fault_pstate:   .quad 0
fault_address:  .quad 0

.section .bss, "aw", @nobits
    .balign 16
    .skip 8192
stack_top:
    .skip 4096
spare_stack:
    .skip 64
