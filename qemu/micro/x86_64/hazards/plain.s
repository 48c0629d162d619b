# Instructions without a trap in them, and what reads or writes flags: a detour must leave each alone.

.include "layout.inc"

# Where Linux calls its tracer from.
HAZARD nop5
SITE
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    lea rdx, [rdx + 1]
    ret
END

HAZARD nop1
    lea rbx, [rbx + 1]
SITE
    nop
    nop
    nop
    lea rdx, [rdx + 1]
    ret
END

HAZARD nop2
    lea rbx, [rbx + 1]
SITE
    .byte 0x66, 0x90
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD mov_imm32
    lea rbx, [rbx + 1]
SITE
    mov eax, 0x12345678
    lea rdx, [rdx + 1]
    ret
END

HAZARD mov_imm64
    lea rbx, [rbx + 1]
SITE
    movabs rax, 0x123456789abcdef0
    lea rdx, [rdx + 1]
    ret
END

HAZARD mov_absolute_load
    lea rbx, [rbx + 1]
SITE
    movabs rax, [scratch]
    lea rdx, [rdx + 1]
    ret
END

HAZARD mov_absolute_store
    lea rbx, [rbx + 1]
SITE
    movabs [scratch + 5], al
    lea rdx, [rdx + 1]
    ret
END

HAZARD mov_high_byte
    lea rbx, [rbx + 1]
SITE
    mov ah, bl
    mov dh, ah
    lea rsi, [rsi + 1]
    ret
END

HAZARD add
    lea rbx, [rbx + 1]
SITE
    add rax, rbx
    lea rdx, [rdx + 1]
    ret
END

HAZARD add_imm32
    lea rbx, [rbx + 1]
SITE
    add rax, 0x12345678
    lea rdx, [rdx + 1]
    ret
END

# These read flags that the instructions before the site have set.
HAZARD adc
    add rax, rbx
SITE
    adc rdx, rcx
    lea rsi, [rsi + 1]
    ret
END

HAZARD sbb
    cmp rax, rbx
SITE
    sbb rdx, rdx
    lea rsi, [rsi + 1]
    ret
END

HAZARD rcl
    add rax, rbx
SITE
    rcl rdx, 1
    lea rsi, [rsi + 1]
    ret
END

HAZARD cmov
    cmp rax, rbx
SITE
    cmovg rdx, rcx
    lea rsi, [rsi + 1]
    ret
END

HAZARD setcc
    cmp rax, rbx
SITE
    setle al
    lea rsi, [rsi + 1]
    ret
END

# Only the overflow flag decides, which `lahf` does not keep.
HAZARD seto
    add rax, rbx
SITE
    seto dl
    lea rsi, [rsi + 1]
    ret
END

# `inc` keeps the carry.
HAZARD inc_keeps_carry
    add rax, rbx
SITE
    inc rdx
    adc rcx, 0
    lea rsi, [rsi + 1]
    ret
END

HAZARD lahf
    cmp rax, rbx
SITE
    lahf
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD sahf
    lea rbx, [rbx + 1]
SITE
    sahf
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD stc
    lea rbx, [rbx + 1]
SITE
    stc
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD cmc
    lea rbx, [rbx + 1]
SITE
    cmc
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD std
    lea rbx, [rbx + 1]
SITE
    std
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD cld
    lea rbx, [rbx + 1]
SITE
    cld
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD bt_register
    lea rdi, [rdi + 1]
SITE
    bt rax, rbx
    lea rdx, [rdx + 1]
    ret
END

HAZARD bts_memory
    lea rdi, [rip + scratch + 32]
    and eax, 0x7f
SITE
    bts [rdi], rax
    lea rdx, [rdx + 1]
    ret
END

HAZARD mul
    lea rbx, [rbx + 1]
SITE
    mul rbx
    lea rsi, [rsi + 1]
    ret
END

HAZARD imul_imm8
    lea rbx, [rbx + 1]
SITE
    imul rax, rbx, 7
    lea rsi, [rsi + 1]
    ret
END

HAZARD div
    xor edx, edx
    or ebx, 1
SITE
    div rbx
    lea rsi, [rsi + 1]
    ret
END

HAZARD cqo
    lea rbx, [rbx + 1]
SITE
    cqo
    lea rsi, [rsi + 1]
    ret
END

# A count of zero leaves the flags alone.
HAZARD shl_cl
    add rbx, rdx
SITE
    shl rax, cl
    lea rsi, [rsi + 1]
    ret
END

HAZARD shrd_cl
    add rbx, rdx
SITE
    shrd rax, rbx, cl
    lea rsi, [rsi + 1]
    ret
END

HAZARD bswap
    lea rbx, [rbx + 1]
SITE
    bswap r10
    lea rsi, [rsi + 1]
    ret
END

HAZARD movsxd
    lea rbx, [rbx + 1]
SITE
    movsxd rax, edx
    lea rsi, [rsi + 1]
    ret
END

# The upper half of the destination is cleared.
HAZARD mov_clears_upper_half
    lea rbx, [rbx + 1]
SITE
    mov eax, eax
    lea rsi, [rsi + 1]
    ret
END

HAZARD xchg_register
    lea rbx, [rbx + 1]
SITE
    xchg rax, r9
    lea rsi, [rsi + 1]
    ret
END
