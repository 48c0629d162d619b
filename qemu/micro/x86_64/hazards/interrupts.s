# Interrupts and traps that arrive in the midst of what is displaced.

.include "layout.inc"

# Every turn of the instruction may be the last before an interrupt, after which it continues where it was.
HAZARD interrupted_rep
    cld
    mov qword ptr [rip + interrupted_rep_at], 0
    call ticks_on
    sti
1:  lea rdi, [rip + long_buffer]
    mov ecx, LONG_BUFFER
SITE
    rep stosb
    cmp qword ptr [rip + interrupted_rep_at], 0
    je 1b
    call ticks_off
    lea rdx, [rip + long_buffer + LONG_BUFFER]
    sub rdx, rdi
    mov bl, [rdi - 1]
    ret
END

# An interrupt is pending, and waits until the instruction behind has run: the handler sees one more in RDX.
HAZARD interrupt_behind_sti
    call ticks_on
    call wait_for_tick
    mov rbx, rdx
SITE
    sti
    lea rdx, [rdx + 1]
    lea rdx, [rdx + 2]
    lea rdx, [rdx + 4]
    call ticks_off
    mov rax, [rip + tick_rdx]
    sub rax, rbx
    ret
END

HAZARD interrupt_behind_popf
    call ticks_on
    call wait_for_tick
    mov rbx, rdx
    push 0x202
SITE
    popfq
    lea rdx, [rdx + 1]
    lea rdx, [rdx + 2]
    lea rdx, [rdx + 4]
    call ticks_off
    mov rax, [rip + tick_rdx]
    sub rax, rbx
    ret
END

# A single-step trap comes after the instruction behind the one that asked for it; its handler asks for no more.
HAZARD trap_behind_popf
    mov qword ptr [rip + trap_rdx], 0
    mov rbx, rdx
    push 0x102
SITE
    popfq
    lea rdx, [rdx + 1]
    lea rdx, [rdx + 2]
    lea rdx, [rdx + 4]
    mov rax, [rip + trap_rdx]
    sub rax, rbx
    ret
END
