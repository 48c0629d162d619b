# The program of stacked.py on ppc64le.
.abiversion 2
.globl _start
.type _start, @function
_start: .cfi_startproc
        .cfi_undefined lr
        stdu 1, -32(1)
        .cfi_def_cfa_offset 32
        bl outer
        bl bare
        li 0, 1
        li 3, 0
        sc
        .cfi_endproc
.size _start, . - _start
.type outer, @function
outer:  .cfi_startproc
        mflr 0
        .cfi_register lr, r0
        std 31, -8(1)
        std 0, 16(1)
        stdu 1, -64(1)
        .cfi_def_cfa_offset 64
        .cfi_offset lr, 16
        .cfi_offset r31, -8
        li 31, 0
        bl middle
        addi 1, 1, 64
        .cfi_def_cfa_offset 0
        ld 0, 16(1)
        ld 31, -8(1)
        .cfi_restore r31
        mtlr 0
        .cfi_restore lr
        blr
        .cfi_endproc
.size outer, . - outer
.type middle, @function
middle: .cfi_startproc
        mflr 0
        .cfi_register lr, r0
        std 31, -8(1)
        .cfi_offset r31, -8
        std 0, 16(1)
        stdu 1, -64(1)
        .cfi_def_cfa_offset 64
        .cfi_offset lr, 16
        mr 31, 1
        .cfi_def_cfa_register r31
        stdu 1, -128(1)
        bl inner
        addi 1, 31, 64
        .cfi_def_cfa r1, 0
        ld 0, 16(1)
        ld 31, -8(1)
        .cfi_restore r31
        mtlr 0
        .cfi_restore lr
        blr
        .cfi_endproc
.size middle, . - middle
.type inner, @function
inner:  .cfi_startproc
        mflr 0
        .cfi_register lr, r0
        li 4, 0
        mtlr 4
        nop
        mtlr 0
        .cfi_restore lr
        blr
        .cfi_endproc
.size inner, . - inner
.type bare, @function
bare:   mflr 0
        std 0, 16(1)
        stdu 1, -48(1)
        bl inner
        addi 1, 1, 48
        ld 0, 16(1)
        mtlr 0
        blr
.size bare, . - bare
