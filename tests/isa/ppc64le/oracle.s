# A machine to run pieces of code on, under qemu-ppc64le (user mode): see oracle.py.
#
# Cases come on standard input, each CASE bytes: registers to begin with, PATCHES words to write first. Each ends with
# a signal; then all registers, and the words of DATA that changed, go to standard output, and DATA becomes what it was.

    .machine power10
    .abiversion 2
    .set CASE, 1192 + 8 * PATCHES
    .set REGISTERS, 1192              # 48 gregs, 33 fregs, 34 vectors, as in a signal's context
    .set GREGS, 232                   # of a ucontext, arch/powerpc/include/uapi/asm/sigcontext.h
    .set FREGS, GREGS + 8 * 48
    .set VREGS, FREGS + 8 * 33
    .set DATA, 0x40000000
    .set PRISTINE, 0x48000000
    .set FILLED, 0x10000               # of DATA, with anything; the rest is zeros
    .set CODE_SIZE, 0x20000

    .macro constant reg, value
    lis \reg, \value@h
    ori \reg, \reg, \value@l
    .endm

    .macro map address, size
    constant 3, \address
    constant 4, \size
    li 5, 7                           # read, write, execute
    li 6, 0x32                        # private, fixed, anonymous
    li 7, -1
    li 8, 0
    li 0, 90                          # mmap
    sc
    .endm

    .macro code address
    map \address, CODE_SIZE
    constant 3, \address
    constant 4, CODE_SIZE / 4
    bl fill
    .endm

    .globl _start
_start:
    map 0x60000000, 0x100000          # the signal stack, then buffers
    map DATA, DATA_SIZE
    map PRISTINE, DATA_SIZE
    code 0x20000000
    code 0x20100000
    code 0x21800000
    code 0x1e800000
    constant 3, DATA
    constant 4, PRISTINE
    constant 5, FILLED / 8
    mtctr 5
    constant 6, 0x9e3779b1
1:  mulld 7, 3, 6
    rotldi 7, 7, 29
    std 7, 0(3)
    std 7, 0(4)
    addi 3, 3, 8
    addi 4, 4, 8
    bdnz 1b

    lis 3, alternate@h
    ori 3, 3, alternate@l
    li 4, 0
    li 0, 185                         # sigaltstack
    sc
    li 30, 0
2:  addi 30, 30, 1
    cmpdi 30, 12
    beq 3f
    mr 3, 30
    lis 4, action@h
    ori 4, 4, action@l
    li 5, 0
    li 6, 8
    li 0, 173                         # rt_sigaction
    sc
    b 2b
3:  trap

fill:
    mtctr 4
    lis 5, 0x7fe0
    ori 5, 5, 8                       # trap
1:  stw 5, 0(3)
    addi 3, 3, 4
    bdnz 1b
    blr

handler:
    mflr 31
    addi 30, 5, GREGS
    constant 29, 0x60040000           # what is written
    std 3, 0(29)
    addi 28, 29, 16
    mr 3, 28
    mr 4, 30
    li 5, (48 + 33) * 8
    bl copy
    addi 3, 28, (48 + 33) * 8
    ld 4, VREGS - GREGS(30)
    li 5, 34 * 16
    bl copy
    addi 28, 28, REGISTERS
    # the words of DATA that changed
    constant 3, DATA
    constant 4, PRISTINE
    constant 5, DATA_SIZE / 8
    mtctr 5
    li 8, 0
1:  ld 6, 0(3)
    ld 7, 0(4)
    cmpd 6, 7
    beq 2f
    std 3, 0(28)
    std 6, 8(28)
    addi 28, 28, 16
    addi 8, 8, 1
    std 7, 0(3)
2:  addi 3, 3, 8
    addi 4, 4, 8
    bdnz 1b
    std 8, 8(29)
    li 3, 1
    mr 4, 29
    subf 5, 29, 28
    li 0, 4                           # write
    sc
    # the next case
    constant 27, 0x60020000
    li 3, 0
    mr 4, 27
    li 5, CASE
    li 0, 3                           # read
    sc
    cmpdi 3, CASE
    beq 3f
    li 3, 0
    li 0, 234                         # exit_group
    sc
3:  ld 26, 33 * 8(30)                 # MSR as it is
    mr 3, 30
    mr 4, 27
    li 5, (48 + 33) * 8
    bl copy
    std 26, 33 * 8(30)
    ld 3, VREGS - GREGS(30)
    addi 4, 27, (48 + 33) * 8
    li 5, 34 * 16
    bl copy
    addi 3, 27, REGISTERS
    li 4, PATCHES
    mtctr 4
4:  lwz 5, 0(3)
    lwz 6, 4(3)
    cmpwi 5, 0
    beq 5f
    stw 6, 0(5)
    dcbst 0, 5
    sync
    icbi 0, 5
5:  addi 3, 3, 8
    bdnz 4b
    isync
    mtlr 31
    blr                               # to rt_sigreturn

copy:
    srdi 5, 5, 3
    mtctr 5
1:  ld 6, 0(4)
    std 6, 0(3)
    addi 3, 3, 8
    addi 4, 4, 8
    bdnz 1b
    blr

    .data
    .balign 8
alternate:
    .quad 0x60000000, 0, 0x10000
action:
    .quad handler, 0x48000004, 0, 0   # no-defer, on the alternate stack, with its context
