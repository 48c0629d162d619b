# Run the table of hazards: for each function and each input state, load every register, call, keep what came out.
#
#     hazards[N]                    64 bytes each, up to hazards_end
#     ┌────────┬────────┬────────┬────────┬────────┬───────────┐
#     │ +0     │ +8     │ +16    │ +24    │ +32    │ +40       │
#     │ name   │ hz_X   │ hz_X_  │ its    │ needs  │ 0         │      name: address of a NUL-ended string
#     │        │        │ site   │ end    │        │           │      needs: bits of layout.inc
#     └────────┴────────┴────────┴────────┴────────┴───────────┘
#     inputs[4]                     512 bytes each; a debugger may write its own
#     ┌───────────┬──────┬────────┬──────────────┬───────┐
#     │ +0        │ +256 │ +264   │ +320         │ +384  │
#     │ x0 … x29  │ nzcv │ 0      │ v0 v1 v2 v31 │ 0     │      x30 and sp are the runner's
#     └───────────┴──────┴────────┴──────────────┴───────┘
#     scratch_input  256 bytes, copied to `scratch` before each run; what functions read and write
#     stack_input    320 bytes, copied to where sp points before each run: below sp nothing is kept
#
#     results[N][4]                 1024 bytes each
#     ┌───────────┬──────┬──────┬──────┬──────┬──────┬────────┬──────┬───────┬──────┬──────────────┬────────┬─────────┐
#     │ +0        │ +248 │ +256 │ +264 │ +272 │ +280 │ +288   │ +296 │ +304  │ +312 │ +320         │ +384   │ +704    │
#     │ x0 … x30  │ sp   │ nzcv │ daif │ fpsr │ fpcr │ sp_el0 │ runs │ ticks │ 0    │ v0 v1 v2 v31 │ stack  │ scratch │
#     └───────────┴──────┴──────┴──────┴──────┴──────┴────────┴──────┴───────┴──────┴──────────────┴────────┴─────────┘
#     runs:  how often this pair has been run since boot; 0 where the CPU lacks what the function needs
#     ticks: cycles around the call; under icount instructions, a fixed number of them the runner's
#
#     go      write n to run n rounds; counts down         only   index of the one hazard to run; -1: all
#     rounds  counts up; `done` is executed after each     repeat how often in a row each pair is run, at least 1
#     arena_text (64 KiB of brk inside .text), arena_data (64 KiB): free for whoever patches the guest

.include "layout.inc"

.section .text.arena, "ax"
.globl arena_text, arena_text_end
arena_text:
    .fill 65536 / 4, 4, 0xd4200000
arena_text_end:

.text
.globl run_table
.type run_table, @function
run_table:
    stp x29, x30, [sp, #-16]!
    LOAD x19, hazards
    LOAD x20, results
    mov x21, #0
1:  LOAD x0, hazards_end
    cmp x19, x0
    b.hs 5f
    LOAD x0, only
    ldr x0, [x0]
    cmn x0, #1
    ccmp x0, x21, #4, ne
    b.ne 4f
    ldr x0, [x19, #ENTRY_NEEDS]
    LOAD x1, features
    ldr x1, [x1]
    bics xzr, x0, x1
    b.ne 4f
    bl run_states
4:  add x19, x19, #ENTRY_SIZE
    add x20, x20, #RESULT_SIZE * STATES
    add x21, x21, #1
    b 1b
5:  ldp x29, x30, [sp], #16
    ret
    .size run_table, . - run_table

# x19: the entry; x20: its results
run_states:
    stp x29, x30, [sp, #-32]!
    str x20, [sp, #16]
    LOAD x22, inputs
    mov x23, #STATES
1:  LOAD x0, repeat
    ldr x24, [x0]
2:  bl run_one
    subs x24, x24, #1
    b.gt 2b
    add x22, x22, #STATE_SIZE
    add x20, x20, #RESULT_SIZE
    subs x23, x23, #1
    b.ne 1b
    ldr x20, [sp, #16]
    ldp x29, x30, [sp], #32
    ret

# from, to: left behind the end
.macro COPY from, to, bytes
    mov x2, #(\bytes) / 8
9:  ldr x3, [\from], #8
    str x3, [\to], #8
    subs x2, x2, #1
    b.ne 9b
.endm

# All of them but x30, which has the address.
.macro PAIRS access
    .irp pair, "0, x1, 0", "2, x3, 16", "4, x5, 32", "6, x7, 48", "8, x9, 64", "10, x11, 80", "12, x13, 96"
    PAIR \access, \pair
    .endr
    .irp pair, "14, x15, 112", "16, x17, 128", "18, x19, 144", "20, x21, 160", "22, x23, 176", "24, x25, 192"
    PAIR \access, \pair
    .endr
    .irp pair, "26, x27, 208", "28, x29, 224"
    PAIR \access, \pair
    .endr
.endm

.macro PAIR access, first, second, at
    \access x\first, \second, [x30, #\at]
.endm

# x19: the entry; x20: the result; x22: the input
run_one:
    stp x29, x30, [sp, #-16]!
    LOAD x0, runner
    mov x1, sp
    str x1, [x0]
    stp x19, x20, [x0, #8]
    stp x21, x22, [x0, #24]
    stp x23, x24, [x0, #40]
    mrs x1, daif
    str x1, [x0, #56]

    LOAD x0, scratch_input
    LOAD x1, scratch
    COPY x0, x1, SCRATCH_SIZE
    LOAD x0, stack_input
    LOAD x1, hazard_stack
    mov sp, x1
    COPY x0, x1, STACK_SEEN
    ldr x0, [x20, #RESULT_RUNS]
    add x0, x0, #1
    str x0, [x20, #RESULT_RUNS]

    LOAD x1, now_code
    ldr x0, [x19, #ENTRY_CODE]
    str x0, [x1]
    LOAD x1, now_site
    ldr x0, [x19, #ENTRY_SITE]
    str x0, [x1]
    msr fpsr, xzr                       // what the last function left
    msr fpcr, xzr
    clrex
    ldp q0, q1, [x22, #SAVED_V]
    ldp q2, q31, [x22, #SAVED_V + 32]
    LOAD x1, started
    mrs x0, pmccntr_el0
    str x0, [x1]
    ldr x0, [x22, #SAVED_NZCV]
    msr nzcv, x0
    mov x30, x22
    PAIRS ldp
    adrp x30, now_code
    ldr x30, [x30, #:lo12:now_code]
    blr x30
.globl returned
returned:
    msr tpidr_el0, x30
    LOAD x30, captured
    PAIRS stp
    mrs x1, pmccntr_el0
    mrs x0, tpidr_el0
    str x0, [x30, #SAVED_LR]
    mov x0, sp
    str x0, [x30, #SAVED_SP]
    mrs x0, nzcv
    mrs x2, daif
    stp x0, x2, [x30, #SAVED_NZCV]
    mrs x0, fpsr
    mrs x2, fpcr
    stp x0, x2, [x30, #SAVED_FPSR]
    mrs x0, sp_el0
    str x0, [x30, #SAVED_SP_EL0]
    LOAD x0, started
    ldr x0, [x0]
    sub x9, x1, x0

    LOAD x0, runner
    ldr x1, [x0]
    mov sp, x1
    ldp x19, x20, [x0, #8]
    ldp x21, x22, [x0, #24]
    ldp x23, x24, [x0, #40]
    ldr x1, [x0, #56]
    msr daif, x1
    LOAD x0, spare_stack
    msr sp_el0, x0
    stp q0, q1, [x20, #SAVED_V]
    stp q2, q31, [x20, #SAVED_V + 32]
    str x9, [x20, #RESULT_TICKS]
    LOAD x0, captured
    mov x1, x20
    COPY x0, x1, RESULT_RUNS
    LOAD x0, hazard_stack
    add x1, x20, #RESULT_STACK
    COPY x0, x1, STACK_SEEN
    LOAD x0, scratch
    add x1, x20, #RESULT_MEMORY
    COPY x0, x1, SCRATCH_SIZE
    ldp x29, x30, [sp], #16
    ret

# What the hazards call and jump to.
.globl leaf, skip, distant_leaf
.type leaf, @function
leaf:                                   // the return address is an output: it must be the original one
    VENEER
    mov x3, x30
    add x21, x21, #1
    ret
    .size leaf, . - leaf

skip:                                   // one that comes back behind the instruction after the call
    VENEER
    mov x3, x30
    add x30, x30, #4
    ret

.section .distant, "ax"
distant_leaf:
    VENEER
    mov x3, x30
    add x21, x21, #2
    ret

.section .data, "aw"
.globl only, repeat, inputs, scratch_input, stack_input, cpu, now_site
    .balign 64
cpu:      .quad scratch + SCRATCH_SIZE / 2, leaf, ticks, 0, 0, 0, 0, 0
only:     .quad -1
repeat:   .quad 1
now_code: .quad 0
now_site: .quad 0

    .balign 64
inputs:
    .fill STATE_SIZE, 1, 0              // zeros

    .rept 32
    .quad -1                            // ones; every flag
    .endr
    .quad 0xf0000000, 0, 0, 0, 0, 0, 0, 0
    .quad -1, -1, -1, -1, -1, -1, -1, -1
    .fill (STATE_SIZE - 384) / 8, 8, 0

    .set number, 0
    .rept 32
    .quad number * 0x0101010101010101
    .set number, number + 1
    .endr
    .quad 0x20000000, 0, 0, 0, 0, 0, 0, 0           // C
    .quad 0x4000000000000000, 0x4000000000000000, 0x3ff8000000000000, 0x3ff8000000000000    // 2.0, 1.5
    .quad 0x1111111111111111, 0x2222222222222222, 0x3333333333333333, 0x4444444444444444
    .fill (STATE_SIZE - 384) / 8, 8, 0

    .quad 0x9e3779b97f4a7c15, 0, 0x2545f4914f6cdd1d, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0x2545f4914f6cdd1d
    .quad 0xd1342543de82ef95, 0xaf251af3b0f025b5, 0xda942042e4dd58b5, 0x8000000000000000
    .quad 0x7fffffffffffffff, 0x00000000ffffffff, 0xffffffff00000000, 0
    .quad 0x0000000080000000, 0xffffffff80000000, 0x00000000000000ff, 0x0000000000000100
    .quad 0x0123456789abcdef, 0xfedcba9876543210, 0x0f1e2d3c4b5a6978, 0x8796a5b4c3d2e1f0
    .quad 0x1, 0x2, 0x3, 0x3f, 0x40, 0x41, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x1000, 0x2000
    .quad 0x80000000, 0, 0, 0, 0, 0, 0, 0           // N: each condition holds in some and in others not
    .quad 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000, 0x0000000000000001
    .quad 0x0123456789abcdef, 0xfedcba9876543210, 0x0f1e2d3c4b5a6978, 0x8796a5b4c3d2e1f0
    .fill (STATE_SIZE - 384) / 8, 8, 0

scratch_input:
    .set byte, 0
    .rept SCRATCH_SIZE
    .byte (byte * 37 + 11) & 0xff
    .set byte, byte + 1
    .endr

stack_input:
    .set byte, 0
    .rept STACK_SEEN
    .byte (byte * 29 + 5) & 0xff
    .set byte, byte + 1
    .endr

.section .bss, "aw", @nobits
.globl scratch, results, hazard_stack, arena_data, arena_data_end
    .balign 256
scratch:
    .skip SCRATCH_SIZE
captured:
    .skip RESULT_RUNS
started: .skip 8
    .balign 16
runner:  .skip 64

    .balign 4096
    .skip 131072
hazard_stack:                           // a function's sp; its caller's frame is above
    .skip STACK_SEEN

    .balign 4096
arena_data:
    .skip 65536
arena_data_end:

    .balign 1024
results:
    .skip RESULT_SIZE * STATES * 512
