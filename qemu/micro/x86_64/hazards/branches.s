# Branches: forms that exist only with an 8-bit displacement, branches into the bytes a patch would cover, indirect ones.

.include "layout.inc"

# Back to an instruction before the site.
HAZARD loop_back
    and ecx, 3
    inc ecx
1:  lea rdx, [rdx + 3]
SITE
    loop 1b
    lea rbx, [rbx + 1]
    ret
END

HAZARD loop_forward
    and ecx, 3
    lea rdx, [rdx + 3]
SITE
    loop 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

# Every turn is a hit.
HAZARD loop_self
    and ecx, 3
    inc ecx
SITE
    loop hz_loop_self_site
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
    ret
END

HAZARD loope
    and ecx, 3
    inc ecx
1:  lea rdx, [rdx + 1]
    test dl, 3
SITE
    loope 1b
    lea rbx, [rbx + 1]
    ret
END

HAZARD loopne
    and ecx, 7
    inc ecx
1:  lea rdx, [rdx + 1]
    test dl, 3
SITE
    loopne 1b
    lea rbx, [rbx + 1]
    ret
END

# With an address-size prefix the counter is ECX and the rest of RCX is cleared.
HAZARD loop_ecx
    or rcx, rdx
    and cl, 3
    mov ch, 0
    lea rax, [rcx - 1]
    mov ecx, 2
SITE
    addr32 loop 1f
    lea rbx, [rbx + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jrcxz
    mov rax, rcx
SITE
    jrcxz 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jecxz
    shl rcx, 32
SITE
    jecxz 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jcc_short
    cmp rax, rbx
SITE
    jb 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jcc_near
    cmp rax, rbx
SITE
    {disp32} jg 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

# The flags of the input decide.
HAZARD jp_short
    lea rax, [rax + rbx]
SITE
    jp 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

# Both branches are in the bytes of a 5-byte patch, and both must be widened.
HAZARD jcc_pair
    lea rax, [rax + 1]
SITE
    jz 1f
    js 2f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
2:  lea rdi, [rdi + 1]
    ret
END

# The target lies inside the bytes of a 5-byte patch.
HAZARD jcc_into_region
    test al, al
SITE
    jz 1f
    inc edx
1:  inc ebx
    inc esi
    lea rbp, [rbp + 1]
    ret
END

# Two branches that must be widened, and the first one's target between them in the region.
HAZARD jcc_over_jcc
    lea rax, [rax + 1]
SITE
    jc 1f
    jz 2f
1:  lea rbx, [rbx + 1]
2:  lea rsi, [rsi + 1]
    ret
END

# A branch behind the site comes back to the second instruction of the region.
HAZARD jump_back_into_region
    and ecx, 3
    inc ecx
SITE
    inc edx
1:  inc ebx
    dec ecx
    jnz 1b
    lea rbp, [rbp + 1]
    ret
END

# A branch behind the site comes back to the site: every turn is a hit.
HAZARD jump_back_to_site
    and ecx, 3
    inc ecx
SITE
    lea rdx, [rdx + rcx*2 + 0x12345678]
    dec ecx
    jnz hz_jump_back_to_site_site
    lea rbp, [rbp + 1]
    ret
END

HAZARD jcc_self
    cmp eax, eax
SITE
    jne hz_jcc_self_site
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
    ret
END

HAZARD jmp_short
    lea rax, [rax + 1]
SITE
    jmp 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jmp_near
    lea rax, [rax + 1]
SITE
    {disp32} jmp 1f
    lea rbx, [rbx + 1]
    lea rbp, [rbp + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jmp_tail_call
    lea rsi, [rsi + 1]
SITE
    jmp leaf
END

HAZARD jmp_register
    lea rax, [rip + 1f]
SITE
    jmp rax
    lea rbx, [rbx + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jmp_register_extended
    lea r11, [rip + 1f]
SITE
    jmp r11
    lea rbx, [rbx + 1]
1:  lea rsi, [rsi + 1]
    ret
END

HAZARD jmp_stack
    lea rax, [rip + 1f]
    push rax
SITE
    jmp [rsp]
    lea rbx, [rbx + 1]
1:  pop rdx
    ret
END

HAZARD jmp_memory
    lea r12, [rip + leaf_table]
SITE
    jmp [r12]
END

HAZARD jmp_table
    and eax, 1
SITE
    jmp [1f + rax*8]
2:  lea rbx, [rbx + 1]
3:  lea rsi, [rsi + 1]
    ret
END
    .pushsection .data
1:  .quad 2b, 3b
    .popsection

# A long way to the target: a displaced copy may not reach it with the same displacement.
HAZARD jcc_tail
    test rax, rax
SITE
    js leaf
    lea rbx, [rbx + 1]
    ret
END
