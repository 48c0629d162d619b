# Functions with a probe on any instruction from the site on: what they share a detour with matters.

.include "layout.inc"

# Nothing but short instructions; flags live from the first on.
HAZARD neighbours_short
    cmp rax, rbx
SITE
    cmovb rcx, rdx
    setb dl
    push rax
    push rbx
    pop rax
    pop rbx
    nop
    adc rsi, rdi
    inc r8d
    xchg r9, r10
    cwde
    ret
END

# A loop that begins and ends among them, with a branch over an instruction.
HAZARD neighbours_loop
    and ecx, 7
    inc ecx
SITE
    inc edx
1:  inc ebx
    test bl, 1
    jz 2f
    inc esi
2:  dec ecx
    jnz 1b
    cld
    ret
END

# LOOP back to the first of them, and JRCXZ over the last.
HAZARD neighbours_narrow
    and ecx, 3
    inc ecx
SITE
    inc edx
    loop hz_neighbours_narrow_site
    mov ecx, eax
    jrcxz 1f
    inc ebx
1:  inc esi
    ret
END

# Operands relative to RIP, a call, what it returns to, and a way round it.
HAZARD neighbours_mixed
    test al, 1
SITE
    mov rax, [rip + scratch + 8]
    lea rdi, [rip + scratch]
    jnz 1f
    add [rip + scratch + 16], rax
    call leaf
1:  push rsp
    pop rbp
    sub rbp, rsp
    xor rax, [rdi + 8]
    cmp byte ptr [rip + scratch + 3], 7
    seta al
    ret
END
