# Run the table of hazards: for each function and each input state, load every register, call, keep what came out.
#
#     hazards[N]                    64 bytes each, up to hazards_end
#     ┌────────┬────────┬────────┬────────┬────────┬───────────┐
#     │ +0     │ +8     │ +16    │ +24    │ +32    │ +40       │
#     │ name   │ hz_X   │ hz_X_  │ its    │ needs  │ 0         │      name: address of a NUL-ended string
#     │        │        │ site   │ end    │        │           │      needs: bits 1 ISA 3.0, 2 ISA 3.1
#     └────────┴────────┴────────┴────────┴────────┴───────────┘
#     inputs[4]                     512 bytes each; a debugger may write its own
#     ┌──────────┬──────┬──────┬──────┬──────┬────────┬────────────────────┬───────┐
#     │ +0       │ +256 │ +264 │ +272 │ +280 │ +288   │ +320               │ +384  │
#     │ r0 … r31 │ cr   │ -    │ ctr  │ xer  │ 0      │ vs0 vs1 vs32 vs33  │ 0     │      r1, r2 and r13 are the runner's:
#     └──────────┴──────┴──────┴──────┴──────┴────────┴────────────────────┴───────┘      stack, `toc`, `cpu`
#     scratch_input  256 bytes, copied to `scratch` before each run; what functions read and write
#     stack_input    320 bytes, copied to where r1 points before each run, from 256 bytes below
#
#     results[N][4]                 1024 bytes each
#     ┌──────────┬──────┬──────┬──────┬──────┬──────┬──────┬───────┬──────┬────────────────────┬────────┬─────────┐
#     │ +0       │ +256 │ +264 │ +272 │ +280 │ +288 │ +296 │ +304  │ +312 │ +320               │ +384   │ +704    │
#     │ r0 … r31 │ cr   │ lr   │ ctr  │ xer  │ msr  │ runs │ ticks │ tar  │ vs0 vs1 vs32 vs33  │ stack  │ scratch │
#     └──────────┴──────┴──────┴──────┴──────┴──────┴──────┴───────┴──────┴────────────────────┴────────┴─────────┘
#     runs:  how often this pair has been run since boot; 0 where the CPU lacks what the function needs
#     ticks: cycles around the call; under icount instructions, a fixed number of them the runner's
#     vs*:   doubleword 0 first, then doubleword 1
#
#     go      write n to run n rounds; counts down         only   index of the one hazard to run; -1: all
#     rounds  counts up; `done` is executed after each     repeat how often in a row each pair is run, at least 1
#     arena_text (64 KiB of traps inside .text), arena_data (64 KiB at `toc`): free for whoever patches the guest

.include "layout.inc"

.set FRAME, 64

.section .text.arena, "ax"
.globl arena_text, arena_text_end
arena_text:
    .fill 65536 / 4, 4, 0x7fe00008
arena_text_end:

.text
.globl run_table
.type run_table, @function
run_table:
    mflr r0
    std r0, 16(r1)
    stdu r1, -FRAME(r1)
    LOAD r14, hazards
    LOAD r15, results
    li r16, 0
1:  LOAD r3, hazards_end
    cmpld r14, r3
    bge 5f
    LOAD r3, only
    ld r3, 0(r3)
    cmpdi r3, -1
    beq 2f
    cmpd r3, r16
    bne 4f
2:  ld r3, ENTRY_NEEDS(r14)
    LOAD r4, features
    ld r4, 0(r4)
    andc. r3, r3, r4
    bne 4f
    bl run_states
4:  addi r14, r14, ENTRY_SIZE
    addi r15, r15, RESULT_SIZE * STATES
    addi r16, r16, 1
    b 1b
5:  addi r1, r1, FRAME
    ld r0, 16(r1)
    mtlr r0
    blr
    .size run_table, . - run_table

# r14: the entry; r15: its results
run_states:
    mflr r0
    std r0, 16(r1)
    stdu r1, -FRAME(r1)
    std r15, 32(r1)
    LOAD r17, inputs
    li r18, STATES
1:  LOAD r3, repeat
    ld r19, 0(r3)
2:  bl run_one
    addi r19, r19, -1
    cmpdi r19, 0
    bgt 2b
    addi r17, r17, STATE_SIZE
    addi r15, r15, RESULT_SIZE
    addi r18, r18, -1
    cmpdi r18, 0
    bne 1b
    ld r15, 32(r1)
    addi r1, r1, FRAME
    ld r0, 16(r1)
    mtlr r0
    blr

# from, to: left behind the end
.macro COPY from, to, bytes
    li r3, (\bytes) / 8
    mtctr r3
9:  ld r3, 0(\from)
    std r3, 0(\to)
    addi \from, \from, 8
    addi \to, \to, 8
    bdnz 9b
.endm

# r14: the entry; r15: the result; r17: the input
run_one:
    mflr r0
    std r0, 16(r1)
    LOAD r3, runner
    std r1, 0(r3)
    .irp n, 14, 15, 16, 17, 18, 19
    std r\n, 8 * (\n - 13)(r3)
    .endr
    mfmsr r4
    std r4, 56(r3)

    LOAD r4, scratch_input
    LOAD r5, scratch
    COPY r4, r5, SCRATCH_SIZE
    LOAD r4, stack_input
    LOAD r5, hazard_stack - STACK_BELOW
    COPY r4, r5, STACK_SEEN
    ld r3, RESULT_RUNS(r15)
    addi r3, r3, 1
    std r3, RESULT_RUNS(r15)

    ld r3, ENTRY_CODE(r14)
    mtspr SPR_TAR, r3
    ld r3, SAVED_CR(r17)
    mtcr r3
    ld r3, SAVED_CTR(r17)
    mtctr r3
    ld r3, SAVED_XER(r17)
    mtxer r3
    xxlxor 0, 0, 0
    xxlxor 32, 32, 32
    mtfsf 0xff, 0                       # what the last function left in FPSCR and VSCR
    mtvscr 0
    addi r3, r17, SAVED_VSX
    li r4, 16
    lxvd2x 0, 0, r3
    lxvd2x 1, r3, r4
    addi r3, r3, 32
    lxvd2x 32, 0, r3
    lxvd2x 33, r3, r4
    mfspr r3, SPR_PMC6
    LOAD r4, started
    std r3, 0(r4)
    mr r31, r17
    LOAD r1, hazard_stack
    .irp n, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ld r\n, 8 * \n(r31)
    .endr
    bctarl 20, 0, 0
.globl returned
returned:
    mtsprg 0, r31
    LOAD r31, captured
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    std r\n, 8 * \n(r31)
    .endr
    mfspr r14, SPR_PMC6
    mfsprg r3, 0
    std r3, 8 * 31(r31)
    mfcr r3
    std r3, SAVED_CR(r31)
    mflr r3
    std r3, SAVED_LR(r31)
    mfctr r3
    std r3, SAVED_CTR(r31)
    mfxer r3
    std r3, SAVED_XER(r31)
    mfmsr r3
    std r3, SAVED_MSR(r31)
    mfspr r3, SPR_TAR
    std r3, SAVED_TAR(r31)
    LOAD r3, started
    ld r3, 0(r3)
    subf r3, r3, r14
    clrldi r20, r3, 32

    LOAD r3, runner
    ld r1, 0(r3)
    .irp n, 14, 15, 16, 17, 18, 19
    ld r\n, 8 * (\n - 13)(r3)
    .endr
    ld r4, 56(r3)
    mtmsrd r4
    LOAD r2, toc
    LOAD r13, cpu
    addi r3, r15, SAVED_VSX
    li r4, 16
    stxvd2x 0, 0, r3
    stxvd2x 1, r3, r4
    addi r3, r3, 32
    stxvd2x 32, 0, r3
    stxvd2x 33, r3, r4
    std r20, RESULT_TICKS(r15)
    ld r3, SAVED_TAR(r31)
    std r3, SAVED_TAR(r15)
    mr r5, r15
    COPY r31, r5, RESULT_RUNS
    LOAD r4, hazard_stack - STACK_BELOW
    addi r5, r15, RESULT_STACK
    COPY r4, r5, STACK_SEEN
    LOAD r4, scratch
    addi r5, r15, RESULT_MEMORY
    COPY r4, r5, SCRATCH_SIZE
    ld r0, 16(r1)
    mtlr r0
    blr

# What the hazards call and jump to.
.globl leaf, skip, distant_leaf
.type leaf, @function
leaf:                                   # the return address is an output: it must be the original one
    mflr r3
    addi r29, r29, 1
    blr
    .size leaf, . - leaf

skip:                                   # one that comes back behind the instruction after the call
    mflr r3
    addi r4, r3, 4
    mtlr r4
    blr

.section .distant, "ax"
distant_leaf:
    mflr r3
    addi r29, r29, 2
    blr

.section .data, "aw"
.globl only, repeat, inputs, scratch_input, stack_input, cpu
    .balign 64
cpu:    .quad scratch + SCRATCH_SIZE / 2, leaf, ticks, 0, 0, 0, 0, 0
only:   .quad -1
repeat: .quad 1

    .balign 64
inputs:
    .fill STATE_SIZE, 1, 0              # zeros

    .rept 32
    .quad -1                            # ones; every flag
    .endr
    .quad 0xffffffff, 0, 0xffffffffffffffff, 0xe00c0000, 0, 0, 0, 0
    .quad -1, -1, -1, -1, -1, -1, -1, -1
    .fill (STATE_SIZE - 384) / 8, 8, 0

    .set number, 0
    .rept 32
    .quad number * 0x0101010101010101
    .set number, number + 1
    .endr
    .quad 0x28000482, 0, 2, 0x20000000, 0, 0, 0, 0      # EQ in cr0; CA
    .quad 0x4000000000000000, 0x4000000000000000, 0x3ff8000000000000, 0x3ff8000000000000    # 2.0, 1.5
    .quad 0x1111111111111111, 0x2222222222222222, 0x3333333333333333, 0x4444444444444444
    .fill (STATE_SIZE - 384) / 8, 8, 0

    .quad 0x9e3779b97f4a7c15, 0, 0, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0x2545f4914f6cdd1d
    .quad 0xd1342543de82ef95, 0xaf251af3b0f025b5, 0xda942042e4dd58b5, 0x8000000000000000
    .quad 0x7fffffffffffffff, 0x00000000ffffffff, 0xffffffff00000000, 0
    .quad 0x0000000080000000, 0xffffffff80000000, 0x00000000000000ff, 0x0000000000000100
    .quad 0x0123456789abcdef, 0xfedcba9876543210, 0x0f1e2d3c4b5a6978, 0x8796a5b4c3d2e1f0
    .quad 0x1, 0x2, 0x3, 0x3f, 0x40, 0x41, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x1000, 0x2000
    .quad 0x842142f1, 0, 1, 0x80040000, 0, 0, 0, 0      # LT in cr0; SO, OV32… of XER
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
    .skip SAVED_VSX
started: .skip 8
runner:  .skip 64

    .balign 4096
    .skip 65536
hazard_stack:                           # a function's r1; its caller's frame is above
    .skip STACK_SEEN

    .balign 4096
arena_data:
    .skip 65536
arena_data_end:

    .balign 1024
results:
    .skip RESULT_SIZE * STATES * 512
