# The program of calls.py on ppc64le: `test` has a global entry, which nobody calls, and instructions of all sorts. With
# two arguments it waits first until its input ends.
.abiversion 2
.globl _start
call_test: mflr 0
        std 0, 16(1)
        stdu 1, -32(1)
        bl test
        addi 1, 1, 32
        ld 0, 16(1)
        mtlr 0
        blr
_start: ld 14, 0(1)
        stdu 1, -64(1)
        cmpdi 14, 1
        beq begin
        cmpdi 14, 3
        beq wait
        li 0, 2
        sc
        mr 15, 3
        b begin
wait:   li 0, 3
        li 3, 0
        addi 4, 1, 32
        li 5, 1
        sc
        cmpdi 3, 0
        bgt wait
        li 14, 1
begin:  lis 16, leaf@ha
        addi 16, 16, leaf@l
        lis 17, COUNT@h
        ori 17, 17, COUNT@l
        li 18, 0
again:  mr 3, 17
        bl call_test
        add 18, 18, 3
        rotldi 18, 18, 1
        addi 17, 17, -1
        cmpdi 17, 0
        bne again
        cmpdi 14, 1
        beq ended
        cmpdi 15, 0
        beq ended
        li 0, 114
        li 3, -1
        addi 4, 1, 32
        li 5, 0
        li 6, 0
        sc
        lbz 3, 33(1)
        add 18, 18, 3
ended:  srdi 4, 18, 16
        xor 3, 18, 4
        andi. 3, 3, 127
        li 0, 1
        sc
.type test, @function
test:   addis 2, 12, (.TOC. - test)@ha
        addi 2, 2, (.TOC. - test)@l
.localentry test, . - test
        mflr 0
        std 0, 16(1)
        std 31, -8(1)
        stdu 1, -64(1)
        mr 31, 1
        std 3, 32(31)
        mulli 3, 3, 5
        addi 3, 3, 3
        xori 3, 3, 0x55
        bl inner
        ld 4, 32(31)
        cmpldi cr5, 4, 5
        bge cr5, 2f
        nop
2:      addic 3, 3, -1
        adde 3, 3, 4
        lis 9, value@ha
        ld 9, value@l(9)
        add 3, 3, 9
        bcl 20, 31, 3f
3:      mflr 10
        add 3, 3, 10
        li 5, 1
        mtctr 5
        bdz 4f
4:      mfctr 5
        bc 20, 31, 5f
5:      add 3, 3, 5
        addi 1, 1, 64
        ld 31, -8(1)
        ld 0, 16(1)
        mtlr 0
        blr
.size test, . - test
.type inner, @function
inner:  mflr 0
        std 0, 16(1)
        stdu 1, -32(1)
        b 6f
6:      mulld 3, 3, 3
        mtctr 16
        bctrl
        addi 1, 1, 32
        ld 0, 16(1)
        mtlr 0
        blr
.size inner, . - inner
.type leaf, @function
leaf:   cmpd cr7, 3, 16
        crxor 31, 31, 30
        isel 4, 3, 16, 30
        mfcr 5
        extsw 4, 4
        rlwinm 5, 5, 3, 7, 30
        xor 4, 4, 5
        add 3, 3, 4
        beqlr cr7
        blr
.size leaf, . - leaf
.balign 8
value:  .quad 0x123456789
        .byte 0  # so that the code ends at no multiple of anything
