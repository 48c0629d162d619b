# The program of returning_program.py on ppc64le: without signals, threads and waiting. `forks` and `leaf` have no frame.
.abiversion 2
.globl _start
_start: ld 16, 0(1)
        stdu 1, -64(1)
        cmpdi 16, 1
        beq begin
        li 3, CROWD
        bl crowds
        cmpdi 15, CROWD
        bne wrong
        cmpdi 3, 0
        beq child
        b fine
begin:  li 17, COUNT
round:  li 3, DEPTH
        bl deep
        cmpdi 3, DEPTH
        bne wrong
        li 3, 5
        bl first
after:  cmpdi 3, 8
        bne wrong
        mflr 4
        lis 5, after@ha
        addi 5, 5, after@l
        cmpd 4, 5
        bne wrong
        mr 14, 1
        li 3, 3
        bl jumper
back:   cmpd 14, 1
        bne wrong
        bl forks
        cmpdi 3, 0
        beq child
        bl shares
        cmpdi 3, 3
        bne wrong
        addi 17, 17, -1
        cmpdi 17, 0
        bne round
fine:   li 3, 42
        b exit
child:  li 3, 7
        b exit
wrong:  li 3, 1
exit:   li 0, 234
        sc
.type deep, @function
deep:   mflr 0
        std 0, 16(1)
        stdu 1, -48(1)
        cmpdi 3, 0
        beq bottom
        addi 3, 3, -1
        bl deep
        addi 3, 3, 1
bottom: addi 1, 1, 48
        ld 0, 16(1)
        mtlr 0
        blr
.size deep, . - deep
.type crowds, @function
crowds: mflr 0
        std 0, 16(1)
        stdu 1, -32(1)
        cmpdi 3, 0
        beq 1f
        addi 3, 3, -1
        bl crowds
        addi 15, 15, 1
2:      addi 1, 1, 32
        ld 0, 16(1)
        mtlr 0
        blr
1:      li 15, 0
        bl forks
        b 2b
.size crowds, . - crowds
.type leaf, @function
leaf:   addi 3, 3, 3
        blr
.size leaf, . - leaf
.type first, @function
first:  mr 4, 3
        b last
.size first, . - first
.type last, @function
last:   mflr 0
        std 0, 16(1)
        stdu 1, -32(1)
        bl leaf
        addi 1, 1, 32
        ld 0, 16(1)
        mtlr 0
        blr
.size last, . - last
.type jumper, @function
jumper: mflr 0
        std 0, 16(1)
        stdu 1, -32(1)
        addi 3, 3, -1
        cmpdi 3, 0
        beq 1f
        bl jumper
1:      mr 1, 14
        b back
.size jumper, . - jumper
.type forks, @function
forks:  li 0, 2
        sc
        cmpdi 3, 0
        beqlr
        li 0, 114
        li 3, -1
        addi 4, 1, -64
        li 5, 0
        li 6, 0
        sc
        lwz 5, -64(1)
        cmpwi 5, 0x700
        bne wrong
        blr
.size forks, . - forks
.type shares, @function
shares: mflr 0
        std 0, 16(1)
        stdu 1, -48(1)
        li 0, 189
        sc
        cmpdi 3, 0
        bne 1f
        bl leaf
        li 0, 1
        li 3, 0
        sc
1:      li 0, 114
        li 3, -1
        li 4, 0
        li 5, 0
        li 6, 0
        sc
        li 3, 0
        bl leaf
        addi 1, 1, 48
        ld 0, 16(1)
        mtlr 0
        blr
.size shares, . - shares
