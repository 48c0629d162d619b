# Calls and returns: the return address that a callee sees must be the original one.

.include "layout.inc"

HAZARD call_rel
    lea rbx, [rbx + 1]
SITE
    call leaf
    lea rsi, [rsi + 1]
    ret
END

HAZARD call_register
    lea r11, [rip + leaf]
SITE
    call r11
    lea rsi, [rsi + 1]
    ret
END

# The target is read with RSP as it is before the return address is pushed.
HAZARD call_stack
    lea rax, [rip + leaf]
    sub rsp, 16
    mov [rsp + 8], rax
SITE
    call [rsp + 8]
    add rsp, 16
    ret
END

HAZARD call_stack_indexed
    lea rax, [rip + leaf]
    mov ebx, 2
    sub rsp, 32
    mov [rsp + 24], rax
SITE
    call [rsp + rbx*8 + 8]
    add rsp, 32
    ret
END

# Code on the stack, and the target is RSP before the push: mov rax, [rsp]; ret
HAZARD call_rsp
    mov rax, 0xc324048b48
    push rax
SITE
    call rsp
    lea rsi, [rsi + 1]
    pop rdx
    ret
END

HAZARD call_memory
    lea rdi, [rip + leaf_table]
SITE
    call [rdi]
    lea rsi, [rsi + 1]
    ret
END

HAZARD call_memory_extended
    lea r13, [rip + leaf_table - 0x100]
    and eax, 3
SITE
    call [r13 + rax*8 + 0x100]
    lea rsi, [rsi + 1]
    ret
END

HAZARD call_table
    and eax, 3
SITE
    call [leaf_table + rax*8]
    lea rsi, [rsi + 1]
    ret
END

# How position-independent 32-bit code finds itself: the value is an output.
HAZARD call_next
    lea rbx, [rbx + 1]
SITE
    call 1f
1:  pop rax
    lea rsi, [rsi + 1]
    ret
END

HAZARD call_behind
    lea rbx, [rbx + 1]
SITE
    call 1f
    lea rsi, [rsi + 1]
1:  pop rax
    lea rdi, [rdi + 1]
    ret
END

HAZARD call_drops_arguments
    push rax
    push rbx
SITE
    call leaf_drop
    lea rsi, [rsi + 1]
    ret
END

# The callee comes back to the site itself.
HAZARD call_back_to_site
    xor ebx, ebx
SITE
    cmp ebx, 3
    jae 1f
    inc ebx
    lea rax, [rip + hz_call_back_to_site_site]
    push rax
    jmp leaf
1:  ret
END

# As compilers call through a register where speculation is to be kept away.
HAZARD call_retpoline
    lea r11, [rip + leaf]
SITE
    call 2f
    lea rsi, [rsi + 1]
    ret
1:  pause
    jmp 1b
2:  call 3f
    jmp 1b
3:  mov [rsp], r11
    ret
END

HAZARD ret
    lea rbx, [rbx + 1]
SITE
    ret
END

HAZARD ret_rep
    lea rbx, [rbx + 1]
SITE
    rep ret
END

# The runner sees RSP 16 bytes higher.
HAZARD ret_imm16
    lea rbx, [rbx + 1]
SITE
    ret 16
END

HAZARD ret_pushed
    lea rax, [rip + 1f]
    push rax
SITE
    ret
    lea rbx, [rbx + 1]
1:  lea rsi, [rsi + 1]
    ret
END
