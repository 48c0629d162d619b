# The library of library.py on ppc64le: who calls by a pointer comes in at the global entry.
.abiversion 2
.globl answer
.type answer, @function
answer: .cfi_startproc
        addis 2, 12, (.TOC. - answer)@ha
        addi 2, 2, (.TOC. - answer)@l
.localentry answer, . - answer
        mflr 0
        .cfi_register lr, r0
        std 31, -8(1)
        bcl 20, 31, 1f
1:      mflr 31
        lwz 3, value - 1b(31)
        mulli 3, 3, 1
        mtlr 0
        .cfi_restore lr
        ld 31, -8(1)
        blr
        .cfi_endproc
.size answer, . - answer
value:  .long 7
