# The stack pointer as an operand: wrong as soon as a detour has pushed something of its own.

.include "layout.inc"

HAZARD push_rsp
    lea rbx, [rbx + 1]
SITE
    push rsp
    pop rax
    lea rdx, [rdx + 1]
    ret
END

HAZARD pop_rsp
    mov rax, rsp
    push rax
SITE
    pop rsp
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

# The address is computed after the pop.
HAZARD pop_stack
    push rax
    push rbx
SITE
    pop qword ptr [rsp]
    lea rsi, [rsi + 1]
    pop rdx
    ret
END

HAZARD push_stack
    lea rbx, [rbx + 1]
SITE
    push qword ptr [rsp + 8]
    lea rsi, [rsi + 1]
    pop rdx
    ret
END

HAZARD push_imm8
    lea rbx, [rbx + 1]
SITE
    push -5
    pop rax
    lea rsi, [rsi + 1]
    ret
END

HAZARD push_imm32
    lea rbx, [rbx + 1]
SITE
    push -0x12345678
    pop rax
    lea rsi, [rsi + 1]
    ret
END

HAZARD push_imm16
    lea rbx, [rbx + 1]
SITE
    .byte 0x66, 0x68, 0x34, 0x12
    mov ax, [rsp]
    lea rsp, [rsp + 2]
    ret
END

HAZARD push_register
    lea rbx, [rbx + 1]
SITE
    push r13
    push rbx
    pop rax
    pop rdx
    lea rsi, [rsi + 1]
    ret
END

HAZARD push_segment
    lea rbx, [rbx + 1]
SITE
    push fs
    pop rax
    lea rsi, [rsi + 1]
    ret
END

HAZARD push_flags
    add rax, rbx
SITE
    pushfq
    pop rdx
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

HAZARD pop_flags
    and eax, 0xcd5
    push rax
SITE
    popfq
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

# Interrupts are on only in the shadow of one instruction.
HAZARD pop_flags_interrupts
    push 0x202
SITE
    popfq
    cli
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

HAZARD enter
    lea rbx, [rbx + 1]
SITE
    enter 32, 0
    mov [rsp + 8], rax
    leave
    lea rsi, [rsi + 1]
    ret
END

HAZARD enter_nested
    lea rbp, [rip + scratch + 128]
SITE
    enter 32, 2
    mov rdx, [rbp - 8]
    leave
    lea rsi, [rsi + 1]
    ret
END

HAZARD leave
    push rbp
    mov rbp, rsp
    sub rsp, 24
SITE
    leave
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD mov_from_rsp
    lea rbx, [rbx + 1]
SITE
    mov rbp, rsp
    lea rsi, [rsi + 1]
    ret
END

HAZARD lea_from_rsp
    lea rbx, [rbx + 1]
SITE
    lea rax, [rsp + rcx*2 - 8]
    lea rsi, [rsi + 1]
    ret
END

HAZARD load_from_stack
    lea rbx, [rbx + 1]
SITE
    mov rax, [rsp + 16]
    lea rsi, [rsi + 1]
    ret
END

HAZARD store_to_stack
    lea rbx, [rbx + 1]
SITE
    mov [rsp + 24], rax
    lea rsi, [rsi + 1]
    ret
END

HAZARD sub_rsp
    lea rbx, [rbx + 1]
SITE
    sub rsp, 0x28
    mov [rsp + 8], rax
    add rsp, 0x28
    ret
END

HAZARD and_rsp
    mov rbp, rsp
SITE
    and rsp, -64
    mov rdx, rsp
    mov rsp, rbp
    ret
END

HAZARD xchg_rsp
    mov rax, rsp
    sub rax, 64
SITE
    xchg rax, rsp
    mov rdx, rsp
    xchg rax, rsp
    ret
END

HAZARD mov_to_rsp
    mov rbp, rsp
    lea rax, [rsp - 64]
SITE
    mov rsp, rax
    push rbx
    pop rdx
    mov rsp, rbp
    ret
END

HAZARD iretq
    mov rdx, rsp
    push 0x18
    push rdx
    push 0x46
    push 0x10
    lea rax, [rip + 1f]
    push rax
SITE
    iretq
    lea rbx, [rbx + 1]
1:  lea rsi, [rsi + 1]
    ret
END
