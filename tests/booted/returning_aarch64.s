// The program of returning_program.py on aarch64. In place of `jumper`, which returns nowhere, `left` calls what jumps out of
// it; `forks` and `leaf` have no frame; `deep` and `crowds` sign their return address, and return in two places.
        .global _start
_start: ldr x16, [sp]
        mov x22, #COUNT
        cmp x16, #1
        b.eq begin
        cmp x16, #2
        b.hi crowd
        bl waits
        cmp x0, #9
        b.ne wrong
        b begin
crowd:  mov x0, #CROWD
        bl crowds
        cmp x21, #CROWD
        b.ne wrong
        cbz x0, child
        b fine
begin:  mov x0, #10
        adrp x1, action
        add x1, x1, :lo12:action
        mov x2, #0
        mov x3, #8
        mov x8, #134            // rt_sigaction(SIGUSR1, &action, 0, 8)
        svc #0
round:  mov x0, #DEPTH
        bl deep
        cmp x0, #DEPTH
        b.ne wrong
        mov x0, #5
        bl first
        cmp x0, #8
        b.ne wrong
        mov x20, sp
        mov x0, #3
        bl left
back:   mov x9, sp
        cmp x9, x20
        b.ne wrong
        bl forks
        cbz x0, child
        bl shares
        cmp x0, #3
        b.ne wrong
        bl sends
        cmp x0, #1
        b.ne wrong
        bl threads
        cmp x0, #DEPTH
        b.ne wrong
        subs x22, x22, #1
        b.ne round
fine:   mov x0, #42
        b exit
child:  mov x0, #7
        b exit
wrong:  mov x0, #1
exit:   mov x8, #94
        svc #0
        .type deep, @function
deep:   paciasp
        stp x29, x30, [sp, #-16]!
        mov x29, sp
        cbz x0, 1f
        sub x0, x0, #1
        bl deep
        add x0, x0, #1
        ldp x29, x30, [sp], #16
        autiasp
        ret
1:      ldp x29, x30, [sp], #16
        autiasp
        ret
        .size deep, . - deep
        .type waits, @function
waits:  stp x29, x30, [sp, #-32]!
1:      mov x0, #0
        add x1, sp, #16
        mov x2, #1
        mov x8, #63
        svc #0
        cmp x0, #0
        b.gt 1b
        mov x0, #9
        ldp x29, x30, [sp], #32
        ret
        .size waits, . - waits
        .type crowds, @function
crowds: paciasp
        stp x29, x30, [sp, #-16]!
        cbz x0, 1f
        sub x0, x0, #1
        bl crowds
        add x21, x21, #1
        ldp x29, x30, [sp], #16
        autiasp
        ret
1:      mov x21, #0
        bl forks
        ldp x29, x30, [sp], #16
        autiasp
        ret
        .size crowds, . - crowds
        .type leaf, @function
leaf:   add x0, x0, #3
        ret
        .size leaf, . - leaf
        .type first, @function
first:  mov x1, x0
        b last
        .size first, . - first
        .type last, @function
last:   stp x29, x30, [sp, #-16]!
        bl leaf
        ldp x29, x30, [sp], #16
        ret
        .size last, . - last
        .type left, @function
left:   stp x29, x30, [sp, #-16]!
        subs x0, x0, #1
        b.eq 1f
        bl left
1:      bl jumps
        ldp x29, x30, [sp], #16
        ret
        .size left, . - left
        .type jumps, @function
jumps:  mov sp, x20
        b back
        .size jumps, . - jumps
        .type forks, @function
forks:  mov x0, #17
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x4, #0
        mov x8, #220
        svc #0
        cbz x0, 1f
        sub sp, sp, #16
        mov x0, #-1
        mov x1, sp
        mov x2, #0
        mov x3, #0
        mov x8, #260            // wait4(-1, status, 0, 0)
        svc #0
        ldr w5, [sp], #16
        cmp w5, #0x700
        b.eq 1f
        brk #1
1:      ret
        .size forks, . - forks
        .type shares, @function
shares: stp x29, x30, [sp, #-16]!
        mov x0, #0x4111         // clone(VM|VFORK|SIGCHLD)
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x4, #0
        mov x8, #220
        svc #0
        cbnz x0, 1f
        bl leaf
        mov x0, #0
        mov x8, #93
        svc #0
1:      mov x0, #-1
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x8, #260
        svc #0
        mov x0, #0
        bl leaf
        ldp x29, x30, [sp], #16
        ret
        .size shares, . - shares
        .type sends, @function
sends:  stp x29, x30, [sp, #-16]!
        adrp x9, seen
        str wzr, [x9, :lo12:seen]
        mov x8, #172
        svc #0
        mov x1, #10
        mov x8, #129
        svc #0
        adrp x9, seen
        ldr w0, [x9, :lo12:seen]
        ldp x29, x30, [sp], #16
        ret
        .size sends, . - sends
handle: stp x29, x30, [sp, #-16]!
        mov x0, #0
        bl leaf
        sub x0, x0, #2
        adrp x9, seen
        str w0, [x9, :lo12:seen]
        ldp x29, x30, [sp], #16
        ret
        .type threads, @function
threads: stp x29, x30, [sp, #-16]!
        adrp x9, done
        str wzr, [x9, :lo12:done]
        mov w10, #-1
        adrp x4, owner
        add x4, x4, :lo12:owner
        str w10, [x4]
        mov x0, #0xf00          // clone(VM|FS|FILES|SIGHAND|THREAD|SYSVSEM|CHILD_CLEARTID, stack)
        movk x0, #0x25, lsl #16
        adrp x1, top
        add x1, x1, :lo12:top
        mov x2, #0
        mov x3, #0
        mov x8, #220
        svc #0
        cbz x0, 2f
        mov x0, #DEPTH
        bl deep
1:      mov x8, #124            // sched_yield
        svc #0
        adrp x9, owner
        ldr w10, [x9, :lo12:owner]
        cbnz w10, 1b
        adrp x9, done
        ldr w0, [x9, :lo12:done]
        ldp x29, x30, [sp], #16
        ret
2:      mov x0, #DEPTH
        bl deep
        adrp x9, done
        str w0, [x9, :lo12:done]
        mov x0, #0
        mov x8, #93
        svc #0
        brk #1
        .size threads, . - threads
        .data
        .align 3
action: .quad handle, 0, 0, 0
seen:   .long 0
done:   .long 0
owner:  .long 0
        .bss
        .align 4
        .space 65536
top:    .space 64
