# Operands relative to the instruction pointer: every place a displacement can have in an instruction.

.include "layout.inc"

HAZARD rip_load
    lea rbx, [rbx + 1]
SITE
    mov rax, [rip + scratch]
    lea rdx, [rax + 1]
    ret
END

# REX.B means nothing here: still relative to RIP, and not R13.
HAZARD rip_load_rex_b
    lea rbx, [rbx + 1]
SITE
    .byte 0x49, 0x8b, 0x05
    .long scratch - 1f
1:  lea rdx, [rax + 1]
    ret
END

HAZARD rip_load_r15
    lea rbx, [rbx + 1]
SITE
    mov r15, [rip + scratch + 8]
    lea rdx, [r15 + 1]
    ret
END

HAZARD rip_load_byte_extended
    lea rbx, [rbx + 1]
SITE
    movsx r9, byte ptr [rip + scratch + 3]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_store
    lea rbx, [rbx + 1]
SITE
    mov [rip + scratch + 16], rax
    lea rdx, [rdx + 1]
    ret
END

# Immediates behind the displacement.
HAZARD rip_store_imm8
    lea rbx, [rbx + 1]
SITE
    mov byte ptr [rip + scratch + 24], 0x5a
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_store_imm16
    lea rbx, [rbx + 1]
SITE
    mov word ptr [rip + scratch + 26], 0x1234
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_store_imm32
    lea rbx, [rbx + 1]
SITE
    mov qword ptr [rip + scratch + 32], 0x12345678
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_cmp_imm8
    lea rbx, [rbx + 1]
SITE
    cmp dword ptr [rip + scratch + 4], 7
    lea rdx, [rdx + 1]
    seta al
    ret
END

HAZARD rip_test_imm32
    lea rbx, [rbx + 1]
SITE
    test dword ptr [rip + scratch + 4], 0x10203040
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_imul_imm8
    lea rbx, [rbx + 1]
SITE
    imul rax, [rip + scratch + 8], 3
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_bt_imm8
    lea rbx, [rbx + 1]
SITE
    bt qword ptr [rip + scratch + 8], 13
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_shld_imm8
    lea rbx, [rbx + 1]
SITE
    shld [rip + scratch + 8], rax, 5
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_inc
    lea rbx, [rbx + 1]
SITE
    inc qword ptr [rip + scratch + 40]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_lock_add
    lea rbx, [rbx + 1]
SITE
    lock add qword ptr [rip + scratch + 40], 5
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_xchg
    lea rbx, [rbx + 1]
SITE
    xchg rax, [rip + scratch + 48]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_lea
    lea rbx, [rbx + 1]
SITE
    lea rax, [rip + scratch]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_lea_next
    lea rbx, [rbx + 1]
SITE
    lea rax, [rip + 0]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_push
    lea rbx, [rbx + 1]
SITE
    push qword ptr [rip + scratch + 8]
    lea rdx, [rdx + 1]
    pop rax
    ret
END

HAZARD rip_pop
    push rax
SITE
    pop qword ptr [rip + scratch + 56]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_jmp
    lea rbx, [rbx + 1]
SITE
    jmp [rip + leaf_pointer]
END

HAZARD rip_call
    lea rbx, [rbx + 1]
SITE
    call [rip + leaf_pointer]
    lea rsi, [rsi + 1]
    ret
END

# Address-size prefix: the address is cut to 32 bits.
HAZARD eip_lea
    lea rbx, [rbx + 1]
SITE
    .byte 0x67, 0x48, 0x8d, 0x05
    .long scratch - 1f
1:  lea rdx, [rdx + 1]
    ret
END

HAZARD eip_load
    lea rbx, [rbx + 1]
SITE
    .byte 0x67, 0x8b, 0x05
    .long scratch - 1f
1:  lea rdx, [rdx + 1]
    ret
END

HAZARD eip_store_imm8
    lea rbx, [rbx + 1]
SITE
    .byte 0x67, 0xc6, 0x05
    .long scratch + 60 - 1f
    .byte 0x77
1:  lea rdx, [rdx + 1]
    ret
END

HAZARD rip_sse_load
    lea rbx, [rbx + 1]
SITE
    movups xmm0, [rip + scratch + 64]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_sse_store
    lea rbx, [rbx + 1]
SITE
    movups [rip + scratch + 80], xmm1
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_sse_imm8
    lea rbx, [rbx + 1]
SITE
    shufps xmm0, [rip + scratch + 64], 0x1b
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_cmpxchg16b
    mov rax, [rip + scratch + 64]
    mov rdx, [rip + scratch + 72]
SITE
    lock cmpxchg16b [rip + scratch + 64]
    lea rsi, [rsi + 1]
    ret
END

# Relative to RIP and to a segment's base, as Linux reads per-CPU variables.
HAZARD rip_gs_load
    lea rbx, [rbx + 1]
SITE
    mov rax, gs:[rip + scratch]
    lea rdx, [rdx + 1]
    ret
END

HAZARD rip_gs_inc
    lea rbx, [rbx + 1]
SITE
    inc dword ptr gs:[rip + scratch + 4]
    lea rdx, [rdx + 1]
    ret
END
