# From the firmware's entry (big-endian, maybe 32-bit, real mode) to little-endian 64-bit code; interrupts, faults,
# the console. The hypervisor is QEMU itself: PAPR's calls, by `sc 1` with the number in r3.

.include "layout.inc"

.set H_PUT_TERM_CHAR, 0x58
.set H_CEDE,          0xe0
.set H_SET_MODE,      0x31c
.set MODE_LE,         4
.set TICK,            2048000           # of the time base's 512 MHz: 250 in a second
.set SRR1_TRAP,       0x2

.macro BIG_ENDIAN_CODE words:vararg
    .irp word, \words
    .byte \word >> 24 & 0xff, \word >> 16 & 0xff, \word >> 8 & 0xff, \word & 0xff
    .endr
.endm

.section .boot, "ax"
.globl boot
boot:
    BIG_ENDIAN_CODE 0x7d6000a6          # mfmsr r11
    BIG_ENDIAN_CODE 0x616b0001          # ori r11, r11, 1         LE
    BIG_ENDIAN_CODE 0x429f0005          # bcl 20, 31, .+4
    BIG_ENDIAN_CODE 0x7d4802a6          # mflr r10
    BIG_ENDIAN_CODE 0x394a0014          # addi r10, r10, 20       the word after rfid
    BIG_ENDIAN_CODE 0x7d5a03a6          # mtsrr0 r10
    BIG_ENDIAN_CODE 0x7d7b03a6          # mtsrr1 r11
    BIG_ENDIAN_CODE 0x4c000024          # rfid
    li r3, 1
    rldicr r3, r3, 63, 0                # SF
    ori r3, r3, 0x3002                  # FP, ME, RI
    oris r3, r3, 0x280                  # VEC, VSX
    ori r3, r3, 1
    LOAD r4, start
    mtsrr0 r4
    mtsrr1 r3
    rfid

.text
start:
    LOAD r1, stack_top
    LOAD r2, toc
    LOAD r13, cpu
    bl set_vectors
    bl set_features
    li r3, 0
    mtspr SPR_MMCR0, r3                 # nothing frozen: PMC6 counts cycles, under icount instructions
    LOAD r3, TICK
    mtdec r3
    LOAD r3, ready_text
    bl print
    b wait_for_go

# Copy the vectors to where the CPU looks for them and have it take interrupts little-endian.
set_vectors:
    LOAD r3, vectors_image - 8
    LOAD r4, vectors - 8
    LOAD r5, vectors_length
    ld r5, 0(r5)
    srdi r5, r5, 3
    mtctr r5
1:  ldu r6, 8(r3)
    stdu r6, 8(r4)
    bdnz 1b
    sync
    isync
    li r3, H_SET_MODE
    li r4, 1
    li r5, MODE_LE
    li r6, 0
    li r7, 0
    sc 1
    blr

# features: the NEEDS_ bits this CPU has, from its version; what they need is switched on.
set_features:
    mfpvr r3
    srdi r3, r3, 16
    li r4, 0
    cmpwi r3, 0x4b                      # POWER8: 0x4b to 0x4d
    blt 2f
    cmpwi r3, 0x4d
    ble 2f
    li r4, NEEDS_ISA30
    li r5, 0x1104                       # FSCR: SCV, TAR, DSCR
    cmpwi r3, 0x80                      # POWER10
    blt 1f
    ori r4, r4, NEEDS_ISA31
    ori r5, r5, 0x2000                  # FSCR: prefixed instructions
1:  mtspr SPR_FSCR, r5
2:  LOAD r3, features
    std r4, 0(r3)
    blr

# Cede the CPU until `go` is not zero: the tick looks again. The table's functions run with interrupts off.
.globl wait_for_go, ready, done
.type wait_for_go, @function
wait_for_go:
    LOAD r14, go
ready:
    ld r3, 0(r14)
    cmpdi r3, 0
    bne 1f
    li r3, H_CEDE
    sc 1
    li r3, 2
    mtmsrd r3, 1                        # EE off
    b ready
1:  bl run_table
    LOAD r14, go
    ld r3, 0(r14)
    addi r3, r3, -1
    std r3, 0(r14)
    LOAD r4, rounds
    ld r3, 0(r4)
    addi r3, r3, 1
    std r3, 0(r4)
done:
    b wait_for_go
    .size wait_for_go, . - wait_for_go

tick:
    mtsprg 1, r11
    mtsprg 2, r12
    LOAD r11, ticks
    ld r12, 0(r11)
    addi r12, r12, 1
    std r12, 0(r11)
    LOAD r11, TICK
    mtdec r11
    mfsprg r11, 1
    mfsprg r12, 2
    rfid

# What `sc` and `scv` do here: something to be seen in the outputs.
system_call:
    addi r3, r3, 0xc00
    rfid

# A trap is gone over, as Linux does after a WARN; anything else here is the end.
program_check:
    mtsprg 1, r11
    mtsprg 2, r12
    mfcr r12
    mfsrr1 r11
    andis. r11, r11, SRR1_TRAP
    beq 1f
    mtcr r12
    mfsrr0 r11
    addi r11, r11, 4
    mtsrr0 r11
    mfsprg r11, 1
    mfsprg r12, 2
    addi r3, r3, 0x700
    rfid
1:  li r3, 0x700
    b fault

# r3: the vector. An exception is the end: leave what it was where a debugger finds it, say so, halt.
.globl fault
.type fault, @function
fault:
    LOAD r4, fault_vector
    std r3, 0(r4)
    mfsrr0 r3
    std r3, 8(r4)
    mfsrr1 r3
    std r3, 16(r4)
    mfdar r3
    std r3, 24(r4)
    LOAD r1, stack_top
    LOAD r3, fault_text
    bl print
1:  li r3, H_CEDE
    sc 1
    b 1b
    .size fault, . - fault

# r3: text, ended by NUL
print:
    addi r14, r3, -1
1:  lbzu r6, 1(r14)
    cmpwi r6, 0
    beqlr
    sldi r6, r6, 56
    li r3, H_PUT_TERM_CHAR
    li r4, 0                            # the first console
    li r5, 1
    li r7, 0
    sc 1
    b 1b

.section .vectors, "ax"
.macro FAULTS vectors:vararg
    .irp at, \vectors
    .org \at
    li r3, \at
    b fault
    .endr
.endm

    FAULTS 0x100, 0x200, 0x300, 0x380, 0x400, 0x480, 0x500, 0x600
    .org 0x700
    b program_check
    FAULTS 0x800
    .org 0x900
    b tick
    FAULTS 0x980, 0xa00, 0xb00
    .org 0xc00
    b system_call
    FAULTS 0xd00, 0xe00, 0xe20, 0xe40, 0xe60, 0xe80, 0xea0, 0xf00, 0xf20, 0xf40, 0xf60, 0xf80, 0x1500, 0x1700

    .org 0x2000
.globl low_leaf
low_leaf:                               # what absolute branches reach
    mflr r3
    addi r29, r29, 1
    blr

    .org 0x17000                        # scv
    addi r3, r3, 0x300
    rfscv
    .balign 8

.section .data, "aw"
ready_text: .asciz "optprobe-guest: ready\n"
fault_text: .asciz "optprobe-guest: BUG: exception\n"

.globl go, rounds, ticks, features, fault_vector, fault_pc, fault_msr, fault_address
    .balign 8
vectors_length:.quad vectors_size
go:            .quad 0
rounds:        .quad 0
ticks:         .quad 0
features:      .quad 0
fault_vector:  .quad -1
fault_pc:      .quad 0
fault_msr:     .quad 0
fault_address: .quad 0

.section .bss, "aw", @nobits
    .balign 16
    .skip 8192
stack_top:
    .skip 512
