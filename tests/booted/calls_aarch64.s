// The program of calls.py on aarch64: instructions of all sorts. With two arguments it waits first until its input ends.
        .globl _start
call_test: stp x29, x30, [sp, #-16]!
        bl test
        ldp x29, x30, [sp], #16
        ret
_start: ldr x19, [sp]
        sub sp, sp, #64
        cmp x19, #1
        b.eq begin
        cmp x19, #3
        b.eq wait
        mov x0, #17
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x4, #0
        mov x8, #220
        svc #0
        mov x20, x0
        b begin
wait:   mov x0, #0
        add x1, sp, #32
        mov x2, #1
        mov x8, #63
        svc #0
        cmp x0, #0
        b.gt wait
        mov x19, #1
begin:  adr x21, leaf
        ldr x22, =COUNT
        mov x23, #0
again:  mov x0, x22
        bl call_test
        add x23, x23, x0
        ror x23, x23, #63
        subs x22, x22, #1
        b.ne again
        cmp x19, #1
        b.eq ended
        cbz x20, ended
        mov x0, #-1
        add x1, sp, #32
        mov x2, #0
        mov x3, #0
        mov x8, #260
        svc #0
        ldrb w0, [sp, #33]
        add x23, x23, x0
ended:  eor x0, x23, x23, lsr #16
        and x0, x0, #127
        mov x8, #93
        svc #0
        .type test, @function
test:   stp x29, x30, [sp, #-48]!
        mov x29, sp
        str x0, [x29, #16]
        add x0, x0, x0, lsl #2
        add x0, x0, #3
        eor x0, x0, #0x5555555555555555
        bl inner
        ldr x1, [x29, #16]
        cmp x1, #5
        b.hs 2f
        nop
2:      subs xzr, x0, #1
        adc x0, x0, x1
        ldr x2, value
        add x0, x0, x2
        adrp x3, value
        add x0, x0, x3
        adr x4, test
        add x0, x0, x4
        mov x5, #1
        cbnz x5, 3f
3:      tbz x5, #3, 4f
4:      csel x6, x5, x1, hi
        add x0, x0, x6
        stp x0, x1, [sp, #32]
        ldrsw x7, [sp, #32]
        add x0, x0, x7
        ldp x29, x30, [sp], #48
        ret
        .size test, . - test
        .type inner, @function
inner:  stp x29, x30, [sp, #-16]!
        b 5f
5:      mul x0, x0, x0
        blr x21
        ldp x29, x30, [sp], #16
        ret
        .size inner, . - inner
        .type leaf, @function
leaf:   cmp x0, x21
        ccmp x0, #7, #4, ne
        mrs x4, nzcv
        ubfx x5, x0, #3, #20
        bfi x4, x5, #4, #12
        sxtw x4, w4
        add x0, x0, x4
        ret
        .size leaf, . - leaf
        .balign 8
value:  .quad 0x123456789
        .ltorg
        .byte 0  // so that the code ends at no multiple of anything
